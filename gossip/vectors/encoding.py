"""Encodings that convert the elements of an update to the bytes of a payload, and back.

    encoding = load_encoding("topk:ratio=0.05")
    raw = encoding.encode(vector, place)
    vector = encoding.decode(raw, len(vector), place)

An encoding is a frozen dataclass. Its options are the fields that have a range (``within``) or are
switches. Only this package interprets the
encoded bytes. The number of bytes depends only on the number of elements, or on the shapes of the
tensors. So a receiver computes sizes from its own model, and never from a message. The names of
encodings are available without an import of torch.

Packed states, and the parameters in gossip rounds, are not encoded. They are sent as they are in
memory (``to_bytes``).
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossip.errors import ConfigError, Malformed, UnknownName
from gossip.specs import read_value, split_options

from .arrays import ByteArray, Vector
from .finite import is_finite

NUMBER_BYTES = 4
WORD_BYTES = 4

BUILT_IN = {
    "float32": "encoding:Float32",
    "bf16": "halves:BFloat16",
    "fp16": "halves:Float16",
    "int8": "blocks:Int8",
    "int4": "blocks:Int4",
    "topk": "sparse:TopK",
    "powersgd": "low_rank:PowerSGD",
}
"""Name of an encoding -> its module in this package, and its class."""


Shape: TypeAlias = tuple[int, ...]
"""Lengths of the dimensions of a tensor. There is at least one dimension."""


def bytes_for(elements: int) -> int:
    """Return the size of a float32 vector of ``elements`` elements in memory, in bytes."""
    return NUMBER_BYTES * elements


def to_bytes(vector: NDArray[Any]) -> ByteArray:
    """Return the bytes of a contiguous vector or of a packed state, without a copy."""
    return np.frombuffer(vector, dtype=np.uint8)


def from_bytes(raw: ByteArray) -> Vector:
    """Return the float32 vector in these bytes, without a copy."""
    return raw.view(np.float32)


def are_finite(raw: ByteArray) -> bool:
    """Whether these bytes are a float32 vector with finite elements only."""
    return len(raw) % NUMBER_BYTES == 0 and is_finite(from_bytes(raw))


class Place(NamedTuple):
    """Seed, round and shard of a payload. They seed the random numbers of an encoding. All peers
    have them, so random numbers are never sent."""

    seed: int
    round_id: int
    shard: int


class Encoding(ABC):
    """Encoding of float32 vectors. The number of encoded bytes is a multiple of 4, because every
    lane accepts such payloads.

    Attributes:
        sparse: Whether only some elements are sent. All other elements are decoded as zeros.
        low_rank: Whether matrices are sent as approximations of low rank, which differ between
            peers.
        shaped: Whether the encoding depends on the shapes of the tensors (``for_shapes``).
        feedback: Whether a peer adds the encoding error of its update to its next update.
    """

    sparse: ClassVar[bool] = False
    low_rank: ClassVar[bool] = False
    shaped: ClassVar[bool] = False
    feedback: bool = False

    @abstractmethod
    def nbytes(self, elements: int) -> int:
        """Return the length in bytes of an encoded vector, a multiple of 4. ``elements``: number of
        elements of the vector, at least 1."""

    def encode(self, vector: Vector, place: Place, into: ByteArray | None = None) -> ByteArray:
        """Return the bytes of a vector, ``(nbytes,)``. If the vector has a non-finite element,
        decoding the bytes raises Malformed.

        Args:
            into: Writable memory for the bytes, with any content; None to allocate memory.
        """
        raw = np.empty(self.nbytes(len(vector)), np.uint8) if into is None else into
        self._write(vector, place, raw)
        return raw

    def decode(
        self,
        raw: ByteArray,
        elements: int,
        place: Place,
        into: Vector | None = None,
    ) -> Vector:
        """Return the decoded vector, ``(elements,)``. All its elements are finite. It is
        bit-identical on every machine.

        Args:
            raw: ``nbytes(elements)`` bytes, from any sender.
            into: Writable memory for the vector; None to allocate memory.
        Raises: Malformed: An element is not finite, or no encoder writes these bytes. The content
        of ``into`` is undefined then.
        """
        vector = np.empty(elements, np.float32) if into is None else into
        self._read(raw, place, vector)
        return vector

    @abstractmethod
    def _write(self, vector: Vector, place: Place, raw: ByteArray) -> None:
        """Fill all of ``raw`` with the encoded vector, as ``encode`` requires."""

    @abstractmethod
    def _read(self, raw: ByteArray, place: Place, vector: Vector) -> None:
        """Fill ``vector`` with the decoded elements, as ``decode`` requires."""

    def for_shapes(self, shapes: tuple[Shape, ...]) -> Encoding:
        """Return the encoding for a vector that consists of tensors of these shapes, in order."""
        return self

    def for_results(self, peers: int) -> Encoding:
        """Return the encoding for results of at most ``peers`` updates, if the updates have this
        encoding."""
        return self


@dataclass(frozen=True)
class Float32(Encoding):
    """float32, as in memory: 4 bytes for each element."""

    def nbytes(self, elements: int) -> int:
        return bytes_for(elements)

    def _write(self, vector: Vector, place: Place, raw: ByteArray) -> None:
        raw[:] = to_bytes(vector)

    def _read(self, raw: ByteArray, place: Place, vector: Vector) -> None:
        vector[:] = finite(from_bytes(raw))


def finite(vector: Vector) -> Vector:
    """Return ``vector`` itself. Raises: Malformed: An element is not finite."""
    if not is_finite(vector):
        raise Malformed("an element is not finite")
    return vector


def within(default: Any, low: float, high: float) -> Any:
    """Return a dataclass field for an option with values from ``low`` to ``high``, inclusive."""
    return field(default=default, metadata={"low": low, "high": high})


def load_encoding(spec: str) -> Encoding:
    """Return the encoding that ``spec`` names, for example ``bf16``, ``topk:0.05`` or
    ``int4:block=32,feedback=off``.

    Options follow the name after a colon, separated by commas. The name of the first option may be
    omitted.

    Raises: UnknownName: There is no such encoding or option. ConfigError: A value cannot be parsed
        or is out of range.
    """
    name, _, written = spec.strip().partition(":")
    plain = name.strip().replace("-", "").replace("_", "").lower()
    if plain not in BUILT_IN:
        raise UnknownName("encoding", name.strip(), BUILT_IN)
    module, _, cls = BUILT_IN[plain].partition(":")
    kind: Callable[..., Encoding] = getattr(importlib.import_module(f".{module}", __package__), cls)
    options = {
        option.name: option
        for option in fields(kind)  # type: ignore[arg-type]
        if option.metadata or type(option.default) is bool
    }
    owner = f"encoding {plain}"
    given = split_options(owner, written.split(","), options, next(iter(options), ""))
    return kind(**{key: _value(owner, options[key], value) for key, value in given.items()})


def _value(owner: str, option: Field[Any], text: str) -> Any:
    kind = type(option.default)
    if kind is bool:
        return read_value(owner, option.name, text, Literal["on", "off"]) == "on"
    value = read_value(owner, option.name, text, kind)
    low, high = option.metadata["low"], option.metadata["high"]
    if not low <= value <= high:
        raise ConfigError(f"{owner}: {option.name}={text} must be from {low:g} to {high:g}")
    return value
