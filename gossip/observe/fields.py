"""Types and ranges of the fields in a run's files of JSON lines.

Every reader checks a row with ``reading`` before any use. A folder may belong to another user. A
list in place of a number, or a huge number, could crash the reader or exhaust its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

Row: TypeAlias = dict[str, Any]
PEER_DIGITS = 4
PEERS_MAX = 10**PEER_DIGITS
ROUNDS_END = 2**40
"""Upper bound of round numbers."""
WHOLE_MAX, REAL_MAX = 2**53, 1e300
TIME_END_S = 2**33
"""Upper bound of times, in seconds since 1970 or since the start of a machine."""
DEPTH_MAX = 5

# Types of fields, for declarations. ``NAMED`` has the values that each type accepts.
PeerId: TypeAlias = int
Time: TypeAlias = float
Peer: TypeAlias = int | None
RoundId: TypeAlias = int | None
RoundNumber: TypeAlias = int
Count: TypeAlias = int | None
Real: TypeAlias = float | None
Text: TypeAlias = str | None
Flag: TypeAlias = bool | None
Texts: TypeAlias = list[str] | None
Peers: TypeAlias = list[int] | None
Roster: TypeAlias = Sequence[int]
Alive: TypeAlias = list[int] | int | None
Scores: TypeAlias = dict[str, float | None] | None
Slices: TypeAlias = Mapping[str, Sequence[Sequence[int]]]
Counts: TypeAlias = list[int | None] | None
Logged: TypeAlias = float | None
Figures: TypeAlias = list[dict[str, float | None]] | None
Traffic: TypeAlias = dict[str, Any] | None
Object: TypeAlias = Mapping[str, Any] | None
Json: TypeAlias = list[Any] | None
Other: TypeAlias = Any


class FieldType(NamedTuple):
    """Type of a field. ``words``: description of the type in error messages; ``accepts``: whether a
    value has the type."""

    words: str
    accepts: Callable[[object], bool]


def find_problem(row: Mapping[str, Any], types: Mapping[str, FieldType]) -> str:
    """Return the error of the first field with a wrong type or range; "" if there is none. A field
    without a declared type may have any value of ``OTHER``."""
    type_of = types.get
    for name, value in row.items():
        if value is not None and not (kind := type_of(name, OTHER)).accepts(value):
            inner = isinstance(value, list | dict)
            found = f"a {type(value).__name__}" if inner else repr(value)[:40]
            return f"{name[:40]} is {found}, where {kind.words} is expected"
    return ""


def scores_of(trust: Scores) -> dict[int, float]:
    """Return peer -> trust score, without unknown scores."""
    return {int(peer): score for peer, score in (trust or {}).items() if score is not None}


def _is_real(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < REAL_MAX  # type: ignore[arg-type]


def _between(least: int, end: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value < end


def _list_of(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


def _object_of(types: Mapping[str, FieldType], *needs: str) -> Callable[[object], bool]:
    """Return a function that checks whether a value is an object with fields of these types. The
    fields ``needs`` are required."""
    return lambda value: (
        isinstance(value, dict)
        and not find_problem(value, types)
        and None not in map(value.get, needs)
    )


def _are_figures(value: object) -> bool:
    """Whether the value is an object of numbers. Unknown numbers may be null."""
    return isinstance(value, dict) and all(
        each is None or _is_real(each) for each in value.values()
    )


def _is_by_peer(value: object) -> bool:
    """Whether the value is an object with a number for each peer."""
    return _are_figures(value) and all(map(_is_peer_key, value))  # type: ignore[call-overload]


def _is_peer_key(key: str) -> bool:
    return key.isdecimal() and len(key) <= PEER_DIGITS


def _is_range(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(each) is int for each in value)


def _are_slices(value: object) -> bool:
    """Whether the value is an object with a list of ranges for each peer."""
    return isinstance(value, dict) and all(
        _is_peer_key(key) and isinstance(ranges, list) and all(map(_is_range, ranges))
        for key, ranges in value.items()
    )


def _is_other(value: object, depth: int = DEPTH_MAX) -> bool:
    if isinstance(value, list | dict):
        inner = value if isinstance(value, list) else value.values()
        return depth > 0 and all(_is_other(each, depth - 1) for each in inner)
    return not isinstance(value, int | float) or abs(value) < REAL_MAX


_is_peer, _is_count = _between(0, PEERS_MAX), _between(0, WHOLE_MAX)
_are_peers = _list_of(_is_peer)
_is_text: Callable[[object], bool] = lambda value: isinstance(value, str)  # noqa: E731
PEER = FieldType("a peer's number", _is_peer)
ROUND = FieldType("a round's number", _between(-1, ROUNDS_END))
COUNT = FieldType("a count", _is_count)
REAL = FieldType("a number", _is_real)
TIME = FieldType("a time in seconds", lambda value: _is_real(value) and 0 <= value < TIME_END_S)  # type: ignore[operator]
TEXT = FieldType("text", _is_text)
TEXTS = FieldType("a list of texts", _list_of(_is_text))
FLAG = FieldType("true or false", lambda value: isinstance(value, bool))
PEERS = FieldType("a list of peers", _are_peers)
ALIVE = FieldType("a list of peers or a count", lambda value: _is_count(value) or _are_peers(value))
COUNTS = FieldType("a list of counts", _list_of(lambda each: each is None or _is_count(each)))
FIGURES = FieldType("a list of objects with numbers", _list_of(_are_figures))
BY_PEER = FieldType("a number for each peer", _is_by_peer)
SLICES = FieldType("a list of ranges for each peer", _are_slices)
TRAFFIC = FieldType("an object", _object_of({"sent_bytes": COUNT, "received_bytes": COUNT}))
OBJECT = FieldType("an object", lambda value: isinstance(value, dict))
JSON = FieldType("a list", lambda value: isinstance(value, list))
OTHER = FieldType("a finite number, or a short structure", _is_other)


def objects(types: Mapping[str, FieldType], *needs: str) -> FieldType:
    """Return the type for lists of objects with fields of these types. Each object must have the
    fields ``needs``."""
    return FieldType("a list of objects, each about a peer", _list_of(_object_of(types, *needs)))


NAMED: dict[str, FieldType] = {
    "PeerId": PEER,
    "Time": TIME,
    "Time | None": TIME,
    "PeerId | None": PEER,
    "Peer": PEER,
    "RoundId": ROUND,
    "RoundNumber": ROUND,
    "Count": COUNT,
    "int": COUNT,
    "Real": REAL,
    "float": REAL,
    "str": TEXT,
    "Text": TEXT,
    "Flag": FLAG,
    "Texts": TEXTS,
    "Peers": PEERS,
    "Roster": PEERS,
    "Alive": ALIVE,
    "Scores": BY_PEER,
    "Slices": SLICES,
    "Logged": OTHER,
    "Counts": COUNTS,
    "Figures": FIGURES,
    "Traffic": TRAFFIC,
    "Object": OBJECT,
    "Json": JSON,
    "Other": OTHER,
}
"""Name of a type in a declaration -> type of the field."""
METRICS: Mapping[str, FieldType] = {"t": TIME, "wall": TIME, "peer": PEER, "round": ROUND}
"""Types of the fields that gossip adds to a row of ``metrics.jsonl``. The script chooses the names
of all other fields."""
