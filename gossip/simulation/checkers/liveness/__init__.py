"""What must come about once the faults are over, and how soon."""

from .branches import JoinsTheLarger as JoinsTheLarger
from .consensus import (
    ReplicasStayClose as ReplicasStayClose,
    consensus_distance as consensus_distance,
)
from .crashes import CrashCostsLittle as CrashCostsLittle
from .ending import EverybodyEnds as EverybodyEnds
from .fault_free import (
    NobodyWaitsForATrickle as NobodyWaitsForATrickle,
    NothingGoesWrong as NothingGoesWrong,
)
from .liveness import (
    Converges as Converges,
    EverybodyContributes as EverybodyContributes,
    Liveness as Liveness,
    NobodyStarves as NobodyStarves,
    OneLineage as OneLineage,
    RoundsGoOn as RoundsGoOn,
    StopEnds as StopEnds,
)
from .newcomers import (
    CountsWhenItKeepsUp as CountsWhenItKeepsUp,
    WaitsForThoseWhoCome as WaitsForThoseWhoCome,
)
from .promptness import (
    AT_ONCE_S as AT_ONCE_S,
    AsksForWhatItLacks as AsksForWhatItLacks,
    NobodyIsStuck as NobodyIsStuck,
    NobodyWaitsForTheSkipped as NobodyWaitsForTheSkipped,
    OverWhenAllIsThere as OverWhenAllIsThere,
    TakesAStateInstead as TakesAStateInstead,
)
from .pushing import (
    EachReadsItsOwn as EachReadsItsOwn,
    PushesToAll as PushesToAll,
    WaitsForSomebody as WaitsForSomebody,
)
from .waiting import (
    KeepsWhoSpeaks as KeepsWhoSpeaks,
    LetsInWhoIsReady as LetsInWhoIsReady,
    NoRoundStands as NoRoundStands,
    WaitsForNobodyInVain as WaitsForNobodyInVain,
)
