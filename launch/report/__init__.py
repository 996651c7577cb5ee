"""What a run has left behind, read and said to people."""
