"""Digest of short data that the core builds itself: the first 16 bytes of the SHA-256.

The digests of payloads are in ``gossip.vectors``.
"""

from __future__ import annotations

import hashlib
from typing import Any

from .messages import DIGEST_BYTES


def digest_of(data: Any) -> bytes:
    """Return the digest of ``data``, ``DIGEST_BYTES`` long. The memory of ``data`` must be
    contiguous."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]
