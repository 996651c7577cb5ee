"""Handing over the state of a training to who joins, returns or has lost the thread."""

from .attestation import Poll as Poll
from .chunks import (
    PIECE_BYTES as PIECE_BYTES,
    PieceFetcher as PieceFetcher,
    PieceManifest as PieceManifest,
    outline_of as outline_of,
)
from .donor import (
    COPIES_MAX as COPIES_MAX,
    TAKERS_MAX as TAKERS_MAX,
    Donor as Donor,
    SnapshotExpired as SnapshotExpired,
    attested_digest as attested_digest,
    parts_of as parts_of,
)
from .receiver import REMIND_S as REMIND_S, DonorTimeout as DonorTimeout, Recovery as Recovery
