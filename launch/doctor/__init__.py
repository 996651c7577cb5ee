"""Examines this machine, and the way to others."""
