"""Situations that random faults rarely cause. Some rules of the protocol are needed only in such
situations.

Examples: most of a swarm leaves at once. A Byzantine server keeps receiving state requests from
peers that leave and return. A link is so slow that commits are seconds late. A node is overloaded,
and there is no other fault. Some random schedules are replaced by a situation. It keeps their seed,
their times and, if possible, their number of peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gossip.faults import (
    RESULT_ATTACKS,
    ByzantineFault,
    Crash,
    CrashBroadcast,
    Drift,
    Duplicate,
    Fault,
    Hang,
    HangServer,
    HangTrainer,
    Leave,
    Loss,
    Narrow,
    NodeAttack,
    Partition,
    Reset,
    Restart,
    SlowNode,
)

from .lots import FaultSampler, Scenario, draw_scenario
from .schedule import Schedule

SHARE = 0.2
"""Share of the random schedules that are replaced by a situation."""
STEADY_S, QUICK_S = (0.46, 0.58), (0.08, 0.11)
"""Bounds of the compute time of a round, in seconds. With ``QUICK_S``, many rounds pass while a
peer is away."""
OFTEN_S = 0.2  # probe interval
# Rules that tolerate one Byzantine peer among three peers.
RULES_UNDER_ATTACK = ("geometric_median", "median", "trimmed_mean")
STANDING = 0.08
"""Share of standstills among the random schedules that are not situations and begin with all peers.
In a standstill, results are rejected while few peers are left."""
# Attacks that every peer with an update of its own detects.
REFUSED = ("wrong_results", "scaled_results", "nan_results")
BRIEF_S = (12.0, 17.0)
"""``active_s`` and ``duration_s`` of a standstill. Its rounds are short, so more than a hundred
pass."""
STAY_LEAST = 3  # minimum number of peers that stay in an exodus
RATHER = ("two_results", "kept_results")  # attacks that are detected only after several attempts


def situated(drawn: Schedule) -> Schedule:
    """Return a situation that replaces the random schedule, or the random schedule itself."""
    return draw_scenario(drawn, "situation", SHARE, SITUATIONS)


def standing(drawn: Schedule) -> Schedule:
    """Return a standstill that replaces the random schedule, or the random schedule itself."""
    return draw_scenario(drawn, "standing", STANDING, [STANDSTILL])


def _harmless(lots: FaultSampler, peers: Sequence[int] = ()) -> list[Fault]:
    """Generate faults that lose no message and kill no peer, for ``peers`` or, by default, for all
    peers."""
    order = peers or lots.peers()
    at_s = [lots.when(0.2) for _ in range(3)]
    for_s = [lots.long(0.5, 6.0) for _ in range(3)]
    share = round(lots.uniform(0.05, 0.3), 3)
    rate = round(1.0 + lots.uniform(-0.05, 0.05), 4)
    return [
        Duplicate(share, at_s[0], for_s[0]),
        Drift(order[0], rate, at_s[1], for_s[1]),
        HangTrainer(order[1], at_s[2], min(1.0, for_s[2])),
    ]


def _rolling(drawn: Schedule) -> Schedule:
    """Use rolling rounds, and a rule that accepts any update."""
    if drawn.topology == "rolling":
        return replace(drawn, aggregator="mean")
    return replace(drawn, topology="rolling", aggregator="mean", batch_policy="fixed_local")


def _exodus(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Let most peers leave at once, some of them within a round that expects their updates. The
    server of this round may die after it has sent its result only to the leaving peers. The network
    may lose messages."""
    more = lots.few(2)
    order = lots.peers()
    at_s = lots.ms(3.0, lots.active_s - 4.0)
    count = min(drawn.peers // 2 + more, drawn.peers - STAY_LEAST)
    apart_s = lots.choice((0.0, 0.01, 0.3))
    rule_s = lots.choice((0.0001, 0.1, 0.3))
    after_s = [round(at_s + lots.ms(0.0, apart_s), 3) for _ in range(drawn.peers)]
    dies, back_s = lots.random() < 0.6, lots.long(0.05, 4.0)
    lossy = lots.random() < 0.6
    share = round(lots.uniform(0.2, 0.45), 3)
    # Results are sent in the order of the ids, so the peers with the lowest ids leave, because they
    # receive them first. The rule takes so long that the peers leave within a round.
    leavers, rule_s = (sorted(order)[:count], 0.3) if dies else (order[:count], rule_s)
    faults: list[Fault] = [Leave(peer, when) for peer, when in zip(leavers, after_s, strict=False)]
    if dies:
        faults.append(CrashBroadcast(at_s, count, back_s))
    if lossy:
        faults.append(Loss(share, round(at_s - 0.2, 3), 1.5))
    faults += _harmless(lots, sorted(set(order) - set(leavers)))
    return replace(_rolling(drawn), compute_s=STEADY_S, rule_s=rule_s, faults=tuple(faults))


def _overload(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Overload one or two nodes for some seconds. No message is lost, and all other peers are
    undisturbed."""
    order, count = lots.peers(), lots.few(2)
    slow = [
        SlowNode(peer, lots.long(0.02, 0.1), lots.ms(2.0, 8.0), lots.long(1.5, 6.0))
        for peer in order[:2]
    ]
    return replace(
        _rolling(drawn),
        probe_interval_s=OFTEN_S,
        faults=(*slow[:count], *_harmless(lots, order[count:])),
    )


def _byzantine_server(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Let a peer attack as a server, under a rule that tolerates one Byzantine peer. Other peers
    are cut off, or killed and restarted, and have to catch up."""
    attacker, *others = lots.peers()
    lie = lots.choice((*RESULT_ATTACKS, *RATHER, *RATHER))
    rule = lots.choice(RULES_UNDER_ATTACK)
    at_s, away_s = lots.ms(2.0, lots.active_s - 7.0), lots.long(1.0, 6.0)
    # The killed peer loses its results. It usually returns while the other peer is still cut off.
    died_s = lots.ms(0.0, 1.0)
    back_s = round(away_s * lots.uniform(0.1, 0.8), 3)
    often = lots.random() < 0.7
    deaf = Partition(((others[0],), tuple(sorted((attacker, *others[1:])))), at_s, away_s)
    killed = Restart(others[1], None, back_s, round(at_s + died_s, 3))
    slept = Hang(others[2], None, lots.long(0.3, 3.0), lots.when())
    hung = HangServer(lots.when(), lots.long(0.2, 3.0))
    more: list[Fault] = [deaf, killed, slept, hung]
    left_out = lots.randrange(len(more) + 1)
    chosen = [fault for number, fault in enumerate(more) if number != left_out]
    quick = lots.random() < 0.3
    base = replace(
        _rolling(drawn),
        aggregator=rule,
        commit_log=64,
        faults=(NodeAttack(lie, (attacker,)), *chosen),
    )
    base = replace(base, probe_interval_s=OFTEN_S) if often else base
    return replace(base, compute_s=QUICK_S, rule_s=0.0001) if quick and base.peers <= 6 else base


def _slow_link(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Delay the large messages to one peer by seconds, and no other messages. So the peer receives
    claims that others are ahead before it receives their commits, and sends requests."""
    order = lots.peers()
    at_s = lots.ms(2.0, lots.active_s - 9.0)
    for_s = lots.long(3.0, 8.0)
    bytes_per_s, late_s = lots.long(20.0, 200.0), lots.long(1.0, 4.0)
    slow = Narrow(bytes_per_s, round(bytes_per_s * late_s, 1), at_s, for_s, (order[0],))
    quick = replace(
        _rolling(drawn), compute_s=QUICK_S, rule_s=0.0001, commit_log=64, probe_interval_s=OFTEN_S
    )
    return replace(quick, faults=(slow, *_harmless(lots)))


def _leap(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Let a Byzantine peer stand out, so that it is in quarantine for some rounds. Other peers
    pause for about as many rounds, and then continue in the round of the running peers."""
    attacker, *others = lots.peers()
    topology = drawn.topology if drawn.topology != "rolling" else lots.choice(("random-k", "full"))
    slept = [
        Hang(peer, None, lots.long(0.8, 2.5), lots.ms(3.0, lots.active_s - 3.0))
        for peer in [*others[:2], *others[:2]]
    ]
    lie = lots.choice(
        (
            ByzantineFault("sign_flip", (attacker,), 1.0),
            ByzantineFault("scale", (attacker,), 20.0),
            ByzantineFault("nan", (attacker,), 1.0),
        )
    )
    base = replace(
        drawn,
        topology=topology,
        shards=(sum(drawn.shards),),
        aggregator="median",
        batch_policy="fixed_local",
    )
    return replace(
        base, compute_s=QUICK_S, rule_s=0.0001, faults=(lie, *slept, *_harmless(lots)[:1])
    )


def _broken_links(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Break the connections of one peer repeatedly, as soon as they are up."""
    order, share = lots.peers(), round(lots.uniform(0.2, 0.7), 2)
    broken = Reset(share, lots.ms(2.0, 8.0), lots.long(1.0, 6.0), (order[0],))
    return replace(
        drawn, aggregator="mean", probe_interval_s=1.0, faults=(broken, *_harmless(lots))
    )


def _standstill(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Let a server send false results, which are rejected, while so many other peers are dead or
    have hanging trainers that the remaining honest peers are not a majority. Rounds are short:
    otherwise the dead peers would be out of the roster before the attacker serves again."""
    attacker, *others = lots.peers()
    n = drawn.peers
    lots.active_s = BRIEF_S[0]
    at_s = lots.ms(1.0, 4.0)
    rule = lots.choice(RULES_UNDER_ATTACK)
    lie = lots.choice(REFUSED)
    away: list[Fault] = []
    for peer in others[: n - n // 2 - 1]:  # the rest is a majority only with the attacker
        how = lots.random()
        when = round(at_s + lots.ms(0.0, 1.0), 3)
        for_s = lots.long(2.0, 9.0)
        if how < 0.5:
            away.append(Crash(peer, at_s=when))
        else:
            away.append(
                Restart(peer, None, for_s, when) if how < 0.75 else HangTrainer(peer, when, for_s)
            )
    base = replace(
        _rolling(drawn), compute_s=QUICK_S, rule_s=0.0001, probe_interval_s=OFTEN_S, commit_log=64
    )
    base = replace(base, active_s=BRIEF_S[0], duration_s=BRIEF_S[1])
    return replace(
        base,
        aggregator=rule,
        faults=(NodeAttack(lie, (attacker,)), *away, *_harmless(lots, others[len(away) :])),
    )


STANDSTILL = Scenario("standstill", 1.0, 4, 6, _standstill)
"""Scenario of ``standing``. It is chosen separately from the situations."""
SITUATIONS: tuple[Scenario, ...] = (
    Scenario("lying server", 3.0, 5, 7, _byzantine_server),
    Scenario("exodus", 2.0, 7, 9, _exodus),
    Scenario("overload", 1.0, 4, 6, _overload),
    Scenario("slow link", 1.0, 4, 6, _slow_link),
    Scenario("leap", 1.0, 5, 6, _leap),
    Scenario("broken links", 1.0, 4, 5, _broken_links),
)
