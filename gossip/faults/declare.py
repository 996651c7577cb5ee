"""Declares each kind of fault in one place. The declaration defines the syntax on the command line
and its usage text, the table in a plan file, and the row in ``docs/faults.md``.

    @declared("{peer}*{factor}", "2*4", real=True)
    @dataclass(frozen=True, slots=True)
    class Slow(Fault):
        ...docstring: the row of the page...

        peer: OnePeer
        factor: Annotated[float, Number("FACTOR", "a factor", least=1.0)]
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from gossip.errors import BadFault, list_nearest, suggest_name

from .reader import Reader
from .units import Peer, Peers, Sides, Table, Unit, units_of

_PIECE = re.compile(r"(\[?)([^{\[\]]*)\{(\w+)\}\]?")


@dataclass(frozen=True, slots=True)
class Fault:
    """Base of all kinds of faults. Each kind is a frozen dataclass, and its fields are the keys of
    its table in a plan file."""

    @property
    def kind(self) -> str:
        """Name of the kind in a plan file."""
        return name_of(type(self))

    @property
    def victims(self) -> tuple[Any, ...]:
        """Peers that the fault names. If its kind has no field for peers, the only victim is
        "server"."""
        named = [
            unit.victims(getattr(self, name))
            for name, unit in KINDS[self.kind].units.items()
            if isinstance(unit, Peer | Peers | Sides)
        ]
        return tuple(itertools.chain(*named)) if named else ("server",)

    def __str__(self) -> str:
        return KINDS[self.kind].show(self)


_Made = TypeVar("_Made", bound=type[Fault])


@dataclass(frozen=True)
class Kind:
    """A kind of fault. ``name`` is its name on the command line and in plan files.

    Attributes:
        word: Syntax of the text after the name and a colon. Each ``{field}`` follows its separator;
            the parts in brackets at the end are optional.
        example: Example of the text after the name and a colon.
        real: Whether real runs support the kind. Only then is it valid on the command line.
        fixed: Values of the fields that the name of the kind determines.
        otherwise: Defaults that this kind adds to the defaults of the class.
        note: Text that follows the usage in messages.
        check: Rejects combinations of fields that make no sense, although each field is valid. Its
            arguments are the fault, its origin and its usage. Raises: BadFault.
    """

    name: str
    made: type[Fault]
    word: str
    example: str
    real: bool
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    otherwise: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    note: str = ""
    check: Callable[[Any, str, str], None] = lambda fault, where, usage: None

    @cached_property
    def units(self) -> dict[str, Unit]:
        """Field -> value type, for all fields that are not in ``fixed``."""
        units = units_of(self.made).items()
        return {name: unit for name, unit in units if name not in self.fixed}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        own = {
            field.name: field.default
            for field in dataclasses.fields(self.made)
            if field.default is not dataclasses.MISSING
        }
        return {**own, **self.otherwise}

    @property
    def usage(self) -> str:
        units = self.units
        shape = re.sub(r"\{(\w+)\}", lambda match: units[match[1]].usage, self.word)
        notes = "".join(unit.note for unit in units.values()) + self.note
        example = f"{self.name}:{self.example}"
        quoted = f"'{example}'" if "|" in example else example
        return f"{self.name}:{re.sub(r'[][]', '', shape)}{notes}, for example {quoted}"

    # --- as a word --------------------------------------------------------------------------------

    def read(self, reader: Reader) -> tuple[Fault, ...]:
        """Parse the rest of a word, from the colon on. If the kind has a field for a single peer,
        return one fault for each peer in the word."""
        reader.expect(":", "':'")
        values: dict[str, Any] = {}
        for optional, mark, name in _PIECE.findall(self.word):
            unit = self.units[name]
            if optional and reader.at_end:
                break
            if mark:
                reader.expect(re.escape(mark), f"{mark!r} and {unit.named}")
            values |= unit.read(reader, name)
        reader.end()
        single = [name for name in values if isinstance(self.units[name], Peer)]
        return tuple(
            self._build(
                {**values, **dict(zip(single, each, strict=True))}, f"bad fault {reader.word!r}"
            )
            for each in itertools.product(*(values[name] for name in single))
        )

    def show(self, fault: Fault) -> str:
        pieces = [
            mark + self.units[name].show(fault, name)
            for optional, mark, name in _PIECE.findall(self.word)
            if not optional or getattr(fault, name) is not None
        ]
        return f"{self.name}:{''.join(pieces)}"

    # --- as a table -------------------------------------------------------------------------------

    def read_table(self, table: Table) -> Fault:
        """Return the fault that a table of a plan file describes. Raises: BadFault."""
        self._check_keys(table)
        values = {
            name: unit.read_key(table, name)
            for name, unit in self.units.items()
            if name in table.keys
        }
        return self._build(values, table.where)

    def _check_keys(self, table: Table) -> None:
        known, hint = tuple(self.units), f"it has {', '.join(self.units)}"
        for key in table.keys:
            if key != "kind" and key not in known:
                raise table.bad(f"{self.name} has no {key!r}{suggest_name(key, known, 0.4)}", hint)
        for key in known:
            if key not in table.keys and key not in self.defaults:
                raise table.bad(f"{self.name} needs {key!r}", hint)
        if "round" in known and ("round" in table.keys) == ("at_s" in table.keys):
            raise table.bad(
                f"{self.name} needs 'round' or 'at_s', and not both", "for example round = 50"
            )

    def row(self, fault: Fault) -> dict[str, Any]:
        """Return the keys and values of the fault's table, which ``read_table`` reads."""
        values = {name: getattr(fault, name) for name in self.units}
        return {name: value for name, value in values.items() if value not in ((), None)}

    def _build(self, values: dict[str, Any], where: str) -> Fault:
        fault = self.made(**{**self.fixed, **self.defaults, **values})
        self.check(fault, where, self.usage)
        return fault


KINDS: dict[str, Kind] = {}
"""All kinds of faults by name, in the order of their declaration."""


def declared(word: str, example: str, *, real: bool = False) -> Callable[[_Made], _Made]:
    """Declare the decorated class as a kind of fault. The name of the kind is that of the class."""

    def decorate(made: _Made) -> _Made:
        unset = {"round": None} if "{round}" in word else {}  # None if ``at_s`` is set
        add(Kind(name_of(made), made, word, example, real, otherwise=unset))
        return made

    return decorate


def add(kind: Kind) -> None:
    KINDS[kind.name] = kind


def typed_kinds() -> tuple[str, ...]:
    """Return the kinds of faults that real runs support. Only these are valid on the command
    line."""
    return tuple(kind.name for kind in KINDS.values() if kind.real)


def unknown_kind(kind: str, where: str, known: tuple[str, ...]) -> BadFault:
    """Return the error for an unknown kind. It suggests the nearest known kind."""
    return BadFault(
        f"{where}: unknown kind {kind!r}{suggest_name(kind, known)}",
        f"{list_nearest(kind, known)}: docs/faults.md",
    )


def name_of(made: type[Fault]) -> str:
    """Return the name of the kind that a class declares: ``late_start`` for ``LateStart``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", made.__name__).lower()
