"""Value types of the fields of faults. Each type defines which values are valid, and their syntax
on the command line and in a plan file. A field has its value type in its annotation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

from gossip.errors import BadFault, suggest_name

from .reader import Reader, duration, peers_word

SECONDS_MAX = 1e9


@dataclass(frozen=True, slots=True)
class Table:
    """Table of a plan file. ``where``: name of the table in errors."""

    kind: str
    keys: Mapping[str, Any]
    where: str

    def bad(self, why: str, hint: str = "") -> BadFault:
        return BadFault(f"{self.where}: {why}", hint or f"a key of {self.kind}")

    def number(self, key: str, least: float, most: float) -> float:
        value = self.keys[key]
        number = (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
        if not number or not least <= value <= most:
            raise self.bad(f"{key} = {value!r} is not a number {_bounds(least, most)}")
        return float(value)

    def peer(self, value: object) -> int:
        return self.whole(value, "a peer", "peers are numbered from 0")

    def whole(self, value: object, what: str, hint: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.bad(f"{value!r} is not {what}", hint)
        return value

    def peers(self, value: object, key: str) -> tuple[int, ...]:
        example = f"for example {key} = [5, 6]"
        if not isinstance(value, list) or not value:
            raise self.bad(f"{key} = {value!r} is not a list of peers", example)
        named = tuple(map(self.peer, value))
        if len(set(named)) != len(named):
            raise self.bad(f"a peer is named twice in {value!r}", example)
        return named


@dataclass(frozen=True, slots=True)
class Unit:
    """Value type of a field.

    Attributes:
        usage: Placeholder for the value in the usage of a word.
        named: Name of the value in errors.
        note: Text that follows the usage in messages.
    """

    usage: str = ""
    named: str = ""
    note: str = ""

    def read(self, reader: Reader, name: str) -> dict[str, Any]:
        """Parse the value in a word of the command line. Return the values of the fields that it
        determines, by field."""
        raise NotImplementedError

    def show(self, fault: Any, name: str) -> str:
        """Return the value in the syntax of the command line."""
        return str(getattr(fault, name))

    def read_key(self, table: Table, key: str) -> Any:
        """Return the value of a key in a plan file's table."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Number(Unit):
    """A number from ``least`` to ``most``. ``expected``: description of a valid value, for error
    messages; ``beyond``: reason why other numbers are invalid; ``suffix``: unit in errors."""

    least: float = 0.0
    most: float = math.inf
    expected: str = ""
    suffix: str = ""
    beyond: str = ""

    def read(self, reader: Reader, name: str) -> dict[str, Any]:
        value = reader.number(self.expected or self.named)
        if not self.least <= value <= self.most:
            why = self.beyond or f"is not {_bounds(self.least, self.most)}"
            raise reader.bad(f"{self.named} of {value:g}{self.suffix} {why}")
        return {name: value}

    def show(self, fault: Any, name: str) -> str:
        return f"{getattr(fault, name):.12g}"

    def read_key(self, table: Table, key: str) -> float:
        return table.number(key, self.least, self.most)


@dataclass(frozen=True, slots=True)
class Strength(Number):
    """Strength of an attack. The attack defines which strengths are valid."""

    usage: str = "STRENGTH"
    named: str = "a strength"

    def read(self, reader: Reader, name: str) -> dict[str, Any]:
        return {name: reader.number(self.named)}


