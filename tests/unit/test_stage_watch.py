"""Nobody waits for ever for a stage that has lost all its peers, and one that comes back does not
begin alone while others go on."""

from __future__ import annotations

from dataclasses import replace

from gossip.core import (
    STATE_LOST,
    CoreSettings,
    Halt,
    PipelineSettings,
    RoundSettings,
    StageDone,
    Timers,
)
from gossip.core.lifecycle.bootstrap import BeginFresh, Bootstrap, RebuildStage, WaitForPeers
from gossip.core.messages import Hello
from gossip_pipelines.protocol import StageBarrier, StageWatch

STAGES = ((0,), (1, 2), (3,))
LINEAGE = b"lineage!"


class Members:
    """Of all stages; all are there at first."""

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.left: set[int] = set()
        self.ended: set[int] = set()
        self.heard: dict[int, float] = {}
        self.lives: dict[int, int] = {}

    def skip_reason(self, peer: int) -> str:
        return "dead" if peer in self.away else ""

    def incarnation_of(self, peer: int) -> int:
        return self.lives.get(peer, 0)

    def is_gone(self, peer: int) -> bool:
        return peer in self.away

    def has_left(self, peer: int) -> bool:
        return peer in self.left

    def has_ended(self, peer: int) -> bool:
        return peer in self.ended

    def last_message_at(self, peer: int) -> float:
        return self.heard.get(peer, 0.0)


def settings(rebuilds: bool = True) -> CoreSettings:
    pipeline = PipelineSettings(STAGES, 2, rebuilds=rebuilds)
    rounds = RoundSettings(quorum_timeout_s=60.0, start_timeout_s=20.0)
    return CoreSettings(b"run", LINEAGE, 1, tuple(range(4)), pipeline=pipeline, rounds=rounds)


def barrier_of(local: int, members: Members, rebuilds: bool = True) -> StageBarrier:
    of = settings(rebuilds)
    assert of.pipeline is not None
    return StageBarrier(local, of, of.pipeline, members, Timers())


class Watch:
    """Of peer 0."""

    def __init__(self, rebuilds: bool = True) -> None:
        self.members = Members()
        barrier = barrier_of(0, self.members, rebuilds)
        self.watch = StageWatch(settings(rebuilds), barrier, self.members)

    def look(self, now: float, *away: int) -> tuple[list[str], Halt | None]:
        self.members.away = set(away)
        reports, halt = self.watch.check_lost_stages(7, now)
        assert all(report.fields["round"] == 7 for report in reports)
        return [f"{each.event} {each.fields['stage']}" for each in reports], halt


def test_a_stage_is_lost_with_its_last_peer_and_back_with_the_first() -> None:
    watch = Watch()
    assert watch.look(0.0) == ([], None)
    assert watch.look(1.0, 1) == ([], None)
    assert watch.look(2.0, 1, 2) == (["stage_lost 1"], None)
    assert watch.look(50.0, 1, 2) == ([], None)
    assert watch.look(51.0, 1) == (["stage_back 1"], None)
    assert watch.look(52.0, 1, 2) == (["stage_lost 1"], None)
    assert watch.look(111.0, 1, 2) == ([], None)
    _told, halt = watch.look(112.0, 1, 2)
    assert halt.exit_code == 5
    assert "stage 1 has lost all its peers (1, 2) in round 7" in halt.reason


def test_who_will_not_come_back_is_not_waited_for_unless_it_has_completed() -> None:
    watch = Watch()
    watch.look(0.0)
    watch.members.ended = {1, 2}
    _, halt = watch.look(1.0, 1, 2)
    assert halt.exit_code == 5
    watch = Watch()
    watch.look(0.0)
    watch.members.ended, watch.members.left = {1, 2}, {1, 2}
    assert watch.look(1.0, 1, 2)[1] is None, "that it has completed may be on its way"
    watch = Watch()
    watch.look(0.0)
    watch.members.ended, watch.members.left = {1, 2}, {1, 2}
    watch.watch.note(2, completed=True)
    assert watch.look(1.0, 1, 2) == ([], None)
    assert watch.look(100.0, 1, 2) == ([], None)
    watch.watch.note(2, completed=False)  # another life of it
    assert watch.look(101.0, 1, 2)[0] == ["stage_lost 1"]


def test_where_a_stage_is_not_to_be_made_anew_its_farewell_ends_the_run() -> None:
    for rebuilds, code in ((False, 7), (True, None)):
        watch = Watch(rebuilds)
        watch.look(0.0)
        assert watch.look(1.0, 1, 2)[1] is None, "it may be a pause"
        watch.members.left = {2}
        halt = watch.look(2.0, 1, 2)[1]
        assert (None if halt is None else halt.exit_code) == code


def watch_of_last(rebuilds: bool) -> Watch:
    """Of peer 3: stage 0 is one of the others."""
    watch = Watch(rebuilds)
    barrier = barrier_of(3, watch.members, rebuilds)
    watch.watch = StageWatch(settings(rebuilds), barrier, watch.members)
    watch.look(0.0)
    return watch


