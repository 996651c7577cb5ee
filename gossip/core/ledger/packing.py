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
"""In the JSON: four times the lists of a thousand peers, and half as many values again. All of that
is read within 10 ms."""


def pack_json(document: Any) -> bytes:
    """Equal documents give equal text, which is digested."""
    return squeeze(json.dumps(document, separators=(",", ":")).encode())


def unpack_json(data: bytes) -> Any:
    """Raises: ValueError: It is not what ``pack_json`` gives, or too much."""
    text = stretch(data)
    if text.count(b"[") + text.count(b"{") > LISTS_MAX or text.count(b",") > VALUES_MAX:
        raise ValueError(f"it has more than {LISTS_MAX} lists or {VALUES_MAX} values")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def squeeze(text: bytes) -> bytes:
    """The text, compressed."""
    return zlib.compress(text, LEVEL)


def stretch(data: bytes) -> bytes:
    """Return the text that ``squeeze`` has compressed. Raises: ValueError: The data is something
    else, or the text is too long."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, UNPACKED_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(f"it is not compressed: {error}") from error
    if not reader.eof or reader.unused_data:
        raise ValueError(f"it is cut short, or longer than {UNPACKED_BYTES_MAX} bytes")
    return text
