"""What follows from commits alone, and so is the same on every peer."""

from .chain import HISTORY_ROUNDS as HISTORY_ROUNDS
from .chain import Lineage as Lineage
from .chain import Stance as Stance
from .chain import chain_hash as chain_hash
from .chain import genesis as genesis
from .chain import header_bytes as header_bytes
from .checkpoint import pack_ledger as pack_ledger
from .checkpoint import planned_peers as planned_peers
from .checkpoint import unpack_ledger as unpack_ledger
from .data_cursor import Ranges as Ranges
from .data_share import DataShare as DataShare
from .equivocation import EquivocationWitness as EquivocationWitness
from .log import ROUNDS_KEPT_ALWAYS as ROUNDS_KEPT_ALWAYS
from .log import CommitLog as CommitLog
from .log import Held as Held
from .log import reissue as reissue
from .pace import since_us as since_us
from .prefetch import AHEAD_MAX as AHEAD_MAX
from .rates import RATES_MAX as RATES_MAX
from .rates import agree as agree
from .replicated_state import ReplicatedState as ReplicatedState
from .replicated_state import provenance as provenance
from .trust import RECENT as RECENT
from .trust import TrustTable as TrustTable
