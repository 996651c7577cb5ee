"""Faults of links, clocks, processes and servers, and attacks with a node's messages. Late starts
are in ``start``.

The simulator supports all of them. Real runs support the faults of ``LinkFault`` and the attacks in
``REAL_ATTACKS``. Times are seconds since the run began; a lasting fault begins at ``at_s`` and
lasts ``for_s``. If ``peers`` is omitted, a fault affects all links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias, get_args

from .declare import KINDS, Fault, Kind, add, declared, name_of
from .start import StartFault
from .units import (
    Choice,
    Count,
    Duration,
    Number,
    OnePeer,
    PeerList,
    PeerNumbers,
    Peers,
    Seconds,
    Sides,
    Time,
    Truth,
)

Share: TypeAlias = Annotated[
    float, Number("SHARE", "a share", least=0.0, most=1.0, expected="a share from 0 to 1")
]
PeersOrAll: TypeAlias = Annotated[
    tuple[int, ...], Peers(everybody=True, note=", or all in place of peers")
]
Rate: TypeAlias = Annotated[
    float,
    Number(
        "RATE",
        "a rate",
        " (RATE in bytes a second)",
        least=1.0,
        most=1e12,
        expected="bytes a second",
        suffix=" bytes a second",
    ),
]
CountNumber: TypeAlias = Annotated[int, Count()]


@declared("{sides}@{at_s}+{for_s}", "0-4|5-7@20s+10s", real=True)
@dataclass(frozen=True, slots=True)
class Partition(Fault):
    """No message passes between peers of different sides. A peer on no side reaches all peers. With
    ``>`` instead of ``|`` (in a file: ``one_way``) only messages from an earlier side to a later
    side are lost."""

    sides: Annotated[tuple[tuple[int, ...], ...], Sides()]
    at_s: Time
    for_s: Duration
    one_way: Annotated[bool, Truth()] = False


@declared("{peers}@{at_s}+{for_s}", "0-7@20s+10s", real=True)
@dataclass(frozen=True, slots=True)
class Ring(Fault):
    """The peers form a ring, and each reaches only its two neighbours in the ring."""

    peers: Annotated[
        tuple[int, ...],
        Peers(
            note=", four or more",
            idle=lambda number: (
                f"in a ring of {number} everybody reaches everybody" if number < 4 else ""
            ),
        ),
    ]
    at_s: Time
    for_s: Duration


@declared("{peers}*{period_s}@{at_s}+{for_s}", "0,3*500ms@20s+10s", real=True)
@dataclass(frozen=True, slots=True)
class Flap(Fault):
    """The link between two peers fails and recovers once in each period."""

    peers: Annotated[
        tuple[int, ...],
        Peers(
            "PEER,PEER",
            wrong=lambda number: f"a link has two ends, not {number}" if number != 2 else "",
        ),
    ]
    at_s: Time
    for_s: Duration
    period_s: Annotated[float, Seconds("PERIOD", "a period", least=0.001)]


@dataclass(frozen=True, slots=True)
class MessageFault(Fault):
    """Base of faults that affect a share of the messages on the links of the peers."""

    share: Share
    at_s: Time
    for_s: Duration
    peers: PeersOrAll = ()


@declared("{peers}*{share}@{at_s}+{for_s}", "all*0.2@20s+10s", real=True)
@dataclass(frozen=True, slots=True)
class Loss(MessageFault):
    """A random share of the messages on the links of the peers is lost. TCP does not lose messages
    in this way."""


@declared("{peers}*{share}@{at_s}+{for_s}", "all*0.2@20s+10s")
@dataclass(frozen=True, slots=True)
class Duplicate(MessageFault):
    """A share of the messages arrives twice."""


@declared("{peers}*{share}@{at_s}+{for_s}", "all*0.2@20s+10s")
@dataclass(frozen=True, slots=True)
class Corrupt(MessageFault):
    """A share of the messages arrives with one bit flipped, in the header or in the payload."""


@declared("{peers}*{share}@{at_s}+{for_s}", "all*0.2@20s+10s")
@dataclass(frozen=True, slots=True)
class Reset(MessageFault):
    """A share of the messages resets its connection. All messages in flight on the connection are
    lost, and the connection is opened again."""


@declared("{peers}*{share}*{held_s}@{at_s}+{for_s}", "all*0.2*50ms@20s+10s")
@dataclass(frozen=True, slots=True)
class Reorder(Fault):
    """A share of the messages is delayed by up to ``held_s``, so later messages arrive first."""

    share: Share
    held_s: Duration
    at_s: Time
    for_s: Duration
    peers: PeersOrAll = ()


@declared("{peers}*{share}*{spike_s}@{at_s}+{for_s}", "all*0.2*50ms@20s+10s")
@dataclass(frozen=True, slots=True)
class Spike(Fault):
    """A share of the messages takes up to ``spike_s`` longer. Messages behind them in the queue are
    delayed, too."""

    share: Share
    spike_s: Duration
    at_s: Time
    for_s: Duration
    peers: PeersOrAll = ()


@declared("{peers}*{delay_s}@{at_s}+{for_s}", "all*50ms@20s+10s", real=True)
@dataclass(frozen=True, slots=True)
class Delay(Fault):
    """Each message on the links of the peers is delayed by a random time up to ``delay_s``."""

    delay_s: Duration
    at_s: Time
    for_s: Duration
    peers: PeersOrAll = ()


@declared("{peers}*{bytes_per_s}*{queue_bytes}@{at_s}+{for_s}", "all*1000*64@20s+10s")
@dataclass(frozen=True, slots=True)
class Narrow(Fault):
    """Each link carries payloads at ``bytes_per_s``. A payload is dropped if more than
    ``queue_bytes`` wait on its link."""

    bytes_per_s: Rate
    queue_bytes: Annotated[float, Number(most=1e12)]
    at_s: Time
    for_s: Duration
    peers: PeersOrAll = ()


@declared("{peers}*{bytes_per_s}@{at_s}+{for_s}", "5*1000@20s+10s", real=True)
@dataclass(frozen=True, slots=True)
class Trickle(Fault):
    """Payloads that the peers send are limited to this many bytes a second on each link. All other
    messages pass at once. The peers are alive and send bytes, but too slowly for any peer to wait
    for a payload.
    """

    peers: PeerList
    bytes_per_s: Rate
    at_s: Time
    for_s: Duration


@declared("{peers}@{at_s}+{for_s}", "5@20s+10s")
@dataclass(frozen=True, slots=True)
class Unreadable(Fault):
    """The shared memory of the peers is missing or too short. None of their payloads arrives, but
    all their other messages arrive."""

    peers: PeerList
    at_s: Time
    for_s: Duration


@declared("{peers}@{at_s}+{for_s}", "5@20s+10s")
@dataclass(frozen=True, slots=True)
class Rewritten(Fault):
    """The peers overwrite their updates in shared memory after the server has checked them. If the
    rule is a sum, the server reads the updates in place, so it adds up the new values. An update
    that has become non-finite is left out."""

    peers: PeerList
    at_s: Time
    for_s: Duration


@declared("{peer}*{rate}@{at_s}+{for_s}", "5*0.95@20s+10s")
@dataclass(frozen=True, slots=True)
class Drift(Fault):
    """The peer's clock runs at ``rate`` times the speed of all other clocks."""

    peer: OnePeer
    rate: Annotated[float, Number(least=0.01, most=100.0)]
    at_s: Time
    for_s: Duration


