"""Stages over one membership: settings, what rounds hear, the barrier, and which updates make a
step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pipeline_rig import Members

from gossip.core import (
    Activation,
    BackwardDone,
    Commit,
    Contribution,
    CoreSettings,
    ForwardDone,
    Hello,
    Payload,
    PipelineSettings,
    Received,
    Report,
    StageDone,
    Started,
    Timers,
    Update,
    events,
)
from gossip.core.ledger import ReplicatedState
from gossip.core.rounds.cover import cover
from gossip.core.settings import COVER_TRIES
from gossip.errors import ConfigError
from gossip.topologies import load
from gossip_pipelines.protocol import StageBarrier, StagePeer

STAGES = ((0, 1), (2, 3, 4))
LINEAGE = b"lineage!"


def settings(pipeline: PipelineSettings | None = None, **other: object) -> CoreSettings:
    plan = pipeline or PipelineSettings(STAGES, 4)
    return CoreSettings(b"run", LINEAGE, 1, tuple(range(5)), pipeline=plan, **other)  # type: ignore[arg-type]


def peer(local: int, of: CoreSettings | None = None) -> StagePeer:
    core = StagePeer(
        local, 0, of or settings(), load("rolling"), control="tcp://a:1", bulk="tcp://a:2"
    )
    core.handle(Started(), 0.0)
    core.handle(events.Prepared(b"layout", b"state", (32,), activation_bytes=(16, 24)), 0.1)
    return core


def hello(lineage: bytes, round_id: int = 0) -> Hello:
    return Hello(lineage, b"layout", b"state", round_id, "ready", "tcp://b:1", "tcp://b:2")


# --- settings -------------------------------------------------------------------------------------


def test_the_settings_of_a_stage_are_those_of_a_swarm_of_its_members() -> None:
    first, second = settings().of_stage(1), settings().of_stage(4)
    assert (first.peers, second.peers) == STAGES
    assert len({LINEAGE, first.lineage, second.lineage}) == 3
    assert settings().of_stage(0).lineage == first.lineage
    assert not first.may_be(2)
    plain = replace(settings(), pipeline=None)
    assert plain.of_stage(3) is plain


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        (PipelineSettings(((0, 1), (2, 3)), 4), "each peer must be in one stage"),
        (PipelineSettings(((0, 1), (1, 2, 3, 4)), 4), "each peer must be in one stage"),
        (PipelineSettings(((0, 1, 2, 3, 4), ()), 4), "no stage empty"),
        (PipelineSettings(STAGES, 0), "0 micro-batches"),
        (PipelineSettings(STAGES, 2000), "2000 micro-batches"),
        (PipelineSettings(STAGES, 4, pass_us=((0, 0),)), "times of peers"),
    ],
)
def test_a_plan_for_other_peers_is_refused(pipeline: PipelineSettings, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        peer(0, settings(pipeline))


def test_a_pipeline_needs_servers_and_one_shard() -> None:
    with pytest.raises(ConfigError, match="rounds with a server"):
        StagePeer(0, 0, settings(), load("ring"), control="", bulk="")
    with pytest.raises(ConfigError, match="impossible in a pipeline"):
        peer(0, settings(cross_shard=True))


def test_credits_are_what_a_plan_counts_memory_with() -> None:
    plan = PipelineSettings(((0,), (1, 2, 3, 4), (5, 6)), 16)
    credits = [plan.forwards_max(stage, len(plan.stages[stage])) for stage in range(3)]
    assert credits == [7 + 2, 2 + 2, 1]
    assert plan.forwards_max(1, 2) == 3 + 2  # two are lost
    assert replace(plan, micro_batches=4).forwards_max(0, 1) == 4
    assert replace(plan, in_flight=2).forwards_max(0, 1) == 2


# --- what the rounds of a stage hear --------------------------------------------------------------


def test_all_are_members_and_a_stage_begins_without_the_others() -> None:
    core = peer(0)
    core.handle(Received(1, 0, hello(core.settings.lineage)), 0.2)
    core.handle(Received(2, 0, hello(settings().of_stage(2).lineage)), 0.2)
    assert set(core.membership.members) >= {0, 1, 2}
    assert core.bootstrap.hellos.keys() == {0, 1}


def test_what_comes_from_another_stages_rounds_is_refused_and_said_once() -> None:
    core = peer(0)
    core.handle(Received(2, 0, hello(settings().of_stage(2).lineage)), 0.2)
    update = Update(core.settings.lineage, 0, 0, 0, b"", 4, None)
    for times in (1, 0):
        effects = core.handle(Received(2, 0, update, Payload("v", 32)), 0.3)
        told = [e.fields for e in effects if isinstance(e, Report) and e.event == "other_stage"]
        assert told == [{"subject": 2, "message": "Update", "stage": 1}] * times
    assert core.admit(2, update).nbytes == -1
    assert core.admit(1, update).nbytes == 32


def test_a_hello_of_another_stage_does_not_send_anybody_after_its_rounds() -> None:
    core = peer(0)
    core.handle(Received(2, 0, hello(core.settings.lineage, round_id=9)), 0.2)
    assert core.peer_progress.donors() == ()
    assert 2 not in core.bootstrap.hellos


def test_activations_come_from_the_neighbours_in_the_size_of_the_own_layers() -> None:
    core = peer(2)
    message = Activation(LINEAGE, 0, 1, 0, 0, b"")
    assert core.admit(0, message).nbytes == 16
    assert core.admit(3, message).nbytes == core.admit(9, message).nbytes == -1
    assert peer(0).admit(2, replace(message, stage=0)).nbytes == -1


def test_a_trainer_that_answers_what_nobody_asked_changes_nothing() -> None:
    core = peer(2)
    assert core.handle(ForwardDone(0, 0, 0, None), 0.3) == []
    assert core.handle(BackwardDone(7, 99, 0, None, 4), 0.3) == []


def test_a_round_is_shared_by_what_was_committed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may hold the commit of a round as it begins it, which the others do not yet."""
    core = peer(2)
    monkeypatch.setattr(core.rounds, "committed_pass_us", lambda: (1000, 2000, 4000))
    core._begin_rounds([events.StartRound(0, None)], 0.3)
    assert len(set(core.flow.weights.values())) == 1


