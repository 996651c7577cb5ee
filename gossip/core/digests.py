"""Digest of short data that the core creates itself: the first 16 bytes of SHA-256.

``gossip.vectors`` computes the digests of payloads.
"""

from __future__ import annotations

import hashlib
from typing import Any

from .messages import DIGEST_BYTES


def digest_of(data: Any) -> bytes:
    """Return the digest of ``data``, which is ``DIGEST_BYTES`` long. The memory of ``data`` must be
    contiguous."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]
