"""Packing of the state that follows from commits: compact JSON, compressed. The tables of a
thousand peers fit in a message."""

from __future__ import annotations

import json
import zlib
from typing import Any

LEVEL = 9
UNPACKED_BYTES_MAX = 320 * 1024
"""Size limit of the JSON, in bytes: twice that of a thousand peers. Longer JSON is not unpacked,
whichever peer sends it."""
LISTS_MAX, VALUES_MAX = 2**14, 3 * 2**14
"""Limits of lists and values in the JSON. The first is four times the lists of a thousand peers.
JSON within both limits is read within 10 ms."""


def pack_json(document: Any) -> bytes:
    """Return the packed document. Equal documents give equal bytes, which are digested."""
    return squeeze(json.dumps(document, separators=(",", ":")).encode())


def unpack_json(data: bytes) -> Any:
    """Return the document that ``pack_json`` has packed. Raises ValueError for other data, and for
    too many lists or values."""
    text = stretch(data)
    if text.count(b"[") + text.count(b"{") > LISTS_MAX or text.count(b",") > VALUES_MAX:
        raise ValueError(f"the data has more than {LISTS_MAX} lists or {VALUES_MAX} values")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the data is nested too deep") from error


def squeeze(text: bytes) -> bytes:
    """Return the compressed text."""
    return zlib.compress(text, LEVEL)


def stretch(data: bytes) -> bytes:
    """Return the text that ``squeeze`` has compressed. Raises ValueError for other data, and if the
    text is too long."""
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
