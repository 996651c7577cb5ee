"""Checks rows in a run's files, and converts them to events."""

from __future__ import annotations

from typing import Any

from . import events, fields
from .commits import CommitRow
from .event import Event
from .fields import Row

EVENTS: dict[str, type[Event]] = {
    kind.name(): kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind.__module__ == events.__name__
}
"""Name of a kind of event -> its class."""
TYPES = {"commits": CommitRow.types, "metrics": fields.METRICS}
"""Types of the fields in files other than ``events.jsonl``. The key is the file's name without its
suffix."""


def check_row(row: Any, file: str) -> Row:
    """Check a row and return it.

    Args:
        file: Name of the file that has the row. It determines the types of the fields.
    Raises: ValueError: The row is not an object, or a field has a wrong type or range.
    """
    if not isinstance(row, dict):
        raise ValueError("it is not an object")
    types = TYPES.get(file.partition(".")[0])
    if types is None:
        types = EVENTS.get(str(row.get("event")), Event).types
    if problem := fields.find_problem(row, types):
        raise ValueError(problem)
    return row


def read_event(row: Row) -> Event:
    """Return the event in a row that ``check_row`` has checked. The event may use the row as its
    memory.

    Fields that the kind does not declare are dropped. If the kind is unknown, or the row lacks a
    required field of its kind, a plain ``Event`` is returned.
    """
    kind = EVENTS.get(row.pop("event", None) or "", Event)
    if row.get("t") is None:
        row["t"] = 0.0
    for name in kind.required:
        if row.get(name) is None:
            kind = Event
    accuracy = row.get("accuracy", row.get("acc"))  # for ``Metrics``
    if kind.renamed or not row.keys() <= kind.fields.keys():
        row = {name: row[written] for name, written in kind.fields.items() if written in row}
    if kind is events.Metrics:  # The values of a script may have any type.
        numbers = {"loss": row.get("loss"), "accuracy": accuracy}
        row |= {name: n if fields.REAL.accepts(n) else None for name, n in numbers.items()}
    return kind.wrap(row)
