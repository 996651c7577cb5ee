"""The node's loop with a fake core: every effect is carried out, every answer comes back."""

from __future__ import annotations

import json
import os
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_fakes import FakeCore, NodeRig, end_of, node_rig, socket_pair, vector
from trainer_fakes import allocate_bytes

from gossip.aggregators import kernels
from gossip.core import events
from gossip.core.events import (
    Aggregate,
    Aggregated,
    Apply,
    DataSlice,
    EpochReport,
    Halt,
    Payload,
    Row,
    StartRound,
)
from gossip.core.messages import Commit, Contribution, Rejection
from gossip.ipc import messages as control
from gossip.ipc.arena import map_bytes, map_rows
from gossip.run.rendezvous import announce_end
from gossip.vectors import payload_digest


def rows(*payloads: Payload) -> tuple[Row, ...]:
    return tuple(Row(peer, payload, 1) for peer, payload in enumerate(payloads))


def test_a_timer_fires_in_order_of_time_and_a_cancelled_one_does_not() -> None:
    def on(event: Any) -> list[Any]:
        if not isinstance(event, events.Started):
            return []
        return [
            events.SetTimer(1, 0.02),
            events.SetTimer(2, 0.01),
            events.SetTimer(3, 0.015),
            events.CancelTimer(3),
        ]

    core = FakeCore(on)
    with NodeRig(core):
        core.wait_for(events.TimerFired, 1)
        assert [event.token for event in core.heard if isinstance(event, events.TimerFired)] == [
            2,
            1,
        ]


def test_no_event_comes_between_the_sends_of_a_commit_and_its_record() -> None:
    def on(event: Any) -> list[Any]:
        if isinstance(event, events.Started):
            return [events.SetTimer(1, 0.01), events.SetTimer(2, 0.01)]
        is_first = event == events.TimerFired(1)
        return [events.AfterSends(), events.SetTimer(3, 0.0)] if is_first else []

    core = FakeCore(on)
    with NodeRig(core):
        core.wait_for(events.TimerFired, 2)
        first = core.heard.index(events.TimerFired(1))
        assert core.heard[first + 1] == events.SendsDone()
        assert core.heard.count(events.SendsDone()) == 1


def test_halt_tells_the_trainer_and_gives_its_exit_code() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(Halt("enough", 5))
        assert stage.hear() == events.Halt("enough", 5)
        assert stage.join() == 5
        assert end_of(stage.trainer)


def test_the_round_goes_to_the_trainer_and_its_update_comes_back_by_reference() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(
            StartRound(
                7,
                DataSlice(2, ((0, 4), (8, 9)), ((2, ((4, 6),)),), EpochReport(1, 30, 0, 2, 4)),
                deadline_us=8,
                began_at=9.5,
            )
        )
        go = stage.hear()
        assert (go.deadline_us, go.began_at) == (8, 9.5)
        assert (go.round_id, go.sharded, go.epoch, go.ranges) == (7, True, 2, ((0, 4), (8, 9)))
        assert (go.rank, go.coming) == (0, ((2, ((4, 6),)),))
        assert go.last == (1, 30, 0, 2, 4, 0, 0)
        stage.arena.updates[go.slot][:] = (1, 2, 3, 4)
        stage.trainer.send(control.Contribute(7, go.slot, 5, 0.5, False, steps=(2, 3), lasted_us=6))
        heard = core.wait_for(events.Contributed)
        assert (heard.round_id, heard.samples, heard.loss, heard.own) == (7, 5, 0.5, None)
        assert (heard.steps, heard.lasted_us) == ((2, 3), 6)
        assert heard.payloads[0].finite
        stage.arena.updates[go.slot][0] = 9
        assert heard.payloads[0].data.tolist() == [9, 2, 3, 4], (
            "the payload must be the arena's memory, not a copy"
        )


