"""How much peers say."""

from .answers import (
    AnswersOnce as AnswersOnce,
    CommitsForAReason as CommitsForAReason,
    OffersOnce as OffersOnce,
)
from .rates import FallsSilent as FallsSilent, SpeaksInMeasure as SpeaksInMeasure
from .traffic import AsksInMeasure as AsksInMeasure, NewsGrowOld as NewsGrowOld
