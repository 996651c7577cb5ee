"""Conversion of faults to and from the tables of a plan file. A table has the key ``kind`` and the
fields of that kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gossip.errors import BadFault

from .declare import KINDS, Fault, unknown_kind
from .units import Table


def to_table(fault: Fault) -> str:
    """Return the fault as a ``[[fault]]`` table, which ``from_table`` reads."""
    rows = {"kind": fault.kind, **KINDS[fault.kind].row(fault)}
    return "[[fault]]\n" + "".join(f"{key} = {toml_of(value)}\n" for key, value in rows.items())


def toml_of(value: object) -> str:
    """Return a number, a boolean, a string, or a nested tuple of these as TOML. Their JSON is valid
    TOML, except for infinite numbers."""
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def from_table(table: Mapping[str, Any], where: str) -> Fault:
    """Return the fault that a table describes. ``where``: name of the table for errors. Raises:
    BadFault."""
    kind = table.get("kind")
    if not isinstance(kind, str):
        raise BadFault(f"{where}: the kind is missing", "kinds: " + ", ".join(KINDS))
    kind = kind.replace("-", "_")
    if kind not in KINDS:
        raise unknown_kind(kind, where, tuple(KINDS))
    return KINDS[kind].read_table(Table(kind, table, where))
