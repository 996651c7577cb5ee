"""A fault is data: who crashes, hangs, slows down or lies, and when. One plan drives real processes and the simulator alike.

On the command line a fault is one word (``docs/faults.md``), in a plan file one table:

    crash:3@50          [[fault]]
    sign_flip:5,6*10    kind = "crash"
                        peer = 3
                        round = 50
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, assert_never

from gossip.errors import BadFault

Victim: TypeAlias = int | Literal["server"]


@dataclass(frozen=True, slots=True)
class Crash:
    """SIGKILL to the peer's processes when it reaches the round; ``"server"`` is whoever serves it then, while it serves."""

    peer: Victim
    round: int

    def __str__(self) -> str:
        return f"crash:{self.peer}@{self.round}"


@dataclass(frozen=True, slots=True)
class Restart:
    """SIGKILL like ``Crash``, and the launcher starts the peer again ``after_s`` later."""

    peer: int
    round: int
    after_s: float

    def __str__(self) -> str:
        return f"restart:{self.peer}@{self.round}+{_duration(self.after_s)}"


@dataclass(frozen=True, slots=True)
class Hang:
    """SIGSTOP to the peer's processes, SIGCONT ``for_s`` later."""

    peer: int
    round: int
    for_s: float

    def __str__(self) -> str:
        return f"hang:{self.peer}@{self.round}+{_duration(self.for_s)}"


@dataclass(frozen=True, slots=True)
class Slow:
    """Each step of the peer takes ``factor`` times as long."""

    peer: int
    factor: float

    def __str__(self) -> str:
        return f"slow:{self.peer}*{self.factor:.12g}"


@dataclass(frozen=True, slots=True)
class Liar:
    """The peers send something other than their update, all through the run. What ``strength`` means depends on the attack."""

    attack: str
    peers: tuple[int, ...]
    strength: float

    def __str__(self) -> str:
        strength = f"*{self.strength:.12g}" if ATTACKS[self.attack].unit else ""
        return f"{self.attack}:{','.join(map(str, self.peers))}{strength}"


Fault: TypeAlias = Crash | Restart | Hang | Slow | Liar


@dataclass(frozen=True, slots=True)
class Attack:
    """What a lie does, what its strength means (empty: it has none) and the strength it has when none is given."""

    does: str
    unit: str = ""
    strength: float = 1.0


