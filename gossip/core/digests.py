"""Digest of short data that the core makes itself: the first 16 bytes of its SHA-256.

Payloads have their own digests (``gossip.vectors``).
"""

from __future__ import annotations

import hashlib
from typing import Any

from .messages import DIGEST_BYTES


def digest_of(data: Any) -> bytes:
    """Return the digest of ``data``, which has contiguous memory. It has ``DIGEST_BYTES`` bytes."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]
