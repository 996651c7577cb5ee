"""Peers as tasks of a scheduler."""
