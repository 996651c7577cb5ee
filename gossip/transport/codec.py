"""Codec of messages. The decoder checks every type and every bound. It uses no pickle and executes
no code from a message.

A message on the wire is one msgpack array, ``[PROTOCOL_VERSION, run, sender, incarnation, tag,
[field, ...]]``, followed by the array's CRC-32. The fields are in the order of the dataclass.
Without the CRC, a flipped bit in an incarnation or a score would be accepted. A ``Codec`` builds a
reader and a writer for each dataclass from its annotations. It builds them once, as closures, so
that encoding and decoding need no reflection.

Values that each annotation allows, within ``Limits``:

    int                         ``int_min`` .. ``int_max``; a bool is not an int
    float                       finite
    bytes, str                  at most ``bytes_max`` bytes, ``str_max`` characters
    bool, Literal["a", "b"]     exactly these values
    X | None                    the values of X, or None
    tuple[X, ...]               at most ``items_max`` entries
    tuple[X, Y]                 exactly these entries
    a dataclass                 its fields
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgpack

from gossip.core import (
    COLLECTED_BYTES_MAX,
    CORE_BYTES_MAX,
    DIGEST_BYTES,
    PIECES_MAX,
    ROUND_MAX,
    STATISTICS_BYTES_MAX,
    Collected,
    Envelope,
    GatherValue,
    Message,
    PartialStatistics,
    StateOffer,
    Update,
)
from gossip.errors import Malformed

PROTOCOL_VERSION = 1
HEADER_BYTES_MAX = 64 * 1024
# Maximum size of ``StateOffer.outline``: three integers, and a digest for each piece.
OUTLINE_BYTES_MAX = (PIECES_MAX + 2) * DIGEST_BYTES
ID_BYTES_MAX = 64  # maximum length of a run's name on the wire

Reader: TypeAlias = Callable[[Any], Any]
Writer: TypeAlias = Callable[[Any], Any] | None  # None if msgpack can write the value itself
M = TypeVar("M")

# Errors of the parser on malformed data, also those that a hostile size or depth can cause
# (docs/design_notes.md N17).
PARSER_ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    MemoryError,
    BufferError,
    msgpack.UnpackException,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the values in messages. ``larger`` has larger bounds for certain fields of type
    bytes or str; the key is ``(class, "field")``."""

    message_bytes: int = HEADER_BYTES_MAX
    int_min: int = 0
    int_max: int = ROUND_MAX
    bytes_max: int = 4096
    str_max: int = 256
    items_max: int = 1024
    larger: Mapping[tuple[type, str], int] = field(default_factory=dict)


