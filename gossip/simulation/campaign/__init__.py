"""Plays schedules, checks them, makes failing ones small and draws what happened."""
