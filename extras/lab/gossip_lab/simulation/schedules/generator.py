"""Draws a fault schedule from a seed.

Every kind of fault has its own generator and draws all values that it could need, whether it uses
them or not. Omitting a kind or a peer does not change the rest of the schedule. Peers are
chosen by a random number that is drawn for every possible peer.
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
"""Relative frequency of each size of a swarm: messages grow with the square of the size, and most
failures of nine peers also occur with five."""
KINDS_A_SCHEDULE = (4, 6)
TOPOLOGIES = ("rolling", "rolling", "rolling", "random-k", "random-k", "ring", "full")
SHARDS = ((8,), (8,), (5, 3), (4, 4, 4))
RULES_S = (0.0001, 0.0001, 0.01, 0.1)
"""Seconds. Eight numbers are aggregated at once, unlike a real model, in whose aggregation a
server may fail."""
# Nodes use the first one by default, which takes the most time.
PROBE_INTERVALS_S = (MembershipSettings().probe_interval_s, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0)
COMPUTE_S = (0.46, 0.58)
ROUNDS_MIN = 50  # takes 28 s without faults
# share of the schedules with rolling rounds and few peers: in their calm every peer must have
# served
FAST = 1 / 16
FAST_COMPUTE_S = (0.08, 0.1)
FAST_PEERS = 6
COMMIT_LOGS = (8, 64, 64)  # rounds: three seconds, or more than a schedule lasts
PREPARES_S = (0.001, 0.001, 0.2, 1.0)
STABLE = 0.2  # share of the schedules in which a restarted peer has its old addresses
# share of those with rolling rounds: peers divide a fixed number of samples, for any number of
# peers
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
# share of server attacks that falsify claims about a result instead of its numbers, if a rule
# tolerates an attacker
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
PIECES_PEERS = 4  # the requesting peer, and 2f + 1 others
PIECES_ASKING = 3  # peers that are restarted
PIECES_FROM_S = 2.0  # before this no other peer has been killed permanently


def generate(
    seed: int,
    *,
    peers: int | None = None,
    topology: str | None = None,
    aggregator: str | None = None,
) -> Schedule:
    """Return the schedule of a seed. Arguments replace drawn values; all other draws stay
    unchanged."""
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
        rule = "median" if doubts and rule == "mean" else rule  # a mean tolerates no attacker
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
    """Return a schedule without faults: each setting has its own random generator."""

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
        rule_s=RULES_S[0] if fast else rule_s,  # shorter than the compute time
        shards=shards if rolling else (sum(shards),),  # gossip rounds exchange whole vectors
        batch_policy="fixed_global" if is_global else "fixed_local",
        probe_interval_s=lot("probe interval").choice(PROBE_INTERVALS_S),
        commit_log=lot("commit log").choice(COMMIT_LOGS),
        prepare_s=lot("prepare").choice(PREPARES_S),
        piece_bytes=pieces.choice(PIECES_BYTES) if pieces.random() < IN_PIECES else PIECE_BYTES,
    )


def _with_rule(base: Schedule, rule: str, shards: tuple[int, ...], together: Random) -> Schedule:
    """Use the drawn rule in schedules with attackers, and in some others, if it has enough updates;
    in some schedules with many peers use a rule that servers of shards run together.

    Args:
        shards: Drawn shards; such a rule needs at least two.
    """
    # One more is added because a single crash would otherwise lose every later round, and one for
    # each permanent loss.
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
    """Replace some attacks of nodes by ``lie``."""
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
    """Return the faults of ``chosen`` kinds, or of more, that a swarm can survive together.
    ``lots`` (random numbers) order the kinds. ``doubts`` are always included, instead of other
    attacks of nodes."""
    # By weight without replacement (Efraimidis and Spirakis): the largest of u ** (1 / weight).
    order = sorted(range(len(KINDS)), key=lambda i: -(lots[i] ** (1.0 / KINDS[i].weight)))
    made = [
        kind.draw(
            FaultSampler(Random(f"schedule/{base.seed}/{kind.name}"), base.peers, base.active_s)
        )
        for kind in KINDS
    ]
    if not base.rolling:
        # In gossip rounds no peer serves.
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
    """Return, in some schedules, an attack of a peer on pieces, or its repeated requests for
    pieces, with restarts of peers that request pieces. Otherwise return no faults."""
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
    """Replace server attacks by false claims that accompany a result, in some schedules with a
    rule that tolerates an attacker."""
    lot = Random(f"schedule/{base.seed}/claims")
    if base.aggregator == "mean" or lot.random() >= CLAIM_ATTACK_SHARE:
        return faults
    return _with_lie(faults, lot.choice(CLAIM_ATTACKS), SERVER_ATTACKS)


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
    if lot.random() >= WEIGHTED or not drawn.rolling:
        return drawn
    return replace(drawn, server_weights=write_weights(dict(enumerate(weights))))


def _with_local_steps(drawn: Schedule) -> Schedule:
    """Use local steps, so that updates are model differences, in some schedules."""
    lot = Random(f"schedule/{drawn.seed}/local steps")
    if lot.random() >= LOCAL:
        return drawn
    return replace(drawn, local_steps=lot.choice(LOCAL_STEPS))


def _with_overlap(drawn: Schedule) -> Schedule:
    """Let trainers compute during rounds, in some schedules with servers."""
    lot = Random(f"schedule/{drawn.seed}/overlap")
    if lot.random() >= OVERLAP or not drawn.rolling:
        return drawn
    return replace(drawn, overlap=1)


def _with_fragments(drawn: Schedule) -> Schedule:
    """Split the model into fragments, in some schedules with local steps and servers. Trickling
    payloads are excepted: there a round after a collective operation may take longer than
    L11 allows, even without fragments."""
    lot = Random(f"schedule/{drawn.seed}/split model")
    cuts = [cut for cut in FRAGMENTS if drawn.local_steps % cut == 0]
    if lot.random() >= FRAGMENTED or not cuts:
        return drawn
    trickles = any(isinstance(fault, Trickle | Unreadable) for fault in drawn.faults)
    if trickles or not drawn.rolling:
        return drawn
    return replace(drawn, fragments=lot.choice(cuts))


def _with_further(drawn: Schedule) -> Schedule:
    """Use two optimizers, in some schedules with plain rounds and servers."""
    lot = Random(f"schedule/{drawn.seed}/further")
    plain = drawn.overlap == 0 and drawn.local_steps == 1 and not drawn.stages
    if lot.random() >= FURTHER or not (plain and drawn.rolling):
        return drawn
    return replace(drawn, further_every=lot.choice(FURTHER_EVERY))


def _guarded(drawn: Schedule) -> Schedule:
    """Use the default rule of real runs, in some schedules that average the updates of honest
    servers. One peer may send updates that are far too long."""
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
    """Whether the fault has no meaning in gossip rounds."""
    return isinstance(fault, ServerFault) or (
        isinstance(fault, NodeAttack) and fault.lie in SERVER_ATTACKS
    )
