"""Joins files with parts of a model into one file, tensor by tensor. The memory use does not depend
on the size of the model."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gossip.errors import ConfigError

from .checkpoints import CHUNK_BYTES, Checkpoint, store
from .untrusted import shown, whole

HEADER_BYTES_MAX = 64 * 2**20
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor in one of the files. ``begin``: offset of the tensor's bytes in the file."""

    name: str
    file: BinaryIO
    begin: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def element_bytes(self) -> float:
        """Number of bytes of an element; infinite for an empty tensor."""
        return self.nbytes / max(1, math.prod(self.shape)) if self.nbytes else math.inf


def join_parts(parts: Sequence[Checkpoint], out: Path) -> None:
    """Write a model to a safetensors file, atomically. ``parts``: verified checkpoints that
    together contain the model.

    Raises:
        ConfigError: A file is not a safetensors file, or two files have tensors of the same name.
        OSError: ``out`` cannot be written.
    """
    with ExitStack() as opened:
        found: dict[str, _Piece] = {}
        for part, name in [(each, name) for each in parts for name in each.model_files]:
            where = part.path / name
            for piece in _pieces_in(opened.enter_context(part.open(name)), where):
                if piece.name in found:
                    raise ConfigError(f"{shown(where)}: another stage has {shown(piece.name)}, too")
                found[piece.name] = piece
        # Tensors with the largest elements come first, so that each tensor is aligned to the size
        # of its elements.
        ordered = sorted(found.values(), key=lambda each: (-each.element_bytes, each.name))
        store(out, _written(ordered))


def _pieces_in(file: BinaryIO, where: Path) -> list[_Piece]:
    try:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > HEADER_BYTES_MAX:
            raise ValueError(f"its header has {length} bytes")
        header = json.loads(file.read(length))
        size = file.seek(0, 2) - 8 - length
        return [
            _piece(key, entry, file, (8 + length, size))
            for key, entry in header.items()
            if key != "__metadata__"
        ]
    except (struct.error, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{shown(where)} is not a safetensors file: {shown(error)}") from error


def _piece(name: str, entry: Any, file: BinaryIO, data: tuple[int, int]) -> _Piece:
    """Return a tensor of a file. ``data``: offset and size of the data section of the file, in
    bytes. Raises ValueError."""
    begin, size = data
    with contextlib.suppress(KeyError, TypeError, ValueError):
        dtype, (first, end) = entry["dtype"], _counts(entry["data_offsets"])
        if first <= end <= size and isinstance(dtype, str):
            shape = _counts(entry["shape"])
            return _Piece(name, file, begin + first, end - first, dtype, shape)
    raise ValueError(f"its tensor {name} has no valid position in the file")


def _counts(values: Any) -> tuple[int, ...]:
    """Return the values, which must be whole numbers from 0. Raises TypeError, ValueError."""
    found = tuple([count for each in values if (count := whole(each)) is not None])
    if len(found) != len(values):
        raise ValueError("no count")
    return found


def _written(pieces: Sequence[_Piece]) -> Iterator[bytes]:
    header, end = {}, 0
    for each in pieces:
        offsets = [end, end := end + each.nbytes]
        header[each.name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield struct.pack("<Q", len(text)) + text
    for each in pieces:
        each.file.seek(each.begin)
        rest = each.nbytes
        while rest:
            chunk = each.file.read(min(rest, CHUNK_BYTES))
            if not chunk:
                raise ConfigError(f"{shown(each.name)} ends too early: was its file changed?")
            rest -= len(chunk)
            yield chunk
