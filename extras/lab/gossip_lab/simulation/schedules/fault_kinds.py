"""Generates random faults of each kind for a schedule.

Every kind has a random generator of its own. It draws all values that it may need, even those that
it does not use, so that a changed value does not affect others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gossip.faults import (
    CLAIM_ATTACKS,
    NODE_ATTACKS,
    PIECE_ATTACKS,
    SHARD_ATTACKS,
    STATE_ATTACKS,
    ByzantineFault,
    Corrupt,
    Crash,
    CrashBroadcast,
    CrashMidway,
    Delay,
    Drift,
    Duplicate,
    Fault,
    Flap,
    Hang,
    HangServer,
    HangTrainer,
    KillTrainer,
    LateTimers,
    Leave,
    Loss,
    Narrow,
    NodeAttack,
    Partition,
    Reorder,
    Reset,
    Restart,
    Ring,
    Slow,
    SlowNode,
    Spike,
)

from .lots import FaultSampler
from .schedule import PEERS_MAX

LIES = (
    ("sign_flip", 1.0),
    ("nan", 1.0),
    ("zero", 1.0),
    ("stale", 3.0),
    ("scale", 20.0),
    ("bit_flip", 1.0),
)


@dataclass(frozen=True, slots=True)
class FaultGenerator:
    """Relative frequency of a kind of fault, and the function that generates it. The function
    always draws the same number of random values."""

    name: str
    weight: float
    draw: Callable[[FaultSampler], list[Fault]]


def _crash(lots: FaultSampler) -> list[Fault]:
    server, at_s = lots.random() < 0.5, lots.when()
    victim = lots.peer()
    return [Crash("server" if server else victim, at_s=at_s)]


def _restart(lots: FaultSampler) -> list[Fault]:
    count, order = lots.few(3), lots.peers()
    drawn = [(lots.when(), lots.long(0.01, 4.0)) for _ in range(3)]
    return [
        Restart(peer, None, after_s, at_s)
        for peer, (at_s, after_s) in zip(order[:count], drawn, strict=False)
    ]


def _restart_loop(lots: FaultSampler) -> list[Fault]:
    """Restart one peer several times in short intervals, so that no other peer detects its death in
    between."""
    victim = lots.peer()
    began = lots.ms(1.0, 6.0)
    every_s = lots.long(0.2, 1.5)
    after_s = lots.long(0.01, 0.2)
    return [Restart(victim, None, after_s, round(began + i * every_s, 3)) for i in range(4)]


def _massacre(lots: FaultSampler) -> list[Fault]:
    """Kill all peers except one within 0.2 s, and restart each of them within 2 s."""
    order, at_s = lots.peers(), lots.ms(3.0, lots.active_s - 4.0)
    drawn = [(lots.ms(0.0, 0.2), lots.long(0.05, 2.0)) for _ in range(PEERS_MAX)]
    return [
        Restart(peer, None, drawn[peer][1], round(at_s + drawn[peer][0], 3)) for peer in order[1:]
    ]


def _crash_midway(lots: FaultSampler) -> list[Fault]:
    order, count = lots.peers(), lots.few(2)
    drawn = [(lots.when(), lots.randint(0, 40), lots.long(0.02, 3.0)) for _ in range(2)]
    return [CrashMidway(peer, *each) for peer, each in zip(order[:count], drawn, strict=False)]


def _hang(lots: FaultSampler) -> list[Fault]:
    count, order = lots.few(2), lots.peers()
    drawn = [(lots.when(), lots.long(0.05, 8.0)) for _ in range(2)]
    return [
        Hang(peer, None, for_s, at_s)
        for peer, (at_s, for_s) in zip(order[:count], drawn, strict=False)
    ]


def _attacker(lots: FaultSampler) -> list[Fault]:
    attack, strength = lots.choice(LIES)
    return [ByzantineFault(attack, (lots.peer(),), strength)]


def _node_lie(lots: FaultSampler) -> list[Fault]:
    """Generate an attack of a node. If it is an attack on states, other peers are restarted, so
    that they request a state."""
    # hollow_states is only useful if peers start with different weights
    elsewhere = (*SHARD_ATTACKS, *PIECE_ATTACKS, *CLAIM_ATTACKS, "hollow_states")
    lie, (attacker, *others) = (
        lots.choice([lie for lie in NODE_ATTACKS if lie not in elsewhere]),
        lots.peers(),
    )
    drawn = [(lots.when(), lots.long(0.01, 1.0)) for _ in range(3)]
    asking = [
        Restart(peer, None, after_s, at_s)
        for peer, (at_s, after_s) in zip(others, drawn, strict=False)
    ]
    return [NodeAttack(lie, (attacker,)), *(asking if lie in STATE_ATTACKS else ())]


def _partition(lots: FaultSampler) -> list[Fault]:
    """Partition the swarm: separate one peer, a minority, any number of peers, three parts, or two
    halves with a bridge. Some partitions cut only one direction."""
    made: list[Fault] = []
    count, order = lots.few(2), lots.peers()
    for number in range(2):
        shape = lots.randrange(5)
        cut = lots.random()
        one_way = lots.random() < 0.25
        at_s, for_s = lots.when(), lots.long(0.1, 6.0)
        n, middle = len(order), len(order) // 2
        turned = order[number:] + order[:number]
        edge = 1 + int(cut * (n - 1))
        sides = {
            0: (turned[:1], turned[1:]),
            1: (turned[: max(1, (n - 1) // 2)], turned[max(1, (n - 1) // 2) :]),
            2: (turned[:edge], turned[edge:]),
            3: (turned[:middle], turned[middle : n - 1], turned[n - 1 :]),
            4: (turned[:middle], turned[middle : n - 1]),  # the last peer is a bridge
        }[shape]
        named = tuple(tuple(sorted(side)) for side in sides if side)
        if number < count and len(named) > 1:
            made.append(Partition(named, at_s, for_s, one_way))
    return made


def _flap(lots: FaultSampler) -> list[Fault]:
    count, order = lots.few(2), lots.peers()
    drawn = [(lots.when(), lots.long(0.5, 5.0), lots.long(0.05, 2.0)) for _ in range(2)]
    pairs = [tuple(sorted(order[:2])), tuple(sorted(order[1:3]))]
    return [
        Flap(pair, *each)
        for pair, each in zip(pairs[:count], drawn, strict=False)
        if len(pair) == 2
    ]


def _near(lots: FaultSampler) -> tuple[int, ...]:
    """Choose the peers that a fault affects. In two of three cases return (), which means all
    peers."""
    order = lots.peers()
    everybody = lots.random() < 2 / 3
    count = lots.few(2)
    return () if everybody else tuple(sorted(order[:count]))


def _weather(
    lots: FaultSampler, most_s: float, least_s: float = 0.5
) -> tuple[float, float, tuple[int, ...]]:
    """Choose the start, the duration and the peers of a fault of the network."""
    return lots.when(0.2), lots.long(least_s, most_s), _near(lots)


def _narrow(
    lots: FaultSampler, speeds: tuple[float, float], queues: tuple[int, ...], least_s: float
) -> list[Fault]:
    """Generate a narrow link. If it is slow and has a short queue, an update is dropped because the
    previous update is still in transit."""
    speed, queue_bytes = lots.long(*speeds), float(lots.choice(queues))
    return [Narrow(speed, queue_bytes, *_weather(lots, 8.0, least_s))]


def _drift(lots: FaultSampler) -> list[Fault]:
    rate = round(1.0 + lots.uniform(-0.1, 0.1), 4)
    return [Drift(lots.peer(), rate, lots.when(0.2), lots.long(1.0, 10.0))]


def _kill_trainer(lots: FaultSampler) -> list[Fault]:
    """Kill a trainer once, or several times soon after each start. In the second case the
    peer announces the end of its trainer while other peers still spread the news of the start."""
    victim = lots.peer()
    at_s = lots.when()
    after_s = lots.long(0.02, 3.0)
    looping = lots.random() < 0.5
    every_s = lots.long(0.1, 1.0)
    soon_s = lots.long(0.01, 0.2)
    if not looping:
        return [KillTrainer(victim, at_s, after_s)]
    return [KillTrainer(victim, round(at_s + i * every_s, 3), soon_s) for i in range(4)]


KINDS: tuple[FaultGenerator, ...] = (
    FaultGenerator("crash", 1.0, _crash),
    FaultGenerator("restart", 2.0, _restart),
    FaultGenerator("restart_loop", 0.5, _restart_loop),
    FaultGenerator("massacre", 0.4, _massacre),
    FaultGenerator("crash_midway", 2.0, _crash_midway),
    FaultGenerator("hang", 2.0, _hang),
    FaultGenerator("slow", 0.7, lambda lots: [Slow(lots.peer(), lots.choice((1.5, 2.0, 3.0)))]),
    FaultGenerator("liar", 0.6, _attacker),
    FaultGenerator("lie", 2.0, _node_lie),
    FaultGenerator("partition", 2.0, _partition),
    FaultGenerator("flap", 1.0, _flap),
    FaultGenerator("loss", 1.5, lambda lots: [Loss(lots.share(0.02, 0.4), *_weather(lots, 10.0))]),
    FaultGenerator(
        "duplicate",
        1.5,
        lambda lots: [Duplicate(lots.share(0.05, 0.5), *_weather(lots, 12.0))],
    ),
    FaultGenerator(
        "corrupt",
        0.7,
        lambda lots: [Corrupt(lots.share(0.005, 0.1, 4), *_weather(lots, 8.0))],
    ),
    FaultGenerator(
        "delay",
        1.0,
        lambda lots: [Delay(lots.long(0.005, 0.5), *_weather(lots, 8.0))],
    ),
    FaultGenerator(
        "reorder",
        1.0,
        lambda lots: [
            Reorder(
                lots.share(0.05, 0.5),
                lots.long(0.002, 0.2),
                *_weather(lots, 10.0),
            )
        ],
    ),
    FaultGenerator(
        "spike",
        0.8,
        lambda lots: [
            Spike(
                lots.share(0.002, 0.05, 4),
                lots.long(0.05, 2.0),
                *_weather(lots, 8.0),
            )
        ],
    ),
    FaultGenerator(
        "reset",
        1.0,
        lambda lots: [Reset(lots.share(0.001, 0.05, 4), *_weather(lots, 8.0))],
    ),
    FaultGenerator(
        "narrow", 0.5, lambda lots: _narrow(lots, (100.0, 10_000.0), (64, 256, 4096), 0.5)
    ),
    FaultGenerator("queue_full", 0.6, lambda lots: _narrow(lots, (10.0, 200.0), (0, 16, 32), 1.0)),
    FaultGenerator(
        "ring", 0.6, lambda lots: [Ring(tuple(lots.peers()), lots.when(), lots.long(0.2, 5.0))]
    ),
    FaultGenerator("drift", 0.5, _drift),
    FaultGenerator(
        "late_timers",
        0.7,
        lambda lots: [
            LateTimers(lots.peer(), lots.long(0.005, 0.5), lots.when(), lots.long(0.5, 6.0))
        ],
    ),
    FaultGenerator(
        "slow_node",
        0.8,
        lambda lots: [
            SlowNode(lots.peer(), lots.long(0.0005, 0.03), lots.when(0.2), lots.long(0.5, 6.0))
        ],
    ),
    FaultGenerator(
        "hang_trainer",
        0.8,
        lambda lots: [HangTrainer(lots.peer(), lots.when(), lots.long(0.2, 6.0))],
    ),
    FaultGenerator("kill_trainer", 0.8, _kill_trainer),
    FaultGenerator("leave", 0.5, lambda lots: [Leave(lots.peer(), lots.when())]),
    FaultGenerator(
        "crash_broadcast",
        1.5,
        lambda lots: [
            CrashBroadcast(lots.when(), int(lots.random() * (lots.n - 1)), lots.long(0.02, 8.0))
        ],
    ),
    FaultGenerator("hang_server", 1.2, lambda lots: [HangServer(lots.when(), lots.long(0.2, 8.0))]),
)
