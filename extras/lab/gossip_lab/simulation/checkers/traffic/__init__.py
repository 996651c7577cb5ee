"""How much peers say."""

from .answers import (
    AnswersOnce,
    CommitsForAReason,
    OffersOnce,
)
from .rates import FallsSilent, SpeaksInMeasure
from .traffic import AsksInMeasure, NewsGrowOld
