"""Who takes over whose state."""

from .fetching import (
    AsksForWhatIsMissing as AsksForWhatIsMissing,
    FetchesInMeasure as FetchesInMeasure,
    GivesInMeasure as GivesInMeasure,
)
from .helping import (
    RemindsTheSilent as RemindsTheSilent,
    SaysThatNoRoundComes as SaysThatNoRoundComes,
    StaysForTakers as StaysForTakers,
)
from .vouching import (
    AnswersForTheRoundAsked as AnswersForTheRoundAsked,
    NamesARoundToCome as NamesARoundToCome,
    TakesNoFewersWord as TakesNoFewersWord,
)
