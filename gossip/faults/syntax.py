"""Faults as they are typed: one word each, such as ``crash:3@50``, ``partition:0-4|5-7@5s+2s``,
``sign_flip:5,6*10``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gossip.errors import BadFault

from .kinds import (
    ATTACKS,
    STRENGTH_MAX,
    ByzantineFault,
    Crash,
    Hang,
    RealFault,
    Restart,
    Slow,
    unknown_kind,
)
from .kinds import KINDS as PROCESS_KINDS
from .world import REAL_ATTACKS, Delay, Flap, LinkFault, Loss, NodeAttack, Partition, Ring, Trickle

LINK_KINDS = ("partition", "ring", "flap", "loss", "delay", "trickle")
KINDS: tuple[str, ...] = (*PROCESS_KINDS[:4], *LINK_KINDS, *PROCESS_KINDS[4:], *REAL_ATTACKS)
"""Of the faults that can be typed: those that real runs carry out."""
PEERS_NAMED_MAX = 4096  # more are no swarm of ours, and a word must not take all memory
# multiply, divide: 59 / 1000 is 0.059, 59 * 0.001 is not
_UNITS = {"ms": (1.0, 1000.0), "s": (1.0, 1.0), "m": (60.0, 1.0)}


@dataclass(slots=True)
class _Reader:
    """Walks over one word, and says where it stopped making sense."""

    word: str
    what: str = "fault"
    at: int = 0

    def wrong(self, expected: str, hint: str | None = None) -> BadFault:
        rest = self.word[self.at :]
        found = f"{rest!r} at position {self.at}" if rest else "the end"
        return self.bad(f"expected {expected}, found {found}", hint)

    def bad(self, why: str, hint: str | None = None) -> BadFault:
        return BadFault(f"bad {self.what} {self.word!r}: {why}", hint)

    def take(self, pattern: str, expected: str, hint: str | None = None) -> str:
        match = re.compile(pattern).match(self.word, self.at)
        if match is None:
            raise self.wrong(expected, hint)
        self.at = match.end()
        return match.group()

    def end(self, hint: str) -> None:
        if self.at != len(self.word):
            raise self.wrong("nothing more", hint)


def read_word(word: str) -> tuple[RealFault | LinkFault | NodeAttack, ...]:
    """The faults of one word: one for each peer that it names. Raises: BadFault."""
    reader = _Reader(word.strip())
    kind = reader.take(
        r"[A-Za-z_-]+", "the kind of a fault", "for example crash:3@50; kinds: " + ", ".join(KINDS)
    ).replace("-", "_")
    if kind not in KINDS:
        raise unknown_kind(kind, f"bad fault {word!r}", KINDS)
    usage = usage_of(kind)
    reader.take(":", "':'", usage)
    if kind in LINK_KINDS:
        return (_link_fault(reader, kind, usage),)
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
                return tuple(Crash(peer, at, at_s) for peer in peers) or (
                    Crash("server", at, at_s),
                )
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
        case lie if lie in REAL_ATTACKS:
            reader.end(usage)
            return (NodeAttack(lie, peers),)
        case attack:
            strength = ATTACKS[attack].strength
            if ATTACKS[attack].unit and reader.at < len(reader.word):
                reader.take(r"\*", "'*' and a strength", usage)
                strength = _number(reader, "a strength", usage)
            reader.end(usage)
            return (attacker(attack, peers, strength, f"bad fault {word!r}"),)


def peers_of(text: str) -> tuple[int, ...]:
    """``0-4,7``. Raises: BadFault."""
    reader, usage = _Reader(text.strip(), "peers"), "peers are typed as 3, as 1,5 or as 0-4"
    peers = _peers(reader, "", usage)
    reader.end(usage)
    return peers


def seconds_of(text: str) -> float:
    """``2s``, ``500ms``, ``1m``. Raises: BadFault."""
    reader, usage = _Reader(text.strip(), "duration"), "durations are typed as 2s, 500ms or 1m"
    seconds = _seconds(reader, usage)
    reader.end(usage)
    return seconds


def _peers(reader: _Reader, kind: str, usage: str) -> tuple[int, ...]:
    expected = "a peer's number" + (" or 'server'" if kind == "crash" else "")
    peers = _span(reader, expected, usage)
    while reader.word.startswith(",", reader.at):
        reader.at += 1
        peers += _span(reader, "a peer's number", usage)
    if len(set(peers)) != len(peers):
        raise reader.bad("a peer is named twice", usage)
    return tuple(peers)


def _span(reader: _Reader, expected: str, usage: str) -> list[int]:
    """``3``, or ``0-4``."""
    first = last = int(reader.take(r"\d{1,9}", expected, usage))
    if reader.word.startswith("-", reader.at):
        reader.at += 1
        last = int(reader.take(r"\d{1,9}", "the last of a row of peers", usage))
        if not first <= last < first + PEERS_NAMED_MAX:
            raise reader.bad(f"{first}-{last} is no row of peers", usage)
    return list(range(first, last + 1))


def _link_fault(reader: _Reader, kind: str, usage: str) -> LinkFault:
    """What befalls the network. It begins at a time, never at a round:
    that comes at another time to each peer."""
    if kind == "partition":
        sides, one_way = _sides(reader, usage)
        return Partition(sides, *_while(reader, usage), one_way)
    everybody = kind in ("loss", "delay") and reader.word.startswith("all", reader.at)
    reader.at += 3 if everybody else 0
    peers = () if everybody else _peers(reader, kind, usage)
    if kind == "ring":
        if len(peers) < 4:
            raise reader.bad(f"in a ring of {len(peers)} everybody reaches everybody", usage)
        return Ring(peers, *_while(reader, usage))
    units = {"flap": "a period", "loss": "a share", "delay": "a duration", "trickle": "a rate"}
    reader.take(r"\*", f"'*' and {units[kind]}", usage)
    if kind == "loss":
        share = _number(reader, "a share from 0 to 1", usage)
        if not 0 <= share <= 1:
            raise reader.bad(f"a share of {share:g} is not from 0 to 1", usage)
        return Loss(share, *_while(reader, usage), peers)
    if kind == "trickle":
        rate = _number(reader, "bytes a second", usage)
        if not 1 <= rate <= 1e12:
            raise reader.bad(f"a rate of {rate:g} bytes a second is not from 1 to 1e12", usage)
        at_s, for_s = _while(reader, usage)
        return Trickle(peers, rate, at_s, for_s)
    long_s = _seconds(reader, usage)
    if kind == "delay":
        return Delay(long_s, *_while(reader, usage), peers)
    if len(peers) != 2:
        raise reader.bad(f"a link has two ends, not {len(peers)}", usage)
    if long_s < 0.001:
        raise reader.bad(f"a period of {long_s:g} s is too short", usage)
    at_s, for_s = _while(reader, usage)
    return Flap(peers, at_s, for_s, long_s)


def _sides(reader: _Reader, usage: str) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """The sides of a partition, and whether it is cut in one direction only."""
    sides = [_peers(reader, "partition", usage)]
    mark = reader.take(r"[|>]", "'|' (or '>', one way) and the other side", usage)
    sides.append(_peers(reader, "partition", usage))
    while reader.word.startswith(mark, reader.at):
        reader.at += 1
        sides.append(_peers(reader, "partition", usage))
    everyone = [peer for side in sides for peer in side]
    if len(set(everyone)) != len(everyone):
        raise reader.bad("a peer is on two sides", usage)
    return tuple(sides), mark == ">"


def _while(reader: _Reader, usage: str) -> tuple[float, float]:
    """From when, and for how long."""
    reader.take("@", "'@' and a time", usage)
    at_s = _seconds(reader, usage)
    reader.take(r"\+", "'+' and a duration", usage)
    for_s = _seconds(reader, usage)
    reader.end(usage)
    return at_s, for_s


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


def attacker(attack: str, peers: tuple[int, ...], strength: float, where: str) -> ByzantineFault:
    """A liar whose strength makes sense for the attack. Raises: BadFault."""
    if not math.isfinite(strength) or not 0 < strength <= STRENGTH_MAX:
        raise BadFault(
            f"{where}: strength {strength:g} is not above 0 and at most {STRENGTH_MAX:g}",
            usage_of(attack),
        )
    if attack in ("stale", "adaptive", "optimal_alie", "optimal_ipm") and strength != int(strength):
        what = (
            "an update is a whole number of rounds old"
            if attack == "stale"
            else "it searches every whole number of rounds"
        )
        raise BadFault(f"{where}: {what}, not {strength:g}", usage_of(attack))
    return ByzantineFault(attack, peers, strength)


def usage_of(kind: str) -> str:
    """How a fault of the kind is typed."""
    match kind:
        case "crash":
            return "crash:PEER@ROUND or crash:server@ROUND, for example crash:3@50"
        case "restart" | "hang":
            return f"{kind}:PEER@ROUND+DURATION, for example {kind}:3@50+2s"
        case "slow":
            return "slow:PEER*FACTOR, for example slow:2*4"
        case "partition":
            return (
                "partition:PEERS|PEERS@TIME+DURATION (> in place of |: one way), for example "
                "'partition:0-4|5-7@20s+10s'"
            )
        case "ring":
            return "ring:PEERS@TIME+DURATION, four or more, for example ring:0-7@20s+10s"
        case "flap":
            return "flap:PEER,PEER*PERIOD@TIME+DURATION, for example flap:0,3*500ms@20s+10s"
        case "loss" | "delay":
            unit, example = ("SHARE", "0.2") if kind == "loss" else ("DURATION", "50ms")
            return (
                f"{kind}:PEERS*{unit}@TIME+DURATION, or all in place of peers, for example "
                f"{kind}:all*{example}@20s+10s"
            )
        case "trickle":
            return (
                "trickle:PEERS*RATE@TIME+DURATION (RATE in bytes a second), for example "
                "trickle:5*1000@20s+10s"
            )
        case lie if lie in REAL_ATTACKS:
            return f"{lie}:PEERS, for example {lie}:5,6"
        case attack:
            unit = ATTACKS[attack].unit
            example = (
                f"{attack}:5,6*{max(10.0, ATTACKS[attack].strength):g}" if unit else f"{attack}:5,6"
            )
            return (
                f"{attack}:PEERS"
                + (f"*STRENGTH ({unit})" if unit else "")
                + f", for example {example}"
            )
