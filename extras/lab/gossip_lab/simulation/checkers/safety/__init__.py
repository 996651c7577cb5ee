"""Safety checkers: events that must never happen."""

from . import (
    commit_transfer,
    contents,
    cross_shard,
    end_of_training,
    results,
    trained_state,
    updates,
)
from .end_of_training import AllPeersEnd, IdenticalFinalStates
from .evidence import (
    NoRequestsToDeadPeers,
    SkipOnConnectionClose,
)
from .exchange import may_still_push, members_of, targets_of
from .membership import memory_s
from .micro_batches import IdenticalGradients, MicroBatchesCountedOnce, StageChecker
from .robustness import BoundedStores, NoExceptionsOrFloods, TimersAndHalt, as_violation
from .rounds import rule_has_enough