def test_a_round_tells_its_roster_and_who_has_left() -> None:
    """A peer that left, and returned and died, has died."""
    with node_rig(prepared=True, peer=2, peers=4) as (core, stage):

        def go(*effects: Any) -> control.StartRoundCommand:
            core.say(*effects)
            told = stage.hear()
            assert isinstance(told, control.StartRoundCommand)
            return told

        def report(event: str, peer: int) -> events.Report:
            return events.Report(event, {"subject": peer, "round": 0})

        first = go(StartRound(0, None, roster=(0, 1, 2, 3)))
        assert (first.roster, first.left, first.rank, first.peers) == ((0, 1, 2, 3), (), 2, 4)
        gone = report("left", 0), report("dead", 1)
        second = go(*gone, StartRound(0, None, roster=(2, 3)))
        assert (second.roster, second.left, second.rank, second.peers) == ((2, 3), (0,), 0, 2)
        back = report("alive_again", 0), report("dead", 0), report("left", 3)
        assert go(*back, StartRound(0, None, roster=(2,), left=(1,))).left == (1, 3)


def test_an_update_that_is_not_finite_is_marked() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(StartRound(0, None))
        go = stage.hear()
        stage.arena.updates[go.slot][:] = (np.inf, -np.inf, 0, 1)
        stage.trainer.send(control.Contribute(0, go.slot, 1, None, False))
        assert not core.wait_for(events.Contributed).payloads[0].finite


def test_a_slot_that_is_free_again_is_used_again() -> None:
    with node_rig(prepared=True) as (core, stage):
        slots = []
        for r in range(6):
            core.say(Apply(r, (vector(r, r, r, r),)), StartRound(r + 1, None))
            told, go = stage.hear(), stage.hear()
            slots.append((told.slot, go.slot))
            contribute = control.Contribute(r + 1, go.slot, 1, None, False)
            stage.trainer.send(control.AppliedReply(r, told.slot), contribute)
            core.wait_for(events.Contributed, r)
        assert len(set(slots)) == 1, "memory that was used last is in the cache, the others' is not"


def test_timers_fire_though_every_turn_has_an_answer_for_the_trainer() -> None:
    def on(event: Any) -> list[Any]:
        if isinstance(event, events.Started):
            return [events.SetTimer(1, 0.0)]
        if isinstance(event, events.TimerFired):
            return [events.SetTimer(event.token + 1, 0.0)]
        if isinstance(event, events.Contributed):
            assert all_sent.wait(10)
            return [StartRound(event.round_id + 1, None)]
        return []

    all_sent = threading.Event()
    core = FakeCore(on)
    with NodeRig(core, probe_interval_s=60.0) as stage:  # it may block without having overslept
        stage.prepare()
        core.say(StartRound(0, None))
        stage.hear()
        for r in range(100):  # whenever the node looks, another update is there
            stage.trainer.send(control.Contribute(r, 0, 0, None, False))
        all_sent.set()
        core.wait_for(events.Contributed, 99)
        kinds = [type(event) for event in core.heard]
        last = max(at for at, kind in enumerate(kinds) if kind is events.Contributed)
        between = kinds[kinds.index(events.Contributed) : last]
        assert between.count(events.TimerFired) >= 40


def test_no_samples_means_no_payload() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(StartRound(0, None))
        stage.trainer.send(control.Contribute(0, stage.hear().slot, 0, None, False))
        assert core.wait_for(events.Contributed).payloads == ()


def test_parameters_come_with_a_sketch_when_they_are_mixed() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(StartRound(3, None, want_parameters=True))
        go = stage.hear()
        assert go.want_parameters
        stage.arena.parameters[go.slot][:] = (4, 3, 2, 1)
        stage.trainer.send(control.Contribute(3, go.slot, 1, None, True))
        heard = core.wait_for(events.Contributed)
        assert heard.parameters.data.tolist() == [4, 3, 2, 1]
        assert np.frombuffer(heard.sketch, np.float32).any()


