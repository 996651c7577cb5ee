"""Schedules with few faults but unusual load, such as slow payloads or pauses of all peers.

Examples: a swarm of one peer; a pause of all peers at once; payloads that take seconds on links or
processors, alone or with pauses. Further examples: a newcomer with a link that is too slow for the
rounds; payloads that trickle; newcomers that join the last holder of the state. Some random
schedules are replaced by one of these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gossip.faults import (
    Crash,
    Fault,
    Hang,
    HangTrainer,
    Narrow,
    Restart,
    Rewritten,
    SlowNode,
    Starve,
    Trickle,
    Unreadable,
)

from .lots import FaultSampler, Scenario, draw_scenario
from .schedule import Schedule

SHARE, LENT_SHARE = 0.3, 0.08
"""Share of strains among the random schedules that are not situations and begin with all peers, and
share of schedules with lent memory among the remaining schedules."""
STARVED_SHARE, FIRST_S = 0.04, 0.06
"""Share of starved peers among all schedules, and time within which all processes have started, in
seconds."""
FAR_SHARE = 0.04  # share of far hosts among all schedules
FAR_S = (0.01, 0.2)  # bounds of the one-way delay, in seconds
JITTERS = (0.0, 0.3)  # possible relative variations of the delay
FAR_PEERS = 3
"""Minimum number of far hosts. Two peers have no majority: each would continue alone before it
receives the commit of the other."""
PLAIN: dict[str, Any] = {
    "topology": "rolling",
    "aggregator": "mean",
    "batch_policy": "fixed_local",
    "rule_s": 0.0001,
    "prepare_s": 0.001,
}
COMPUTE_S = (0.1, 0.2)
QUEUE_S = 0.6
"""Maximum extra delay of messages in seconds: a queue of 0.1 s, and the retransmission of a lost
segment after up to 0.5 s."""
QUEUED_BELOW = 5.0
"""Payloads per second. Links that are faster than this have no queue."""
STOPPED_SHARE = 0.5
"""Share of the schedules with large payloads in which peers pause."""
ROUND_TIMEOUT_S = 10.0
"""Round timeout for large payloads, in seconds: longer, as in runs with large models."""


def strained(drawn: Schedule) -> Schedule:
    """Return a strain that replaces the random schedule, or the random schedule itself."""
    return draw_scenario(drawn, "strain", SHARE, STRAINS, **PLAIN)


def lent(drawn: Schedule) -> Schedule:
    """Return a schedule with lent memory that replaces the random schedule, or the random schedule
    itself. This is called after all other replacements, so that they do not depend on it."""
    return draw_scenario(drawn, "lent", LENT_SHARE, [LENT_MEMORY], **PLAIN)


def starved(drawn: Schedule) -> Schedule:
    """For a share of the schedules, give some or all peers only a tenth of a processor, from the
    start or from a later time on. The other faults do not change."""
    lots = FaultSampler(drawn, "starved")
    if lots.random() >= STARVED_SHARE:
        return drawn
    hungry = lots.peers()[: lots.few(drawn.peers)]
    when = lots.choice((FIRST_S, lots.when())), lots.long(1.0, 12.0)
    starving = [Starve(peer, 0.1, *when) for peer in hungry]
    return replace(drawn, faults=(*drawn.faults, *starving))


def far(drawn: Schedule) -> Schedule:
    """For a share of the schedules, give the links the delays between continents. Schedules with
    limited bandwidth do not change, because their payloads already take about as long as finished
    peers wait for others."""
    lots = FaultSampler(drawn, "far")
    leaves = drawn.peers < FAR_PEERS or drawn.bytes_per_s > 0
    if lots.random() >= FAR_SHARE or leaves:
        return drawn
    way_s, jitter = lots.long(*FAR_S), lots.choice(JITTERS)
    return replace(drawn, delay_s=(way_s * (1 - jitter), way_s * (1 + jitter)), rounds_min=0)


def _alone(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Let one peer run alone, from the start or after the other peer has crashed. It is paused, has
    a hanging trainer, and is slow. A newcomer may join."""
    begins_alone = lots.random() < 0.6
    for_s = lots.long(0.3, 4.0)
    at_s = lots.ms(3.0, 8.0)
    joins = lots.random()
    trainer_s = lots.long(0.3, 4.0)
    slow_s = lots.long(0.002, 0.03)
    late_s = lots.ms(9.0, 12.0)
    faults: list[Fault] = [
        Hang(0, None, for_s, at_s),
        HangTrainer(0, late_s, trainer_s),
        SlowNode(0, slow_s, 2.0, 6.0),
    ]
    if not begins_alone:
        faults.append(Crash(1, None, 1.0))
    return replace(
        drawn,
        peers=1 if begins_alone else 2,
        rule_s=lots.choice((0.0, 0.0001)),
        compute_s=COMPUTE_S,
        rounds_min=0,
        faults=tuple(faults),
        joins_s=(round(at_s + for_s / 2, 3),) if joins < 0.4 else (),
    )