def test_the_end_names_the_stage_that_was_lost_and_not_the_one_that_ended_because_of_it() -> None:
    """Stage 1 came back, and has said goodbye since; so has stage 0, before anybody has looked."""
    watch = watch_of_last(rebuilds=False)
    watch.members.left, watch.members.heard = {0, 1, 2}, {0: 2.9, 1: 2.1, 2: 2.2}
    told, halt = watch.look(3.0, 0, 1, 2)
    assert halt.reason.startswith("state lost: stage 1 has lost all its peers (1, 2) in round 7")
    assert told == ["stage_lost 1"]
    watch = watch_of_last(rebuilds=False)
    watch.members.left, watch.members.heard = {0, 1, 2}, {0: 1.0, 1: 2.1, 2: 2.2}
    halt = watch.look(3.0, 0, 1, 2)[1]
    assert halt.reason.startswith("state lost: stage 0 has lost all its peers (0) in round 7")


def test_who_left_before_another_stage_was_lost_did_not_leave_because_of_that() -> None:
    watch = watch_of_last(rebuilds=True)
    watch.members.left, watch.members.heard = {2}, {0: 5.0, 1: 6.0, 2: 1.0}
    assert watch.look(6.0, 0, 2) == (["stage_lost 0"], None)
    assert watch.look(7.0, 0, 1, 2) == (["stage_lost 1"], None)


def test_a_stage_that_never_came_is_not_reported_and_waited_for_as_a_start_is() -> None:
    watch = Watch()
    assert watch.look(0.0, 1, 2) == ([], None)
    assert watch.look(19.0, 1, 2) == ([], None)
    told, halt = watch.look(20.0, 1, 2)
    assert told == []
    assert "no peer of stage 1 (peers 1, 2) has started in 20 s" in halt.reason


# --- how far the others are -----------------------------------------------------------------------


def done(stage: int, round_id: int, committed: int, roster: tuple[int, ...]) -> StageDone:
    return StageDone(LINEAGE, stage, round_id, committed, roster, False)


def test_the_round_of_the_others_is_known_when_all_within_reach_have_said_theirs() -> None:
    members = Members()
    barrier = barrier_of(1, members)
    assert barrier.furthest() is None
    barrier.record_report(0, 0, done(0, 6, 6, (0,)))
    assert barrier.furthest() is None
    barrier.record_report(3, 0, done(2, 7, 7, (3,)))
    assert barrier.furthest() == 7
    members.lives[0] = 1  # what another life of it has said counts no more
    assert barrier.furthest() is None
    members.away = {0}
    assert barrier.furthest() == 7
    members.away = {0, 3}
    assert barrier.furthest() is None


def test_the_roster_of_a_stage_is_that_of_those_who_are_there() -> None:
    members = Members()
    barrier = barrier_of(0, members)
    barrier.record_report(2, 0, done(1, 8, 9, (2,)))  # 1 was lost before
    assert barrier.roster_of(1) == (2,)
    members.away = {2}
    barrier.record_report(1, 1, done(1, 8, 8, (1, 2)))  # and is back, alone
    assert barrier.roster_of(1) == (1, 2)


class StageView:
    """Of the members of stage 1, as ``Bootstrap`` sees them."""

    def __init__(self, gone: set[int]) -> None:
        self.gone = gone

    def is_gone(self, peer: int) -> bool:
        return peer in self.gone

    def has_ended(self, peer: int) -> bool:
        return False

    def skip_reason(self, peer: int) -> str:
        return "dead" if peer in self.gone else ""


def decision(
    local: int,
    gone: set[int],
    elsewhere: int | None,
    rebuilds: bool = True,
    holds: bool = False,
    round_id: int = 0,
) -> object:
    of = replace(settings(rebuilds).of_stage(local), had_round=6)
    bootstrap = Bootstrap(local, of, StageView(gone), lambda: elsewhere)  # type: ignore[arg-type]
    bootstrap.start(0.0)
    bootstrap.prepare(holds=holds)
    state = b"fresh" if bootstrap.may_begin else b""
    for peer in {1, 2} - gone:
        hello = Hello(of.lineage, b"layout", state, round_id, "ready", "tcp://b:1", "tcp://b:2")
        bootstrap.record_hello(peer, hello, 0.1)
    return bootstrap.decide(1.0)


def test_the_first_of_those_who_are_back_makes_the_state_and_the_others_wait_for_it() -> None:
    assert decision(1, set(), 7) == RebuildStage(7)
    assert decision(2, set(), 7) == WaitForPeers((1,))
    assert decision(2, {1}, 7) == RebuildStage(7)
    assert decision(2, {1}, None) == WaitForPeers((1,)), "nobody has said how far the run is"


def test_a_stage_that_may_not_be_made_anew_ends() -> None:
    found = decision(1, {2}, 7, rebuilds=False)
    assert isinstance(found, Halt)
    assert found.exit_code == STATE_LOST
    assert "lost_stage = stop" in found.reason
    assert "no peer with the state of stage 1 is left" in found.reason


def test_a_node_beside_a_living_trainer_goes_on_in_the_round_of_the_others() -> None:
    assert decision(1, {2}, 7, holds=True) == RebuildStage(7)
    assert decision(1, {2}, 7, holds=True, rebuilds=False) == RebuildStage(7), "nothing is lost"
    assert decision(1, {2}, None, holds=True) == WaitForPeers(()), "it does not begin alone"


def test_a_stage_that_has_loaded_a_checkpoint_begins_with_it() -> None:
    assert decision(1, set(), 6, holds=True, round_id=6) == BeginFresh((1, 2))
    assert decision(1, set(), None, holds=True, round_id=6) == BeginFresh((1, 2))
