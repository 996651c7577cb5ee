"""Who takes over whose state."""

from gossip_lab.simulation.checkers.base import Checker

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

CHECKERS: tuple[type[Checker], ...] = (
    TakesNoFewersWord,
    AnswersForTheRoundAsked,
    AsksForWhatIsMissing,
    FetchesInMeasure,
    GivesInMeasure,
    NamesARoundToCome,
    RemindsTheSilent,
    SaysThatNoRoundComes,
    StaysForTakers,
)
