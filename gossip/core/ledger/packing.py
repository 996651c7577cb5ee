"""Packing of the ledger as compressed compact JSON, so that the tables of a thousand peers fit in a
message."""

from __future__ import annotations

import json
import zlib
from typing import Any

from gossip.core.settings import LISTS_MAX, UNPACKED_BYTES_MAX, VALUES_MAX


def pack_json(document: Any) -> bytes:
    """Return the packed document. Equal documents result in equal bytes, because the bytes are
    hashed."""
    return squeeze(json.dumps(document, separators=(",", ":")).encode())


def unpack_json(data: bytes) -> Any:
    """Return the document from the result of ``pack_json``. Raises ValueError if the data is
    invalid or has too many lists or values."""
    text = stretch(data)
    if text.count(b"[") + text.count(b"{") > LISTS_MAX or text.count(b",") > VALUES_MAX:
        raise ValueError(f"the data has more than {LISTS_MAX} lists or {VALUES_MAX} values")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the data is nested too deep") from error


def squeeze(text: bytes) -> bytes:
    """Return the compressed text."""
    return zlib.compress(text, level=9)


def stretch(data: bytes) -> bytes:
    """Return the text from the result of ``squeeze``. Raises ValueError if the data is invalid or
    the text is too long."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, UNPACKED_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(f"the data is not compressed: {error}") from error
    if not reader.eof or reader.unused_data:
        raise ValueError(
            f"the data is truncated, or its text is longer than {UNPACKED_BYTES_MAX} bytes"
        )
    return text