def test_a_liar_sends_the_lie_and_believes_the_truth_where_it_aggregates_for_itself() -> None:
    with node_rig(prepared=True, faults=("sign_flip:0*10",), topology="ring") as (core, stage):
        core.say(StartRound(0, None))
        go = stage.hear()
        stage.arena.updates[go.slot][:] = (1, 2, 3, 4)
        stage.trainer.send(control.Contribute(0, go.slot, 1, None, False))
        heard = core.wait_for(events.Contributed)
        assert heard.payloads[0].data.tolist() == [-10, -20, -30, -40]
        assert heard.own.data.tolist() == [1, 2, 3, 4]
        assert stage.arena.updates[go.slot].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "attack", ["bit_flip:0", "gaussian:0*200", "scale:0*1000", "nan:0", "stale:0*10", "zero:0"]
)
def test_every_lie_can_be_told(attack: str) -> None:
    with node_rig(prepared=True, faults=(attack,)) as (core, stage):
        core.say(StartRound(0, None))
        go = stage.hear()
        stage.arena.updates[go.slot][:] = (1, 2, 3, 4)
        stage.trainer.send(control.Contribute(0, go.slot, 1, None, False, finite=True))
        heard = core.wait_for(events.Contributed)
        assert heard.payloads[0].finite == (attack != "nan:0")
        assert heard.own.data.tolist() == [1, 2, 3, 4]


def test_the_rule_runs_and_its_answer_has_the_digest_of_its_bytes() -> None:
    with node_rig() as (core, _):
        core.say(Aggregate(5, 0, 0, rows(vector(1, 2), vector(3, 6)), 0, 0))
        heard = core.wait_for(Aggregated)
        assert (heard.ticket, heard.reason) == (5, "")
        assert heard.payload.data.tolist() == [2, 4]
        assert heard.payload.digest == payload_digest(np.array([2, 4], np.float32).tobytes())
        assert heard.weights == (0.5, 0.5)


def rule_file(folder: Path, body: str) -> str:
    path = folder / "my_rules.py"
    head = (
        "import time\nfrom pathlib import Path\nfrom gossip.aggregators import rule\n\n@rule\ndef "
        "mine(updates):\n"
    )
    path.write_text(head + textwrap.indent(textwrap.dedent(body), "    "))
    return f"{path}:mine"


def test_a_row_that_the_rule_chose_is_not_overwritten_by_the_next_round(tmp_path: Path) -> None:
    with node_rig(aggregator=rule_file(tmp_path, "return updates[0]")) as (core, _):
        core.say(Aggregate(1, 0, 0, rows(vector(1, 1), vector(9, 9)), 0, 0))
        first = core.wait_for(Aggregated)
        core.say(Aggregate(2, 1, 0, rows(*[vector(5, 5)] * 2), 0, 0))
        core.wait_for(Aggregated, 1)
        assert first.payload.data.tolist() == [1, 1]


def test_a_rule_that_raises_gives_a_reason_and_the_node_lives_on(tmp_path: Path) -> None:
    with node_rig(aggregator=rule_file(tmp_path, "return updates @ updates")) as (core, _):
        core.say(Aggregate(1, 0, 0, rows(vector(1, 2, 3), vector(3, 6, 7)), 0, 0))
        heard = core.wait_for(Aggregated)
        assert heard.payload is None
        assert "mine failed: RuntimeError" in heard.reason
        core.say(Aggregate(2, 0, 0, rows(vector(1, 2, 3)), 0, 0))
        core.wait_for(Aggregated, 1)


def test_too_few_updates_give_a_reason_and_no_payload() -> None:
    with node_rig(aggregator="krum") as (core, _):
        core.say(Aggregate(1, 0, 0, rows(vector(1, 2)), 3, 0))
        heard = core.wait_for(Aggregated)
        assert heard.payload is None
        assert "krum needs" in heard.reason


def test_a_result_that_is_not_finite_is_none(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def mine(updates, *, f):\n    return updates[0] - float('inf')\n"
    )
    for rule, updates, reason in (
        (f"{tmp_path}/mine.py:mine", (vector(1, 1), vector(1, 1)), "non_finite result"),
        ("mean", (vector(1, 1), vector(np.nan, 1)), "mean: update 1 of 2 is not finite"),
    ):
        with node_rig(aggregator=rule) as (core, _):
            core.say(Aggregate(1, 0, 0, rows(*updates), 0, 0))
            heard = core.wait_for(Aggregated)
            assert heard.payload is None
            assert reason in heard.reason


