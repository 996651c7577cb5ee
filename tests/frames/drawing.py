"""Values that no honest peer sends, bytes with a mistake in them, and documents with something
strange in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from random import Random
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from gossip.core.messages import ROUND_MAX

STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63)),
    *(1.5, math.nan, math.inf, -math.inf, 1e308, "", "x" * 300, "\u202e\x00", b"", b"\xff" * 40),
    *([], [[]], [None] * 30, [[[[[[[[1]]]]]]]], [0, -1, math.nan]),
)

Reading: TypeAlias = Callable[[], object]
"""Reads one frame, which is made by then."""


def drawn(hint: Any, random: Random) -> Any:
    """A value that an annotation allows."""
    simple: dict[Any, Callable[[], Any]] = {
        int: lambda: random.choice((0, 1, 7, 255, 2**16, 2**31, ROUND_MAX)),
        float: lambda: random.choice((0.0, -1.5, 1e-300, 1e300, random.random())),
        bool: lambda: random.random() < 0.5,
        bytes: lambda: random.randbytes(random.choice((0, 8, 16, 40))),
        str: lambda: random.choice(("", "a", "tcp://127.0.0.1:1", "ü" * 20)),
    }
    if hint in simple:
        return simple[hint]()
    if is_dataclass(hint) and isinstance(hint, type):
        return of_type(hint, random)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return random.choice(args)
    if origin in (Union, UnionType):
        arg = random.choice(args)
        return None if arg is NoneType else drawn(arg, random)
    if args[-1] is Ellipsis:
        return tuple([drawn(args[0], random) for _ in range(random.choice((0, 1, 2, 5)))])
    return tuple([drawn(arg, random) for arg in args])


@cache
def hints_of(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def of_type(cls: type, random: Random) -> Any:
    hints = hints_of(cls)
    return cls(**{each.name: drawn(hints[each.name], random) for each in fields(cls)})


def changed(data: bytes, random: Random) -> bytes:
    """Bytes of which some are others, are gone, come twice, or are new."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(found) + 1)
        match random.randrange(6):
            case 0:
                found[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                found[at : at + 1] = bytes(
                    [byte ^ 1 << random.randrange(8) for byte in found[at : at + 1]]
                )
            case 2:
                del found[at : at + random.randrange(1, 40)]
            case 3:
                found[at:at] = random.randbytes(random.randrange(1, 20))
            case 4:
                found += found[at : at + 200]
            case _:  # lengths of msgpack and of our own heads
                large = random.choice((b"\xdd", b"\xc6", b"\xdb", b"\xdf", b"")) + b"\xff" * 4
                found[at : at + len(large)] = large
    return bytes(found)


def replaced(document: Any, random: Random) -> Any:
    """The same document with something strange in one place."""
    if not isinstance(document, list | tuple) or not document or random.random() < 0.2:
        if isinstance(document, int | float) and random.random() < 0.5:
            return random.choice((-document, document + 1, document * 2**40, float(document)))
        return random.choice(STRANGE)
    at, copy = random.randrange(len(document)), list(document)
    match random.randrange(8):
        case 0:
            del copy[at]
        case 1:
            copy.insert(at, copy[at])
        case 2:
            copy[at] = copy[random.randrange(len(copy))]
        case 3:
            random.shuffle(copy)
        case _:
            copy[at] = replaced(copy[at], random)
    return copy


def flat(value: Any) -> Any:
    """Tuples and dicts as lists, as ``replaced`` takes them and JSON has them."""
    if isinstance(value, dict):
        return {key: flat(each) for key, each in value.items()}
    return [flat(each) for each in value] if isinstance(value, list | tuple) else value