def _all_stop(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Pause all peers at nearly the same moment, as happens when a laptop is closed or a host of
    virtual machines is suspended."""
    at_s = lots.ms(2.0, 8.0)
    for_s = lots.long(0.3, 8.0)
    apart_s = lots.choice((0.0, 0.02, 0.2))
    hangs = [
        Hang(peer, None, for_s, round(at_s + apart_s * number, 3))
        for number, peer in enumerate(lots.peers())
    ]
    return replace(drawn, compute_s=COMPUTE_S, faults=tuple(hangs))


def _large(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Use links or nodes that need seconds for the payloads of a round. In some schedules one or
    two peers pause for a moment while payloads are in transit; there is no other fault."""
    nbytes = 4.0 * max(drawn.shards)
    link, copies = lots.long(0.2, 40.0), lots.long(0.5, 60.0)  # payloads per second
    which = lots.choice(("link", "copies", "both"))
    queue_s = lots.choice((0.0, QUEUE_S))
    stopped = lots.peers()[: lots.few(2)] if lots.random() < STOPPED_SHARE else ()
    hangs = [Hang(peer, None, lots.long(0.2, 3.0), lots.ms(2.0, 9.0)) for peer in stopped]
    return replace(
        drawn,
        faults=tuple(hangs),
        compute_s=lots.choice((COMPUTE_S, drawn.compute_s)),
        rounds_min=0,
        round_timeout_s=ROUND_TIMEOUT_S,
        start_timeout_s=60.0,
        bytes_per_s=0.0 if which == "copies" else round(link * nbytes, 1),
        queue_s=queue_s if which != "copies" and link < QUEUED_BELOW else 0.0,
        copies_per_s=0.0 if which == "link" else round(copies * drawn.peers * nbytes, 1),
    )


def _slow_newcomers(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Start one or two newcomers with a link that may be too slow for the state and the rounds,
    until the phase with faults ends."""
    count = lots.few(2)
    at_s = lots.ms(2.0, 6.0)
    apart_s = lots.long(0.05, 2.0)
    rate = lots.long(20.0, 2000.0)
    joins_s = tuple(round(at_s + apart_s * number, 3) for number in range(count))
    newcomers = tuple(range(drawn.peers, drawn.peers + count))
    narrow = Narrow(rate, 1e9, 1.0, drawn.active_s - 1.0, newcomers)
    return replace(
        drawn,
        compute_s=drawn.compute_s,
        round_timeout_s=ROUND_TIMEOUT_S,
        faults=(narrow,),
        joins_s=joins_s,
    )


def _trickle(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Let the payloads of one peer trickle for some time. All its other messages arrive
    normally."""
    peer = lots.peer()
    rate = lots.long(1.0, 40.0)
    at_s = lots.ms(3.0, 6.0)
    for_s = lots.long(4.0, 10.0)
    return replace(drawn, compute_s=COMPUTE_S, faults=(Trickle((peer,), rate, at_s, for_s),))


def _last_holder(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Crash all peers except one permanently at once; their launchers report this. Then as many
    newcomers start, or sometimes too few."""
    at_s, later_s, (_, *gone) = lots.ms(3.0, 6.0), lots.long(0.1, 2.5), lots.peers()
    crashes = tuple(
        Crash(peer, None, round(at_s + 0.01 * number, 3)) for number, peer in enumerate(gone)
    )
    come = drawn.peers - 1 if lots.random() < 0.7 or drawn.peers < 4 else 1
    joins_s = tuple(round(at_s + later_s + 0.3 * number, 3) for number in range(come))
    return replace(drawn, compute_s=COMPUTE_S, faults=crashes, joins_s=joins_s, told=True)


STRAINS: tuple[Scenario, ...] = (
    Scenario("alone", 2.0, 1, 2, _alone),
    Scenario("all stop", 1.5, 2, 6, _all_stop),
    Scenario("large", 2.0, 2, 6, _large),
    Scenario("slow newcomers", 1.5, 2, 5, _slow_newcomers),
    Scenario("trickle", 1.5, 3, 6, _trickle),
    Scenario("last holder", 1.0, 3, 5, _last_holder),
)


def _lent(lots: FaultSampler, drawn: Schedule) -> Schedule:
    """Lent memory: make the memory that a peer lends to others unreadable, or let one or two peers
    overwrite their updates in it. Another peer may crash and return."""
    first, second, *_ = lots.peers()
    at_s, for_s = lots.ms(3.0, 6.0), lots.long(4.0, 10.0)
    back_s = lots.long(0.5, 2.0)
    rewrites = lots.random()
    crashes = lots.random()
    faults: tuple[Fault, ...] = (Unreadable((first,), at_s, for_s),)
    if rewrites < 0.6:
        writers = (first,) if rewrites < 0.4 or drawn.peers < 4 else (first, second)
        faults = (Rewritten(writers, at_s, for_s),)
        if crashes < 0.5:
            faults += (Restart(second, None, back_s, round(at_s + 1.0, 3)),)
    return replace(drawn, compute_s=COMPUTE_S, faults=faults)


LENT_MEMORY = Scenario("lent memory", 1.0, 3, 6, _lent)