def test_a_mix_is_the_aggregate_of_the_differences_to_the_own_row() -> None:
    with node_rig() as (core, _):
        core.say(Aggregate(1, 0, 0, rows(vector(1, 1), vector(3, 5)), 0, own=0, mix=True))
        assert core.wait_for(Aggregated).payload.data.tolist() == [1, 2]


def test_a_large_input_is_aggregated_while_the_loop_goes_on(tmp_path: Path) -> None:
    body = f"""
        until = time.monotonic() + 5
        Path({str(tmp_path / "begun")!r}).touch()
        while not Path({str(tmp_path / "go")!r}).exists():
            assert time.monotonic() < until, "nobody could say go: the loop stands still"
            time.sleep(0.002)
        return updates.mean(dim=0)
    """
    with node_rig(prepared=True, aggregator=rule_file(tmp_path, body)) as (core, stage):
        large = [Payload(np.full(2**19, float(i), np.float32), 2**21) for i in range(3)]
        core.say(Aggregate(1, 0, 0, rows(*large), 1, 0))
        core.wait(lambda: core.count(Aggregated) or (tmp_path / "begun").exists())
        stage.poke()
        (tmp_path / "go").touch()
        heard = core.wait_for(Aggregated)
        assert heard.reason == ""
        assert heard.payload.data[0] == 1


def test_the_core_hears_of_the_trainer_when_the_kernels_are_there_and_the_loop_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = threading.Event()
    monkeypatch.setattr(kernels, "is_prepared", lambda n, d: (n, d) != (1, 4))
    monkeypatch.setattr(kernels, "compile_apart", lambda n, d, patience_s: compiled.wait(20))
    monkeypatch.setattr(kernels, "prepare", lambda n, d: ())
    with node_rig(aggregator="krum", run_dir=tmp_path) as (core, stage):
        stage.trainer.send(control.Prepare(4, b"layout", b"state", 8), fds=(stage.arena.fd,))
        stage.poke()
        assert core.count(events.Prepared) == 0, "a round would wait for the compiler"
        compiled.set()
        assert core.wait_for(events.Prepared).shard_bytes == (16,)
    lines = [
        json.loads(line) for line in (tmp_path / "peer-0" / "events.jsonl").read_text().splitlines()
    ]
    (told,) = [line for line in lines if line.get("event") == "kernels"]
    assert told["backend"] == kernels.backend()
    assert 0 <= told["seconds"] < 20


def test_a_rule_that_needs_the_loss_is_run_by_the_trainer() -> None:
    with node_rig(prepared=True, aggregator="zeno:b=0") as (core, stage):
        core.say(
            Aggregate(1, 0, 0, rows(vector(1, 2, 3, 4), vector(5, 6, 7, 8)), 0, 1),
            Aggregate(2, 0, 0, rows(vector(1, 1, 1, 1)), 0, None),
        )
        question, fds = stage.next()
        assert (question.ticket, question.rows, question.own) == (1, 2, 1)
        memory = map_rows(fds[0], question.capacity, 4)
        assert memory[:2].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
        memory[2] = (0, 1, 0, 1)
        assert stage.is_silent(), "the memory is in use: the second question must wait"
        stage.trainer.send(control.JudgeReply(1, (0.0, 1.0), (2.0, 1.0), ""))
        heard = core.wait_for(Aggregated)
        assert (heard.payload.data.tolist(), heard.weights, heard.outlyingness) == (
            [0, 1, 0, 1],
            (0.0, 1.0),
            (2.0, 1.0),
        )
        question, fds = stage.next()
        assert (question.ticket, question.capacity, fds, question.own) == (2, 0, [], -1)
        assert memory[0].tolist() == [1, 1, 1, 1]
        stage.trainer.send(control.JudgeReply(2, (), (), "no loss"))
        assert core.wait_for(Aggregated, 1).reason == "no loss"


