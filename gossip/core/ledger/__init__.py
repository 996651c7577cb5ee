"""State that follows from the commits alone, so it is equal on all peers."""

from .audits import AuditTable
from .chain import Lineage, Stance, chain_hash, genesis, header_bytes
from .checkpoint import (
    pack_ledger,
    planned_peers,
    unpack_ledger,
)
from .data_cursor import Ranges
from .data_share import DataShare
from .equivocation import EquivocationWitness
from .ledger import BegunRound, Ledger, Ledgers
from .log import CommitLog, Held, reissue
from .pace import Pace, since_us
from .packing import (
    pack_json,
    squeeze,
    stretch,
    unpack_json,
)
from .rates import agree
from .replicas import DivergenceWatch, compare
from .replicated_state import ReplicatedState, provenance
from .stage_speeds import StageSpeeds, weights_of
from .trust import TrustTable
