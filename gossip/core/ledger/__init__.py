"""What follows from commits alone, and so is the same on every peer."""

from .audits import AuditTable as AuditTable
from .chain import (
    HISTORY_ROUNDS as HISTORY_ROUNDS,
    Lineage as Lineage,
    Stance as Stance,
    chain_hash as chain_hash,
    genesis as genesis,
    header_bytes as header_bytes,
)
from .checkpoint import (
    pack_ledger as pack_ledger,
    planned_peers as planned_peers,
    unpack_ledger as unpack_ledger,
)
from .data_cursor import Ranges as Ranges
from .data_share import DataShare as DataShare
from .equivocation import EquivocationWitness as EquivocationWitness
from .log import (
    LENGTHS_KEPT as LENGTHS_KEPT,
    ROUNDS_KEPT_ALWAYS as ROUNDS_KEPT_ALWAYS,
    CommitLog as CommitLog,
    Held as Held,
    reissue as reissue,
)
from .pace import Pace as Pace, settled_pace as settled_pace, since_us as since_us
from .packing import (
    pack_json as pack_json,
    squeeze as squeeze,
    stretch as stretch,
    unpack_json as unpack_json,
)
from .prefetch import AHEAD_MAX as AHEAD_MAX
from .rates import RATES_MAX as RATES_MAX, agree as agree
from .replicas import DivergenceWatch as DivergenceWatch, compare as compare
from .replicated_state import ReplicatedState as ReplicatedState, provenance as provenance
from .stage_speeds import (
    SPEED_RATIO_MAX as SPEED_RATIO_MAX,
    StageSpeeds as StageSpeeds,
    weights_of as weights_of,
)
from .trust import RECENT as RECENT, TrustTable as TrustTable