@dataclass(frozen=True, slots=True)
class Seconds(Unit):
    usage: str = "DURATION"
    named: str = "a duration"
    least: float = 0.0

    def read(self, reader: Reader, name: str) -> dict[str, Any]:
        value = reader.seconds()
        if value < self.least:
            raise reader.bad(f"{self.named} of {value:g} s is too short")
        return {name: value}

    def show(self, fault: Any, name: str) -> str:
        return duration(getattr(fault, name))

    def read_key(self, table: Table, key: str) -> float:
        return table.number(key, self.least, SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class Round(Unit):
    """A round. In a word of the command line, a number with a unit of time sets ``at_s``
    instead."""

    usage: str = "ROUND"
    named: str = "a round"

    def read(self, reader: Reader, name: str) -> dict[str, Any]:
        if reader.is_time():
            return {name: None, "at_s": reader.seconds()}
        return {name: int(reader.expect(r"\d{1,12}", self.named)), "at_s": None}

    def show(self, fault: Any, name: str) -> str:
        return str(getattr(fault, name)) if fault.at_s is None else duration(fault.at_s)

    def read_key(self, table: Table, key: str) -> int:
        return table.whole(table.keys[key], self.named, "rounds are numbered from 0")


@dataclass(frozen=True, slots=True)
class Count(Unit):
    def read_key(self, table: Table, key: str) -> int:
        return table.whole(table.keys[key], "a count", "0, 1, 2, ...")


@dataclass(frozen=True, slots=True)
class Truth(Unit):
    def read_key(self, table: Table, key: str) -> bool:
        value = table.keys[key]
        if not isinstance(value, bool):
            raise table.bad(f"{key} = {value!r} is neither true nor false")
        return value


@dataclass(frozen=True, slots=True)
class Choice(Unit):
    choices: Sequence[str] = ()

    def read_key(self, table: Table, key: str) -> str:
        value = table.keys[key]
        if not isinstance(value, str) or value not in self.choices:
            raise table.bad(
                f"{table.kind} has no {key} {value!r}{suggest_name(str(value), self.choices)}",
                f"choose one of {', '.join(self.choices)}",
            )
        return value


@dataclass(frozen=True, slots=True)
class Function(Unit):
    """A function of the user, as ``PLACE:NAME``. ``PLACE`` is a file or an importable module."""

    usage: str = "FILE.py:FUNCTION"
    named: str = "a function, such as my_attacks.py:mine"
    pattern: str = r"[^\s:]+:[A-Za-z_]\w*"

    def read(self, reader: Reader, name: str) -> dict[str, Any]:
        return {name: reader.expect(self.pattern, self.named)}

    def read_key(self, table: Table, key: str) -> str:
        value = table.keys[key]
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise table.bad(f"{key} = {value!r} is not {self.named}")
        return value


@dataclass(frozen=True, slots=True)
class Peer(Unit):
    """One peer. A word of the command line may name several peers, and then describes one fault for
    each peer."""

    usage: str = "PEER"
    server: bool = False  # whether "server" is also valid

    def read(self, reader: Reader, name: str) -> dict[str, Any]:
        if self.server and reader.skip("server"):
            return {name: ("server",)}
        return {name: reader.peers("a peer's number" + (" or 'server'" if self.server else ""))}

    def read_key(self, table: Table, key: str) -> Any:
        value = table.keys[key]
        return value if self.server and value == "server" else table.peer(value)

    def victims(self, value: Any) -> tuple[Any, ...]:
        """Return the peers that a value names."""
        return (value,)


@dataclass(frozen=True, slots=True)
class Peers(Unit):
    """Several peers. ``everybody``: whether ``all``, or a table without the key, means all peers.
    ``wrong`` and ``idle`` return the reason why this number of peers is invalid, or "". ``idle``
    applies only to the command line."""

    usage: str = "PEERS"
    everybody: bool = False
    rows: bool = True  # whether ranges such as 0-4 are shown
    wrong: Callable[[int], str] = lambda number: ""
    idle: Callable[[int], str] = lambda number: ""

    def read(self, reader: Reader, name: str) -> dict[str, Any]:
        peers = () if self.everybody and reader.skip("all") else reader.peers()
        if why := self.wrong(len(peers)) or self.idle(len(peers)):
            raise reader.bad(why)
        return {name: peers}

    def show(self, fault: Any, name: str) -> str:
        peers = getattr(fault, name)
        return (peers_word(peers) if self.rows else ",".join(map(str, peers))) or "all"

    def read_key(self, table: Table, key: str) -> tuple[int, ...]:
        peers = table.peers(table.keys[key], key)
        if why := self.wrong(len(peers)):
            raise table.bad(why, f"for example {key} = [0, 3]")
        return peers

    def victims(self, value: Any) -> tuple[Any, ...]:
        return tuple(value)


@dataclass(frozen=True, slots=True)
class Sides(Unit):
    """Sides of a partition. The separator of the sides in a word determines ``one_way``."""

    usage: str = "PEERS|PEERS"
    note: str = " (> in place of |: one way)"

    def read(self, reader: Reader, name: str) -> dict[str, Any]:
        sides = [reader.peers()]
        mark = reader.expect(r"[|>]", "'|' (or '>', one way) and the other side")
        sides.append(reader.peers())
        while reader.skip(mark):
            sides.append(reader.peers())
        if _overlap(sides):
            raise reader.bad("a peer is on two sides")
        return {name: tuple(sides), "one_way": mark == ">"}

    def show(self, fault: Any, name: str) -> str:
        return (">" if fault.one_way else "|").join(map(peers_word, getattr(fault, name)))

    def read_key(self, table: Table, key: str) -> tuple[tuple[int, ...], ...]:
        value = table.keys[key]
        if not isinstance(value, list) or len(value) < 2:
            raise table.bad(
                f"{key} = {value!r} is not a list of sides",
                f"for example {key} = [[0, 1], [2, 3, 4]]",
            )
        sides = tuple(table.peers(side, key) for side in value)
        if _overlap(sides):
            raise table.bad(
                f"a peer is on two sides in {value!r}", "a peer on no side reaches all others"
            )
        return sides

    def victims(self, value: Any) -> tuple[Any, ...]:
        return tuple(peer for side in value for peer in side)


Time: TypeAlias = Annotated[float, Seconds("TIME", "a time")]
Duration: TypeAlias = Annotated[float, Seconds()]
RoundNumber: TypeAlias = Annotated[int, Round()]
OnePeer: TypeAlias = Annotated[int, Peer()]
PeerList: TypeAlias = Annotated[tuple[int, ...], Peers()]
PeerNumbers: TypeAlias = Annotated[tuple[int, ...], Peers(rows=False)]


def units_of(made: type) -> dict[str, Unit]:
    """Return the value type of each field of a class, by the name of the field."""
    return {
        name: unit
        for name, hint in get_type_hints(made, include_extras=True).items()
        for part in (hint, *get_args(hint))
        for unit in getattr(part, "__metadata__", ())
    }


def _overlap(sides: Sequence[tuple[int, ...]]) -> bool:
    everyone = [peer for side in sides for peer in side]
    return len(set(everyone)) != len(everyone)


def _bounds(least: float, most: float) -> str:
    return f"from {least:g} up" if most == math.inf else f"from {least:g} to {most:g}"
