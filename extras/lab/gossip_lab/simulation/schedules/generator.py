"""Draws a fault schedule from a seed.

Every kind of fault has a generator of its own and draws everything it could need, whether it is
used or not. Leaving a kind or a peer out leaves the rest of the schedule unchanged. Peers are
chosen by lots that every possible peer draws.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gossip import topologies
from gossip.core import BatchPolicy, MembershipSettings
from gossip.faults import (
    CLAIM_ATTACKS,
    PIECE_ATTACKS,
    SHARD_ATTACKS,
    STATE_ATTACKS,
    ByzantineFault,
    Crash,
    Fault,
    Leave,
    NodeAttack,
    Restart,
    Rewritten,
    ServerFault,
    Trickle,
    Unreadable,
)
from gossip.topologies import write_weights

from .bearable import bearable_of
from .fault_kinds import KINDS
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


def needs_a_server(fault: Fault) -> bool:
    """Whether the fault means nothing in gossip rounds."""
    return isinstance(fault, ServerFault) or (
        isinstance(fault, NodeAttack) and fault.lie in SERVER_ATTACKS
    )
