"""Hurts a live run on purpose, and says what it cost."""