def test_the_aggregate_of_all_shards_is_in_one_slot_and_a_mix_beside_it() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(Apply(4, (vector(1, 2, 3), vector(4)), vector(5, 6, 7, 8), 0.5), Apply(5, ()))
        told = stage.hear()
        assert (told.round_id, told.mix_scale) == (4, 0.5)
        assert stage.arena.results[told.slot].tolist() == [1, 2, 3, 4]
        assert stage.arena.mixes[told.slot].tolist() == [5, 6, 7, 8]
        assert stage.hear() == control.ApplyCommand(5, -1, 0.0)
        stage.trainer.send(control.AppliedReply(4, told.slot), control.AppliedReply(5, -1))
        assert core.wait_for(events.Applied, 1).round_id == 5


def test_several_messages_of_one_turn_share_a_packet() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(Apply(0, (vector(1, 2, 3, 4),)), StartRound(1, None))
        messages, _ = stage.trainer.receive(20)
        assert [type(message) for message in messages] == [
            control.ApplyCommand,
            control.StartRoundCommand,
        ]


def test_rounds_wait_for_a_free_slot_in_order_and_none_is_overwritten() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(*[Apply(r, (vector(r, r, r, r),)) for r in range(10)], StartRound(10, None))
        held = [stage.hear() for _ in range(control.RESULT_SLOTS)]
        assert stage.is_silent()
        assert [told.round_id for told in held] == list(range(control.RESULT_SLOTS))
        order = []
        while True:
            if not held:
                held.append(stage.hear())
            told = held.pop(0)
            if isinstance(told, control.StartRoundCommand):
                break
            assert stage.arena.results[told.slot].tolist() == [told.round_id] * 4
            order.append(told.round_id)
            stage.trainer.send(control.AppliedReply(told.round_id, told.slot))
        assert order == list(range(10))
        assert told.round_id == 10


def test_a_trainer_that_takes_nothing_does_not_eat_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("gossip.node.outbox.BACKLOG_BYTES", 100)
    with node_rig(prepared=True, run_dir=tmp_path) as (core, stage):
        core.say(*[Apply(r, (vector(r, r, r, r),)) for r in range(20)])
        assert stage.join() == 70
        error = json.loads((tmp_path / "peer-0" / "node_error.json").read_text())
        assert "the trainer has not read" in error["message"]
        assert any("trainer_link.py" in line for line in error["traceback"])


def test_a_slot_that_is_still_being_sent_is_not_given_again() -> None:
    with node_rig(prepared=True) as (core, stage):
        reading: list[Any] = []
        stage.node.trainer._updates._in_flight = lambda data: any(data is each for each in reading)
        used = []
        for r in range(8):
            core.say(StartRound(r, None))
            go = stage.hear()
            assert not any(np.shares_memory(stage.arena.updates[go.slot], each) for each in reading)
            stage.arena.updates[go.slot][:] = r
            stage.trainer.send(control.Contribute(r, go.slot, 1, None, False))
            heard = core.wait_for(events.Contributed, r)
            assert heard.payloads[0].data.tolist() == [r] * 4
            reading.append(heard.payloads[0].data)
            used.append(go.slot)
        assert [array[0] for array in reading] == list(range(8)), "what is in flight was written to"


def test_a_round_without_a_slot_holds_up_nothing_else() -> None:
    """As for a trainer that has left its loop: it is given slots, and fills none."""
    with node_rig(prepared=True) as (core, stage):
        for r in range(control.UPDATE_SLOTS):
            core.say(StartRound(r, None))
            given = stage.hear()
        core.say(
            StartRound(5, None),
            Apply(5, (vector(5, 5, 5, 5),)),
            StartRound(6, None),
            events.LedgerReply(6, b"ledger"),
        )
        told = stage.hear()
        assert (type(told), told.round_id) == (control.ApplyCommand, 5), "round 5 is over"
        assert stage.hear() == events.LedgerReply(6, b"ledger")
        assert stage.is_silent()
        stage.trainer.send(control.Contribute(given.round_id, given.slot, 0, None, False))
        told = stage.hear()
        assert (type(told), told.round_id) == (control.StartRoundCommand, 6), "it was kept"


def test_a_round_told_again_with_samples_keeps_its_slot() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(StartRound(0, None), StartRound(0, DataSlice(0, ((0, 1),))))
        first, second = stage.hear(), stage.hear()
        assert first.slot == second.slot
        assert (first.sharded, second.sharded) == (False, True)


