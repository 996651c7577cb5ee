"""Carries faults out: on what a node sends, on its links, on its process."""
