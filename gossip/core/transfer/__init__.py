"""Handing over the state of a training to who joins, returns or has lost the thread."""

from .attestation import Poll as Poll
from .chunks import PIECE_BYTES as PIECE_BYTES
from .chunks import PieceFetcher as PieceFetcher
from .chunks import PieceManifest as PieceManifest
from .chunks import outline_of as outline_of
from .donor import COPIES_MAX as COPIES_MAX
from .donor import TAKERS_MAX as TAKERS_MAX
from .donor import Donor as Donor
from .donor import SnapshotExpired as SnapshotExpired
from .donor import attested_digest as attested_digest
from .donor import parts_of as parts_of
from .receiver import REMIND_S as REMIND_S
from .receiver import DonorTimeout as DonorTimeout
from .receiver import Recovery as Recovery