def test_a_snapshot_comes_in_shared_memory_with_its_digest() -> None:
    with node_rig(prepared=True) as (core, stage):
        core.say(events.TakeSnapshot())
        assert stage.hear() == events.TakeSnapshot()
        fd = allocate_bytes(b"the state")
        stage.trainer.send(control.Snapshot(9, 9, ""), fds=(fd,))
        os.close(fd)
        heard = core.wait_for(events.SnapshotTaken)
        assert (heard.round_id, heard.payload.nbytes, bytes(heard.payload.data)) == (
            9,
            9,
            b"the state",
        )
        assert heard.payload.digest == payload_digest(b"the state")


@pytest.mark.parametrize("nbytes", [100, 2**23 + 1], ids=["small", "large"])
def test_a_state_goes_to_the_trainer_before_the_rounds_on_it(nbytes: int) -> None:
    core = FakeCore()
    state = np.arange(nbytes, dtype=np.uint8)
    with NodeRig(core) as stage:
        stage.prepare()
        core.say(events.Restore(30, Payload(state, nbytes), False, 4), StartRound(30, None))
        told, fds = stage.next()
        assert told == control.RestoreCommand(30, nbytes, False, 4)
        assert bytes(map_bytes(fds[0], nbytes)) == state.tobytes()
        assert stage.hear().round_id == 30
        stage.trainer.send(events.Restored(30, ""))
        assert core.wait_for(events.Restored) == events.Restored(30, "")


def test_progress_is_read_from_shared_memory_without_the_trainer_doing_anything() -> None:
    with node_rig(prepared=True) as (core, stage):
        stage.arena.note_progress(12)
        core.wait(
            lambda: [
                e for e in core.heard if isinstance(e, events.TrainerProgress) and e.step == 12
            ]
        )


def test_a_trainer_that_dies_is_announced_and_the_node_ends() -> None:
    core = FakeCore(
        lambda event: [Halt("gone", 1)] if isinstance(event, events.TrainerLost) else []
    )
    with NodeRig(core) as stage:
        stage.prepare()
        stage.trainer.close()
        assert stage.join() == 1
        assert core.count(events.TrainerLost) == 1


def test_a_core_that_does_not_halt_after_its_trainers_death_does_not_keep_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gossip.node.loop.ANNOUNCE_S", 0.05)
    with node_rig(prepared=True) as (_, stage):
        stage.trainer.close()
        assert stage.join() == 1


def test_a_trainer_that_says_goodbye_is_not_lost_when_it_closes() -> None:
    with node_rig(prepared=True) as (core, stage):
        stage.trainer.send(control.Close("finished"))
        stage.trainer.close()
        assert core.wait_for(events.Stop) == events.Stop("finished", completed=True)
        core.say(Halt("finished", 0))
        stage.node.stop("again")
        assert stage.join() == 0
        assert core.count(events.TrainerLost) == 0


def test_a_node_that_helps_others_leaves_when_its_trainer_is_gone() -> None:
    with node_rig(prepared=True) as (core, stage):
        stage.trainer.send(control.Close("finished"))
        assert core.wait_for(events.Stop) == events.Stop("finished", completed=True)
        stage.trainer.close()
        assert core.wait_for(events.Stop, 1) == events.Stop("the other side has closed the channel")
        core.say(Halt("finished", 0))
        assert stage.join() == 0


def test_stop_from_another_thread_is_heard() -> None:
    with node_rig() as (core, stage):
        stage.node.stop("SIGTERM")
        assert core.wait_for(events.Stop) == events.Stop("SIGTERM")


def test_nothing_comes_after_halt() -> None:
    core = FakeCore(lambda event: [Halt("now")] if isinstance(event, events.Stop) else [])
    with NodeRig(core) as stage:
        stage.trainer.send(control.Close("finished"), events.DataConfigured(10, 1))
        assert stage.join() == 0
        assert isinstance(core.heard[-1], events.Stop)


