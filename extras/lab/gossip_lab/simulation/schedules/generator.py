"""Draws a fault schedule from a seed.

Every kind of fault has a generator of its own and draws everything it could need, whether it is
used or not. Leaving a kind or a peer out leaves the rest of the schedule unchanged. Peers are
chosen by lots that every possible peer draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from gossip import topologies
from gossip.core import BatchPolicy, MembershipSettings
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
    Rewritten,
    Ring,
    ServerFault,
    Slow,
    SlowNode,
    Spike,
    Trickle,
    Unreadable,
)
from gossip.topologies import write_weights

from .bearable import bearable_of
from .late_starts import begun_late, disturbed
from .lots import FaultSampler
from .schedule import KINDS_MIN, PEERS_MAX, Schedule
from .situations import situated, standing
from .strains import far, lent, starved, strained

PEERS = {4: 8, 5: 6, 6: 4, 7: 2, 8: 1, 9: 1}
"""Relative frequency of each size of a swarm: messages grow with the square of it, and most
failures among nine peers also happen among five."""
KINDS_A_SCHEDULE = (4, 6)
TOPOLOGIES = ("rolling", "rolling", "rolling", "random-k", "random-k", "ring", "full")
SHARDS = ((8,), (8,), (5, 3), (4, 4, 4))
RULES_S = (0.0001, 0.0001, 0.01, 0.1)
"""Seconds. Eight numbers are aggregated at once, a real model is not: in this time a server may
fail."""
# the default of nodes is the first, and costs most
PROBE_INTERVALS_S = (MembershipSettings().probe_interval_s, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0)
COMPUTE_S = (0.46, 0.58)
ROUNDS_MIN = 50  # takes 28 s without faults
# share of the schedules with rolling rounds and few peers: in their calm every peer must have had
# its turn
FAST = 1 / 16
FAST_COMPUTE_S = (0.08, 0.1)
FAST_PEERS = 6
COMMIT_LOGS = (8, 64, 64)  # rounds: three seconds, or more than a schedule lasts
PREPARES_S = (0.001, 0.001, 0.2, 1.0)
STABLE = 0.2  # share of the schedules in which a restarted peer has its old addresses
# share of those with rolling rounds: they share the same samples, whatever their number
FIXED_GLOBAL = 0.25
LOCAL = 0.2
LOCAL_STEPS = (2, 5, 20)
FRAGMENTED = 0.4  # of those with local steps and rolling rounds, without overlap
FRAGMENTS = (2, 4, 5)
OVERLAP = 0.3  # of those with rolling rounds
FURTHER = 0.25  # of those with plain rolling rounds
FURTHER_EVERY = (1, 1, 3, 5)
WEIGHTED = 0.2  # of those with rolling rounds
WEIGHTS = (1, 1, 1, 2, 4, 10)
RULES = {"mean": 1, "median": 3, "trimmed_mean": 3, "multi_krum": 5}
"""Rules, with the updates that each needs against one Byzantine peer. One of them is used if
updates are falsified, and in a part of the other schedules."""
CROSS_SHARD = {
    "krum": 5,
    "multi_krum": 5,
    "geometric_median": 3,
    "centered_clipping": 3,
    "suspicion": 3,
}
"""Rules that the servers of shards run together, with the updates that each needs. One of them is
used in some schedules with servers and peers enough."""
TOGETHER, PEERS_TOGETHER = 0.4, 6
# share of node attacks that target shards that decide together, if there are any
SHARD_ATTACK_SHARE = 0.5
# share of server attacks that falsify claims beside a result's numbers, if a rule tolerates an
# attacker
CLAIM_ATTACK_SHARE = 0.5
# share of the schedules without false updates that use the drawn rule, which may be a mean
ROBUST = 0.45
GUARDED = 0.15  # share of the schedules with a plain mean
SERVER_ATTACKS = (
    *(
        "wrong_results",
        "scaled_results",
        "slightly_wrong_results",
        "broken_results",
        "nan_results",
        "two_results",
    ),
    "kept_results",
    *("strange_roster", "usurper"),
    *CLAIM_ATTACKS,
)
"""Attacks on results of rounds with servers: in gossip rounds they have no meaning."""
LIES = (
    ("sign_flip", 1.0),
    ("nan", 1.0),
    ("zero", 1.0),
    ("stale", 3.0),
    ("scale", 20.0),
    ("bit_flip", 1.0),
)

# share of the schedules; piece sizes: a small part of a state, or more than half of it
IN_PIECES, PIECES_BYTES = 0.5, (4, 8, 20)
PIECE_ATTACKER = 0.5
"""Share of the schedules with states in pieces that have an attacker of pieces. They need rolling
rounds, in which others attest the pieces, and enough peers."""
PIECES_PEERS = 4  # the peer that requests, and 2f + 1 others
PIECES_ASKING = 3  # peers that are restarted
PIECES_FROM_S = 2.0  # by then no other peer has been killed for good


def generate(
    seed: int,
    *,
    peers: int | None = None,
    topology: str | None = None,
    aggregator: str | None = None,
    world: Schedule | None = None,
) -> Schedule:
    """Return the schedule of a seed. Arguments replace drawn values; all other draws stay
    unchanged.

    Args:
        world: Times and settings beside the drawn ones; its faults are not used.
    """
    draw = Random(f"schedule/{seed}")
    drawn_peers, drawn_topology = (
        draw.choices(tuple(PEERS), tuple(PEERS.values()))[0],
        draw.choice(TOPOLOGIES),
    )
    shards, chosen = draw.choice(SHARDS), draw.randint(*KINDS_A_SCHEDULE)
    stable = draw.random() < STABLE
    lots, drawn_rule = [draw.random() for _ in KINDS], draw.choice(tuple(RULES))
    probe_interval_s = Random(f"schedule/{seed}/probe interval").choice(PROBE_INTERVALS_S)
    rule_s = Random(f"schedule/{seed}/rule").choice(RULES_S)
    commit_log = Random(f"schedule/{seed}/commit log").choice(COMMIT_LOGS)
    prepare_s = Random(f"schedule/{seed}/prepare").choice(PREPARES_S)
    n, chosen_topology = peers or drawn_peers, topology or drawn_topology
    rolling = topologies.load(chosen_topology).rolling
    if not rolling:
        shards = (sum(shards),)  # gossip rounds exchange whole vectors
    batch_policy: BatchPolicy = "fixed_local"
    if rolling and Random(f"schedule/{seed}/batch policy").random() < FIXED_GLOBAL:
        batch_policy = "fixed_global"
    fast = Random(f"schedule/{seed}/fast").random() < FAST and rolling and n <= FAST_PEERS
    base = replace(
        world
        or Schedule(seed, compute_s=FAST_COMPUTE_S if fast else COMPUTE_S, rounds_min=ROUNDS_MIN),
        seed=seed,
        peers=n,
        topology=chosen_topology,
        aggregator=aggregator or (world.aggregator if world else "mean"),
        shards=shards,
        stable_addresses=stable,
        batch_policy=batch_policy,
        probe_interval_s=probe_interval_s,
        rule_s=min(rule_s, RULES_S[0]) if fast else rule_s,  # shorter than the compute time
        commit_log=commit_log,
        prepare_s=prepare_s,
        faults=(),
    )
    lot = Random(f"schedule/{seed}/pieces")
    pieces = lot.choice(PIECES_BYTES) if lot.random() < IN_PIECES else None
    doubts = (
        _draw_attacker_of_pieces(seed, n, base.active_s)
        if rolling and pieces is not None and world is None
        else []
    )
    bearable = _draw_faults(base, lots, chosen, doubts)
    # With one to spare, or a single crash would cost every round from then on; and with as many as
    # are gone for good.
    spare = max(1, sum(isinstance(fault, Crash | Leave) for fault in bearable))
    robust = Random(f"schedule/{seed}/robust").random() < ROBUST or any(
        _is_of_an_attacker(fault) for fault in bearable
    )
    if aggregator is None and world is None and RULES[drawn_rule] < n and robust:
        rule = drawn_rule if RULES[drawn_rule] + spare <= n else "median"
        base = replace(base, aggregator="median" if doubts and rule == "mean" else rule)
    lot = Random(f"schedule/{seed}/together")
    if (
        aggregator is None
        and world is None
        and rolling
        and n >= PEERS_TOGETHER
        and lot.random() < TOGETHER
    ):
        able = [rule for rule, need in CROSS_SHARD.items() if need + spare <= n]
        base = replace(
            base,
            aggregator=lot.choice(able),
            shards=shards if len(shards) > 1 else lot.choice(SHARDS[2:]),
        )
    if (
        base.aggregator in CROSS_SHARD
        and len(base.shards) > 1
        and lot.random() < SHARD_ATTACK_SHARE
        and not doubts
    ):
        told = lot.choice(SHARD_ATTACKS)
        bearable = tuple(
            [
                replace(fault, lie=told) if isinstance(fault, NodeAttack) else fault
                for fault in bearable
            ]
        )
    if world is None and pieces is not None:
        base = replace(base, piece_bytes=pieces)
    drawn = replace(base, faults=_with_claims(base, bearable))
    is_free = (peers, topology, aggregator, world) == (None, None, None, None)
    if not is_free:
        return drawn
    made = _with_fragments(_with_overlap(_with_local_steps(_weighted(_placed(drawn)))))
    return far(starved(_guarded(_with_further(made))))


def _draw_faults(
    base: Schedule, lots: list[float], chosen: int, doubts: list[Fault]
) -> tuple[Fault, ...]:
    """Return the faults of ``chosen`` kinds, or of more, that a swarm can survive together.
    ``lots`` order the kinds. ``doubts`` are included in any case, in place of other attacks of
    nodes."""
    # By weight without replacement (Efraimidis and Spirakis): the largest of u ** (1 / weight).
    order = sorted(range(len(KINDS)), key=lambda i: -(lots[i] ** (1.0 / KINDS[i].weight)))
    made = [
        kind.draw(
            FaultSampler(Random(f"schedule/{base.seed}/{kind.name}"), base.peers, base.active_s)
        )
        for kind in KINDS
    ]
    if not topologies.load(base.topology).rolling:
        # no peer serves in gossip rounds
        made = [[fault for fault in faults if not needs_a_server(fault)] for faults in made]
    bearable: tuple[Fault, ...] = ()
    # Some drawn faults cannot be survived together with others: more kinds make up for them.
    while len({type(fault) for fault in bearable}) < KINDS_MIN and chosen <= len(KINDS):
        picked = [fault for number in sorted(order[:chosen]) for fault in made[number]]
        bearable = bearable_of(
            [fault for fault in picked if not (doubts and isinstance(fault, NodeAttack))] + doubts,
            base.peers,
        )
        chosen += 1
    return bearable


def _draw_attacker_of_pieces(seed: int, n: int, active_s: float) -> list[Fault]:
    """Return, in some schedules, the attack of one of ``n`` peers on pieces, or its repeated
    requests for each, with restarts of peers that request pieces. Otherwise return no faults."""
    lot = Random(f"schedule/{seed}/liar of pieces")
    if lot.random() >= PIECE_ATTACKER or n < PIECES_PEERS:
        return []
    attacker, *others = lot.sample(range(n), n)
    times = [round(lot.uniform(PIECES_FROM_S, active_s - 0.5), 3) for _ in range(PIECES_ASKING)]
    asking = [
        Restart(peer, None, round(lot.uniform(0.01, 1.0), 3), at_s)
        for peer, at_s in zip(others, times, strict=False)
    ]
    lie = lot.choice((*PIECE_ATTACKS, "swapped_states", "flood"))
    if lie == "flood":
        asking[0] = replace(asking[0], peer=attacker)
    return [*asking, NodeAttack(lie, (attacker,))]


def _with_claims(base: Schedule, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Replace server attacks by false claims beside a result's numbers, in some schedules with a
    rule that tolerates an attacker."""
    lot = Random(f"schedule/{base.seed}/claims")
    if base.aggregator == "mean" or lot.random() >= CLAIM_ATTACK_SHARE:
        return faults
    told = lot.choice(CLAIM_ATTACKS)
    return tuple(
        [
            replace(fault, lie=told)
            if isinstance(fault, NodeAttack) and fault.lie in SERVER_ATTACKS
            else fault
            for fault in faults
        ]
    )


