"""Liveness checkers: events that must happen once the faults are over, and their deadlines."""

from gossip_lab.simulation.checkers.base import Checker

from .branches import JoinsTheLarger
from .consensus import (
    ReplicasStayClose,
    consensus_distance,
)
from .crashes import CrashCostsLittle
from .ending import EverybodyEnds
from .fault_free import (
    NobodyWaitsForATrickle,
    NothingGoesWrong,
)
from .liveness import (
    Converges,
    EverybodyContributes,
    Liveness,
    NobodyStarves,
    OneLineage,
    RoundsGoOn,
    StopEnds,
)
from .newcomers import (
    CountsWhenItKeepsUp,
    WaitsForThoseWhoCome,
)
from .promptness import (
    AT_ONCE_S,
    AsksForWhatItLacks,
    NobodyIsStuck,
    NobodyWaitsForTheSkipped,
    OverWhenAllIsThere,
    TakesAStateInstead,
)
from .pushing import (
    EachReadsItsOwn,
    PushesToAll,
    WaitsForSomebody,
)
from .waiting import (
    KeepsWhoSpeaks,
    LetsInWhoIsReady,
    NoRoundStands,
    WaitsForNobodyInVain,
)

CHECKERS: tuple[type[Checker], ...] = (
    PushesToAll,
    WaitsForSomebody,
    EachReadsItsOwn,
    Converges,
    RoundsGoOn,
    NobodyWaitsForTheSkipped,
    WaitsForNobodyInVain,
    LetsInWhoIsReady,
    KeepsWhoSpeaks,
    EverybodyContributes,
    OneLineage,
    JoinsTheLarger,
    ReplicasStayClose,
    AsksForWhatItLacks,
    TakesAStateInstead,
    EverybodyEnds,
    NothingGoesWrong,
    NobodyWaitsForATrickle,
    CountsWhenItKeepsUp,
    WaitsForThoseWhoCome,
)
