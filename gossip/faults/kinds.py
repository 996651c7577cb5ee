"""The faults that real processes and the simulator both carry out: crash, restart, hang,
slow, and liars.

What strikes at a moment names it by a round (``round``) or by the seconds since the run began
(``at_s``), never by both.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gossip.errors import BadFault

Victim: TypeAlias = int | Literal["server"]


@dataclass(frozen=True, slots=True)
class Crash:
    """SIGKILL to the peer's processes at the moment; ``"server"`` is whoever serves a round then,
    while it serves."""

    peer: Victim
    round: int | None = None
    at_s: float | None = None

    def __str__(self) -> str:
        return f"crash:{self.peer}@{_moment(self)}"


@dataclass(frozen=True, slots=True)
class Restart:
    """SIGKILL like ``Crash``, and the launcher starts the peer again ``after_s`` later."""

    peer: int
    round: int | None
    after_s: float
    at_s: float | None = None

    def __str__(self) -> str:
        return f"restart:{self.peer}@{_moment(self)}+{duration(self.after_s)}"


@dataclass(frozen=True, slots=True)
class Hang:
    """SIGSTOP to the peer's processes, SIGCONT ``for_s`` later."""

    peer: int
    round: int | None
    for_s: float
    at_s: float | None = None

    def __str__(self) -> str:
        return f"hang:{self.peer}@{_moment(self)}+{duration(self.for_s)}"


@dataclass(frozen=True, slots=True)
class Slow:
    """Each step of the peer takes ``factor`` times as long."""

    peer: int
    factor: float

    def __str__(self) -> str:
        return f"slow:{self.peer}*{self.factor:.12g}"


@dataclass(frozen=True, slots=True)
class ByzantineFault:
    """The peers send something other than their update, all through the run. What ``strength``
    means depends on the attack."""

    attack: str
    peers: tuple[int, ...]
    strength: float

    def __str__(self) -> str:
        strength = f"*{self.strength:.12g}" if ATTACKS[self.attack].unit else ""
        return f"{self.attack}:{','.join(map(str, self.peers))}{strength}"


Blow: TypeAlias = Crash | Restart | Hang
RealFault: TypeAlias = Crash | Restart | Hang | Slow | ByzantineFault


@dataclass(frozen=True, slots=True)
class AttackSpec:
    """What a lie does, what its strength means (empty: it has none) and the strength it has
    when none is given."""

    does: str
    unit: str = ""
    strength: float = 1.0


ATTACKS: Mapping[str, AttackSpec] = {
    "sign_flip": AttackSpec("sends the negated update", "times", 1.0),
    "bit_flip": AttackSpec("flips four bits in a tenth of the numbers"),
    "gaussian": AttackSpec("sends noise", "standard deviation", 200.0),
    "scale": AttackSpec("sends the update, scaled", "times", 1000.0),
    "nan": AttackSpec("sends NaN"),
    "inf": AttackSpec("sends infinity"),
    "label_flip": AttackSpec("trains on wrong labels"),
    "stale": AttackSpec("replays an old update", "rounds old", 10.0),
    "zero": AttackSpec("sends zeros"),
    "random_direction": AttackSpec("sends a direction drawn once", "lengths of its update", 1.0),
    "ipm": AttackSpec("sends the mean of the others, negated", "epsilon", 0.1),
    "alie": AttackSpec("stands a little beside the mean of the others", "standard deviations", 1.5),
    "min_max": AttackSpec("stands as far from the others as they do from each other"),
    "min_sum": AttackSpec("the same, in the sum of squares"),
    "sacrificial_anchor": AttackSpec(
        "one goes far away, the others onto the mean that it makes", "norms of the mean", 1000.0
    ),
    "optimal_alie": AttackSpec(
        "alie, as strong as the rule bears it least", "rounds between searches", 10.0
    ),
    "optimal_ipm": AttackSpec(
        "ipm, as strong as the rule bears it least", "rounds between searches", 10.0
    ),
    "adaptive": AttackSpec(
        "searches for what hurts the rule most", "rounds between searches", 10.0
    ),
    "mimic": AttackSpec("copies an honest update"),
    "negated_copies": AttackSpec("sends the first liar's update, negated", "times", 1.0),
    "dissensus": AttackSpec("pushes each neighbour away from the others", "epsilon", 1.0),
    "equivocation": AttackSpec("tells every other neighbour the opposite", "times", 1.0),
}
KINDS: tuple[str, ...] = ("crash", "restart", "hang", "slow", *ATTACKS)
STRENGTH_MAX = 1e12


def unknown_kind(kind: str, where: str, known: tuple[str, ...] = KINDS) -> BadFault:
    """The error for a kind that there is not, with its nearest neighbour."""
    near = difflib.get_close_matches(kind, known, n=1, cutoff=0.6)
    suggestion = f" Did you mean {near[0]!r}?" if near else ""
    return BadFault(f"{where}: unknown kind {kind!r}.{suggestion}", f"kinds: {', '.join(known)}")


def _moment(fault: Blow) -> str:
    return str(fault.round) if fault.at_s is None else duration(fault.at_s)


def duration(seconds: float) -> str:
    """``2s`` or ``500ms``, as faults are typed."""
    amount, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{amount:.6f}".rstrip("0").rstrip(".") + unit