def _placed(drawn: Schedule) -> Schedule:
    """Return the first special situation that is drawn for the schedule, or the schedule itself."""
    need = (RULES | CROSS_SHARD)[drawn.aggregator]
    for make in (
        situated,
        lambda drawn: begun_late(drawn, need),
        standing,
        strained,
        lambda drawn: disturbed(drawn, need),
        lent,
    ):
        if (other := make(drawn)) is not drawn:
            return other
    return drawn


def _weighted(drawn: Schedule) -> Schedule:
    """Let some peers serve more often than others, in some schedules with servers."""
    lot = Random(f"schedule/{drawn.seed}/weights")
    weights = [lot.choice(WEIGHTS) for _ in range(PEERS_MAX)][: drawn.peers]
    if lot.random() >= WEIGHTED or not topologies.load(drawn.topology).rolling:
        return drawn
    return replace(drawn, server_weights=write_weights(dict(enumerate(weights))))


def _with_local_steps(drawn: Schedule) -> Schedule:
    """Use local steps, so that updates are model differences, in some schedules."""
    lot = Random(f"schedule/{drawn.seed}/local steps")
    if lot.random() >= LOCAL:
        return drawn
    return replace(drawn, local_steps=lot.choice(LOCAL_STEPS))


def _with_overlap(drawn: Schedule) -> Schedule:
    """Let trainers compute beside rounds, in some schedules with servers."""
    lot = Random(f"schedule/{drawn.seed}/overlap")
    if lot.random() >= OVERLAP or not topologies.load(drawn.topology).rolling:
        return drawn
    return replace(drawn, overlap=1)


