"""Traffic checkers: how often a peer sends what."""

from . import answers
from .rates import FallsSilent, SpeaksInMeasure
from .traffic import AsksInMeasure, NewsGrowOld
