"""Generates a random fault schedule from a seed.

Every kind of fault has a random generator of its own, which draws all values that it may need, even
those that it does not use. Peers are chosen by random numbers that are drawn for every possible
peer. So if a kind or a peer is left out, the rest of the schedule does not change.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random

from gossip import topologies
from gossip.core import PIECE_BYTES, MembershipSettings
from gossip.faults import (
    CLAIM_ATTACKS,
    NODE_ATTACKS,
    PIECE_ATTACKS,
    RESULT_ATTACKS,
    SHARD_ATTACKS,
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

from .bearable import bearable_of, is_counted
from .fault_kinds import KINDS
from .late_starts import begun_late, disturbed
from .lots import FaultSampler
from .schedule import KINDS_MIN, PEERS_MAX, Schedule
from .situations import situated, standing
from .strains import far, lent, starved, strained

PEERS = {4: 8, 5: 6, 6: 4, 7: 2, 8: 1, 9: 1}
"""Number of peers -> relative frequency. Small swarms are more frequent, because messages grow with
the square of the number of peers, and most failures of nine peers also occur with five."""
KINDS_A_SCHEDULE = (4, 6)
TOPOLOGIES = ("rolling", "rolling", "rolling", "random-k", "random-k", "ring", "full")
SHARDS = ((8,), (8,), (5, 3), (4, 4, 4))
RULES_S = (0.0001, 0.0001, 0.01, 0.1)
"""Times of a rule, in seconds. Eight elements are aggregated at once, but a server may fail while
it aggregates a real model."""
# The first value is the default of nodes. It takes the most time to simulate.
PROBE_INTERVALS_S = (MembershipSettings().probe_interval_s, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0)
COMPUTE_S = (0.46, 0.58)
ROUNDS_MIN = 50  # take 28 s without faults
# Share of fast schedules among those with rolling rounds and few peers. In their calm phase every
# peer has enough time to serve.
FAST = 1 / 16
FAST_COMPUTE_S = (0.08, 0.1)
FAST_PEERS = 6
COMMIT_LOGS = (8, 64, 64)  # rounds: about three seconds, or more than the whole run
PREPARES_S = (0.001, 0.001, 0.2, 1.0)
STABLE = 0.2  # share of the schedules in which restarted peers keep their addresses
# Share, among the schedules with rolling rounds, in which peers divide a fixed number of samples,
# however many peers there are.
FIXED_GLOBAL = 0.25
LOCAL = 0.2
LOCAL_STEPS = (2, 5, 20)
FRAGMENTED = 0.4  # share among the schedules with local steps and rolling rounds
FRAGMENTS = (2, 4, 5)
OVERLAP = 0.3  # share among the schedules with rolling rounds
FURTHER = 0.25  # share among the schedules with plain rolling rounds
FURTHER_EVERY = (1, 1, 3, 5)
WEIGHTED = 0.2  # share among the schedules with rolling rounds
WEIGHTS = (1, 1, 1, 2, 4, 10)
RULES = {"mean": 1, "median": 3, "trimmed_mean": 3, "multi_krum": 5}
"""Rule -> number of updates that it needs against one Byzantine peer. One of these rules is used if
updates are falsified, and in some of the other schedules."""
CROSS_SHARD = {
    "krum": 5,
    "multi_krum": 5,
    "geometric_median": 3,
    "centered_clipping": 3,
    "suspicion": 3,
}
"""Rule that the servers of shards run together -> number of updates that it needs. One of these
rules is used in some schedules with rolling rounds and enough peers."""
TOGETHER, PEERS_TOGETHER = 0.4, 6
# Share, among the schedules with shards that decide together, in which node attacks are attacks on
# such shards.
SHARD_ATTACK_SHARE = 0.5
# Share, among the schedules with a rule that tolerates an attacker, in which server attacks falsify
# claims about a result instead of its values.
CLAIM_ATTACK_SHARE = 0.5
# Share of the schedules without attacks on updates that use the randomly chosen rule, which may be
# the mean.
ROBUST = 0.45
GUARDED = 0.15  # share of ``guarded_mean`` among the schedules with the mean
SERVER_ATTACKS = (*RESULT_ATTACKS, "usurper")
"""Attacks on results. They are possible only in rolling rounds."""

# Share of the schedules with states in pieces, and sizes of a piece in bytes: from a small part of
# a state to more than half of it.
IN_PIECES, PIECES_BYTES = 0.5, (4, 8, 20)
PIECE_ATTACKER = 0.5
"""Share of the schedules with states in pieces in which a peer attacks pieces. Such an attack needs
enough peers and rolling rounds, because only there other peers attest the pieces."""
PIECES_PEERS = 4  # a requesting peer, and 2f + 1 others
PIECES_ASKING = 3  # number of restarted peers, which request pieces
PIECES_FROM_S = 2.0  # start of these restarts


def generate(
    seed: int,
    *,
    peers: int | None = None,
    topology: str | None = None,
    aggregator: str | None = None,
) -> Schedule:
    """Return the schedule of a seed. The arguments replace random values, and do not change the
    other random values."""
    draw = Random(f"schedule/{seed}")
    drawn_peers = draw.choices(tuple(PEERS), tuple(PEERS.values()))[0]
    drawn_topology, shards = draw.choice(TOPOLOGIES), draw.choice(SHARDS)
    chosen, stable = draw.randint(*KINDS_A_SCHEDULE), draw.random() < STABLE
    lots, rule = [draw.random() for _ in KINDS], draw.choice(tuple(RULES))
    base = _draw_world(seed, peers or drawn_peers, topology or drawn_topology, shards)
    base = replace(base, stable_addresses=stable, aggregator=aggregator or "mean")
    in_pieces = base.piece_bytes != PIECE_BYTES
    doubts = _draw_attacker_of_pieces(base) if in_pieces else []
    faults = _draw_faults(base, lots, chosen, doubts)
    together = Random(f"schedule/{seed}/together")
    if aggregator is None:
        rule = "median" if doubts and rule == "mean" else rule  # the mean tolerates no attacker
        base = _with_rule(replace(base, faults=faults), rule, shards, together)
    if (
        base.aggregator in CROSS_SHARD
        and len(base.shards) > 1
        and together.random() < SHARD_ATTACK_SHARE
        and not doubts
    ):
        faults = _with_lie(faults, together.choice(SHARD_ATTACKS), NODE_ATTACKS)
    drawn = replace(base, faults=_with_claims(base, faults))
    if (peers, topology, aggregator) != (None, None, None):
        return drawn
    made = _with_fragments(_with_overlap(_with_local_steps(_weighted(_placed(drawn)))))
    return far(starved(_guarded(_with_further(made))))


def _draw_world(seed: int, n: int, topology: str, shards: tuple[int, ...]) -> Schedule:
    """Return a schedule without faults. Each setting has a random generator of its own."""

    def lot(name: str) -> Random:
        return Random(f"schedule/{seed}/{name}")

    rolling = topologies.load(topology).rolling
    fast = lot("fast").random() < FAST and rolling and n <= FAST_PEERS
    is_global = rolling and lot("batch policy").random() < FIXED_GLOBAL
    rule_s, pieces = lot("rule").choice(RULES_S), lot("pieces")
    return Schedule(
        seed,
        peers=n,
        topology=topology,
        rounds_min=ROUNDS_MIN,
        compute_s=FAST_COMPUTE_S if fast else COMPUTE_S,
        rule_s=RULES_S[0] if fast else rule_s,  # must be shorter than the compute time
        shards=shards if rolling else (sum(shards),),  # gossip rounds have no shards
        batch_policy="fixed_global" if is_global else "fixed_local",
        probe_interval_s=lot("probe interval").choice(PROBE_INTERVALS_S),
        commit_log=lot("commit log").choice(COMMIT_LOGS),
        prepare_s=lot("prepare").choice(PREPARES_S),
        piece_bytes=pieces.choice(PIECES_BYTES) if pieces.random() < IN_PIECES else PIECE_BYTES,
    )


def _with_rule(base: Schedule, rule: str, shards: tuple[int, ...], together: Random) -> Schedule:
    """Use the randomly chosen rule in schedules with attackers, and in some others, if there are
    enough updates for it. In some schedules with many peers use a rule that the servers of shards
    run together.

    Args:
        shards: Randomly chosen shards. A rule that servers run together needs at least two.
    """
    # One spare update for each permanent loss, and at least one: otherwise a single crash would
    # make all later rounds fail.
    spare = max(1, sum(isinstance(fault, Crash | Leave) for fault in base.faults))
    robust = Random(f"schedule/{base.seed}/robust").random() < ROBUST
    n = base.peers
    if RULES[rule] < n and (robust or any(map(is_counted, base.faults))):
        base = replace(base, aggregator=rule if RULES[rule] + spare <= n else "median")
    if base.rolling and n >= PEERS_TOGETHER and together.random() < TOGETHER:
        able = [rule for rule, need in CROSS_SHARD.items() if need + spare <= n]
        chosen = together.choice(able)
        several = shards if len(shards) > 1 else together.choice(SHARDS[2:])
        return replace(base, aggregator=chosen, shards=several)
    return base


def _with_lie(
    faults: tuple[Fault, ...], lie: str, instead_of: Collection[str]
) -> tuple[Fault, ...]:
    """Replace the node attacks in ``instead_of`` by ``lie``."""
    return tuple(
        [
            replace(fault, lie=lie)
            if isinstance(fault, NodeAttack) and fault.lie in instead_of
            else fault
            for fault in faults
        ]
    )


def _draw_faults(
    base: Schedule, lots: list[float], chosen: int, doubts: list[Fault]
) -> tuple[Fault, ...]:
    """Return faults of ``chosen`` kinds, or of more, that a swarm can survive together. The random
    numbers ``lots`` determine the order of the kinds. If there are ``doubts``, they are included in
    place of other node attacks."""
    # Weighted sampling without replacement (Efraimidis and Spirakis): choose the largest u ** (1 /
    # weight).
    order = sorted(range(len(KINDS)), key=lambda i: -(lots[i] ** (1.0 / KINDS[i].weight)))
    made = [kind.draw(FaultSampler(base, kind.name)) for kind in KINDS]
    if not base.rolling:
        # gossip rounds have no servers
        made = [[fault for fault in faults if not needs_a_server(fault)] for faults in made]
    bearable: tuple[Fault, ...] = ()
    # ``bearable_of`` drops faults that the protocol cannot survive together. Further kinds replace
    # the dropped ones.
    while len({type(fault) for fault in bearable}) < KINDS_MIN and chosen <= len(KINDS):
        picked = [fault for number in sorted(order[:chosen]) for fault in made[number]]
        bearable = bearable_of(
            [fault for fault in picked if not (doubts and isinstance(fault, NodeAttack))] + doubts,
            base.peers,
        )
        chosen += 1
    return bearable


def _draw_attacker_of_pieces(base: Schedule) -> list[Fault]:
    """For some schedules, return an attack on pieces of a state or a flood of requests for pieces,
    and restarts of other peers, so that they request pieces. For all other schedules, return no
    faults."""
    n, lot = base.peers, Random(f"schedule/{base.seed}/liar of pieces")
    if not base.rolling or n < PIECES_PEERS or lot.random() >= PIECE_ATTACKER:
        return []
    attacker, *others = lot.sample(range(n), n)
    times = [
        round(lot.uniform(PIECES_FROM_S, base.active_s - 0.5), 3) for _ in range(PIECES_ASKING)
    ]
    asking = [
        Restart(peer, None, round(lot.uniform(0.01, 1.0), 3), at_s)
        for peer, at_s in zip(others, times, strict=False)
    ]
    lie = lot.choice((*PIECE_ATTACKS, "swapped_states", "flood"))
    if lie == "flood":
        asking[0] = replace(asking[0], peer=attacker)
    return [*asking, NodeAttack(lie, (attacker,))]


def _with_claims(base: Schedule, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """In some schedules with a rule that tolerates an attacker, replace server attacks by false
    claims about a result."""
    lot = Random(f"schedule/{base.seed}/claims")
    if base.aggregator == "mean" or lot.random() >= CLAIM_ATTACK_SHARE:
        return faults
    return _with_lie(faults, lot.choice(CLAIM_ATTACKS), SERVER_ATTACKS)


def _placed(drawn: Schedule) -> Schedule:
    """Return the special schedule that replaces this schedule, or the schedule itself if none
    does."""
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
    """In some schedules with rolling rounds, let some peers serve more often than others."""
    lot = Random(f"schedule/{drawn.seed}/weights")
    weights = [lot.choice(WEIGHTS) for _ in range(PEERS_MAX)][: drawn.peers]
    if lot.random() >= WEIGHTED or not drawn.rolling:
        return drawn
    return replace(drawn, server_weights=write_weights(dict(enumerate(weights))))


def _with_local_steps(drawn: Schedule) -> Schedule:
    """In some schedules, use local steps, so that updates are model differences."""
    lot = Random(f"schedule/{drawn.seed}/local steps")
    if lot.random() >= LOCAL:
        return drawn
    return replace(drawn, local_steps=lot.choice(LOCAL_STEPS))


def _with_overlap(drawn: Schedule) -> Schedule:
    """In some schedules with rolling rounds, let trainers compute the next update during a
    round."""
    lot = Random(f"schedule/{drawn.seed}/overlap")
    if lot.random() >= OVERLAP or not drawn.rolling:
        return drawn
    return replace(drawn, overlap=1)


def _with_fragments(drawn: Schedule) -> Schedule:
    """In some schedules with local steps and rolling rounds, split the model into fragments.
    Schedules with trickling payloads are excepted, because a round after a collective operation may
    then take longer than L11 allows, even without fragments."""
    lot = Random(f"schedule/{drawn.seed}/split model")
    cuts = [cut for cut in FRAGMENTS if drawn.local_steps % cut == 0]
    if lot.random() >= FRAGMENTED or not cuts:
        return drawn
    trickles = any(isinstance(fault, Trickle | Unreadable) for fault in drawn.faults)
    if trickles or not drawn.rolling:
        return drawn
    return replace(drawn, fragments=lot.choice(cuts))


def _with_further(drawn: Schedule) -> Schedule:
    """In some schedules with plain rolling rounds, use two optimizers."""
    lot = Random(f"schedule/{drawn.seed}/further")
    plain = drawn.overlap == 0 and drawn.local_steps == 1 and not drawn.stages
    if lot.random() >= FURTHER or not (plain and drawn.rolling):
        return drawn
    return replace(drawn, further_every=lot.choice(FURTHER_EVERY))


def _guarded(drawn: Schedule) -> Schedule:
    """In some schedules with the mean and without attacks, use the default rule of real runs. One
    peer may then send updates that are far too long."""
    lot = Random(f"schedule/{drawn.seed}/guarded")
    gone = sum(isinstance(fault, Crash | Leave) for fault in drawn.faults)
    lies = ByzantineFault | NodeAttack | Rewritten | Unreadable
    lying = any(isinstance(fault, lies) for fault in drawn.faults)
    plain = drawn.aggregator == "mean" and drawn.rolling
    few = (drawn.min_peers or drawn.peers) < 3 + max(1, gone)
    if lot.random() >= GUARDED or lying or not plain or few:
        return drawn
    scaled = ByzantineFault("scale", (lot.randrange(drawn.peers),), 1000.0)
    broken = (scaled,) if lot.random() < 0.5 else ()
    return replace(drawn, aggregator="guarded_mean", faults=(*drawn.faults, *broken))


def needs_a_server(fault: Fault) -> bool:
    """Whether the fault is possible only in rolling rounds, because it concerns a server."""
    return isinstance(fault, ServerFault) or (
        isinstance(fault, NodeAttack) and fault.lie in SERVER_ATTACKS
    )