def _with_fragments(drawn: Schedule) -> Schedule:
    """Split the model into fragments, in some schedules with local steps and servers. Trickling
    payloads are excepted: there a round that follows a collective operation may take longer than
    L11 allows, also without fragments."""
    lot = Random(f"schedule/{drawn.seed}/split model")
    cuts = [cut for cut in FRAGMENTS if drawn.local_steps % cut == 0]
    if lot.random() >= FRAGMENTED or not cuts:
        return drawn
    trickles = any(isinstance(fault, Trickle | Unreadable) for fault in drawn.faults)
    if trickles or not topologies.load(drawn.topology).rolling:
        return drawn
    return replace(drawn, fragments=lot.choice(cuts))


def _with_further(drawn: Schedule) -> Schedule:
    """Use two optimizers, in some schedules with plain rounds and servers."""
    lot = Random(f"schedule/{drawn.seed}/further")
    plain = drawn.overlap == 0 and drawn.local_steps == 1 and not drawn.stages
    rolling = topologies.load(drawn.topology).rolling
    if lot.random() >= FURTHER or not (plain and rolling):
        return drawn
    return replace(drawn, further_every=lot.choice(FURTHER_EVERY))


def _guarded(drawn: Schedule) -> Schedule:
    """Use the default rule of real runs, in some schedules that average the updates of honest
    servers. One peer may send updates that are far too long."""
    lot = Random(f"schedule/{drawn.seed}/guarded")
    gone = sum(isinstance(fault, Crash | Leave) for fault in drawn.faults)
    lies = ByzantineFault | NodeAttack | Rewritten | Unreadable
    lying = any(isinstance(fault, lies) for fault in drawn.faults)
    plain = drawn.aggregator == "mean" and topologies.load(drawn.topology).rolling
    few = (drawn.min_peers or drawn.peers) < 3 + max(1, gone)
    if lot.random() >= GUARDED or lying or not plain or few:
        return drawn
    scaled = ByzantineFault("scale", (lot.randrange(drawn.peers),), 1000.0)
    broken = (scaled,) if lot.random() < 0.5 else ()
    return replace(drawn, aggregator="guarded_mean", faults=(*drawn.faults, *broken))


