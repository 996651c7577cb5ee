"""Who takes over whose state."""

from .fetching import (
    AsksForWhatIsMissing,
    FetchesInMeasure,
    GivesInMeasure,
)
from .helping import (
    RemindsTheSilent,
    SaysThatNoRoundComes,
    StaysForTakers,
)
from .vouching import (
    AnswersForTheRoundAsked,
    NamesARoundToCome,
    TakesNoFewersWord,
)
