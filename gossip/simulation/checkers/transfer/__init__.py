"""Who takes over whose state."""
