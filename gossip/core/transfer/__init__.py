"""State transfer to peers that join, return or have fallen behind."""

from .attestation import Poll
from .chunks import (
    PIECE_BYTES,
    PieceFetcher,
    PieceManifest,
    outline_of,
)
from .donor import (
    COPIES_MAX,
    TAKERS_MAX,
    Donor,
    SnapshotExpired,
    attested_digest,
    parts_of,
)
from .receiver import REMIND_S, DonorTimeout, Recovery