def test_a_rule_that_nobody_knows_is_said_to_the_trainer_with_its_exit_code() -> None:
    with node_rig(aggregator="trimed_mean") as (_, stage):
        halted = stage.hear()
        assert halted.exit_code == 2
        assert "Did you mean 'trimmed_mean'" in halted.reason
        assert stage.join() == 2


def test_a_crash_cannot_be_carried_out_where_others_would_be_hit() -> None:
    with node_rig(faults=("crash:0@5",), peers=1) as (_, stage):
        halted = stage.hear()
        assert halted.exit_code == 2
        assert "crash:0@5 cannot be carried out" in halted.reason


def test_an_exception_in_the_core_is_written_down_and_ends_the_node(tmp_path: Any) -> None:
    def on(event: Any) -> list[Any]:
        if isinstance(event, events.Prepared):
            raise RuntimeError("a bug")
        return []

    launcher, status = socket_pair()
    core = FakeCore(on)
    with NodeRig(core, run_dir=tmp_path, status_fd=status.fileno()) as stage:
        stage.trainer.send(control.Prepare(4, b"", b"", 8), fds=(stage.arena.fd,))
        assert stage.join() == 70
        assert end_of(stage.trainer), "no last word: the trainer is to start another node"
    assert "a bug" in json.loads((tmp_path / "peer-0" / "node_error.json").read_text())["message"]
    status.close()
    lines = [json.loads(line) for line in launcher.makefile()]
    assert [line["event"] for line in lines] == ["started", "error"]


def test_reports_reach_the_launcher_and_the_files(tmp_path: Any) -> None:
    launcher, status = socket_pair()
    with node_rig(prepared=True, run_dir=tmp_path, status_fd=status.fileno()) as (core, stage):
        core.say(
            events.Report("skip", {"subject": 3, "reason": "suspect", "round": 5}), Halt("done", 0)
        )
        assert stage.join() == 0
    status.close()
    lines = [json.loads(line) for line in launcher.makefile()]
    assert [line["event"] for line in lines] == ["started", "skip", "usage", "halted"]
    assert lines[1]["subject"] == 3
    assert lines[1]["peer"] == 0
    assert {"t", "wall"} <= lines[1].keys()
    assert lines[2]["memory"] > 0
    assert lines[3]["traffic"]["sent_bytes"] == lines[2]["sent_bytes"] == 0
    in_file = [
        json.loads(line) for line in (tmp_path / "peer-0" / "events.jsonl").read_text().splitlines()
    ]
    assert in_file[1:] == lines
    assert in_file[0] == {"schema": "gossip.events/2"}


def test_a_commit_made_here_becomes_a_line_and_another_does_not(tmp_path: Any) -> None:
    core = FakeCore()
    by, refused = (Contribution(2, 8, 0.5, 1.5),), (Rejection(3, "non_finite"),)
    commit = Commit(b"\1" * 8, 5, 0, 1, 1, 2, b"\2" * 16, b"\3" * 16, by, refused, (0, 2), 0.25, "")
    made = events.Committed(commit, b"\4" * 16, True, {0: 1.0, 2: 0.5}, {0: [(0, 8)]}, 3, 100)
    with NodeRig(core, run_dir=tmp_path) as stage:
        core.say(made, events.Committed(commit, b"\5" * 16, False), Halt("done"))
        assert stage.join() == 0
    lines = [
        json.loads(line)
        for line in (tmp_path / "peer-0" / "commits.jsonl").read_text().splitlines()
    ]
    assert len(lines) == 2
    line = lines[1]
    assert {line.pop("t") > 0, line.pop("wall") > 0} == {True}
    assert line == {
        "lineage": "01" * 8,
        "round": 5,
        "shard": 0,
        "attempt": 1,
        "made_at": 1,
        "server": 2,
        "parent": "02" * 16,
        "digest": "03" * 16,
        "chain": "04" * 16,
        "contributors": [
            {"peer": 2, "samples": 8, "weight": 0.5, "outlyingness": 1.5, "took_us": 0}
        ],
        "rejected": [{"peer": 3, "reason": "non_finite"}],
        "accusations": [],
        "roster": [0, 2],
        "loss": 0.25,
        "rates": [],
        "reason": "",
        "trust": {"0": 1.0, "2": 0.5},
        "epoch": 3,
        "slices": {"0": [[0, 8]]},
        "samples_total": 100,
        "steps_per_epoch": 0,
        "kind": 0,
    }


