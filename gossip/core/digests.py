"""What stands for a payload in commits and offers: the first 16 bytes of its SHA-256.

Processors of the last years have instructions for SHA-256, which make it twice as fast as blake2b: 44 us against 84 for 69 KB.
Small things (chains of commits, draws) stay with blake2b, which takes a key and a length.
"""

from __future__ import annotations

import hashlib
from typing import Any

from .messages import DIGEST_BYTES


class Digest:
    """Of data that comes in parts."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.sha256(usedforsecurity=True)

    def update(self, data: Any) -> None:
        self._hash.update(data)

    def digest(self) -> bytes:
        return self._hash.digest()[:DIGEST_BYTES]


def digest_of(data: Any) -> bytes:
    """Of anything with contiguous memory. ``DIGEST_BYTES`` long."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]
