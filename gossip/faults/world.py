"""Faults in the network, in clocks, at one instant of a process, in what a node says; and who is
late (``start``).

The simulator can inject them all, real runs those of ``LinkFault`` and the lies of
``REAL_ATTACKS``. Each is a frozen dataclass whose fields are the keys of its table in a plan file.
Times are seconds since the run began; what lasts goes from ``at_s`` for ``for_s``. ``peers``
without a word says "every link" or "anyone".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .kinds import duration
from .start import LateStart, LateTrainer, NeverStarts, StartFault


def _number(least: float, most: float = 1e9) -> Any:
    return field(metadata={"least": least, "most": most})


def _links() -> Any:
    return field(default=(), metadata={"optional": True})


@dataclass(frozen=True, slots=True)
class Partition:
    """Nothing passes between peers of different sides;
    a peer on no side reaches everyone (a bridge).

    ``one_way``: only what an earlier side says to a later one is lost.
    """

    sides: tuple[tuple[int, ...], ...]
    at_s: float = _number(0)
    for_s: float = _number(0)
    one_way: bool = False

    def __str__(self) -> str:
        sides = (">" if self.one_way else "|").join(map(peers_word, self.sides))
        return f"partition:{sides}{_moment(self)}"


@dataclass(frozen=True, slots=True)
class Ring:
    """The peers stand in a ring and reach only their next on either side:
    no two have the same view."""

    peers: tuple[int, ...]
    at_s: float = _number(0)
    for_s: float = _number(0)

    def __str__(self) -> str:
        return f"ring:{peers_word(self.peers)}{_moment(self)}"


@dataclass(frozen=True, slots=True)
class Flap:
    """The link between two peers breaks and comes back, half of each period."""

    peers: tuple[int, ...]
    at_s: float = _number(0)
    for_s: float = _number(0)
    period_s: float = _number(0.001)

    def __str__(self) -> str:
        return f"flap:{peers_word(self.peers)}*{duration(self.period_s)}{_moment(self)}"


@dataclass(frozen=True, slots=True)
class Loss:
    """A share of the messages is lost, one by one (TCP would not do that:
    it is harsher than any network)."""

    share: float = _number(0, 1)
    at_s: float = _number(0)
    for_s: float = _number(0)
    peers: tuple[int, ...] = _links()

    def __str__(self) -> str:
        return f"loss:{peers_word(self.peers) or 'all'}*{self.share:.12g}{_moment(self)}"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A share of the messages arrives twice."""

    share: float = _number(0, 1)
    at_s: float = _number(0)
    for_s: float = _number(0)
    peers: tuple[int, ...] = _links()

    def __str__(self) -> str:
        return f"duplicate {self.share:.0%} {_near(self.peers)}{_span(self)}"


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A share of the messages arrives with one bit flipped, in the header or in the payload."""

    share: float = _number(0, 1)
    at_s: float = _number(0)
    for_s: float = _number(0)
    peers: tuple[int, ...] = _links()

    def __str__(self) -> str:
        return f"corrupt {self.share:.0%} {_near(self.peers)}{_span(self)}"


@dataclass(frozen=True, slots=True)
class Reset:
    """A share of the messages breaks its connection: all that is on its way there is lost, and it
    has to be opened again."""

    share: float = _number(0, 1)
    at_s: float = _number(0)
    for_s: float = _number(0)
    peers: tuple[int, ...] = _links()

    def __str__(self) -> str:
        return f"reset {self.share:.1%} {_near(self.peers)}{_span(self)}"


@dataclass(frozen=True, slots=True)
class Reorder:
    """A share of the messages is held up for up to ``held_s``, and those behind them overtake."""

    share: float = _number(0, 1)
    held_s: float = _number(0)
    at_s: float = _number(0)
    for_s: float = _number(0)
    peers: tuple[int, ...] = _links()

    def __str__(self) -> str:
        return f"reorder {self.share:.0%} by {self.held_s:g} s {_near(self.peers)}{_span(self)}"


@dataclass(frozen=True, slots=True)
class Spike:
    """A share of the messages takes up to ``spike_s`` longer,
    and so does what queues behind them."""

    share: float = _number(0, 1)
    spike_s: float = _number(0)
    at_s: float = _number(0)
    for_s: float = _number(0)
    peers: tuple[int, ...] = _links()

    def __str__(self) -> str:
        return f"spike {self.share:.1%} by {self.spike_s:g} s {_near(self.peers)}{_span(self)}"


@dataclass(frozen=True, slots=True)
class Delay:
    """Messages take up to ``delay_s``, drawn for each."""

    delay_s: float = _number(0)
    at_s: float = _number(0)
    for_s: float = _number(0)
    peers: tuple[int, ...] = _links()

    def __str__(self) -> str:
        return f"delay:{peers_word(self.peers) or 'all'}*{duration(self.delay_s)}{_moment(self)}"


@dataclass(frozen=True, slots=True)
class Narrow:
    """Payloads pass at ``bytes_per_s`` and queue; one that finds more than ``queue_bytes``
    waiting is dropped."""

    bytes_per_s: float = _number(1, 1e12)
    queue_bytes: float = _number(0, 1e12)
    at_s: float = _number(0)
    for_s: float = _number(0)
    peers: tuple[int, ...] = _links()

    def __str__(self) -> str:
        return (
            f"narrow {self.bytes_per_s:g} bytes/s, queue {self.queue_bytes:g} "
            f"{_near(self.peers)}{_span(self)}"
        )


@dataclass(frozen=True, slots=True)
class Trickle:
    """What the peers send of payloads gets through at ``bytes_per_s``, each link by itself; all
    else they say, at once.

    They are alive, and something moves: so little that nobody can wait for it.
    """

    peers: tuple[int, ...]
    bytes_per_s: float = _number(1, 1e12)
    at_s: float = _number(0)
    for_s: float = _number(0)

    def __str__(self) -> str:
        return f"trickle:{peers_word(self.peers)}*{self.bytes_per_s:.12g}{_moment(self)}"


@dataclass(frozen=True, slots=True)
class Drift:
    """The peer's clock runs at ``rate`` times the speed of the others'."""

    peer: int
    rate: float = _number(0.01, 100)
    at_s: float = _number(0)
    for_s: float = _number(0)

    def __str__(self) -> str:
        return f"drift:{self.peer} to {self.rate:g} {_span(self)}"


@dataclass(frozen=True, slots=True)
class LateTimers:
    """Every timer of the peer fires ``late_s`` late: a machine with too much to do."""

    peer: int
    late_s: float = _number(0)
    at_s: float = _number(0)
    for_s: float = _number(0)

    def __str__(self) -> str:
        return f"late_timers:{self.peer} by {self.late_s:g} s {_span(self)}"


@dataclass(frozen=True, slots=True)
class SlowNode:
    """The peer's node needs ``handling_s`` for each event, and the others wait meanwhile: a machine
    with far too much to do."""

    peer: int
    handling_s: float = _number(0)
    at_s: float = _number(0)
    for_s: float = _number(0)

    def __str__(self) -> str:
        return f"slow_node:{self.peer} {self.handling_s:g} s an event {_span(self)}"


@dataclass(frozen=True, slots=True)
class CrashMidway:
    """The peer dies between two effects of an event, the ``effect``-th from ``at_s`` on; it starts
    again ``after_s`` later."""

    peer: int
    at_s: float = _number(0)
    effect: int = _number(0)
    after_s: float = _number(0)

    def __str__(self) -> str:
        return (
            f"crash_midway:{self.peer} at {self.at_s:g} s, effect {self.effect}, again after "
            f"{self.after_s:g} s"
        )


@dataclass(frozen=True, slots=True)
class CrashBroadcast:
    """Whoever next makes a commit dies when ``told`` others have been sent it, and no more; it
    starts again ``after_s`` later."""

    at_s: float = _number(0)
    told: int = _number(0)
    after_s: float = _number(0)

    def __str__(self) -> str:
        return (
            f"crash_broadcast from {self.at_s:g} s, {self.told} are told, again after "
            f"{self.after_s:g} s"
        )


@dataclass(frozen=True, slots=True)
class HangServer:
    """Whoever next has all that it needs for a commit stands still before it has made it."""

    at_s: float = _number(0)
    for_s: float = _number(0)

    def __str__(self) -> str:
        return f"hang_server {_span(self)}"


@dataclass(frozen=True, slots=True)
class HangTrainer:
    """The trainer hangs, its node does not."""

    peer: int
    at_s: float = _number(0)
    for_s: float = _number(0)

    def __str__(self) -> str:
        return f"hang_trainer:{self.peer} {_span(self)}"


@dataclass(frozen=True, slots=True)
class KillTrainer:
    """The trainer dies, its node does not and announces it.
    The peer is started again ``after_s`` later."""

    peer: int
    at_s: float = _number(0)
    after_s: float = _number(0)

    def __str__(self) -> str:
        return f"kill_trainer:{self.peer} at {self.at_s:g} s, again after {self.after_s:g} s"


@dataclass(frozen=True, slots=True)
class Leave:
    """SIGTERM: the peer may leave politely."""

    peer: int
    at_s: float = _number(0)

    def __str__(self) -> str:
        return f"leave:{self.peer} at {self.at_s:g} s"


CLAIM_ATTACKS = ("high_rates", "lone_roster", "ghost_roster")
"""About what a result says beside its numbers. The last has an occasion where somebody is dead, or
a run has room for more."""

RESULT_ATTACKS = (
    "wrong_results",
    "scaled_results",
    "slightly_wrong_results",
    "broken_results",
    "nan_results",
    "kept_results",
    "two_results",
    "strange_roster",
    *CLAIM_ATTACKS,
)
"""About what a server makes of the updates of a round."""

FINAL_ROUND_ATTACKS = ("last_results",)
"""About the result of the last round of a run that counts its rounds. (Every schedule of the
simulator ends with such a one.)"""

SHARD_ATTACKS = ("wrong_measures", "broken_measures", "kept_measures", "wrong_decisions")
"""About what the servers of shards that decide together tell each other."""

PIECE_ATTACKS = ("wrong_pieces", "few_pieces")
"""About the pieces of a state."""

STATE_ATTACKS = (
    "wrong_states",
    "broken_states",
    "swapped_states",
    "far_states",
    "hollow_states",
    "kept_states",
    *PIECE_ATTACKS,
)
"""About states, and to who asks them to vouch: a run's f counts who tells them."""