ATTACKS: Mapping[str, Attack] = {
    "sign_flip": Attack("sends the negated update", "times", 1.0),
    "bit_flip": Attack("flips one bit in each number"),
    "gaussian": Attack("sends noise", "standard deviation", 200.0),
    "scale": Attack("sends the update, scaled", "times", 1000.0),
    "nan": Attack("sends NaN"),
    "label_flip": Attack("trains on wrong labels"),
    "stale": Attack("replays an old update", "rounds old", 10.0),
    "zero": Attack("sends zeros"),
}
KINDS: tuple[str, ...] = ("crash", "restart", "hang", "slow", *ATTACKS)
_UNITS = {"ms": (1.0, 1000.0), "s": (1.0, 1.0), "m": (60.0, 1.0)}  # multiply, divide: 59 / 1000 is 0.059, 59 * 0.001 is not
_STRENGTH_MAX = 1e12


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of a run."""

    faults: tuple[Fault, ...] = ()

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    def __len__(self) -> int:
        return len(self.faults)

    @property
    def liars(self) -> Mapping[int, Liar]:
        """Peer -> how it lies."""
        return {peer: fault for fault in self.faults if isinstance(fault, Liar) for peer in fault.peers}

    @property
    def specs(self) -> tuple[str, ...]:
        """The plan as it would be typed: ``parse(plan.specs)`` is the plan again."""
        return tuple(map(str, self.faults))

    def for_peer(self, peer: int) -> tuple[Fault, ...]:
        """What concerns this peer, ``crash:server@...`` included: it may be the one who serves."""
        return tuple(fault for fault in self.faults if peer in _concerned(fault) or _concerned(fault) == ("server",))

    def checked(self, peers: int, rounds: int | None = None) -> FaultPlan:
        """The plan itself.

        Raises: BadFault: A fault names a peer or a round that the run does not have, or two faults exclude each other.
        """
        gone: dict[int, Fault] = {}  # peer -> the crash after which it can do nothing more
        lies: dict[int, Fault] = {}
        for fault in sorted(self.faults, key=lambda fault: getattr(fault, "round", -1)):
            for peer in _concerned(fault):
                if isinstance(peer, int) and peer >= peers:
                    raise BadFault(f"fault {fault}: there is no peer {peer}", f"{peers} peers are numbered 0 to {peers - 1}")
                if isinstance(peer, int) and peer in gone:
                    raise BadFault(f"fault {fault}: peer {peer} is dead since {gone[peer]}", "restart it instead: restart:P@R+2s")
                if isinstance(fault, Liar) and isinstance(peer, int):
                    if peer in lies:
                        raise BadFault(f"fault {fault}: peer {peer} lies already: {lies[peer]}", "a peer tells one kind of lie")
                    lies[peer] = fault
                if isinstance(fault, Crash) and isinstance(peer, int):
                    gone[peer] = fault
            at = getattr(fault, "round", None)
            if at is not None and rounds is not None and at >= rounds:
                raise BadFault(f"fault {fault}: there is no round {at}", f"{rounds} rounds are numbered 0 to {rounds - 1}")
        return self

    def to_toml(self) -> str:
        """A plan file that ``load`` reads back as this plan."""
        return "\n".join(_table(fault) for fault in self.faults)


def parse(specs: str | Iterable[str]) -> FaultPlan:
    """Reads faults as typed on the command line.

    Args:
        specs: One fault or several.
    Raises: BadFault: Says where a word stops making sense and what was expected there.
    """
    words = [specs] if isinstance(specs, str) else list(specs)
    return FaultPlan(tuple(fault for word in words for fault in _parse_one(word)))


def load(path: Path | str) -> FaultPlan:
    """Reads a plan file.

    Raises: BadFault: It cannot be read, is not TOML, or holds something that is no fault.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFault(f"cannot read the fault plan {path}: {error}") from error
    return from_toml(text, str(path))


