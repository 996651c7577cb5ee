"""Schedules as data: what a simulated run is, and how one is drawn from a seed."""
