"""State transfer to peers that join, return or have fallen behind."""

from .attestation import Poll
from .chunks import PieceFetcher, PieceManifest, outline_of
from .donor import Donor, SnapshotExpired, attested_digest, parts_of
from .receiver import DonorTimeout, Recovery
