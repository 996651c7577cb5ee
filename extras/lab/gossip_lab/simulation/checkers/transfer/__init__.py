"""Checkers of state transfer: which peer restores the state of which other peer."""

from . import fetching, vouching
from .helping import RemindsTheSilent, SaysThatNoRoundComes, StaysForTakers