def from_toml(text: str, origin: str = "fault plan") -> FaultPlan:
    """Like ``load``, from the text of a plan file; ``origin`` names it in errors."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadFault(f"{origin} is not TOML: {error}") from error
    for key in document:
        if key != "fault":
            raise BadFault(f"{origin}: unknown key {key!r}", "a plan holds [[fault]] tables only")
    tables = document.get("fault", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadFault(f"{origin}: 'fault' must be an array of tables", 'write [[fault]], then kind = "crash" and so on')
    return FaultPlan(tuple(_from_table(table, f"{origin}, fault {number}") for number, table in enumerate(tables, 1)))


# --- words --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reader:
    """Walks over one word, and says where it stopped making sense."""

    word: str
    at: int = 0

    def wrong(self, expected: str, hint: str | None = None) -> BadFault:
        rest = self.word[self.at :]
        found = f"{rest!r} at position {self.at}" if rest else "the end"
        return BadFault(f"bad fault {self.word!r}: expected {expected}, found {found}", hint)

    def take(self, pattern: str, expected: str, hint: str | None = None) -> str:
        match = re.compile(pattern).match(self.word, self.at)
        if match is None:
            raise self.wrong(expected, hint)
        self.at = match.end()
        return match.group()

    def end(self, hint: str) -> None:
        if self.at != len(self.word):
            raise self.wrong("nothing more", hint)


def _parse_one(word: str) -> tuple[Fault, ...]:
    reader = _Reader(word.strip())
    kind = reader.take(r"[A-Za-z_-]+", "the kind of a fault", "for example crash:3@50; kinds: " + ", ".join(KINDS)).replace(
        "-", "_"
    )
    if kind not in KINDS:
        raise _unknown_kind(kind, f"bad fault {word!r}")
    usage = _usage(kind)
    reader.take(":", "':'", usage)
    if kind == "crash" and reader.word.startswith("server", reader.at):
        reader.at += len("server")
        peers: tuple[int, ...] = ()
    else:
        peers = _peers(reader, kind, usage)
    match kind:
        case "crash" | "restart" | "hang":
            reader.take("@", "'@' and a round", usage)
            at = int(reader.take(r"\d{1,12}", "a round", usage))
            if kind == "crash":
                reader.end(usage)
                return tuple(Crash(peer, at) for peer in peers) or (Crash("server", at),)
            reader.take(r"\+", "'+' and a duration", usage)
            seconds = _seconds(reader, usage)
            reader.end(usage)
            return tuple(Restart(peer, at, seconds) if kind == "restart" else Hang(peer, at, seconds) for peer in peers)
        case "slow":
            reader.take(r"\*", "'*' and a factor", usage)
            factor = _number(reader, "a factor", usage)
            reader.end(usage)
            if factor < 1:
                raise BadFault(f"bad fault {word!r}: a factor of {factor:g} would be faster", usage)
            return tuple(Slow(peer, factor) for peer in peers)
        case attack:
            strength = ATTACKS[attack].strength
            if ATTACKS[attack].unit and reader.at < len(reader.word):
                reader.take(r"\*", "'*' and a strength", usage)
                strength = _number(reader, "a strength", usage)
            reader.end(usage)
            return (_liar(attack, peers, strength, f"bad fault {word!r}"),)


def _peers(reader: _Reader, kind: str, usage: str) -> tuple[int, ...]:
    expected = "a peer's number" + (" or 'server'" if kind == "crash" else "")
    peers = [int(reader.take(r"\d{1,9}", expected, usage))]
    while reader.word.startswith(",", reader.at):
        reader.at += 1
        peers.append(int(reader.take(r"\d{1,9}", "a peer's number", usage)))
    if len(set(peers)) != len(peers):
        raise BadFault(f"bad fault {reader.word!r}: a peer is named twice", usage)
    return tuple(peers)


def _number(reader: _Reader, expected: str, usage: str) -> float:
    return float(reader.take(r"-?\d+(\.\d+)?(e[+-]?\d{1,3})?", expected, usage))


def _seconds(reader: _Reader, usage: str) -> float:
    amount = float(reader.take(r"\d+(\.\d+)?", "a duration such as 2s or 500ms", usage))
    times, over = _UNITS[reader.take(r"(ms|s|m)(?![A-Za-z])", "a unit of time: ms, s or m", usage)]
    return amount * times / over


def _liar(attack: str, peers: tuple[int, ...], strength: float, where: str) -> Liar:
    if not math.isfinite(strength) or not 0 < strength <= _STRENGTH_MAX:
        raise BadFault(f"{where}: strength {strength:g} is not above 0 and at most {_STRENGTH_MAX:g}", _usage(attack))
    if attack == "stale" and strength != int(strength):
        raise BadFault(f"{where}: an update is a whole number of rounds old, not {strength:g}", _usage(attack))
    return Liar(attack, peers, strength)


def _usage(kind: str) -> str:
    match kind:
        case "crash":
            return "crash:PEER@ROUND or crash:server@ROUND, for example crash:3@50"
        case "restart" | "hang":
            return f"{kind}:PEER@ROUND+DURATION, for example {kind}:3@50+2s"
        case "slow":
            return "slow:PEER*FACTOR, for example slow:2*4"
        case attack:
            unit = ATTACKS[attack].unit
            example = f"{attack}:5,6*{max(10.0, ATTACKS[attack].strength):g}" if unit else f"{attack}:5,6"
            return f"{attack}:PEERS" + (f"*STRENGTH ({unit})" if unit else "") + f", for example {example}"


def _unknown_kind(kind: str, where: str) -> BadFault:
    near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.5)
    suggestion = f" Did you mean {near[0]!r}?" if near else ""
    return BadFault(f"{where}: unknown kind {kind!r}.{suggestion}", f"kinds: {', '.join(KINDS)}")


def _concerned(fault: Fault) -> tuple[Victim, ...]:
    return fault.peers if isinstance(fault, Liar) else (fault.peer,)


def _duration(seconds: float) -> str:
    amount, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{amount:.6f}".rstrip("0").rstrip(".") + unit


# --- tables -------------------------------------------------------------------------------------------------------------


def _table(fault: Fault) -> str:
    match fault:
        case Crash(peer, at):
            rows = {"kind": '"crash"', "peer": '"server"' if peer == "server" else str(peer), "round": str(at)}
        case Restart(peer, at, after_s):
            rows = {"kind": '"restart"', "peer": str(peer), "round": str(at), "after_s": repr(float(after_s))}
        case Hang(peer, at, for_s):
            rows = {"kind": '"hang"', "peer": str(peer), "round": str(at), "for_s": repr(float(for_s))}
        case Slow(peer, factor):
            rows = {"kind": '"slow"', "peer": str(peer), "factor": repr(float(factor))}
        case Liar(attack, peers, strength):
            rows = {"kind": f'"{attack}"', "peers": str(list(peers))}
            if ATTACKS[attack].unit:
                rows["strength"] = repr(float(strength))
        case _ as never:
            assert_never(never)
    return "[[fault]]\n" + "".join(f"{key} = {value}\n" for key, value in rows.items())


def _from_table(table: Mapping[str, Any], where: str) -> Fault:
    kind = table.get("kind")
    if not isinstance(kind, str):
        raise BadFault(f"{where}: it has no kind", "kinds: " + ", ".join(KINDS))
    kind = kind.replace("-", "_")
    if kind not in KINDS:
        raise _unknown_kind(kind, where)
    keys = {
        "crash": ("peer", "round"),
        "restart": ("peer", "round", "after_s"),
        "hang": ("peer", "round", "for_s"),
        "slow": ("peer", "factor"),
    }.get(kind, ("peers", "strength") if kind in ATTACKS and ATTACKS[kind].unit else ("peers",))
    for key in table:
        if key != "kind" and key not in keys:
            near = difflib.get_close_matches(key, keys, n=1, cutoff=0.4)
            suggestion = f" Did you mean {near[0]!r}?" if near else ""
            raise BadFault(f"{where}: {kind} has no {key!r}.{suggestion}", f"it has {', '.join(keys)}")
    for key in keys:
        if key not in table and key != "strength":
            raise BadFault(f"{where}: {kind} needs {key!r}", f"it has {', '.join(keys)}")

    def number(key: str, least: float) -> float:
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
            raise BadFault(f"{where}: {key} = {value!r} is not a number from {least:g} up", f"{kind} has {', '.join(keys)}")
        return float(value)

    def peer(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadFault(f"{where}: {value!r} is not a peer", "peers are numbered from 0")
        return value

    def at() -> int:
        value = table["round"]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadFault(f"{where}: {value!r} is not a round", "rounds are numbered from 0")
        return value

    made: Mapping[str, Callable[[], Fault]] = {
        "crash": lambda: Crash("server" if table["peer"] == "server" else peer(table["peer"]), at()),
        "restart": lambda: Restart(peer(table["peer"]), at(), number("after_s", 0)),
        "hang": lambda: Hang(peer(table["peer"]), at(), number("for_s", 0)),
        "slow": lambda: Slow(peer(table["peer"]), number("factor", 1)),
    }
    if kind in made:
        return made[kind]()
    peers = table["peers"]
    if not isinstance(peers, list) or not peers:
        raise BadFault(f"{where}: peers = {peers!r} is not a list of peers", "for example peers = [5, 6]")
    named = tuple(map(peer, peers))
    if len(set(named)) != len(named):
        raise BadFault(f"{where}: a peer is named twice in {peers!r}", "for example peers = [5, 6]")
    strength = number("strength", 0) if "strength" in table else ATTACKS[kind].strength
    return _liar(kind, named, strength, where)
