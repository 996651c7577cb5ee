"""Which faults of a schedule really took place, slow nodes and full queues among them; and what
became of each message."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from checked_swarm import assert_sound
from test_campaign import WORLD, played

from gossip.faults.kinds import Crash
from gossip.faults.plan import Fault
from gossip.faults.world import (
    Corrupt,
    Delay,
    Flap,
    Loss,
    Narrow,
    NodeAttack,
    Partition,
    Reset,
    SlowNode,
)
from gossip_lab.simulation.campaign.chart import Chart
from gossip_lab.simulation.world.nemesis import name_of


def struck(*faults: Fault, seconds: float = 3.0, **world: Any) -> Counter[str]:
    swarm, nemesis = played(replace(WORLD, faults=faults, **world).checked(), seconds)
    return nemesis.totals(swarm)


def test_a_fault_is_proven_on_its_own_links_and_by_its_own_effect() -> None:
    """Peer 3 is gone from the start, so nothing can befall a message of its; others' losses prove
    nothing of the faults there."""
    gone = Crash(3, at_s=1.0)
    elsewhere = (
        Loss(0.3, 1.2, 1.5, (0,)),
        Partition(((0,), (1, 2)), 1.2, 0.5),
        Delay(0.05, 1.2, 1.5, (0,)),
    )
    took_place = {"crash": 1, "loss": 1, "partition": 1, "delay": 1}
    assert struck(gone, *elsewhere) == took_place
    there = (
        Loss(0.3, 1.3, 1.0, (3,)),
        Flap((1, 3), 1.3, 1.0, 0.2),
        Delay(0.05, 1.3, 1.0, (3,)),
        Narrow(50.0, 64.0, 1.3, 1.0, (3,)),
    )
    assert struck(gone, *elsewhere, *there) == took_place


def test_a_queue_counts_as_full_only_when_a_message_was_dropped_for_it() -> None:
    assert name_of(Narrow(100.0, 16.0, 1.0, 1.0)) == "queue_full"
    roomy, _ = played(replace(WORLD, faults=(Narrow(2000.0, 32.0, 1.0, 1.5),)))
    assert roomy.counts["queue_full"] == 0
    assert struck(Narrow(2000.0, 32.0, 1.0, 1.5)) == {}
    full, nemesis = played(replace(WORLD, faults=(Narrow(50.0, 16.0, 1.0, 1.5),)))
    assert full.counts["queue_full"] > 0
    assert nemesis.totals(full) == {"queue_full": 1}


def test_a_node_with_more_to_do_than_it_has_time_for_is_gone_on_without_and_comes_back() -> None:
    schedule = replace(WORLD, faults=(SlowNode(1, 0.03, 1.0, 2.0),), active_s=3.5, duration_s=5.0)
    outcome = assert_sound(schedule)
    assert outcome.reports["skip"] > 0


def test_the_trace_says_of_every_message_that_did_not_arrive_why() -> None:
    chart = Chart(None)
    faults = (
        Loss(0.2, 1.0, 0.5),
        Corrupt(0.2, 1.0, 0.5),
        Reset(0.1, 1.5, 0.5),
        Partition(((0,), (1, 2, 3)), 2.0, 0.5),
        Narrow(400.0, 0.0, 2.5, 1.0),
        NodeAttack("deaf", (2,)),
        NodeAttack("sign_flip", (1,)),
    )
    outcome = assert_sound(replace(WORLD, faults=faults), [chart])
    told = Counter(
        line.text.partition(":")[0] for line in chart.lines if line.what in ("lost", "altered")
    )
    told["lied"] = sum(line.what == "lied" for line in chart.lines)
    for what in (
        "lost",
        "corrupted",
        "malformed",
        "reset",
        "cut",
        "queue_full",
        "withheld",
        "lied",
    ):
        assert told[what] == outcome.counts[what] > 0, what
    words = "\n".join(map(str, chart.lines))
    assert "-x" in words
    assert "cut: " in words
