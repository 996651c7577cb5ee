"""Faults as tables of a plan file: ``kind`` and the keys of that kind, each checked."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gossip.errors import BadFault

from .kinds import (
    ATTACKS,
    KINDS,
    ByzantineFault,
    Crash,
    Hang,
    RealFault,
    Restart,
    Slow,
    unknown_kind,
)
from .syntax import attacker
from .world import WORLD_KINDS, WorldFault, kind_of

Fault: TypeAlias = RealFault | WorldFault

ALL_KINDS = (*KINDS, *WORLD_KINDS)
_NEEDS: Mapping[str, tuple[str, ...]] = {"crash": (), "restart": ("after_s",), "hang": ("for_s",)}


def to_table(fault: Fault) -> str:
    """The fault as a ``[[fault]]`` table, which ``from_table`` reads back."""
    rows: dict[str, str]
    match fault:
        case Crash(peer, at, at_s):
            rows = {
                "kind": '"crash"',
                "peer": '"server"' if peer == "server" else str(peer),
                **_moment(at, at_s),
            }
        case Restart(peer, at, after_s, at_s):
            rows = {
                "kind": '"restart"',
                "peer": str(peer),
                **_moment(at, at_s),
                "after_s": repr(float(after_s)),
            }
        case Hang(peer, at, for_s, at_s):
            rows = {
                "kind": '"hang"',
                "peer": str(peer),
                **_moment(at, at_s),
                "for_s": repr(float(for_s)),
            }
        case Slow(peer, factor):
            rows = {"kind": '"slow"', "peer": str(peer), "factor": repr(float(factor))}
        case ByzantineFault(attack, peers, strength):
            rows = {"kind": f'"{attack}"', "peers": str(list(peers))}
            if ATTACKS[attack].unit:
                rows["strength"] = repr(float(strength))
        case _:
            values = {field.name: getattr(fault, field.name) for field in dataclasses.fields(fault)}
            rows = {
                "kind": f'"{kind_of(fault)}"',
                **{key: toml_of(value) for key, value in values.items() if value != ()},
            }
    return "[[fault]]\n" + "".join(f"{key} = {value}\n" for key, value in rows.items())


def toml_of(value: object) -> str:
    """A number, a truth, a plain text or nested lists of them, as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case tuple():
            return "[" + ", ".join(map(toml_of, value)) + "]"
        case _:
            return repr(value)


def from_table(table: Mapping[str, Any], where: str) -> Fault:
    """The fault that a table describes. Raises: BadFault,
    which says where and what was expected."""
    kind = table.get("kind")
    if not isinstance(kind, str):
        raise BadFault(f"{where}: it has no kind", "kinds: " + ", ".join(ALL_KINDS))
    kind = kind.replace("-", "_")
    if kind not in ALL_KINDS:
        raise unknown_kind(kind, where, ALL_KINDS)
    reader = _Table(kind, table, where)
    return reader.world_fault(WORLD_KINDS[kind]) if kind in WORLD_KINDS else reader.real_fault()