def test_what_the_script_logs_is_in_the_metrics(tmp_path: Any) -> None:
    with node_rig(prepared=True, run_dir=tmp_path) as (core, stage):
        stage.trainer.send(
            control.Log('{"accuracy": 0.5}'),
            control.Log("[1]"),
            control.ScriptPlan(400, "/ckpt", 50),
            control.Close("finished"),
        )
        core.wait_for(events.Stop)
    lines = [
        json.loads(line)
        for line in (tmp_path / "peer-0" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["accuracy"] for line in lines] == [0.5]
    told = [
        json.loads(line) for line in (tmp_path / "peer-0" / "events.jsonl").read_text().splitlines()
    ]
    assert [line["event"] for line in told[1:]] == [
        "started",
        "metrics",
        "error",
        "plan",
        "usage",
        "halted",
    ]
    assert [told[4][name] for name in ("steps", "folder", "every")] == [400, "/ckpt", 50]


def test_addresses_come_from_the_folder_and_the_own_goes_there(tmp_path: Any) -> None:
    core = FakeCore()
    seeds = tmp_path / "seeds"
    with NodeRig(core, run_dir=tmp_path, peers=3, peer=1) as stage:
        core.wait_for(events.Started)
        own = json.loads((seeds / "1.addr").read_text())
        assert own["control"] == stage.node.transport.control
        (seeds / "2.addr").write_text(
            '{"control": "tcp://127.0.0.1:9", "bulk": "tcp://127.0.0.1:10", "incarnation": 4, '
            '"pid": 1}'
        )
        learned = events.AddressLearned(2, "tcp://127.0.0.1:9", "tcp://127.0.0.1:10", 4)
        assert core.wait_for(events.AddressLearned) == learned


def test_the_core_is_told_of_a_peer_that_has_ended_for_good(tmp_path: Path) -> None:
    with node_rig(run_dir=tmp_path, peers=3, peer=1) as (core, _):
        core.wait(lambda: (tmp_path / "seeds" / "1.addr").exists())
        announce_end(tmp_path / "seeds", 2)
        assert core.wait_for(events.PeerEnded) == events.PeerEnded(2)
        assert core.count(events.AddressLearned) == 0


def test_a_member_of_a_stage_whose_update_nobody_needs_gets_every_round_all_the_same() -> None:
    with node_rig() as (core, rig):
        prepare = control.Prepare(4, b"layout", b"state", 8, activation_bytes=(8, 8))
        rig.trainer.send(prepare, fds=(rig.arena.fd,))
        core.wait_for(events.Prepared)
        assert len(core.wait_for(events.Prepared).lots) == 16
        for round_id in range(2 * control.UPDATE_SLOTS):
            core.say(events.StartRound(round_id, None))
            assert isinstance(rig.hear(), control.StartRoundCommand)
            core.say(events.Apply(round_id, ()))
            assert isinstance(rig.hear(), control.ApplyCommand)
            rig.trainer.send(control.AppliedReply(round_id, -1))
            core.wait_for(events.Applied, round_id)


def test_passes_of_audits_are_told_from_those_of_ones_own() -> None:
    with node_rig(prepared=True) as (core, rig):
        for audit in (True, False):
            core.say(events.RunForward(0, 2, 0, None, audit=audit))
            command = rig.hear()
            assert (command.micro_batch, command.backward, command.audit) == (2, False, audit)
            rig.trainer.send(control.PassReply(0, 2, 0, False, 0, audit=audit))
            rig.trainer.send(control.PassReply(0, 2, 0, True, 0, 4, None, audit))
        done = [core.wait_for(events.ForwardDone, 1), core.wait_for(events.BackwardDone, 1)]
        assert [each.audit for each in done] == [False, False]
        first = core.wait_for(events.ForwardDone), core.wait_for(events.BackwardDone)
        assert [each.audit for each in first] == [True, True]
