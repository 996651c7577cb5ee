"""Checkers of state transfer between peers."""

from . import fetching, vouching
from .helping import RemindsTheSilent, SaysThatNoRoundComes, StaysForTakers
