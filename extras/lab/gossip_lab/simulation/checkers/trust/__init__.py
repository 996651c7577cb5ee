"""Checkers of trust: which peers are suspected, and by what evidence."""

from . import lengths, silent, trusting