NODE_ATTACKS = (
    "sign_flip",
    "nan",
    "huge",
    "two_updates",
    "wrong_size",
    *RESULT_ATTACKS,
    "usurper",
    "false_deaths",
    "false_suspicions",
    "forged_departures",
    "forged_incarnations",
    "deaf",
    "strangers",
    *STATE_ATTACKS,
    "replays",
    "garbage",
    "flood",
    *SHARD_ATTACKS,
)
"""What a Byzantine node may say instead of what its core wants to: the names in
``gossip.inject.message_attacks``."""

REAL_ATTACKS = (*RESULT_ATTACKS, *FINAL_ROUND_ATTACKS, *STATE_ATTACKS)
"""Those that nodes of real runs tell, too. Each is also a word, such as ``wrong_results:5,6``."""


@dataclass(frozen=True, slots=True)
class NodeAttack:
    """The nodes of the peers lie about more than their updates, all through a run (in the
    simulator: until the calm begins)."""

    lie: str = field(metadata={"choices": (*NODE_ATTACKS, *FINAL_ROUND_ATTACKS)})
    peers: tuple[int, ...]

    def __str__(self) -> str:
        name = self.lie if self.lie in REAL_ATTACKS else f"lie {self.lie}"
        return f"{name}:{','.join(map(str, self.peers))}"


