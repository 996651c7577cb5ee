"""Traffic checkers: the number of messages that a peer sends."""

from . import answers
from .rates import NewsGrowOld, SpeaksInMeasure
