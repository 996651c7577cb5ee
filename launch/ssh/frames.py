"""Frames between launcher and agent over ssh. A frame is one line with a JSON object, after a mark
that separates it from other output of a login shell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from gossip.errors import Malformed

MARK = b"\x1e"  # record separator, as in RFC 7464: no banner or profile begins a line with it
FRAME_BYTES_MAX = 4 * 2**20
CHUNK_BYTES = 256 * 1024
Frame = dict[str, Any]


def encode(frame: Mapping[str, Any]) -> bytes:
    """Encode a frame. Raises: ValueError: The frame is too large, or cannot be written as JSON."""
    line = MARK + json.dumps(frame, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    if len(line) > FRAME_BYTES_MAX:
        raise ValueError(f"the frame has {len(line)} bytes; the maximum is {FRAME_BYTES_MAX}")
    return line


class Decoder:
    """Decodes bytes into frames. ``noise`` contains the last few lines that are not frames."""

    NOISE_LINES = 20

    def __init__(self) -> None:
        self._rest = b""
        self.noise: list[str] = []

    def feed(self, data: bytes) -> list[Frame]:
        """Decode further data. Raises: Malformed: A frame is not a JSON object or is too long, so
        the remote program is no agent."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > FRAME_BYTES_MAX:
            raise Malformed(f"a line of more than {FRAME_BYTES_MAX} bytes")
        return [frame for line in lines if (frame := self._parse(line)) is not None]

    def _parse(self, line: bytes) -> Frame | None:
        # A prompt or an escape sequence without a newline may precede a frame.
        noise, mark, text = line.partition(MARK)
        if noise.strip():
            self.noise = [*self.noise, noise.decode("utf-8", "replace").strip()][
                -self.NOISE_LINES :
            ]
        if not mark:
            return None
        try:
            frame = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"a frame that is not JSON: {text[:80]!r}") from error
        if not isinstance(frame, dict) or not isinstance(frame.get("kind"), str):
            raise Malformed(f"a frame without a kind: {text[:80]!r}")
        return frame


async def read(reader: asyncio.StreamReader, decoder: Decoder) -> AsyncIterator[Frame]:
    """Yield frames until the remote side closes the connection. Raises: Malformed."""
    while data := await reader.read(CHUNK_BYTES):
        for frame in decoder.feed(data):
            yield frame
