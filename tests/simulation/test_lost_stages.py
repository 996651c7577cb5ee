"""A stage of a simulated pipeline that loses all its peers: the others go on with it."""

from __future__ import annotations

from functools import partial

import pytest
from checked_swarm import assert_sound
from effort import effort, in_turn

from gossip.core import Peer, PipelineSettings
from gossip.faults import Crash, Restart
from gossip_lab.simulation.campaign import play
from gossip_lab.simulation.campaign.play import make_swarm, suite_of
from gossip_lab.simulation.checkers import PipelineSuite
from gossip_lab.simulation.schedules import Schedule, generate_pipeline
from gossip_lab.simulation.world import Nemesis, Swarm

LOST_IN = 5


def lose(seed: int, sizes: tuple[int, ...], stage: int, back: tuple[int, ...]) -> Swarm[Peer]:
    """A swarm whose stage was lost in round ``LOST_IN``. Of it ``back`` have come back, and
    it has gone on for 6 rounds."""
    schedule = Schedule(seed, peers=sum(sizes), stages=sizes, compute_s=(0.2, 0.25)).checked()
    swarm = make_swarm(schedule, Nemesis(schedule))
    suite = suite_of(schedule)
    assert isinstance(suite, PipelineSuite)
    swarm.hooks.append(suite.overall)
    members = schedule.members[stage]
    kill_stage(swarm, schedule, stage)
    for number in back:
        swarm.restart(members[number], 0.2 * number)
    swarm.run_until(
        lambda: all(
            host.core.rounds.round_id >= LOST_IN + 6
            for host in swarm.hosts.values()
            if host.running
        ),
        limit_s=60,
    )
    assert sum(host.running for host in swarm.hosts.values()) == sum(sizes) - len(members) + len(
        back
    )
    return swarm


def kill_stage(swarm: Swarm[Peer], schedule: Schedule, stage: int) -> None:
    """In round ``LOST_IN``, half a second ago."""
    members = schedule.members[stage]
    witness = swarm.cores[next(p for p in range(schedule.peers) if p not in members)].rounds
    swarm.run_until(lambda: witness.round_id >= LOST_IN, limit_s=30)
    swarm.run_for(0.03 * (schedule.seed % 7))  # into the round
    for peer in members:
        swarm.crash(peer)
    swarm.run_for(0.5)


# Seeds 3, 4 and 5 make it of a checkpoint, of the neighbours and of fresh weights.
@pytest.mark.parametrize(("seed", "source"), [(3, "checkpoint"), (4, "neighbours"), (5, "fresh")])
@pytest.mark.parametrize(
    ("sizes", "stage", "back"),
    effort(
        (((2, 2, 2), 1, (0,)), ((1, 1), 0, (0,))),
        (
            ((2, 2, 2), 1, (0,)),
            ((2, 2, 2), 0, (0, 1)),
            ((1, 1, 1), 2, (0,)),
            ((3, 3, 3), 1, (0, 2)),
            ((1, 1), 0, (0,)),
        ),
    ),
)
def test_a_stage_that_loses_all_its_peers_goes_on_when_one_is_back(
    seed: int, source: str, sizes: tuple[int, ...], stage: int, back: tuple[int, ...]
) -> None:
    swarm = lose(seed, sizes, stage, back)
    made = [
        report
        for host in swarm.hosts.values()
        for _, report in host.reports
        if report.event == "stage_rebuilt"
    ]
    assert [(each.fields["source"], each.fields["stage"]) for each in made] == [(source, stage)]
    assert made[0].fields["round"] in (LOST_IN, LOST_IN + 1)
    saved = made[0].fields["round"] - made[0].fields["lost"]
    assert saved == (4 if source == "checkpoint" else 0)


# In these peers look once a second, some of them after others have said goodbye.
@pytest.mark.parametrize(
    ("seed", "stage", "back"),
    effort(((1, 2, (0, 1)),), ((1, 2, (0, 1)), (3, 1, (0,)), (3, 1, (0, 1)))),
)
def test_where_a_lost_stage_ends_the_run_all_peers_name_it(
    monkeypatch: pytest.MonkeyPatch, seed: int, stage: int, back: tuple[int, ...]
) -> None:
    monkeypatch.setattr(play, "PipelineSettings", partial(PipelineSettings, rebuilds=False))
    schedule = Schedule(seed, peers=6, stages=(2, 2, 2), compute_s=(0.2, 0.25)).checked()
    swarm = make_swarm(schedule, Nemesis(schedule))
    members = schedule.members[stage]
    kill_stage(swarm, schedule, stage)
    for number in back:
        swarm.restart(members[number], 0.2 * number)
    swarm.run_for(5.0)
    said = {
        peer: str(report.fields["message"])
        for peer, host in swarm.hosts.items()
        for _, report in host.reports
        if report.event == "error"
    }
    assert sorted(said) == sorted({*range(6)} - {*members} | {members[n] for n in back})
    lost = f"state lost: stage {stage} has lost all its peers"
    assert {peer for peer, why in said.items() if why.startswith(lost)} == {*range(6)} - {*members}


@in_turn(1, 2)
def test_schedules_are_drawn_in_which_a_stage_loses_all_its_peers() -> None:
    drawn = [generate_pipeline(seed) for seed in range(40)]

    def lost(schedule: Schedule) -> bool:
        killed = {
            fault.peer
            for fault in schedule.faults
            if isinstance(fault, Crash | Restart) and fault.at_s is not None
        }
        return any(killed >= set(members) for members in schedule.members)

    assert [seed for seed, schedule in enumerate(drawn) if lost(schedule)] == [*range(1, 40, 5)]
    result = assert_sound(drawn[1])
    assert result.reports["stage_rebuilt"] > 0
    assert result.judged["S26"] > 0


@pytest.mark.parametrize("seed", [611, 1221])
def test_no_peer_hangs_after_it_has_died_for_good_with_its_stage(seed: int) -> None:
    """Such a schedule is refused: a dead process cannot hang."""
    assert generate_pipeline(seed).checked()
