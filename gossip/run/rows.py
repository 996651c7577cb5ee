"""Types and ranges of the rows in a run's files of JSON lines.

Every reader checks a row here, before anything computes with it. A folder may be another user's:
one list in place of a number, or one huge number, would otherwise end or fill the reader's process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

Row: TypeAlias = dict[str, Any]
PEER_DIGITS = 4
PEERS_MAX = 10**PEER_DIGITS
ROUNDS_END = 2**40
"""No round has this number."""
WHOLE_MAX, REAL_MAX = 2**53, 1e300
TIME_END_S = 2**33
"""Seconds since 1970, or since a machine was started."""
DEPTH_MAX = 5


class FieldType(NamedTuple):
    """Type of a field. ``words``: its description, for the message about another value."""

    words: str
    accepts: Callable[[object], bool]


def check_row(row: Any, file: str) -> Row:
    """Return the row.

    Args:
        file: Name of the file that holds it. A script names its own metrics as it likes.
    Raises: ValueError: It is no object, or a field is of another type, or out of its range.
    """
    if not isinstance(row, dict):
        raise ValueError("it is no object")
    kinds = COMMITS if file.startswith("commits") else KINDS
    if file.startswith("metrics") or (kinds is KINDS and row.get("event") == "metrics"):
        kinds = METRICS
    if problem := _problem(row, kinds):
        raise ValueError(problem)
    return row


def _problem(row: Mapping[str, Any], kinds: Mapping[str, FieldType]) -> str:
    for name, value in row.items():
        kind = kinds.get(name, OTHER)
        if value is not None and not kind.accepts(value):
            inner = isinstance(value, list | dict)
            told = f"a {type(value).__name__}" if inner else repr(value)[:40]
            return f"{name[:40]} is {told}, where {kind.words} is expected"
    return ""


def _is_real(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < REAL_MAX  # type: ignore[arg-type]


def _between(least: int, end: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value < end


def _list_of(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


def _is_row(value: object) -> bool:
    """Whether it is an object whose fields are those of a row, as each contributor's."""
    return isinstance(value, dict) and not _problem(value, KINDS)


def _is_part(value: object) -> bool:
    """Whether it is such an object about a peer."""
    return _is_row(value) and value.get("peer") is not None  # type: ignore[attr-defined]


def _are_figures(value: object) -> bool:
    """Whether it is an object that has nothing but numbers, or null for what is not known."""
    return isinstance(value, dict) and all(
        each is None or _is_real(each) for each in value.values()
    )


def _is_by_peer(value: object) -> bool:
    """Whether it is an object that has a number for each peer."""
    return _are_figures(value) and all(
        key.isdecimal() and len(key) <= PEER_DIGITS
        for key in value  # type: ignore[attr-defined]
    )


def _is_other(value: object, depth: int = DEPTH_MAX) -> bool:
    if isinstance(value, list | dict):
        inner = value if isinstance(value, list) else value.values()
        return depth > 0 and all(_is_other(each, depth - 1) for each in inner)
    return not isinstance(value, int | float) or abs(value) < REAL_MAX


def _any_of(*accept: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: any(accepts(value) for accepts in accept)


_is_peer, _is_count = _between(0, PEERS_MAX), _between(0, WHOLE_MAX)
_are_peers = _list_of(_is_peer)
PEER = FieldType("a peer's number", _is_peer)
ROUND = FieldType("a round's number", _between(-1, ROUNDS_END))
COUNT = FieldType("a count", _is_count)
REAL = FieldType("a number", _is_real)
TIME = FieldType("a time in seconds", lambda value: _is_real(value) and 0 <= value < TIME_END_S)  # type: ignore[operator]
TEXT = FieldType("text", lambda value: isinstance(value, str))
TEXTS = FieldType("a list of texts", _list_of(TEXT.accepts))
PEERS = FieldType("a list of peers", _are_peers)
ALIVE = FieldType("a list of peers or a count", _any_of(_is_count, _are_peers))
TRUST = FieldType("a number, or one for each peer", _any_of(_is_real, _is_by_peer))
COUNTS = FieldType(
    "a count or a list of counts",
    _any_of(_is_count, _list_of(lambda each: each is None or _is_count(each))),
)
FIGURES = FieldType("a list of objects with numbers", _list_of(_are_figures))
PARTS = FieldType("a list of objects, each about a peer", _list_of(_is_part))
BY_PEER = FieldType("a number for each peer", _is_by_peer)
ROW = FieldType("an object", _is_row)
OTHER = FieldType("a finite number, or a short structure", _is_other)
METRICS: Mapping[str, FieldType] = {"t": TIME, "wall": TIME, "peer": PEER, "round": ROUND}
"""Types of the fields in a row that a script has logged; the other names are the script's own."""
KINDS: Mapping[str, FieldType] = {
    **METRICS,
    **{
        name: kind
        for kind, names in (
            (PEER, "subject server from to about"),
            (ROUND, "since attempt made_at shard stage epoch state_round"),
            (COUNT, "step incarnation pid number updates local samples rounds once twice left"),
            (COUNT, "skipped given_up count memory sent_bytes received_bytes samples_total"),
            (COUNT, "steps_per_epoch"),
            (REAL, "loss accuracy waited_s wait_s share was seconds beyond measured_us"),
            (REAL, "predicted_us cpu_s load largest rule_ms weight outlyingness"),
            (REAL, "consensus_distance machine_memory_free disk_free"),
            (TEXT, "event reason why how host fault message hint path chain parent digest"),
            (TEXT, "lineage cause remedy policy folder source not_saved state_digest text"),
            (TEXTS, "reasons tensors"),
            (PEERS, "roster missing present for contributors"),
            (ALIVE, "alive peers"),
            (TRUST, "trust"),
            (COUNTS, "took_us"),
            (FIGURES, "gpus"),
            (ROW, "traffic"),
        )
        for name in names.split()
    },
}
COMMITS: Mapping[str, FieldType] = {
    **KINDS,
    "contributors": PARTS,
    "rejected": PARTS,
    "trust": BY_PEER,
}
