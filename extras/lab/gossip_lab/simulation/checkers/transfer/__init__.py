"""Checkers of state transfer: which peer restores the state of which other peer."""

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