def _is_of_an_attacker(fault: Fault) -> bool:
    """Whether the fault is an attack that the run's f counts."""
    return isinstance(fault, ByzantineFault) or (
        isinstance(fault, NodeAttack) and fault.lie in STATE_ATTACKS
    )


@dataclass(frozen=True, slots=True)
class FaultGenerator:
    """Frequency of a kind of fault, and the function that draws it. The function draws the same
    number of lots whatever the outcome."""

    name: str
    weight: float
    draw: Callable[[FaultSampler], list[Fault]]


def _crash(lots: FaultSampler) -> list[Fault]:
    server, at_s = lots.random.random() < 0.5, lots.when()
    victim = lots.peers()[0]
    return [Crash("server" if server else victim, at_s=at_s)]


def _restart(lots: FaultSampler) -> list[Fault]:
    count, order = lots.few(3), lots.peers()
    drawn = [(lots.when(), lots.long(0.01, 4.0)) for _ in range(3)]
    return [
        Restart(peer, None, after_s, at_s)
        for peer, (at_s, after_s) in zip(order[:count], drawn, strict=False)
    ]


def _restart_loop(lots: FaultSampler) -> list[Fault]:
    """Restart one peer again and again, sooner than any peer detects it."""
    victim, began, every_s, after_s = (
        lots.peers()[0],
        lots.ms(1.0, 6.0),
        lots.long(0.2, 1.5),
        lots.long(0.01, 0.2),
    )
    return [Restart(victim, None, after_s, round(began + i * every_s, 3)) for i in range(4)]


