"""How much peers say."""

from .answers import AnswersOnce as AnswersOnce
from .answers import CommitsForAReason as CommitsForAReason
from .answers import OffersOnce as OffersOnce
from .rates import FallsSilent as FallsSilent
from .rates import SpeaksInMeasure as SpeaksInMeasure
from .traffic import AsksInMeasure as AsksInMeasure
from .traffic import NewsGrowOld as NewsGrowOld
