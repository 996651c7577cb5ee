"""What the bytes of an update are: the one place that knows how a vector is cut, compared and summed up."""
