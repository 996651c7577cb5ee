"""What follows from commits alone, and so is the same on every peer."""
