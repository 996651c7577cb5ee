"""What may never happen."""
