"""Traffic checkers: the number of messages that a peer sends."""

from . import answers
from .rates import AsksInMeasure, FallsSilent, NewsGrowOld, SpeaksInMeasure