class Codec(Generic[M]):
    """Encoder and decoder of the dataclasses ``types``. Their order is part of the protocol,
    because the tag of a type is its index.

    >>> codec: Codec[FromNode] = Codec(get_args(FromNode), Limits(int_min=-1))
    >>> codec.decode_many(codec.encode_many([Halted("finished", 0)]))
    [Halted(reason='finished', exit_code=0)]
    """

    def __init__(
        self, types: Iterable[type[M]], limits: Limits | None = None, *, trusting: bool = False
    ) -> None:
        """Build the readers and writers of ``types``.

        Args:
            trusting: Whether to check only the number of fields of a message, and not the fields.
                Decoding then takes a third of the time. This is for processes that run the same
                code on one host. No field may then contain a dataclass.
        """
        self.limits = limits or Limits()
        self.types = tuple(types)
        shapes = _Shapes(self.limits)
        self._writers: dict[type, tuple[int, Callable[[Any], Any]]] = {}
        self._readers: list[Reader] = []
        for tag, cls in enumerate(self.types):
            self._writers[cls] = (tag, shapes.writer_of(cls))
            self._readers.append(_read_flat(cls) if trusting else shapes.reader_of(cls))
        longest = max([self.limits.bytes_max, *self.limits.larger.values()])
        # The limit is enough for a field with ``items_max`` entries, and for a packet, which has
        # two entries for each message.
        self._parser_limits = {
            "raw": False,
            "use_list": False,
            "strict_map_key": True,
            "max_array_len": max(2 * self.limits.items_max, 64),
            "max_map_len": 0,
            "max_ext_len": 0,
            # The parser counts UTF-8 bytes, at most 4 for each character.
            "max_str_len": 4 * max([self.limits.str_max, *self.limits.larger.values()]),
            "max_bin_len": longest,
        }
        self._pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack

    def encode(self, message: M) -> bytes:
        """Return the bytes of a message. Raises: ValueError: The message is larger than other peers
        accept. This is a bug, not bad input."""
        return self.encode_many((message,))

    def decode(self, data: bytes | memoryview) -> M:
        """Return the single message in ``data``. Raises: Malformed: ``data`` is invalid, or does
        not have exactly one message."""
        messages = self.decode_many(data)
        if len(messages) != 1:
            raise Malformed(f"{len(messages)} messages, expected one")
        return messages[0]

    def encode_many(self, messages: Iterable[M]) -> bytes:
        """Return a packet of several messages: ``[PROTOCOL_VERSION, tag, fields, tag, fields,
        ...]``."""
        items: list[Any] = [PROTOCOL_VERSION]
        for message in messages:
            items += self.to_plain(message)
        return self.pack(items)

    def decode_many(self, data: bytes | memoryview) -> list[M]:
        """Return all messages of a packet, in order. Raises: Malformed: The packet is invalid."""
        items = self.parse(data)
        if len(items) % 2 != 1 or items[0] != PROTOCOL_VERSION or type(items[0]) is not int:
            raise Malformed("not a packet of this protocol version")
        return [self.from_plain(items[at], items[at + 1]) for at in range(1, len(items), 2)]

    # The four steps of encoding and decoding, for ``encode`` and ``decode`` of envelopes.

    def to_plain(self, message: M) -> tuple[int, Any]:
        """Return the tag and the fields of a message, as values that msgpack can write."""
        tag, write = self._writers[type(message)]
        return tag, write(message)

    def from_plain(self, tag: Any, fields: Any) -> M:
        """Check the fields and return the message. Raises: Malformed: The tag or a field is
        invalid."""
        if type(tag) is not int or not 0 <= tag < len(self._readers):
            raise Malformed(f"unknown message tag {tag!r}"[:100])
        message: M = self._readers[tag](fields)
        return message

    def pack(self, plain: Any) -> bytes:
        data: bytes = self._pack(plain)
        if len(data) > self.limits.message_bytes:
            raise ValueError(
                f"a message of {len(data)} bytes is larger than the {self.limits.message_bytes} "
                "that other peers accept"
            )
        return data

    def parse(self, data: bytes | memoryview) -> tuple[Any, ...]:
        """Return the data as nested tuples of plain values. Raises: Malformed: The bytes are
        invalid."""
        if len(data) > self.limits.message_bytes:
            raise Malformed(f"{len(data)} bytes, at most {self.limits.message_bytes} are allowed")
        try:
            # A reused ``Unpacker`` is not safe after an error (GHSA-6v7p-g79w-8964).
            plain = msgpack.unpackb(data, **self._parser_limits)
        except PARSER_ERRORS as error:
            raise Malformed(f"not msgpack within limits: {error}"[:200]) from None
        if type(plain) is not tuple:
            raise Malformed("not an array")
        return plain


