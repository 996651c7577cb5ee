"""Who takes over whose state."""

from .fetching import AsksForWhatIsMissing as AsksForWhatIsMissing
from .fetching import FetchesInMeasure as FetchesInMeasure
from .fetching import GivesInMeasure as GivesInMeasure
from .helping import RemindsTheSilent as RemindsTheSilent
from .helping import SaysThatNoRoundComes as SaysThatNoRoundComes
from .helping import StaysForTakers as StaysForTakers
from .vouching import AnswersForTheRoundAsked as AnswersForTheRoundAsked
from .vouching import NamesARoundToCome as NamesARoundToCome
from .vouching import TakesNoFewersWord as TakesNoFewersWord
