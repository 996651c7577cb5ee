"""How much peers say."""

from gossip_lab.simulation.checkers.base import Checker

from .answers import (
    AnswersOnce,
    CommitsForAReason,
    OffersOnce,
)
from .rates import FallsSilent, SpeaksInMeasure
from .traffic import AsksInMeasure, NewsGrowOld

CHECKERS: tuple[type[Checker], ...] = (
    NewsGrowOld,
    AsksInMeasure,
    SpeaksInMeasure,
    FallsSilent,
    AnswersOnce,
    CommitsForAReason,
    OffersOnce,
)
