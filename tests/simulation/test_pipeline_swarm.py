"""Pipelines in the simulator: the same result as one process, whoever dies; an end that all reach;
and schedules that are drawn."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from checked_swarm import assert_sound
from effort import effort, rotated

from gossip.core import Peer
from gossip.faults import (
    FalseAudits,
    Fault,
    LateTrainer,
    NegatedActivations,
    NegatedGradients,
    Slow,
)
from gossip_lab.simulation.campaign.play import make_swarm, suite_of
from gossip_lab.simulation.checkers import PipelineSuite
from gossip_lab.simulation.schedules import Schedule, generate_pipeline
from gossip_lab.simulation.world import Nemesis, Swarm

ROUNDS = 10


def swarm_of(
    *stages: int, seed: int = 5, faults: tuple[Fault, ...] = (), audit: float = 0.0
) -> Swarm[Peer]:
    """A pipeline that trains for ``ROUNDS`` rounds. The checkers of membership and of micro-batches
    look on; those of a swarm are about trainings that do not end."""
    schedule = Schedule(
        seed,
        peers=sum(stages),
        stages=stages,
        micro_batches=6,
        compute_s=(0.2, 0.25),
        faults=faults,
        audit=audit,
    ).checked()
    swarm = make_swarm(schedule, Nemesis(schedule))
    suite = suite_of(schedule)
    assert isinstance(suite, PipelineSuite)
    swarm.hooks.append(suite.overall)
    for peer in range(schedule.peers):
        trainer = swarm.trainer(peer)
        trainer.rounds = ROUNDS
    return swarm


def states(swarm: Swarm[Peer], *peers: int) -> list[np.ndarray]:
    return [swarm.trainer(peer).parameters for peer in peers]  # type: ignore[attr-defined]


def is_over(swarm: Swarm[Peer]) -> bool:
    return all(host.halt is not None for host in swarm.hosts.values() if host.state != "crashed")


def test_stages_of_several_peers_learn_what_one_process_would_though_three_are_killed() -> None:
    alone, together = swarm_of(1, 1, 1), swarm_of(2, 3, 2)
    alone.run_until(lambda: is_over(alone), limit_s=30)
    for victim, at_round in ((1, 2), (3, 4), (6, 6)):
        there = together.cores[0].rounds
        together.run_until(lambda there=there, at=at_round: there.round_id >= at, limit_s=30)
        together.run_for(0.1)  # into the round
        together.crash(victim)
    together.run_until(lambda: is_over(together), limit_s=60)
    pairs = zip(states(alone, 0, 1, 2), states(together, 0, 2, 5), strict=True)
    for expected, found in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-5)
    moved = np.abs(states(alone, 0)[0] - 0.0).max()
    assert moved > 0.1, "it has learnt something"
    assert {host.halt.exit_code for host in together.hosts.values() if host.halt} == {0}


def test_a_pipeline_without_a_fault_wastes_nothing() -> None:
    swarm = swarm_of(2, 3, 2)
    swarm.run_until(lambda: is_over(swarm), limit_s=30)
    told = {report.event for host in swarm.hosts.values() for _, report in host.reports}
    assert not told & {"rerouted", "counted_twice", "late", "recovering", "other_stage"}
    for members in ((0, 1), (2, 3, 4), (5, 6)):
        passes = [swarm.trainer(peer).passes for peer in members]  # type: ignore[attr-defined]
        computed = [each for peer in passes for each in peer]
        assert len(computed) == len(set(computed)) == 6 * ROUNDS
        assert len({len(peer) for peer in passes}) == 1, "each computes as much"


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_a_trainer_that_takes_longer_holds_up_nobody_once_it_has_begun(late: int) -> None:
    """What the stage before had ready waited for a round timeout before, 5 s: it was sent to a
    node that had no layers yet, and dropped. Each of a stage of two gets its part."""

    def first_round_s(*faults: Fault) -> float:
        swarm = swarm_of(1, 1, 2, faults=faults)
        rounds = [swarm.cores[peer].rounds for peer in range(4)]
        swarm.run_until(lambda: all(each.round_id for each in rounds), limit_s=30)
        told = {report.event for host in swarm.hosts.values() for _, report in host.reports}
        assert not told & {"rerouted", "counted_twice"}
        dealt = [len(swarm.trainer(peer).passes) for peer in (2, 3)]  # type: ignore[attr-defined]
        assert dealt == [3, 3]
        return swarm.now

    at_s = 4.0
    assert first_round_s(LateTrainer(late, at_s)) - at_s < first_round_s() + 0.1


def test_a_lie_about_micro_batches_spoils_the_stage_that_computes_on_it() -> None:
    honest = swarm_of(1, 1, 1)
    honest.run_until(lambda: is_over(honest), limit_s=30)
    for lie, spoilt in ((NegatedActivations((1,), 0.5), 2), (NegatedGradients((1,), 0.5), 0)):
        swarm = swarm_of(1, 1, 1, faults=(lie,))
        swarm.run_until(lambda swarm=swarm: is_over(swarm), limit_s=30)
        assert 20 <= swarm.trainer(1).told[lie.kind] <= 40  # type: ignore[attr-defined]
        pairs = zip(states(swarm, 0, 2), states(honest, 0, 2), strict=True)
        apart = [float(np.abs(found - expected).max()) for found, expected in pairs]
        assert apart[spoilt // 2] > 1e-4
    assert apart[1] < apart[0], "the last stage computes on true activations"


def test_audits_lock_up_a_liar_of_each_stage_and_nobody_whom_a_liar_accuses() -> None:
    """The checkers look on: of honest members nobody is found, and who is locked up computes
    nothing."""
    lies = NegatedActivations((1,)), NegatedGradients((4,), 0.5), FalseAudits((7,))
    swarm = swarm_of(3, 3, 3, seed=6, faults=lies, audit=0.6)
    swarm.run_until(lambda: is_over(swarm), limit_s=60)
    told = {(r.event, r.fields.get("subject")) for h in swarm.hosts.values() for _, r in h.reports}
    assert {subject for event, subject in told if event == "quarantined"} == {1, 4}
    assert {subject for event, subject in told if event == "audit_differs"} >= {1, 4, 6, 8}
    for liar, mate in ((1, 0), (4, 5)):
        passes = [len(swarm.trainer(peer).passes) for peer in (liar, mate)]  # type: ignore[attr-defined]
        assert passes[0] < passes[1], "its micro-batches go to the others"
    assert {host.halt.exit_code for host in swarm.hosts.values() if host.halt} == {0}


def test_a_stage_goes_on_when_one_of_three_is_locked_up_and_another_dead() -> None:
    """The answer of the one that is locked up makes the quorum."""
    swarm = swarm_of(1, 3, faults=(NegatedGradients((3,)),), audit=1.0)
    rounds = swarm.cores[1].rounds
    swarm.run_until(lambda: rounds.locked == (3,), limit_s=20)
    swarm.crash(2)
    at = rounds.round_id
    swarm.run_until(lambda: rounds.round_id >= at + 3, limit_s=20)
    assert rounds.locked == (3,)


def test_audits_of_honest_members_change_nothing_but_what_is_computed() -> None:
    plain, audited = swarm_of(3, 3), swarm_of(3, 3, audit=0.5)
    for swarm in (plain, audited):
        swarm.run_until(lambda swarm=swarm: is_over(swarm), limit_s=60)
    for expected, found in zip(states(plain, 0, 3), states(audited, 0, 3), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    audits = sum(audited.trainer(peer).audits for peer in range(6))  # type: ignore[attr-defined]
    assert 0.3 < audits / (2 * 6 * ROUNDS) < 0.7
    told = {report.event for host in audited.hosts.values() for _, report in host.reports}
    assert not told & {"audit_differs", "audit_given_up", "found_by_audit", "rerouted", "late"}


@pytest.mark.parametrize(
    ("seed", "promise"),
    rotated(
        [
            (3, "S21"),
            (8, "S25"),
            (45, "L2"),
            (1000066, "L4"),
            *effort([], [(62, "L2"), (69, "L2"), (241, "L2"), (377, "S22"), (408, "L2")]),
        ],
        every=3,
    ),
)
def test_a_schedule_that_is_drawn_breaks_no_promise(seed: int, promise: str) -> None:
    """8 has audits, and a member that lies about activations. 45, too, has audits: links broke for
    a millisecond, and who took over a micro-batch meanwhile began its sum anew once it was
    computed, since its owner had counted it. 62 and 69: one that had lost a commit said for seconds
    what it has counted, to members who were a round on, and all stages waited. 241: what a stage
    that was made anew asked for was sent over a link that was down, and not again. 377: a link
    broke in the moment in which a round ended, and something of it was computed in the next one.
    408: one of three was locked up, and another died. 1000066: one of three members that share two
    micro-batches is slow, and gets none in the calm phase."""
    schedule = generate_pipeline(seed)
    assert bool(schedule.audit) == (seed in (8, 45, 69, 377, 408))
    result = assert_sound(schedule)
    assert all(result.judged[each] for each in ("S20", "S22", "S23", promise))


def test_the_same_seed_draws_the_same_pipeline_and_some_have_each_kind_of_trouble() -> None:
    drawn = [generate_pipeline(seed) for seed in range(60)]
    assert drawn[7] == generate_pipeline(7)
    kinds = {type(fault).__name__ for schedule in drawn for fault in schedule.faults}
    assert kinds >= {"Crash", "Restart", "Hang", "Partition", "Loss", "Delay", "HangTrainer"}
    assert "LateTrainer" in kinds
    assert {len(schedule.stages) for schedule in drawn} == {2, 3}
    audited = [schedule for schedule in drawn if schedule.audit]
    assert 10 < len(audited) < 40
    lies = {type(fault).__name__ for schedule in audited for fault in schedule.faults}
    assert lies >= {"NegatedActivations", "NegatedGradients", "ScaledGradients", "FalseAudits"}


def test_members_get_micro_batches_by_their_speed() -> None:
    """The checkers look on: all members share alike."""
    swarm = swarm_of(1, 2, faults=(Slow(2, 3.0),))
    swarm.run_until(lambda: is_over(swarm), limit_s=60)
    dealt = [Counter(at for at, _ in swarm.trainer(peer).passes) for peer in (1, 2)]  # type: ignore[attr-defined]
    assert (dealt[0][0], dealt[1][0]) == (3, 3), "nobody knows anything yet"
    later = range(1, ROUNDS)
    assert sum(dealt[0][at] for at in later) >= 2.5 * sum(dealt[1][at] for at in later)
    assert all(dealt[1][at] for at in later), "the slow one is not left out"