@declared("{peer}*{late_s}@{at_s}+{for_s}", "5*50ms@20s+10s")
@dataclass(frozen=True, slots=True)
class LateTimers(Fault):
    """Every timer of the peer fires ``late_s`` late, as on a busy machine."""

    peer: OnePeer
    late_s: Duration
    at_s: Time
    for_s: Duration


@declared("{peer}*{handling_s}@{at_s}+{for_s}", "5*50ms@20s+10s")
@dataclass(frozen=True, slots=True)
class SlowNode(Fault):
    """The peer's node takes ``handling_s`` for each event, as on an overloaded machine. Later
    events wait."""

    peer: OnePeer
    handling_s: Duration
    at_s: Time
    for_s: Duration


@declared("{peer}*{share}@{at_s}+{for_s}", "5*0.1@20s+10s")
@dataclass(frozen=True, slots=True)
class Starve(Fault):
    """The processes of the peer receive the share ``share`` of a processor. All work of trainer,
    rule and node takes 1/``share`` times as long. The sockets still receive messages."""

    peer: OnePeer
    share: Annotated[float, Number(least=0.01, most=1.0)]
    at_s: Time
    for_s: Duration


@declared("{peer}@{at_s}*{effect}+{after_s}", "5@20s*3+2s")
@dataclass(frozen=True, slots=True)
class CrashMidway(Fault):
    """The peer dies between two effects of an event, at the ``effect``-th effect after ``at_s``. It
    restarts ``after_s`` later."""

    peer: OnePeer
    at_s: Time
    effect: CountNumber
    after_s: Duration


