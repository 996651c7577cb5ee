"""Base classes of events and of other records."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from .fields import NAMED, TEXT, FieldType, PeerId, Real, RoundId, Row, Texts, Time, objects

REQUIRED = ("PeerId", "RoundNumber", "int", "float")
"""Types of required fields. A row must have each field that has one of these types and no
default."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Declared:
    """Record. Its fields are the annotated attributes of its class.

    Type checkers treat a subclass as a frozen dataclass. The row that was read is the object's
    ``__dict__``, so reading takes little more time than parsing the line. Eighty dataclasses would
    add 15 ms to each start of ``gossip ls``.
    """

    fields: ClassVar[Mapping[str, str]] = {}
    """Attribute -> name of the field in a row."""
    types: ClassVar[Mapping[str, FieldType]] = {}
    """Name of a field in a row -> type of the field."""
    required: ClassVar[tuple[str, ...]] = ()
    """Fields that a row of this kind must have."""
    renamed: ClassVar[bool] = False
    """Whether a field's name in a row is a keyword of Python, so that the attribute has another
    name."""

    def __init_subclass__(cls) -> None:
        for name, kind in inspect.get_annotations(cls).items():
            written = name.rstrip("_")
            cls.fields, cls.types = (
                {**cls.fields, name: written},
                {**cls.types, written: NAMED[kind]},
            )
            cls.required += (name,) * (kind in REQUIRED and name not in vars(cls))
            cls.renamed |= name != written
            setattr(cls, name, getattr(cls, name, None))

    def __init__(self, **values: Any) -> None:
        self.__dict__ = values

    @classmethod
    def wrap(cls, values: dict[str, Any]) -> Self:
        """Return an object with these values. ``values`` is not copied."""
        made = cls.__new__(cls)
        made.__dict__ = values
        return made

    @classmethod
    def pick(cls, found: object) -> Self:
        """Return an object with those values in ``found`` that have the declared types. All other
        fields have their defaults. If ``found`` is not a mapping, all fields have their
        defaults."""
        values = found if isinstance(found, Mapping) else {}
        return cls.wrap(
            {
                name: values[name]
                for name, kind in cls.types.items()
                if name in values and kind.accepts(values[name])
            }
        )

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)


class Part(Declared):
    """Object in a list, in a field of a row. Other declarations have ``tuple[NAME, ...]`` as the
    type of this field."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        NAMED[f"tuple[{cls.__name__}, ...]"] = objects(cls.types, *cls.required)


class Event(Declared):
    """A row of ``events.jsonl``. A row of an unknown kind is an instance of this class itself."""

    types = {"event": TEXT}  # noqa: RUF012
    t: Time = 0.0
    wall: Time | None = None
    peer: PeerId | None = None
    round: RoundId = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the kind, which is in the field ``event`` of a row."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_fields(self) -> Row:
        """Return the fields of the event, by their names in a row."""
        return {name.rstrip("_"): value for name, value in vars(self).items() if name not in STAMP}

    def to_row(self, t: float, wall: float) -> Row:
        """Return the row to write for an event that happened at ``t``."""
        return {"t": t, "wall": wall, "peer": self.peer, "event": self.name(), **self.to_fields()}


STAMP = ("t", "wall", "peer")
"""Fields that ``to_row`` sets at the start of each row."""


class PeerEvent(Event):
    """An event that a peer reports, or that its launcher reports about the peer."""

    peer: PeerId


class SubjectEvent(PeerEvent):
    """An event that a peer reports about another peer."""

    subject: PeerId


class StageEvent(PeerEvent):
    """An event that a peer reports about a stage of a pipeline."""

    stage: RoundId


class Judgement(SubjectEvent):
    """An event about a peer's trust. All peers report the same events about a round."""

    trust: Real
    reasons: Texts


E = TypeVar("E", bound=Event)


def select(happened: Iterable[Event], *kinds: type[E]) -> Iterator[E]:
    """Yield the events of these kinds, in order."""
    return (event for event in happened if isinstance(event, kinds))
