"""Traffic checkers: how often a peer sends what."""

from . import answers
from .rates import AsksInMeasure, FallsSilent, NewsGrowOld, SpeaksInMeasure