def _massacre(lots: FaultSampler) -> list[Fault]:
    """Kill all peers but one within a fifth of a second, and restart them within two."""
    order, at_s = lots.peers(), lots.ms(3.0, lots.active_s - 4.0)
    drawn = [(lots.ms(0.0, 0.2), lots.long(0.05, 2.0)) for _ in range(PEERS_MAX)]
    return [
        Restart(peer, None, drawn[peer][1], round(at_s + drawn[peer][0], 3)) for peer in order[1:]
    ]


def _crash_midway(lots: FaultSampler) -> list[Fault]:
    order, count = lots.peers(), lots.few(2)
    drawn = [(lots.when(), lots.random.randint(0, 40), lots.long(0.02, 3.0)) for _ in range(2)]
    return [CrashMidway(peer, *each) for peer, each in zip(order[:count], drawn, strict=False)]


def _crash_broadcast(lots: FaultSampler) -> list[Fault]:
    return [
        CrashBroadcast(lots.when(), int(lots.random.random() * (lots.n - 1)), lots.long(0.02, 8.0))
    ]


def _hang_server(lots: FaultSampler) -> list[Fault]:
    return [HangServer(lots.when(), lots.long(0.2, 8.0))]


def _hang(lots: FaultSampler) -> list[Fault]:
    count, order = lots.few(2), lots.peers()
    drawn = [(lots.when(), lots.long(0.05, 8.0)) for _ in range(2)]
    return [
        Hang(peer, None, for_s, at_s)
        for peer, (at_s, for_s) in zip(order[:count], drawn, strict=False)
    ]


def _slow(lots: FaultSampler) -> list[Fault]:
    return [Slow(lots.peers()[0], lots.random.choice((1.5, 2.0, 3.0)))]


def _attacker(lots: FaultSampler) -> list[Fault]:
    attack, strength = lots.random.choice(LIES)
    return [ByzantineFault(attack, (lots.peers()[0],), strength)]


def _node_lie(lots: FaultSampler) -> list[Fault]:
    """Draw an attack of a node. An attack on states needs peers that request one, so other peers
    are restarted."""
    # hollow_states is for starts without a seed
    elsewhere = (*SHARD_ATTACKS, *PIECE_ATTACKS, *CLAIM_ATTACKS, "hollow_states")
    lie, (attacker, *others) = (
        lots.random.choice([lie for lie in NODE_ATTACKS if lie not in elsewhere]),
        lots.peers(),
    )
    drawn = [(lots.when(), lots.long(0.01, 1.0)) for _ in range(3)]
    asking = [
        Restart(peer, None, after_s, at_s)
        for peer, (at_s, after_s) in zip(others, drawn, strict=False)
    ]
    return [NodeAttack(lie, (attacker,)), *(asking if lie in STATE_ATTACKS else ())]


