"""Faults as they are typed: one word each, such as ``crash:3@50``, ``hang:3@5s+2s``, ``sign_flip:5,6*10``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gossip.errors import BadFault
from gossip.fault_kinds import ATTACKS, KINDS, STRENGTH_MAX, Crash, Hang, Liar, RealFault, Restart, Slow, unknown_kind

_UNITS = {"ms": (1.0, 1000.0), "s": (1.0, 1.0), "m": (60.0, 1.0)}  # multiply, divide: 59 / 1000 is 0.059, 59 * 0.001 is not


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


def read_word(word: str) -> tuple[RealFault, ...]:
    """The faults of one word: one for each peer that it names. Raises: BadFault."""
    reader = _Reader(word.strip())
    kind = reader.take(r"[A-Za-z_-]+", "the kind of a fault", "for example crash:3@50; kinds: " + ", ".join(KINDS)).replace(
        "-", "_"
    )
    if kind not in KINDS:
        raise unknown_kind(kind, f"bad fault {word!r}")
    usage = usage_of(kind)
    reader.take(":", "':'", usage)
    if kind == "crash" and reader.word.startswith("server", reader.at):
        reader.at += len("server")
        peers: tuple[int, ...] = ()
    else:
        peers = _peers(reader, kind, usage)
    match kind:
        case "crash" | "restart" | "hang":
            reader.take("@", "'@' and a round", usage)
            at, at_s = _moment(reader, usage)
            if kind == "crash":
                reader.end(usage)
                return tuple(Crash(peer, at, at_s) for peer in peers) or (Crash("server", at, at_s),)
            reader.take(r"\+", "'+' and a duration", usage)
            seconds = _seconds(reader, usage)
            reader.end(usage)
            made = Restart if kind == "restart" else Hang
            return tuple(made(peer, at, seconds, at_s) for peer in peers)
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
            return (liar(attack, peers, strength, f"bad fault {word!r}"),)


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


def _moment(reader: _Reader, usage: str) -> tuple[int | None, float | None]:
    """A round, or seconds since the run began: what has a unit is a time."""
    if re.compile(r"\d+(\.\d+)?(ms|s|m)").match(reader.word, reader.at):
        return None, _seconds(reader, usage)
    return int(reader.take(r"\d{1,12}", "a round", usage)), None


def liar(attack: str, peers: tuple[int, ...], strength: float, where: str) -> Liar:
    """A liar whose strength makes sense for the attack. Raises: BadFault."""
    if not math.isfinite(strength) or not 0 < strength <= STRENGTH_MAX:
        raise BadFault(f"{where}: strength {strength:g} is not above 0 and at most {STRENGTH_MAX:g}", usage_of(attack))
    if attack in ("stale", "adaptive", "optimal_alie", "optimal_ipm") and strength != int(strength):
        what = "an update is a whole number of rounds old" if attack == "stale" else "it searches every whole number of rounds"
        raise BadFault(f"{where}: {what}, not {strength:g}", usage_of(attack))
    return Liar(attack, peers, strength)


def usage_of(kind: str) -> str:
    """How a fault of the kind is typed."""
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