class _Shapes:
    """Builds readers and writers from annotations."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._readers: dict[type, Reader] = {}
        self._writers: dict[type, Callable[[Any], Any]] = {}

    # Readers convert plain values of other processes, and check each value.

    def reader_of(self, cls: type) -> Reader:
        """Return a reader that converts a tuple of plain values to an object of ``cls``."""
        if cls not in self._readers:
            hints = get_type_hints(cls)
            fields = [(hints[f.name], f.name) for f in dataclasses.fields(cls)]
            readers = tuple(self._reader(hint, cls, name) for hint, name in fields)
            sized = {
                at: (hint, self._size(hint, cls, name))
                for at, (hint, name) in enumerate(fields)
                if hint in (bytes, str)
            }
            wholes = [at for at, (hint, _) in enumerate(fields) if hint is int]
            self._readers[cls] = _read_dataclass(cls, readers, wholes, sized, self.limits)
        return self._readers[cls]

    def _reader(self, hint: Any, cls: type, name: str) -> Reader:
        where = f"{cls.__name__}.{name}"
        if hint is int:
            return _read_int(where, self.limits)
        if hint is float:
            return _read_float(where)
        if hint is bool:
            return _read_if(lambda value: type(value) is bool, f"{where} is not a bool")
        if hint is bytes or hint is str:
            return _read_sized(where, hint, self._size(hint, cls, name))
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.reader_of(hint)
        origin, args = get_origin(hint), get_args(hint)
        if origin is Literal:
            # The types must be equal, too, because 1 == True.
            kinds = {type(choice) for choice in args}
            return _read_if(
                lambda value: type(value) in kinds and value in args, f"{where} is none of {args}"
            )
        if origin in (Union, UnionType) and len(args) == 2 and NoneType in args:
            inner = self._reader(next(a for a in args if a is not NoneType), cls, name)
            return lambda value: None if value is None else inner(value)
        if origin is tuple and args:
            return self._tuple_reader(args, cls, name)
        raise TypeError(f"{where}: the codec does not support {hint!r}")

    def _tuple_reader(self, args: tuple[Any, ...], cls: type, name: str) -> Reader:
        where = f"{cls.__name__}.{name}"
        if args == (int, Ellipsis):
            return _read_wholes(where, self.limits)
        if len(args) == 2 and args[1] is Ellipsis:
            return _read_many(where, self._reader(args[0], cls, name), self.limits.items_max)
        return _read_fixed(where, tuple(self._reader(each, cls, name) for each in args))

    def _size(self, hint: type, cls: type, name: str) -> int:
        return self.limits.larger.get(
            (cls, name), self.limits.bytes_max if hint is bytes else self.limits.str_max
        )

    # Writers convert local objects, without a check of their values.

    def writer_of(self, cls: type) -> Callable[[Any], Any]:
        if cls not in self._writers:
            hints = get_type_hints(cls)
            names = [f.name for f in dataclasses.fields(cls)]
            self._writers[cls] = _write_dataclass(
                names, [self._writer(hints[name]) for name in names]
            )
        return self._writers[cls]

    def _writer(self, hint: Any) -> Writer:
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.writer_of(hint)
        args = get_args(hint)
        if get_origin(hint) is not Literal:
            inner = next((w for w in map(self._writer, args) if w is not None), None)
            if inner is not None:
                if get_origin(hint) is tuple and args[-1] is Ellipsis:
                    write = inner
                    return lambda values: [write(value) for value in values]
                raise TypeError(
                    "the codec writes nested messages only alone or in tuple[X, ...], not in "
                    f"{hint!r}"
                )
        return None


def _read_dataclass(
    cls: type,
    readers: tuple[Reader, ...],
    wholes: list[int],
    sized: dict[int, tuple[type, int]],
    limits: Limits,
) -> Reader:
    """Return the reader of a dataclass.

    Most fields are integers (at the indices ``wholes``), or bytes and strings (at the indices
    ``sized``). They are checked inline, because a call for each field would take half of the total
    time. If such a field is invalid, its reader is called, and raises the error.
    """
    count, name, least, most = len(readers), cls.__name__, limits.int_min, limits.int_max
    others = [
        (at, reader) for at, reader in enumerate(readers) if at not in wholes and at not in sized
    ]
    sizes: list[tuple[int, Any, int]] = [
        (at, kind, longest) for at, (kind, longest) in sized.items()
    ]

    def read(values: Any) -> Any:
        if type(values) is not tuple or len(values) != count:
            raise Malformed(f"{name} has {count} fields")
        value: Any
        for at in wholes:
            value = values[at]
            if type(value) is not int or not least <= value <= most:
                readers[at](value)
        for at, kind, longest in sizes:
            value = values[at]
            if type(value) is not kind or len(value) > longest:
                readers[at](value)
        if not others:
            return cls(*values)
        fields = [*values]
        for at, reader in others:
            fields[at] = reader(values[at])
        return cls(*fields)

    return read


def _read_flat(cls: type) -> Reader:
    """Return a reader of ``cls`` that checks only the number of fields."""
    count = len(dataclasses.fields(cls))
    if any(
        dataclasses.is_dataclass(part)
        for hint in get_type_hints(cls).values()
        for part in (hint, *get_args(hint))
    ):
        raise TypeError(
            f"{cls.__name__} contains another dataclass, which only a codec with its fields "
            "can read"
        )

    def read(values: Any) -> Any:
        if type(values) is not tuple or len(values) != count:
            raise Malformed(f"{cls.__name__} has {count} fields")
        return cls(*values)

    return read


def _read_if(is_valid: Callable[[Any], bool], error: str) -> Reader:
    def read(value: Any) -> Any:
        if is_valid(value):
            return value
        raise Malformed(error)

    return read


def _read_int(where: str, limits: Limits) -> Reader:
    least, most = limits.int_min, limits.int_max
    return _read_if(
        lambda value: type(value) is int and least <= value <= most,
        f"{where} is not an integer within {least}..{most}",
    )


def _read_sized(where: str, cls: type[bytes] | type[str], most: int) -> Reader:
    return _read_if(
        lambda value: type(value) is cls and len(value) <= most,
        f"{where} is not a {cls.__name__} of at most {most}",
    )


def _read_float(where: str) -> Reader:
    def read(value: Any) -> float:
        # A writer may have written a whole number as an integer. All integers of msgpack are in the
        # range of a float.
        if (type(value) is float and isfinite(value)) or type(value) is int:
            return float(value)
        raise Malformed(f"{where} is not a finite number")

    return read


def _read_many(where: str, reader: Reader, most: int) -> Reader:
    def read(values: Any) -> tuple[Any, ...]:
        if type(values) is not tuple or len(values) > most:
            raise Malformed(f"{where} is not a list of at most {most}")
        return tuple([reader(value) for value in values])

    return read


def _read_wholes(where: str, limits: Limits) -> Reader:
    read_int, longest = _read_int(where, limits), limits.items_max
    least, most = limits.int_min, limits.int_max

    def read(values: Any) -> tuple[int, ...]:
        if type(values) is not tuple or len(values) > longest:
            raise Malformed(f"{where} is not a list of at most {longest}")
        for value in values:
            if type(value) is not int or not least <= value <= most:
                read_int(value)
        return values

    return read


def _read_fixed(where: str, readers: tuple[Reader, ...]) -> Reader:
    count = len(readers)

    def read(values: Any) -> tuple[Any, ...]:
        if type(values) is not tuple or len(values) != count:
            raise Malformed(f"{where} is not a list of {count}")
        return tuple([reader(value) for reader, value in zip(readers, values, strict=True)])

    return read


def _write_dataclass(names: list[str], writers: list[Writer]) -> Callable[[Any], Any]:
    if not names:
        return lambda message: ()
    get = attrgetter(*names) if len(names) > 1 else None
    nested = [(at, writer) for at, writer in enumerate(writers) if writer is not None]
    if get is not None and not nested:
        return get

    def write(message: Any) -> list[Any]:
        values = list(get(message)) if get is not None else [getattr(message, names[0])]
        for at, writer in nested:
            values[at] = writer(values[at])
        return values

    return write


# --- messages between peers -----------------------------------------------------------------------

_SEAL = struct.Struct("<I")

_LARGER = {
    (StateOffer, "core"): CORE_BYTES_MAX,
    (StateOffer, "outline"): OUTLINE_BYTES_MAX,
    (PartialStatistics, "statistics"): STATISTICS_BYTES_MAX,
    (Update, "collective"): COLLECTED_BYTES_MAX,
    (Collected, "data"): COLLECTED_BYTES_MAX,
    (GatherValue, "data"): COLLECTED_BYTES_MAX,
}
MESSAGES: Codec[Message] = Codec(
    get_args(Message), Limits(message_bytes=HEADER_BYTES_MAX - _SEAL.size, larger=_LARGER)
)

_read_run = _read_sized("run", bytes, ID_BYTES_MAX)
_read_sender = _read_int("sender", MESSAGES.limits)
_read_incarnation = _read_int("incarnation", MESSAGES.limits)


def encode(envelope: Envelope) -> bytes:
    """Return the bytes of an envelope, at most ``HEADER_BYTES_MAX``. Raises: ValueError: The
    message is larger. This is a bug, not bad input."""
    tag, fields = MESSAGES.to_plain(envelope.message)
    return seal(
        MESSAGES.pack(
            (PROTOCOL_VERSION, envelope.run, envelope.sender, envelope.incarnation, tag, fields)
        )
    )


def seal(packed: bytes) -> bytes:
    """Return the bytes, followed by their checksum. The checksum detects accidental damage. Only
    keys protect against intentional changes."""
    return packed + _SEAL.pack(zlib.crc32(packed))


def decode(data: bytes | memoryview) -> Envelope:
    """Return the envelope in ``data``. Raises: Malformed: ``encode`` cannot return ``data`` for any
    valid message. No other error is raised."""
    most = len(data) - _SEAL.size
    if most < 0 or len(data) > HEADER_BYTES_MAX:
        raise Malformed("not a message, or damaged in transit")
    packed = data[:most]
    if _SEAL.unpack_from(data, most)[0] != zlib.crc32(packed):
        raise Malformed("not a message, or damaged in transit")
    items = MESSAGES.parse(packed)
    if len(items) != 6 or items[0] != PROTOCOL_VERSION or type(items[0]) is not int:
        raise Malformed("not an envelope of this protocol version")
    _, run, sender, incarnation, tag, fields = items
    if type(run) is not bytes or len(run) > ID_BYTES_MAX:
        _read_run(run)
    if type(sender) is not int or not 0 <= sender <= ROUND_MAX:
        _read_sender(sender)
    if type(incarnation) is not int or not 0 <= incarnation <= ROUND_MAX:
        _read_incarnation(incarnation)
    return Envelope(run, sender, incarnation, MESSAGES.from_plain(tag, fields))
