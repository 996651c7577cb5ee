"""Schedules played: every fault really takes place, calm returns,
one seed has one trace in every process."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from checked_swarm import assert_sound
from effort import effort

from gossip.core.events import Aggregate, Aggregated, Effect, Event, TrainerProgress
from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip.errors import BadFault
from gossip.faults import plan as faults
from gossip.faults.kinds import ATTACKS, ByzantineFault, Crash, Hang, Restart, Slow
from gossip.faults.plan import Fault, FaultPlan
from gossip.faults.world import (
    Corrupt,
    CrashBroadcast,
    CrashMidway,
    Delay,
    Drift,
    Duplicate,
    Flap,
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
    Ring,
    SlowNode,
    Spike,
    Starve,
)
from gossip_lab.simulation.campaign.chart import Chart, ChartLine
from gossip_lab.simulation.campaign.picture import draw
from gossip_lab.simulation.campaign.play import SimulationResult, ViolationRecord, make_swarm, run
from gossip_lab.simulation.campaign.runner import ENOUGH, CampaignTally, SearchQuery, search
from gossip_lab.simulation.campaign.shrinker import shrink
from gossip_lab.simulation.checkers import Violation
from gossip_lab.simulation.checkers.disturbances import Disturbances
from gossip_lab.simulation.schedules.generator import generate
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.nemesis import Nemesis, name_of
from gossip_lab.simulation.world.observer import Observer

HERE = Path(__file__).resolve().parent
WORLD = Schedule(5, peers=4, compute_s=(0.05, 0.1), active_s=4.0, duration_s=4.0)

# One that draws, two that tell each receiver something else, one that looks at the others, one that
# is no number. tests/unit/test_agg_attacks.py has what each sends.
SENT = effort(("sign_flip", "gaussian", "dissensus", "equivocation", "alie", "nan"), tuple(ATTACKS))

EACH: list[Fault] = [
    Crash(3, at_s=1.5),
    Crash(3, round=10),
    Crash("server", at_s=1.5),
    Crash("server", round=10),
    Restart(2, None, 0.3, 1.5),
    Restart(2, 10, 0.3),
    Hang(2, None, 0.5, 1.5),
    Hang(2, 10, 0.5),
    Slow(1, 3.0),
    Slow(1, 3.0, 1.5, 0.5),
    *(
        ByzantineFault(attack, (1,), 2.0 if ATTACKS[attack].allowed[1](2.0) else 1.0)
        for attack in SENT
    ),
    Partition(((0, 1), (2, 3)), 1.5, 1.0),
    Partition(((0,), (1, 2, 3)), 1.5, 1.0, one_way=True),
    Flap((0, 2), 1.5, 1.5, 0.4),
    Loss(0.2, 1.5, 1.0),
    Duplicate(0.2, 1.5, 1.0, (1,)),
    Corrupt(0.2, 1.5, 1.0),
    Delay(0.05, 1.5, 1.0),
    Reorder(0.3, 0.1, 1.5, 1.0),
    Spike(0.1, 0.2, 1.5, 1.0),
    Reset(0.05, 1.5, 1.0),
    Narrow(100.0, 4096.0, 1.5, 1.0, (0,)),
    Narrow(50.0, 0.0, 1.5, 1.0),
    SlowNode(1, 0.01, 1.5, 1.0),
    Starve(1, 0.1, 1.5, 1.0),
    Ring((0, 2, 1, 3), 1.5, 1.0),
    Drift(1, 0.9, 1.5, 1.0),
    LateTimers(1, 0.1, 1.5, 1.0),
    CrashMidway(1, 1.5, 7, 0.3),
    CrashBroadcast(1.5, 1, 0.3),
    HangServer(1.5, 0.5),
    HangTrainer(1, 1.5, 0.5),
    KillTrainer(1, 1.5, 0.3),
    Leave(3, 1.5),
    *(NodeAttack(lie, (1,)) for lie in ("false_deaths", "wrong_results", "garbage")),
]


def played(schedule: Schedule, seconds: float = 3.0) -> tuple[Swarm[Peer], Nemesis]:
    """The world and its faults, without checkers."""
    nemesis = Nemesis(schedule)
    swarm = make_swarm(schedule, nemesis)
    nemesis.begin(swarm)
    swarm.run_for(seconds)
    return swarm, nemesis


@pytest.mark.parametrize("fault", EACH, ids=str)
def test_a_fault_takes_place_once_and_is_over_in_the_calm(fault: Fault) -> None:
    topology = (
        "full"
        if isinstance(fault, ByzantineFault) and fault.attack in ("dissensus", "equivocation")
        else "rolling"
    )
    swarm, nemesis = played(replace(WORLD, faults=(fault,), topology=topology).checked())
    assert nemesis.totals(swarm) == {name_of(fault): 1}
    nemesis.end(swarm)
    assert (swarm.network.cuts, swarm.network.models) == ({}, {})
    swarm.run_for(0.6)
    away = [peer for peer in swarm.hosts if peer not in swarm.up]
    assert len(away) == isinstance(fault, Crash | Leave)
    before = {peer: swarm.hosts[peer].core.rounds.round_id for peer in swarm.up}
    swarm.run_for(0.6)
    assert all(swarm.hosts[peer].core.rounds.round_id > before[peer] for peer in swarm.up)


def test_a_fault_that_the_simulator_does_not_know_is_refused_by_name() -> None:
    @dataclass(frozen=True, slots=True)
    class Eclipse(Fault):
        peer: int

        def __str__(self) -> str:
            return f"eclipse:{self.peer}"

    schedule = replace(WORLD, faults=(Crash(1, at_s=1.0), Eclipse(2)))
    with pytest.raises(BadFault, match="cannot carry out eclipse:2: it has no Eclipse") as caught:
        run(schedule)
    assert "extras/lab/gossip_lab/simulation/world/nemesis.py" in caught.value.hint


def test_a_fault_that_is_still_on_when_a_violation_ends_the_run_took_place() -> None:
    swarm, nemesis = played(
        replace(
            WORLD,
            faults=(Loss(0.3, 1.0, 60.0), Flap((0, 1), 1.0, 60.0, 0.5), Loss(0.0, 1.0, 60.0, (1,))),
        )
    )
    assert nemesis.totals(swarm)["loss"] >= 1
    assert nemesis.totals(swarm)["flap"] == 1


def test_flipped_bits_never_get_through() -> None:
    schedule = replace(WORLD, faults=(Corrupt(0.2, 1.0, 3.0),))
    outcome = assert_sound(schedule)
    counts = outcome.counts
    # a spoiled payload is dropped on the way
    believed = counts["corrupted"] - counts["malformed"] - counts["spoiled"]
    assert counts["malformed"] > 30
    assert believed <= 0


def test_s6_messages_that_spike_for_seconds_are_no_network_in_which_nobody_may_be_taken_for_dead():
    """Seed 2098: one message in twenty took a second longer, and all behind it."""
    swarm, _ = played(replace(WORLD, faults=(Spike(0.05, 1.1, 1.0, 60.0),)), seconds=0.5)
    disturbances = Disturbances()
    swarm.hooks.append(disturbances)
    swarm.run_for(0.3)
    assert disturbances.undisturbed_s(swarm, 0) > 0.2
    swarm.run_for(1.0)
    assert disturbances.undisturbed_s(swarm, 0) == 0.0


class _Rules(Observer):
    """How long each rule ran, and which answers came when their server was at a later attempt."""

    def __init__(self) -> None:
        self.asked: dict[tuple[PeerId, int], float] = {}
        self.took_s: list[float] = []
        self.too_late = 0

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Aggregate):
            self.asked[peer, effect.ticket] = swarm.now

    def on_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        if isinstance(event, Aggregated):
            self.took_s.append(swarm.now - self.asked[peer, event.ticket])
            shards = swarm.hosts[peer].core.rounds.shards
            self.too_late += any(
                shard.served.ticket == event.ticket and shard.served.attempt < shard.attempt
                for shard in shards
            )


def test_a_rule_takes_its_time_and_a_server_may_move_on_meanwhile() -> None:
    rules = _Rules()
    hangs = tuple(
        Hang(peer, None, 0.3, round(4.0 + 0.4 * number, 1))
        for number, peer in enumerate((0, 1, 2, 3, 0, 1, 2))
    )
    assert_sound(replace(WORLD, rule_s=0.15, faults=hangs, active_s=7.0, duration_s=7.0), [rules])
    assert min(rules.took_s) == pytest.approx(0.15)
    assert rules.too_late > 0


@pytest.mark.parametrize(
    "aggregator", effort(["median", "suspicion"], ["median", "suspicion", "geometric_median"])
)
def test_a_liar_among_robust_rules_is_quarantined_released_and_watched_and_the_replicas_agree(
    aggregator: str,
) -> None:
    """The shards of ``median`` decide alone, those of the others together."""
    lying = replace(
        WORLD,
        faults=(ByzantineFault("scale", (1,), 20.0), Loss(0.1, 1.0, 2.0)),
        aggregator=aggregator,
        shards=(5, 3),
        active_s=6.0,
        duration_s=6.0,
    )
    outcome = assert_sound(lying)
    assert {"suspected", "quarantined", "parole"} <= set(outcome.reports)
    assert outcome.judged["S9"] > 100


def test_l4_with_one_that_sends_no_numbers_a_rule_goes_on_with_the_updates_of_the_others() -> None:
    """A trimmed mean against one liar needs three updates. One of four sends no numbers and one
    leaves: the one without numbers is the liar, and two updates are enough, as in a real run."""
    schedule = replace(
        WORLD,
        faults=(ByzantineFault("nan", (0,), 1.0), Leave(1, at_s=2.0)),
        aggregator="trimmed_mean",
    )
    outcome = assert_sound(schedule)
    assert "lost_round" not in outcome.reports


def test_a_crash_that_leaves_enough_updates_without_the_liar_found_costs_one_round_at_most():
    schedule = replace(
        WORLD,
        faults=(ByzantineFault("scale", (1,), 20.0), Crash(3, at_s=4.0)),
        aggregator="median",
        active_s=12.0,
        duration_s=12.0,
    )
    outcome = assert_sound(schedule)
    assert outcome.judged["L3"] > 0
    # one round, as each of the others reports it
    assert outcome.reports.get("lost_round", 0) <= schedule.peers - 1


def test_where_too_few_updates_are_left_to_tell_a_liar_the_others_wait() -> None:
    """Multi-Krum against one liar needs five updates. Before it is found out two of six leave: no
    round could change anything."""
    leaves = (Leave(4, at_s=0.5), Leave(5, at_s=0.7))
    outcome = assert_sound(
        replace(
            WORLD,
            peers=6,
            faults=(ByzantineFault("sign_flip", (1,), 1.0), *leaves),
            aggregator="multi_krum",
        )
    )
    assert outcome.reports["paused"] >= 3
    assert outcome.reports.get("lost_round", 0) <= 4  # one, as each of the others reports it
    assert "quarantined" not in outcome.reports


def test_who_waits_for_want_of_updates_goes_on_when_somebody_is_back() -> None:
    """A round is let in on, without which nobody could come back:
    rosters change with commits only."""
    both = (Restart(4, None, 4.0, 0.5), Restart(5, None, 5.0, 0.8))
    world = replace(WORLD, peers=6, aggregator="multi_krum", active_s=7.0, duration_s=9.0)
    outcome = assert_sound(replace(world, faults=(ByzantineFault("sign_flip", (1,), 1.0), *both)))
    assert outcome.reports["paused"] >= 3
    assert outcome.reports["resumed"] >= 3
    assert outcome.reports["restored"] == 2


def test_nobody_waits_for_one_that_is_back_before_it_has_a_state() -> None:
    """It was away for less than it takes to agree on a death, so it still is of the roster, and its
    node answers every probe."""
    schedule = replace(
        WORLD,
        peers=5,
        faults=(Restart(3, None, 0.05, 2.0),),
        active_s=8.0,
        duration_s=8.0,
        prepare_s=1.5,
    )
    swarm, _ = played(schedule, seconds=2.0)
    rounds = swarm.inspections.get(0).rounds  # type: ignore[union-attr]
    usual = rounds.round_id / 2.0
    swarm.run_for(0.2)
    assert swarm.hosts[3].running
    before = rounds.round_id
    swarm.run_for(1.2)
    assert rounds.round_id - before >= 0.8 * 1.2 * usual
    assert not [
        told
        for told in swarm.reports(0, "attempt")
        if "no commit from 3 in time" in told.fields["reason"]
    ]
    swarm.run_for(1.0)
    core = swarm.inspections.get(3)
    assert core.rounds.round_id >= rounds.round_id - 1, "it takes part again"
    assert not rounds.skip_reason(3)  # type: ignore[union-attr]


def test_a_fault_that_finds_nothing_to_strike_is_not_counted() -> None:
    late = (
        Crash(3, at_s=1.5),
        Restart(3, None, 0.2, 1.9),
        CrashMidway(3, 2.0, 0, 0.3),
        HangTrainer(3, 2.0, 0.5),
        Loss(0.0, 1.0, 1.0),
        Crash(2, round=10_000),
    )
    swarm, nemesis = played(replace(WORLD, faults=late))
    assert nemesis.totals(swarm) == {"crash": 1}


def test_what_is_still_going_on_when_the_calm_begins_ends_then() -> None:
    lasting = (
        Hang(2, None, 60.0, 1.0),
        HangTrainer(1, 1.0, 60.0),
        Partition(((0,), (3,)), 1.0, 60.0),
        Loss(0.3, 1.0, 60.0),
    )
    swarm, nemesis = played(
        replace(WORLD, faults=(*lasting, Flap((0, 1), 1.0, 60.0, 0.5), Hang(3, None, 9.0, 4.0)))
    )
    nemesis.end(swarm)
    assert nemesis.totals(swarm) == {
        "hang": 1,
        "hang_trainer": 1,
        "partition": 1,
        "loss": 1,
        "flap": 1,
    }
    assert swarm.network.cuts == {}
    assert [host.state for host in swarm.hosts.values()] == ["up"] * 4
    swarm.run_for(2.0)
    assert swarm.network.cuts == {}, "a flap goes on in the calm"
    assert len(swarm.up) == 4
    assert nemesis.totals(swarm)["hang"] == 1, "a fault begins in the calm"


def test_a_plan_of_a_real_run_strikes_the_same_peers_in_the_simulator() -> None:
    plan = faults.parse(["crash:server@9", "restart:1@14+300ms", "slow:2*2"])
    swarm, nemesis = played(replace(WORLD, faults=plan.faults))
    assert nemesis.totals(swarm) == {"crash": 1, "restart": 1, "slow": 1}
    assert swarm.hosts[1].incarnation == 1


def test_a_peer_is_slow_from_a_moment_on_and_for_so_long() -> None:
    seen: list[tuple[float, float]] = []
    schedule = replace(WORLD, faults=(Slow(1, 2.0), Slow(1, 3.0, 1.0, 0.5)))
    nemesis = Nemesis(schedule)
    swarm = make_swarm(schedule, nemesis)
    for at_s in (0.9, 1.1, 1.4, 1.6):
        swarm.at(at_s, lambda at=at_s: seen.append((at, swarm.hosts[1].trainer.pace.slowness)))
    nemesis.begin(swarm)
    swarm.run_for(2.0)
    assert seen == [(0.9, 2.0), (1.1, 6.0), (1.4, 6.0), (1.6, 2.0)]
    assert nemesis.totals(swarm)["slow"] == 2


HASHES = """
import sys
sys.path[:0] = {tests!r}
from dataclasses import replace
from test_peer_rolling import rolling_swarm
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules.generator import generate
from gossip_lab.simulation.world.liars import ByzantinePeers
from gossip_lab.simulation.world.network import LinkModel
for seed in (2, 4):
    schedule = generate(seed)
    print(run(replace(schedule, active_s=4.0, duration_s=4.0)).trace_hash)
