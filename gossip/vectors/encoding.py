"""Encodings that convert the numbers of an update to the bytes of a payload, and back.

    encoding = load_encoding("topk:ratio=0.05")
    raw = encoding.encode(vector, place)
    vector = encoding.decode(raw, len(vector), place)

An encoding is a frozen dataclass; its fields are its options. Only this package interprets its
bytes. The number of bytes follows from the number of elements, or from the shapes of their tensors.
So a receiver computes sizes from its own layout, and never from a message. The names of encodings
are available without torch.

A packed state already consists of bytes. Packed states, and the parameters in gossip rounds, are
sent as they are in memory (``to_bytes``).
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
"""Module of this package and class in it, by name of the encoding."""


Shape: TypeAlias = tuple[int, ...]
"""Lengths of the dimensions of a tensor. There is at least one dimension."""


def bytes_for(elements: int) -> int:
    """Return the size of a vector of ``elements`` numbers in memory, in bytes."""
    return NUMBER_BYTES * elements


def to_bytes(vector: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous vector or of a packed state, without a copy."""
    return np.frombuffer(vector, dtype=np.uint8)


def from_bytes(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the float32 vector in these bytes, without a copy."""
    return raw.view(np.float32)


def are_finite(raw: NDArray[np.uint8]) -> bool:
    """Whether the length of these bytes is valid for float32, and all numbers are finite."""
    return len(raw) % NUMBER_BYTES == 0 and is_finite(from_bytes(raw))


class Place(NamedTuple):
    """Seed, round and shard of a payload. All peers have them, so the numbers that an encoding
    draws from them are never sent."""

    seed: int
    round_id: int
    shard: int


class Encoding(ABC):
    """Encoding of numbers. The length of its bytes is a multiple of 4, so that every lane accepts
    them.

    Attributes:
        sparse: Whether only some numbers are sent, and the others decoded as zeros.
        low_rank: Whether each peer sends another part of each matrix.
        shaped: Whether it encodes tensors, for which ``for_shapes`` returns an encoding.
        feedback: Whether the encoding error of an update is added to the next update of its peer.
    """

    sparse: ClassVar[bool] = False
    low_rank: ClassVar[bool] = False
    shaped: ClassVar[bool] = False
    feedback: bool = False

    @abstractmethod
    def nbytes(self, elements: int) -> int:
        """Return the length of an encoded vector of ``elements`` numbers in bytes, a multiple of 4.
        There is at least one number."""

    def encode(
        self, vector: NDArray[np.float32], place: Place, into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Return the bytes of a vector, ``(nbytes,)``. A non-finite number is not encoded as a
        finite one.

        Args:
            into: Writable memory for the bytes, with any content; None to allocate it.
        """
        raw = np.empty(self.nbytes(len(vector)), np.uint8) if into is None else into
        self._write(vector, place, raw)
        return raw

    def decode(
        self,
        raw: NDArray[np.uint8],
        elements: int,
        place: Place,
        into: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Return the vector, ``(elements,)``, of finite numbers. It is equal to the last bit on
        every machine.

        Args:
            raw: ``nbytes(elements)`` bytes, from any sender.
            into: Writable memory for the vector; None to allocate it.
        Raises: Malformed: A number is not finite, or no encoder writes these bytes. The content of
            ``into`` is undefined then.
        """
        vector = np.empty(elements, np.float32) if into is None else into
        self._read(raw, place, vector)
        return vector

    @abstractmethod
    def _write(self, vector: NDArray[np.float32], place: Place, raw: NDArray[np.uint8]) -> None:
        """Fill all of ``raw``, as documented for ``encode``."""

    @abstractmethod
    def _read(self, raw: NDArray[np.uint8], place: Place, vector: NDArray[np.float32]) -> None:
        """Fill ``vector``, as documented for ``decode``."""

    def for_shapes(self, shapes: tuple[Shape, ...]) -> Encoding:
        """Return the encoding for tensors of these shapes, one after another."""
        return self

    def for_results(self, peers: int) -> Encoding:
        """Return the encoding for the result of at most ``peers`` updates in this encoding."""
        return self


@dataclass(frozen=True)
class Float32(Encoding):
    """float32, as in memory: 4 bytes for each number."""

    def nbytes(self, elements: int) -> int:
        return bytes_for(elements)

    def _write(self, vector: NDArray[np.float32], place: Place, raw: NDArray[np.uint8]) -> None:
        raw[:] = to_bytes(vector)

    def _read(self, raw: NDArray[np.uint8], place: Place, vector: NDArray[np.float32]) -> None:
        vector[:] = finite(from_bytes(raw))


def finite(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the same vector. Raises: Malformed: A number is not finite."""
    if not is_finite(vector):
        raise Malformed("a number is not finite")
    return vector


def within(default: Any, low: float, high: float) -> Any:
    """Return a dataclass field for an option with values from ``low`` to ``high``, both
    included."""
    return field(default=default, metadata={"low": low, "high": high})


def load_encoding(spec: str) -> Encoding:
    """Return the encoding that ``spec`` names: ``bf16``, ``topk:0.05``,
    ``int4:block=32,feedback=off``.

    Options follow a colon and are separated by commas. The first option may be given without its
    name.

    Raises: UnknownName: There is no such encoding or option. ConfigError: A value cannot be parsed
        or is out of range.
    """
    name, _, written = spec.strip().partition(":")
    plain = name.strip().replace("-", "").replace("_", "").lower()
    if plain not in BUILT_IN:
        raise UnknownName("encoding", name.strip(), BUILT_IN)
    module, _, cls = BUILT_IN[plain].partition(":")
    kind: Callable[..., Encoding] = getattr(importlib.import_module(f".{module}", __package__), cls)
    options = {option.name: option for option in fields(kind)}  # type: ignore[arg-type]
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