# --- the barrier ----------------------------------------------------------------------------------


def barrier(f: int = 0) -> tuple[StageBarrier, Members]:
    plan, members = PipelineSettings(STAGES, 4), Members()
    return StageBarrier(0, settings(f=f), plan, members, Timers[object]()), members


def done(
    committed: int, round_id: int | None = None, roster: tuple[int, ...] = (2, 3, 4)
) -> StageDone:
    at = committed - 1 if round_id is None else round_id
    return StageDone(LINEAGE, 1, at, committed, roster, False)


def test_a_round_is_over_when_everybody_within_reach_of_each_stage_holds_it() -> None:
    gate, members = barrier()
    assert not gate.is_open(0)
    assert gate.record_report(2, 0, done(1))
    assert gate.record_report(3, 0, done(1))
    assert not gate.is_open(0)
    members.skipped = {4}
    assert gate.is_open(0)
    members.skipped = {2, 3, 4}
    assert gate.is_open(0)  # who is dead now held it
    assert not gate.is_open(1)


def test_who_has_gone_on_opens_the_round_and_more_than_f_have_to() -> None:
    gate, _ = barrier()
    gate.record_report(3, 0, done(1, round_id=1))
    assert gate.is_open(0)
    careful, _ = barrier(f=1)
    careful.record_report(3, 0, done(1, round_id=1))
    assert not careful.is_open(0)
    careful.record_report(4, 0, done(1, round_id=1))
    assert careful.is_open(0)


def test_old_and_impossible_words_are_no_news() -> None:
    gate, _ = barrier()
    assert gate.record_report(2, 0, done(3))
    assert not gate.record_report(2, 0, done(2))
    assert not gate.record_report(3, 0, replace(done(3), stage=0))
    for roster in ((), (3, 2), (2, 2), (0, 2), (77,)):
        assert not gate.record_report(4, 0, done(3, roster=roster)), roster
    assert gate.report_count == 1


# --- which updates make a step --------------------------------------------------------------------


def test_a_cover_has_each_micro_batch_once() -> None:
    assert cover({1: (0, 2), 2: (1, 3)}, 4) == {1, 2}
    assert cover({1: (0, 2), 2: (1,)}, 4) is None
    assert cover({1: (0, 2), 2: (1, 2, 3)}, 4) is None
    assert cover({1: (0, 2), 2: (0, 1), 3: (1, 3), 4: ()}, 4) == {1, 3}


def test_sets_that_fit_nowhere_cost_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    class Watched(tuple[int, ...]):
        __slots__ = ()

        def __contains__(self, key: object) -> bool:
            looked.append(1)
            return super().__contains__(key)

    sets = {n: Watched((n % 20, 20 + n % 20)) for n in range(60)}
    assert cover(sets, 41) is None
    assert len(looked) <= COVER_TRIES * len(sets)


def test_a_commit_that_lacks_a_micro_batch_or_has_one_twice_is_refused() -> None:
    state = ReplicatedState(settings().of_stage(2))

    def commit(*sets: tuple[int, ...], digest: bytes = b"d" * 16) -> Commit:
        given = zip((2, 3, 4), sets, strict=False)
        contributors = tuple(Contribution(p, 4, 0.5, 1.0, 0, each) for p, each in given)
        where = (state.settings.lineage, 0, 0, 0, 0, 2, b"")
        return Commit(*where, digest, contributors, (), (2, 3, 4), None, "")

    sent = Payload("v", 32, True, b"d" * 16)
    assert state.is_sound(commit((0, 1), (2, 3)), sent)
    for sets in ([(0, 1), (2,)], [(0, 1), (1, 2, 3)], [(0, 1), (2, 3, 4)], [()]):
        assert not state.is_sound(commit(*sets), sent), sets
    assert state.is_sound(replace(commit(), digest=b"", contributors=()), None)