Break: TypeAlias = Partition | Ring | Flap
Weather: TypeAlias = Loss | Duplicate | Corrupt | Reset | Reorder | Spike | Delay | Narrow | Trickle
NetworkFault: TypeAlias = Break | Weather
LinkFault: TypeAlias = Partition | Ring | Flap | Loss | Delay | Trickle
"""What the nodes of a real run carry out too: each drops, or holds up,
what it sends and what comes."""
ServerFault: TypeAlias = CrashBroadcast | HangServer
ProcessFault: TypeAlias = (
    CrashMidway | HangTrainer | KillTrainer | Leave | Drift | LateTimers | SlowNode
)
WorldFault: TypeAlias = NetworkFault | ProcessFault | ServerFault | NodeAttack | StartFault

WORLD_KINDS: Mapping[str, type[WorldFault]] = {
    "partition": Partition,
    "flap": Flap,
    "loss": Loss,
    "duplicate": Duplicate,
    "corrupt": Corrupt,
    "reset": Reset,
    "reorder": Reorder,
    "spike": Spike,
    "delay": Delay,
    "narrow": Narrow,
    "trickle": Trickle,
    "ring": Ring,
    "drift": Drift,
    "late_timers": LateTimers,
    "slow_node": SlowNode,
    "crash_midway": CrashMidway,
    "crash_broadcast": CrashBroadcast,
    "hang_server": HangServer,
    "hang_trainer": HangTrainer,
    "kill_trainer": KillTrainer,
    "leave": Leave,
    "late_start": LateStart,
    "late_trainer": LateTrainer,
    "never_starts": NeverStarts,
    "lie": NodeAttack,
}


def kind_of(fault: WorldFault) -> str:
    """The word for it in a plan file."""
    return next(kind for kind, made in WORLD_KINDS.items() if made is type(fault))


def _span(fault: Any) -> str:
    return f"at {fault.at_s:g} s for {fault.for_s:g} s"


def _moment(fault: Any) -> str:
    return f"@{duration(fault.at_s)}+{duration(fault.for_s)}"


def peers_word(peers: tuple[int, ...]) -> str:
    """``0-4,7``: as peers are typed. Three and more in a row make a range."""
    words: list[str] = []
    at = 0
    while at < len(peers):
        end = at
        while end + 1 < len(peers) and peers[end + 1] == peers[end] + 1:
            end += 1
        if end - at < 2:
            end = at
        words.append(str(peers[at]) if end == at else f"{peers[at]}-{peers[end]}")
        at = end + 1
    return ",".join(words)


def _near(peers: tuple[int, ...]) -> str:
    return f"near {','.join(map(str, peers))} " if peers else ""
