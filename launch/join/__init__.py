"""Joining a run that trains."""