def _partition(lots: FaultSampler) -> list[Fault]:
    """Cut off one peer, a minority, halves, three parts, or halves with a bridge; sometimes one
    way."""
    made: list[Fault] = []
    count, order = lots.few(2), lots.peers()
    for number in range(2):
        shape, cut, one_way = (
            lots.random.randrange(5),
            lots.random.random(),
            lots.random.random() < 0.25,
        )
        at_s, for_s = lots.when(), lots.long(0.1, 6.0)
        n, middle = len(order), len(order) // 2
        turned = order[number:] + order[:number]
        edge = 1 + int(cut * (n - 1))
        sides = {
            0: (turned[:1], turned[1:]),
            1: (turned[: max(1, (n - 1) // 2)], turned[max(1, (n - 1) // 2) :]),
            2: (turned[:edge], turned[edge:]),
            3: (turned[:middle], turned[middle : n - 1], turned[n - 1 :]),
            4: (turned[:middle], turned[middle : n - 1]),  # the last is a bridge
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
    """Draw the peers that a fault affects: in two of three cases all, as an empty tuple."""
    order, everybody, count = lots.peers(), lots.random.random() < 2 / 3, lots.few(2)
    return () if everybody else tuple(sorted(order[:count]))


def _share_of_messages(
    lots: FaultSampler,
    kind: type[Loss | Duplicate | Corrupt | Reset],
    share: tuple[float, float],
    *,
    digits: int,
    most_s: float,
) -> list[Fault]:
    drawn = round(lots.random.uniform(*share), digits)
    return [kind(drawn, lots.when(0.2), lots.long(0.5, most_s), _near(lots))]


def _loss(lots: FaultSampler) -> list[Fault]:
    return _share_of_messages(lots, Loss, (0.02, 0.4), digits=3, most_s=10.0)


def _duplicate(lots: FaultSampler) -> list[Fault]:
    return _share_of_messages(lots, Duplicate, (0.05, 0.5), digits=3, most_s=12.0)


def _corrupt(lots: FaultSampler) -> list[Fault]:
    return _share_of_messages(lots, Corrupt, (0.005, 0.1), digits=4, most_s=8.0)


def _delay(lots: FaultSampler) -> list[Fault]:
    return [Delay(lots.long(0.005, 0.5), lots.when(0.2), lots.long(0.5, 8.0), _near(lots))]


def _reorder(lots: FaultSampler) -> list[Fault]:
    share, held_s = round(lots.random.uniform(0.05, 0.5), 3), lots.long(0.002, 0.2)
    return [Reorder(share, held_s, lots.when(0.2), lots.long(0.5, 10.0), _near(lots))]


def _spike(lots: FaultSampler) -> list[Fault]:
    share, spike_s = round(lots.random.uniform(0.002, 0.05), 4), lots.long(0.05, 2.0)
    return [Spike(share, spike_s, lots.when(0.2), lots.long(0.5, 8.0), _near(lots))]


def _reset(lots: FaultSampler) -> list[Fault]:
    return _share_of_messages(lots, Reset, (0.001, 0.05), digits=4, most_s=8.0)


def _narrow(lots: FaultSampler) -> list[Fault]:
    speed, queue_bytes = lots.long(100.0, 10_000.0), float(lots.random.choice((64, 256, 4096)))
    return [Narrow(speed, queue_bytes, lots.when(0.2), lots.long(0.5, 8.0), _near(lots))]


def _full_queue(lots: FaultSampler) -> list[Fault]:
    """Draw a link so slow that an update is still on its way when the next one arrives, for which
    there is no room."""
    speed, queue_bytes = lots.long(10.0, 200.0), float(lots.random.choice((0, 16, 32)))
    return [Narrow(speed, queue_bytes, lots.when(0.2), lots.long(1.0, 8.0), _near(lots))]


def _ring(lots: FaultSampler) -> list[Fault]:
    return [Ring(tuple(lots.peers()), lots.when(), lots.long(0.2, 5.0))]


def _drift(lots: FaultSampler) -> list[Fault]:
    rate = round(1.0 + lots.random.uniform(-0.1, 0.1), 4)
    return [Drift(lots.peers()[0], rate, lots.when(0.2), lots.long(1.0, 10.0))]


def _late_timers(lots: FaultSampler) -> list[Fault]:
    return [LateTimers(lots.peers()[0], lots.long(0.005, 0.5), lots.when(), lots.long(0.5, 6.0))]


def _slow_node(lots: FaultSampler) -> list[Fault]:
    """Slow a node down, hardly noticeably or so that it is overloaded."""
    return [SlowNode(lots.peers()[0], lots.long(0.0005, 0.03), lots.when(0.2), lots.long(0.5, 6.0))]


def _hang_trainer(lots: FaultSampler) -> list[Fault]:
    return [HangTrainer(lots.peers()[0], lots.when(), lots.long(0.2, 6.0))]


def _kill_trainer(lots: FaultSampler) -> list[Fault]:
    """Kill a trainer once, or again and again soon after each start. Then its peer announces its
    end while others still spread the news of its start."""
    victim, at_s, after_s = lots.peers()[0], lots.when(), lots.long(0.02, 3.0)
    looping, every_s, soon_s = lots.random.random() < 0.5, lots.long(0.1, 1.0), lots.long(0.01, 0.2)
    if not looping:
        return [KillTrainer(victim, at_s, after_s)]
    return [KillTrainer(victim, round(at_s + i * every_s, 3), soon_s) for i in range(4)]


def _leave(lots: FaultSampler) -> list[Fault]:
    return [Leave(lots.peers()[0], lots.when())]


KINDS: tuple[FaultGenerator, ...] = (
    FaultGenerator("crash", 1.0, _crash),
    FaultGenerator("restart", 2.0, _restart),
    FaultGenerator("restart_loop", 0.5, _restart_loop),
    FaultGenerator("massacre", 0.4, _massacre),
    FaultGenerator("crash_midway", 2.0, _crash_midway),
    FaultGenerator("hang", 2.0, _hang),
    FaultGenerator("slow", 0.7, _slow),
    FaultGenerator("liar", 0.6, _attacker),
    FaultGenerator("lie", 2.0, _node_lie),
    FaultGenerator("partition", 2.0, _partition),
    FaultGenerator("flap", 1.0, _flap),
    FaultGenerator("loss", 1.5, _loss),
    FaultGenerator("duplicate", 1.5, _duplicate),
    FaultGenerator("corrupt", 0.7, _corrupt),
    FaultGenerator("delay", 1.0, _delay),
    FaultGenerator("reorder", 1.0, _reorder),
    FaultGenerator("spike", 0.8, _spike),
    FaultGenerator("reset", 1.0, _reset),
    FaultGenerator("narrow", 0.5, _narrow),
    FaultGenerator("queue_full", 0.6, _full_queue),
    FaultGenerator("ring", 0.6, _ring),
    FaultGenerator("drift", 0.5, _drift),
    FaultGenerator("late_timers", 0.7, _late_timers),
    FaultGenerator("slow_node", 0.8, _slow_node),
    FaultGenerator("hang_trainer", 0.8, _hang_trainer),
    FaultGenerator("kill_trainer", 0.8, _kill_trainer),
    FaultGenerator("leave", 0.5, _leave),
    FaultGenerator("crash_broadcast", 1.5, _crash_broadcast),
    FaultGenerator("hang_server", 1.2, _hang_server),
)


def needs_a_server(fault: Fault) -> bool:
    """Whether the fault means nothing in gossip rounds."""
    return isinstance(fault, ServerFault) or (
        isinstance(fault, NodeAttack) and fault.lie in SERVER_ATTACKS
    )