swarm = rolling_swarm(5, seed=4)
swarm.network.default = LinkModel(
    loss=0.05, duplicate=0.1, corrupt=0.02, reorder=0.1, reorder_s=0.01, reset=0.002
)
swarm.outgoing = ByzantinePeers(swarm, {{4: ("false_suspicions", "sign_flip", "replays")}})
swarm.at(1.5, lambda: swarm.restart(1, 0.3))
swarm.drift(2, 1.01)
swarm.run_for(3.0)
assert swarm.cores[0].rounds.round_id > 10
print(swarm.trace_hash)
print(hash("x"))
"""


def test_one_seed_has_one_trace_in_every_process_and_hash_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here, where much was played before, and in a process that plays nothing else."""
    (tmp_path / "hashes.py").write_text(HASHES.format(tests=[str(HERE), str(HERE.parent)]))
    *theirs, their_hash = subprocess.run(
        [sys.executable, "hashes.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONHASHSEED": "77",
            "PYTHONPATH": str(HERE.parents[1]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    runpy.run_path(str(tmp_path / "hashes.py"))
    *ours, our_hash = capsys.readouterr().out.split()
    assert our_hash != their_hash, "both have the same hash seed"
    assert len(set(ours)) == 3
    assert ours == theirs


QUICK = FaultPlan(
    (Restart(1, None, 0.2, 1.2), Loss(0.1, 1.0, 0.5)),
    {
        "active_s": 2.0,
        "duration_s": 2.0,
        "peers": 4,
        "compute_s": (0.1, 0.2),
        "topology": "rolling",
    },
)


def test_several_processes_find_what_one_finds() -> None:
    question = SearchQuery(first=40, count=4, plan=QUICK)
    alone = {outcome.schedule.seed: outcome.trace_hash for outcome in search(question, jobs=1)}
    together = {outcome.schedule.seed: outcome.trace_hash for outcome in search(question, jobs=2)}
    assert sorted(alone) == [40, 41, 42, 43]
    assert alone == together


class _NobodyMayDie(Observer):
    """A planted checker: breaks with the first crash."""

    def on_crash(self, swarm: Swarm[Peer], peer: PeerId) -> None:
        raise Violation("S99", peer, swarm.now, "it died")


class _Chokes(Observer):
    def on_event(self, swarm: Swarm[Peer], peer: PeerId, event: Event) -> None:
        if swarm.now > 1.0:
            raise ZeroDivisionError("a bug in a core")


def test_a_violation_ends_the_run_and_says_what_where_and_when() -> None:
    outcome = run(replace(WORLD, faults=(Crash(3, at_s=1.5),)), [_NobodyMayDie()])
    assert outcome.violation == ViolationRecord("S99", 3, 1.5, "it died")
    assert outcome.simulated_s == 1.5


def test_an_exception_out_of_a_core_is_a_violation_and_no_end_of_the_search() -> None:
    outcome = run(WORLD, [_Chokes()])
    assert outcome.violation.invariant == "S14"
    assert "ZeroDivisionError: a bug in a core" in outcome.violation.text


class _Echo(Observer):
    """Lets every message be answered by another at once, for ever."""

    def on_event(self, swarm: Swarm[Peer], peer: PeerId, event: Event) -> None:
        if swarm.now > 1.0:
            swarm.at(swarm.now, lambda: swarm.inject(peer, TrainerProgress(0, 0.0)))


def test_messages_that_beget_messages_end_the_run_with_a_violation_and_not_never() -> None:
    outcome = run(replace(WORLD, active_s=2.0, duration_s=2.0), [_Echo()])
    assert outcome.violation.invariant == "S15"
    assert "TrainerProgress: they cause each other forever" in outcome.violation.text


# --- shrinking ------------------------------------------------------------------------------------


def outcome_of(schedule: Schedule, violation: ViolationRecord | None) -> SimulationResult:
    return SimulationResult(schedule, violation, "", 0, 0.0, {}, 0, {}, {}, {})


def bug(schedule: Schedule) -> SimulationResult:
    """Stands for a core that breaks when a peer hangs for 0.3 s or more while messages are lost,
    among three or more."""
    hangs = [f for f in schedule.faults if isinstance(f, Hang) and f.for_s >= 0.3]
    broken = (
        bool(hangs) and any(isinstance(f, Loss) for f in schedule.faults) and schedule.peers >= 3
    )
    if broken:
        return outcome_of(schedule, ViolationRecord("S8", hangs[0].peer, 6.0, "twice"))
    other = any(isinstance(f, Crash) for f in schedule.faults)
    return outcome_of(schedule, ViolationRecord("L1", 0, 9.0, "another thing") if other else None)


def test_a_failing_schedule_shrinks_to_the_faults_and_peers_that_matter() -> None:
    wanted = (Hang(3, None, 4.117, 5.233), Loss(0.123, 4.0, 3.0, (1, 3)))
    rest = generate(3, peers=8).faults
    failing = replace(
        generate(3, peers=8),
        faults=(Crash(0, at_s=9.0), *rest[:2], wanted[0], *rest[2:], wanted[1]),
    )
    calls: Counter[str] = Counter()

    def play(schedule: Schedule) -> SimulationResult:
        calls["play"] += 1
        return bug(schedule.checked())

    small = shrink(bug(failing), play, runs_max=400)
    assert [type(fault) for fault in small.schedule.faults] == [Hang, Loss]
    assert small.schedule.peers == 3
    assert small.outcome.violation.invariant == "S8", "another invariant is another bug"
    hang = small.schedule.faults[0]
    assert isinstance(hang, Hang)
    assert 0.3 <= hang.for_s < 0.6
    assert small.schedule.duration_s < 7
    assert small.runs == calls["play"] < 400


def test_shrinking_stops_when_it_has_played_enough() -> None:
    failing = replace(
        generate(3, peers=8),
        faults=(Hang(3, None, 4.117, 5.233), Loss(0.123, 4.0, 3.0), *generate(3, peers=8).faults),
    )
    small = shrink(bug(failing), bug, runs_max=2)
    assert small.runs == 2


# --- adding up ------------------------------------------------------------------------------------


def test_a_campaign_whose_faults_never_took_place_proves_nothing() -> None:
    schedule = replace(WORLD, faults=(Crash(3, at_s=1.5), Loss(0.1, 1.0, 1.0)))
    tally = CampaignTally()
    for _ in range(ENOUGH):
        tally.add(replace(outcome_of(schedule, None), struck={"loss": 1}))
    assert tally.vacuous == [f"crash was drawn in {ENOUGH} schedules but never took place"]
    tally.add(replace(outcome_of(schedule, None), struck={"crash": 1}))
    assert tally.vacuous == []


# --- the picture ----------------------------------------------------------------------------------


def test_the_picture_of_a_failure_shows_who_died_and_what_was_lost_and_is_a_drawing() -> None:
    chart = Chart()
    schedule = replace(WORLD, faults=(Loss(0.5, 1.2, 0.3), Crash(3, at_s=1.5)))
    outcome = run(schedule, [chart, _NobodyMayDie()])
    text = draw(outcome, chart)
    drawing = ET.fromstring(text)
    words = ["".join(node.itertext()) for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert any("S99 at 1.500000 s, peer 3: it died" in word for word in words)
    assert {f"peer {peer}" for peer in range(4)} <= set(words)
    assert any(word.startswith("Update r") for word in words)
    assert not any(word.startswith("Ping") for word in words), "probes have nothing to do with it"
    assert any(word in ("✕ lost", "✕ no link") for word in words), (
        "nothing was lost, or nobody knows why"
    )
    assert "✖" in words, "nobody died"
    assert any("*0.5@" in word for word in words)
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    for node in drawing.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(node.attrib["x"]) <= width
        assert 0 <= float(node.attrib["y"]) <= height


def test_a_trace_has_a_line_for_everything_in_order() -> None:
    chart = Chart(None)
    run(replace(WORLD, active_s=1.0, duration_s=1.0), [chart])
    times = [line.t for line in chart.lines]
    assert times == sorted(times)
    kinds = {line.what for line in chart.lines}
    assert {"sent", "arrived", "started", "committed", "aggregates"} <= kinds
    assert all(isinstance(line, ChartLine) and str(line).strip() for line in chart.lines)