def _moment(at: int | None, at_s: float | None) -> dict[str, str]:
    return {"round": str(at)} if at_s is None else {"at_s": repr(float(at_s))}


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """Reads and checks the keys of one table."""

    kind: str
    table: Mapping[str, Any]
    where: str

    def real_fault(self) -> RealFault:
        moment = ("round", "at_s") if self.kind in _NEEDS else ()
        match self.kind:
            case "crash" | "restart" | "hang":
                self.keys(("peer", *moment, *_NEEDS[self.kind]), optional=moment)
                return self.blow()
            case "slow":
                self.keys(("peer", "factor"))
                return Slow(self.peer(self.table["peer"]), self.number("factor", 1))
            case attack:
                self.keys(
                    ("peers", "strength") if ATTACKS[attack].unit else ("peers",),
                    optional=("strength",),
                )
                strength = (
                    self.number("strength", 0)
                    if "strength" in self.table
                    else ATTACKS[attack].strength
                )
                return attacker(attack, self.peers("peers"), strength, self.where)

    def blow(self) -> RealFault:
        if ("round" in self.table) == ("at_s" in self.table):
            raise BadFault(
                f"{self.where}: {self.kind} needs 'round' or 'at_s', and not both",
                "for example round = 50",
            )
        at = (
            self.whole("round", "a round", "rounds are numbered from 0")
            if "round" in self.table
            else None
        )
        at_s = self.number("at_s", 0) if "at_s" in self.table else None
        if self.kind == "crash":
            server = self.table["peer"] == "server"
            return Crash("server" if server else self.peer(self.table["peer"]), at, at_s)
        peer = self.peer(self.table["peer"])
        if self.kind == "restart":
            return Restart(peer, at, self.number("after_s", 0), at_s)
        return Hang(peer, at, self.number("for_s", 0), at_s)

    def world_fault(self, made: type[WorldFault]) -> WorldFault:
        """Keys, types and bounds are the fields of the kind."""
        fields = {field.name: field for field in dataclasses.fields(made)}
        optional = tuple(
            name for name, field in fields.items() if field.default is not dataclasses.MISSING
        )
        self.keys(tuple(fields), optional)
        readers: Mapping[str, Callable[[str], Any]] = {
            "float": lambda key: self.number(
                key, fields[key].metadata["least"], fields[key].metadata["most"]
            ),
            "int": lambda key: (
                self.peer(self.table[key])
                if key == "peer"
                else self.whole(key, "a count", "0, 1, 2, ...")
            ),
            "bool": self.truth,
            "str": lambda key: self.word(key, fields[key].metadata["choices"]),
            "tuple[int, ...]": self.peers,
            "tuple[tuple[int, ...], ...]": self.sides,
        }
        values = {
            name: readers[str(field.type)](name)
            for name, field in fields.items()
            if name in self.table
        }
        if self.kind == "flap" and len(values["peers"]) != 2:
            raise BadFault(
                f"{self.where}: a link has two ends, not {len(values['peers'])}",
                "for example peers = [0, 3]",
            )
        return made(**values)

    def keys(self, known: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        for key in self.table:
            if key != "kind" and key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
                suggestion = f" Did you mean {near[0]!r}?" if near else ""
                raise BadFault(
                    f"{self.where}: {self.kind} has no {key!r}.{suggestion}",
                    f"it has {', '.join(known)}",
                )
        for key in known:
            if key not in self.table and key not in optional:
                raise BadFault(
                    f"{self.where}: {self.kind} needs {key!r}", f"it has {', '.join(known)}"
                )

    def number(self, key: str, least: float, most: float = math.inf) -> float:
        value = self.table[key]
        number = (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
        if not number or not least <= value <= most:
            bounds = f"from {least:g} up" if most == math.inf else f"from {least:g} to {most:g}"
            raise BadFault(
                f"{self.where}: {key} = {value!r} is not a number {bounds}", f"a key of {self.kind}"
            )
        return float(value)

    def whole(self, key: str, what: str, hint: str) -> int:
        value = self.table[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadFault(f"{self.where}: {value!r} is not {what}", hint)
        return value

    def word(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.table[key]
        if not isinstance(value, str) or value not in choices:
            near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.6)
            suggestion = f" Did you mean {near[0]!r}?" if near else ""
            raise BadFault(
                f"{self.where}: {self.kind} knows no {key} {value!r}.{suggestion}",
                f"it knows {', '.join(choices)}",
            )
        return value

    def truth(self, key: str) -> bool:
        value = self.table[key]
        if not isinstance(value, bool):
            raise BadFault(
                f"{self.where}: {key} = {value!r} is neither true nor false",
                f"a key of {self.kind}",
            )
        return value

    def peer(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadFault(f"{self.where}: {value!r} is not a peer", "peers are numbered from 0")
        return value

    def peers(self, key: str) -> tuple[int, ...]:
        return self.group(self.table[key], key)

    def group(self, value: object, key: str) -> tuple[int, ...]:
        if not isinstance(value, list) or not value:
            raise BadFault(
                f"{self.where}: {key} = {value!r} is not a list of peers",
                f"for example {key} = [5, 6]",
            )
        named = tuple(map(self.peer, value))
        if len(set(named)) != len(named):
            raise BadFault(
                f"{self.where}: a peer is named twice in {value!r}", f"for example {key} = [5, 6]"
            )
        return named

    def sides(self, key: str) -> tuple[tuple[int, ...], ...]:
        value = self.table[key]
        if not isinstance(value, list) or len(value) < 2:
            raise BadFault(
                f"{self.where}: {key} = {value!r} is not a list of sides",
                f"for example {key} = [[0, 1], [2, 3, 4]]",
            )
        sides = tuple(self.group(side, key) for side in value)
        everyone = [peer for side in sides for peer in side]
        if len(set(everyone)) != len(everyone):
            raise BadFault(
                f"{self.where}: a peer is on two sides in {value!r}",
                "a peer on no side reaches everyone",
            )
        return sides