@declared("{told}@{at_s}+{after_s}", "2@20s+2s")
@dataclass(frozen=True, slots=True)
class CrashBroadcast(Fault):
    """The next server that makes a commit dies after it has sent the commit to ``told`` other
    peers. It restarts ``after_s`` later."""

    at_s: Time
    told: CountNumber
    after_s: Duration


@declared("server@{at_s}+{for_s}", "server@20s+2s")
@dataclass(frozen=True, slots=True)
class HangServer(Fault):
    """The next server that has all updates for a commit hangs before it makes the commit."""

    at_s: Time
    for_s: Duration


@declared("{peer}@{at_s}+{for_s}", "5@20s+2s")
@dataclass(frozen=True, slots=True)
class HangTrainer(Fault):
    """The peer's trainer hangs; its node does not."""

    peer: OnePeer
    at_s: Time
    for_s: Duration


@declared("{peer}@{at_s}+{after_s}", "5@20s+2s")
@dataclass(frozen=True, slots=True)
class KillTrainer(Fault):
    """The peer's trainer dies; its node continues and announces the death. The peer restarts
    ``after_s`` later."""

    peer: OnePeer
    at_s: Time
    after_s: Duration


@declared("{peer}@{at_s}", "5@20s")
@dataclass(frozen=True, slots=True)
class Leave(Fault):
    """The peer receives SIGTERM and has time to announce its departure."""

    peer: OnePeer
    at_s: Time


CLAIM_ATTACKS = ("high_rates", "lone_roster", "ghost_roster")
"""Attacks on fields of a result other than its values. ``ghost_roster`` has an effect only if a
peer is dead or the run has room for further peers."""

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
"""Attacks of a server on the result of a round."""

FINAL_ROUND_ATTACKS = ("last_results",)
"""Attacks on the result of the last round of a run with a fixed number of rounds. Every schedule of
the simulator ends with such a round."""

SHARD_ATTACKS = ("wrong_measures", "broken_measures", "kept_measures", "wrong_decisions")
"""Attacks on the messages in which the servers of the shards decide together."""

PIECE_ATTACKS = ("wrong_pieces", "few_pieces")
"""Attacks on the pieces in which a state is transferred."""

STATE_ATTACKS = (
    "wrong_states",
    "broken_states",
    "swapped_states",
    "far_states",
    "hollow_states",
    "kept_states",
    *PIECE_ATTACKS,
)
"""Attacks on states and attestations. These attackers count towards the f of a run."""

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
"""Attacks of a Byzantine node on its core's messages. ``LIES`` of ``gossip.inject`` implements
those in ``REAL_ATTACKS``; the simulator implements the others."""

REAL_ATTACKS = (*RESULT_ATTACKS, *FINAL_ROUND_ATTACKS, *STATE_ATTACKS)
"""Attacks that nodes of real runs support. Each name is also a kind of fault, for example
``wrong_results:5,6``."""


@dataclass(frozen=True, slots=True)
class NodeAttack(Fault):
    """The nodes of the peers send false messages other than updates, during the whole run (in the
    simulator until the calm begins)."""

    lie: Annotated[str, Choice(choices=(*NODE_ATTACKS, *FINAL_ROUND_ATTACKS))]
    peers: PeerNumbers

    def __str__(self) -> str:
        return KINDS[self.lie if self.lie in REAL_ATTACKS else self.kind].show(self)

    @property
    def kind(self) -> str:
        return "lie"


add(Kind("lie", NodeAttack, "{lie}:{peers}", "false_deaths:5,6", real=False))
for _lie in REAL_ATTACKS:
    add(Kind(_lie, NodeAttack, "{peers}", "5,6", True, {"lie": _lie}))

Break: TypeAlias = Partition | Ring | Flap
Weather: TypeAlias = (
    Loss | Duplicate | Corrupt | Reset | Reorder | Spike | Delay | Narrow | Trickle | Unreadable
)
NetworkFault: TypeAlias = Break | Weather
LinkFault: TypeAlias = Partition | Ring | Flap | Loss | Delay | Trickle
"""Network faults that real runs support. Each node drops or delays the messages that it sends or
receives."""
LINK_KINDS = tuple(map(name_of, get_args(LinkFault)))
ServerFault: TypeAlias = CrashBroadcast | HangServer
ProcessFault: TypeAlias = (
    CrashMidway | HangTrainer | KillTrainer | Leave | Drift | LateTimers | SlowNode | Starve
)
WorldFault: TypeAlias = (
    NetworkFault | ProcessFault | ServerFault | NodeAttack | StartFault | Rewritten
)
