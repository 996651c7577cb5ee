"""Faults as data: what kinds there are, how they are typed, how they stand in a plan file."""
