"""Fault schedules on a virtual clock, from the command line."""
