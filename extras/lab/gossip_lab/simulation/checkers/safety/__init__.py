"""Safety checkers: events that must never happen."""

from . import (
    concluding,
    contents,
    handing_on,
    keeping,
    results,
    together,
    updates,
)
from .concluding import EndsAlike, EverybodyEnds
from .evidence import (
    ClosedIsSkipped,
    NobodyAsksTheDead,
)
from .exchange import is_worth_waiting, members_of, targets_of
from .hygiene import Bounded, NothingRaises, TimersAndHalt, blamed
from .membership import memory_s
from .micro_batches import ComputesAlike, CountsOnce, StageChecker
from .rounds import rule_has_enough
