"""The node's parts, one by one: timers, oversleeping, the journal, the folder of addresses,
faults, finiteness."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_fakes import socket_pair

from gossip import aggregators
from gossip.core.events import Aggregate, Aggregated, Committed, LinkUp, Payload, Row
from gossip.core.messages import Commit
from gossip.errors import BadFault
from gossip.faults.plan import parse
from gossip.inject.process import FaultInjector
from gossip.inject.update_attacks import UpdateAttack
from gossip.node.alarms import StallDetector, TimerHeap, piled_up
from gossip.node.reducer import Reducer, ResultMaker
from gossip.node.worker import Worker
from gossip.run import journal as node_files
from gossip.run.journal import Journal
from gossip.run.rendezvous import Seed, SeedFolder, announce_end, parse_seed
from gossip.run.telemetry import json_line
from gossip.vectors.finite import is_finite

# --- timers ---------------------------------------------------------------------------------------


def test_alarms_come_in_order_and_only_when_due() -> None:
    alarms = TimerHeap()
    for token, at in ((1, 3.0), (2, 1.0), (3, 2.0)):
        alarms.set(token, at)
    assert alarms.next_at() == 1.0
    assert list(alarms.due(2.0)) == [2, 3]
    assert (alarms.next_at(), len(alarms)) == (3.0, 1)


def test_an_alarm_that_an_earlier_one_cancels_does_not_come() -> None:
    alarms = TimerHeap()
    alarms.set(1, 1.0)
    alarms.set(2, 1.5)
    due = alarms.due(2.0)
    assert next(due) == 1
    alarms.cancel(2)
    assert list(due) == []
    assert alarms.next_at() is None


def test_an_alarm_set_while_others_fire_waits_for_the_next_turn() -> None:
    alarms = TimerHeap()
    alarms.set(1, 1.0)
    fired = []
    for token in alarms.due(5.0):
        fired.append(token)
        alarms.set(token + 1, 0.5)
    assert fired == [1], "a timer that sets itself again would keep the loop for ever"
    assert list(alarms.due(5.0)) == [2]


def test_cancelled_alarms_do_not_pile_up() -> None:
    alarms = TimerHeap()
    for token in range(10_000):
        alarms.set(token, 1e9)
        alarms.cancel(token)
    assert len(alarms._heap) < 200


def test_being_a_little_late_is_nothing_and_being_very_late_is_told() -> None:
    sleep = StallDetector(0.2, 10.0)
    sleep.expect(10.1)
    assert sleep.measure_delay(10.25) == 0.0
    sleep.expect(10.3)
    assert sleep.measure_delay(11.3) == pytest.approx(1.0)


@pytest.mark.parametrize(("late_s", "turns"), [(0.3, 3), (10.0, 4)])
def test_who_stood_still_reads_on_for_a_while_only(late_s: float, turns: int) -> None:
    """On a busy machine each look takes longer than it is to take: ten of them took 0.5 s, during
    which no timer fired."""
    now = 0.0

    def poll(wait_s: float) -> list[LinkUp]:
        nonlocal now
        now += 0.05
        return [LinkUp(1)]

    assert len(list(piled_up(poll, late_s, lambda: now))) == turns


def test_it_goes_on_when_nothing_more_comes() -> None:
    assert list(piled_up(lambda wait_s: [], 10.0, lambda: 0.0)) == []


# --- the journal ----------------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


def a_round(number: int, **fields: Any) -> dict[str, Any]:
    return {"round": number, "attempt": 0, "alive": 3, "contributors": [0, 1, 2], **fields}


def test_ordinary_rounds_are_throttled_and_special_ones_are_not(tmp_path: Path) -> None:
    journal = Journal(0, tmp_path)
    for number in range(100):
        journal.event("round", **a_round(number))
    journal.event("round", **a_round(100, attempt=1))
    journal.event("round", **a_round(101, contributors=[0, 1]))
    journal.event("round", **a_round(102, contributors=[0, 1], alive=2))
    journal.event("round", **a_round(103, contributors=[0, 1], alive=2))
    journal.event("skip", subject=1)
    journal.close()
    told = lines(tmp_path / "events.jsonl")
    assert [line.get("round") for line in told] == [0, 100, 101, 102, None]


def test_the_last_metrics_are_sent_in_order_before_the_journal_ends(tmp_path: Path) -> None:
    journal = Journal(0, tmp_path)
    for number in range(20):
        journal.metrics(json.dumps({"loss": number}), number)
    journal.metrics('{"loss": 20, "accuracy": 0.5}', 20)
    journal.metrics('{"loss": 21}', 21)
    journal.event("halted")
    journal.metrics('{"loss": 22}', 22)
    journal.close()
    told = lines(tmp_path / "events.jsonl")
    assert [line.get("loss") for line in told] == [0, 20, 21, None, 22]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 23


def test_the_last_metrics_are_sent_while_the_peer_still_runs(tmp_path: Path) -> None:
    journal = Journal(0, tmp_path)
    for number in range(3):
        journal.metrics(json.dumps({"loss": number}), number)
    time.sleep(0.11)
    journal.flush()
    assert [line["loss"] for line in lines(tmp_path / "events.jsonl")] == [0, 2]
    journal.close()


def told_of(path: Path) -> list[tuple[int, int]]:
    """Of each line on rounds: since which one it holds, and which it is."""
    rows = [row for row in lines(path / "events.jsonl") if row["event"] == "round"]
    return [(row.get("since", row["round"]), row["round"]) for row in rows]


@pytest.fixture
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on by a millisecond whenever the journal looks at it."""
    clock = itertools.count(1000)
    monkeypatch.setattr(node_files.time, "monotonic", lambda: next(clock) / 1000)


@pytest.mark.usefixtures("short_rounds")
def test_a_line_says_since_which_round_all_were_like_it(tmp_path: Path) -> None:
    journal = Journal(0, tmp_path)
    for number in range(10):
        who = [0, 1] if number in (4, 9) else [0, 1, 2]
        journal.event("round", **a_round(number, contributors=who))
    journal.event("round", **a_round(10, contributors=[0, 1]))
    journal.event("round", **a_round(11, contributors=[0, 1], attempt=1))
    journal.close()
    assert told_of(tmp_path) == [(0, 0), (1, 3), (4, 4), (5, 5), (6, 8), (9, 9), (10, 11)]
    told = lines(tmp_path / "events.jsonl")
    assert [len(row["contributors"]) for row in told] == [3, 3, 2, 3, 3, 2, 2]
    assert [row["t"] for row in told] == sorted([row["t"] for row in told])
    (line,) = [row for row in told if row["round"] == 8]
    assert list(line)[4:6] == ["round", "since"], "all peers tell the same from contributors on"


@pytest.mark.usefixtures("short_rounds")
def test_a_line_holds_for_no_round_that_the_peer_has_not_had(tmp_path: Path) -> None:
    """It has taken over a state, or a later one without a word."""
    journal = Journal(0, tmp_path)
    for number in (0, 1, 2):
        journal.event("round", **a_round(number))
    journal.event("restored", round=7)
    for number in (7, 8, 9, 20, 21, 22):
        journal.event("round", **a_round(number))
    journal.event("halted")
    journal.close()
    assert told_of(tmp_path) == [(0, 0), (1, 2), (7, 7), (8, 9), (20, 20), (21, 22)]


@pytest.mark.usefixtures("short_rounds")
def test_a_line_holds_for_steps_or_for_collective_operations(tmp_path: Path) -> None:
    journal = Journal(0, tmp_path)
    for number, step in enumerate((1, 2, 3, 3, 3, 3, 4, 5)):
        journal.event("round", **a_round(number, contributors=[], step=step))
    journal.event("halted")
    journal.close()
    assert told_of(tmp_path) == [(0, 0), (1, 2), (3, 3), (4, 5), (6, 6), (7, 7)]


@pytest.mark.usefixtures("short_rounds")
def test_a_peer_that_is_started_again_tells_of_its_own_rounds_only(tmp_path: Path) -> None:
    for first in (0, 8):
        journal = Journal(0, tmp_path)
        for number in range(first, first + 3):
            journal.event("round", **a_round(number))
        journal.close()
    journal = Journal(0, tmp_path)
    journal.event("round", **a_round(20))
    journal.close()
    assert told_of(tmp_path) == [(0, 0), (8, 8), (20, 20)]


@pytest.mark.parametrize("name", ["halted", "paused", "recovering", "restored"])
def test_the_last_round_before_a_peer_leaves_them_is_told(name: str, tmp_path: Path) -> None:
    journal = Journal(0, tmp_path)
    for number in range(3):
        journal.event("round", **a_round(number))
    journal.event(name)
    journal.event("halted")
    journal.close()
    told = lines(tmp_path / "events.jsonl")
    assert [(line["event"], line.get("round")) for line in told] == [
        ("round", 0),
        ("round", 2),
        (name, None),
        ("halted", None),
    ]
    assert [line["t"] for line in told] == sorted([line["t"] for line in told])


def committed(round_id: int, server: int, made: bool = False) -> Committed:
    commit = Commit(
        b"l" * 8, round_id, 0, 0, 0, server, b"p" * 16, b"d" * 16, (), (), (0, 1, 2), None, ""
    )
    return Committed(commit, b"c" * 16, made)


def test_commits_of_one_who_may_have_been_killed_before_it_wrote_them_are_written_by_the_others(
    tmp_path: Path,
) -> None:
    journal = Journal(0, tmp_path)
    for number in range(9):
        journal.commit(committed(number, number % 3, made=number % 3 == 0))
    journal.event("skip", subject=2)
    journal.commit(committed(9, 2))  # it comes by way of somebody else
    journal.commit(committed(10, 1))
    journal.event("unskip", subject=2)
    journal.commit(committed(11, 2))
    journal.close()
    told = lines(tmp_path / "commits.jsonl")
    assert sorted(line["round"] for line in told if line["server"] == 0) == [0, 3, 6]
    assert [line["round"] for line in told if line["server"] == 2] == [2, 5, 8, 9]
    assert not [line for line in told if line["server"] == 1]


def test_what_another_made_long_ago_is_in_its_own_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal, now = Journal(0, tmp_path), time.monotonic()
    monkeypatch.setattr(node_files.time, "monotonic", lambda: now)
    journal.commit(committed(1, 2))
    now += node_files.UNWRITTEN_S
    journal.commit(committed(2, 2))
    journal.event("dead", subject=2)
    journal.close()
    assert [line["round"] for line in lines(tmp_path / "commits.jsonl")] == [2]


def test_bytes_become_hex_and_what_json_does_not_know_null() -> None:
    assert json.loads(
        json_line({"a": b"\1\2", "b": float("nan"), "c": [float("inf"), 1.5], "d": np.float32(2)})
    ) == {"a": "0102", "b": None, "c": [None, 1.5], "d": 2.0}


def test_a_launcher_that_does_not_read_costs_bounded_memory_and_hears_of_the_gap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_files, "STATUS_BACKLOG_BYTES", 2000)
    launcher, status = socket_pair()
    journal = Journal(0, tmp_path, status)
    for number in range(20_000):
        journal.event("skip", subject=number, filler="x" * 100)
    assert len(journal._backlog) <= 2000
    heard: list[str] = []

    def read() -> None:
        heard.extend(json.loads(line)["event"] for line in launcher.makefile())

    reader = threading.Thread(target=read)
    reader.start()
    journal.flush(wait_s=10)
    journal.event("skip", subject=-1)
    journal.close(wait_s=10)
    reader.join(20)
    assert len(heard) < 20_000
    assert heard[-2:] == ["error", "skip"]
    assert len(lines(tmp_path / "events.jsonl")) == 20_001


def test_a_launcher_that_is_gone_does_not_stop_the_files(tmp_path: Path) -> None:
    launcher, status = socket_pair()
    journal = Journal(0, tmp_path, status)
    launcher.close()
    for number in range(3):
        journal.event("skip", subject=number)
    journal.close()
    assert [line["subject"] for line in lines(tmp_path / "events.jsonl")] == [0, 1, 2]


def test_a_second_life_appends_to_the_files_of_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        journal = Journal(0, tmp_path)
        journal.event("skip", subject=1)
        journal.close()
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 3


# --- addresses ------------------------------------------------------------------------------------


def test_peers_find_each_other_in_the_folder_also_after_a_move(tmp_path: Path) -> None:
    one, other = SeedFolder(tmp_path / "seeds", 0, 2), SeedFolder(tmp_path / "seeds", 1, 2)
    one.announce("tcp://a:1", "tcp://a:2", 0)
    assert other.poll_seeds(0.0, False) == [Seed(0, "tcp://a:1", "tcp://a:2", 0)]
    assert other.poll_seeds(0.2, False) == []
    one.announce("tcp://b:1", "tcp://b:2", 1)
    assert other.poll_seeds(0.25, False) == [], "not before its time"
    assert other.poll_seeds(0.4, True) == [Seed(0, "tcp://b:1", "tcp://b:2", 1)]
    one.announce("tcp://c:1", "tcp://c:2", 2)
    assert other.poll_seeds(1.0, True) == [], "all are there: it looks less often"
    assert other.poll_seeds(2.5, True) == [Seed(0, "tcp://c:1", "tcp://c:2", 2)]


def test_whoever_starts_the_peers_says_in_the_folder_that_one_has_ended(tmp_path: Path) -> None:
    one, other = SeedFolder(tmp_path / "seeds", 0, 2), SeedFolder(tmp_path / "seeds", 1, 2)
    announce_end(tmp_path / "seeds", 0)  # before anybody was there to be told
    assert not (tmp_path / "seeds").exists()
    one.announce("tcp://a:1", "tcp://a:2", 3)
    assert [seed.ended for seed in other.poll_seeds(0.0, False)] == [False]
    announce_end(tmp_path / "seeds", 0)
    assert [(seed.peer, seed.ended) for seed in other.poll_seeds(0.2, False)] == [(0, True)]
    assert one.next_incarnation(0) == 4, (
        "whoever gets this id next must be told from the last that had it"
    )


def test_a_node_started_again_has_a_higher_incarnation_than_any_before(tmp_path: Path) -> None:
    folder = SeedFolder(tmp_path, 0, 2)
    assert folder.next_incarnation(0) == 0
    folder.announce("a", "b", 3)
    assert folder.next_incarnation(1) == 4
    assert folder.next_incarnation(9) == 9


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"control": 1}', '{"control": "a", "bulk": "b", "incarnation": -1}', "\xff"],
)
def test_what_is_no_address_is_left_alone(text: str) -> None:
    assert parse_seed(3, text.encode("latin-1")) is None


# --- faults ---------------------------------------------------------------------------------------


def test_a_fault_that_would_hit_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFault, match="shares its process group"):
        in_thread(lambda: FaultInjector(parse("hang:0@5+1s"), 0, 0, tmp_path, Journal(0, None)))


def in_thread(call: Any) -> None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again below
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if caught:
        raise caught[0]


def test_a_peer_that_the_plan_does_not_name_may_share_its_group(tmp_path: Path) -> None:
    in_thread(lambda: FaultInjector(parse("crash:4@5"), 0, 0, tmp_path, Journal(0, None)))


def test_a_liar_about_labels_sends_what_it_has() -> None:
    assert not UpdateAttack(parse("label_flip:0"), 0, 1).lies
    assert not UpdateAttack(parse("sign_flip:0"), 1, 1).lies
    assert UpdateAttack(parse("sign_flip:0"), 0, 1).lies


def test_a_stale_liar_replays_each_stream_by_itself() -> None:
    update_attack = UpdateAttack(parse("stale:0*1"), 0, 1)
    for number in range(4):
        update = update_attack.tamper_with(np.full(2, number, np.float32), number, "update")
        parameters = update_attack.tamper_with(
            np.full(2, 10 + number, np.float32), number, "parameters"
        )
    assert (update[0], parameters[0]) == (2, 12)


# --- reducing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [
        ([], True),
        ([1.0, -2.0], True),
        ([3e38] * 4, True),
        ([np.inf, -np.inf], False),
        ([np.nan], False),
        ([1.0, np.inf], False),
    ],
)
def test_finiteness_is_found_where_the_sum_overflows(numbers: list[float], finite: bool) -> None:
    assert is_finite(np.array(numbers, np.float32)) is finite


def test_scores_beyond_all_bounds_are_told_as_numbers_that_a_message_may_hold() -> None:
    heard = ResultMaker().answer(
        1, np.ones(2, np.float32), (1.0, float("nan")), (float("inf"), 1.0)
    )
    assert np.isfinite([*heard.weights, *heard.outlyingness]).all()


def test_an_exception_in_the_worker_is_raised_in_the_loop() -> None:
    worker = Worker()
    worker.submit(lambda: 1 // 0, lambda result: None)
    assert os.read(_blocking(worker.fd), 1)
    worker.wake()
    with pytest.raises(ZeroDivisionError):
        worker.finish()
    worker.close()
    worker.wake()


def _blocking(fd: int) -> int:
    os.set_blocking(fd, True)
    return fd


@pytest.mark.parametrize("name", ["mean", "krum", "trimmed_mean"])
def test_the_own_update_has_the_share_that_is_asked_for(name: str) -> None:
    answers: list[Aggregated] = []
    worker = Worker()
    try:
        reducer = Reducer(aggregators.load(name), worker, answers.append, centered=True)
        updates = [np.full(10, value, np.float32) for value in (2.0, 4.0, 6.0)]
        rows = tuple(Row(peer, payload(update), 1) for peer, update in enumerate(updates))
        for share in (0.0, 0.25):
            reducer.reduce(Aggregate(1, 0, 0, rows, 0, own=2, own_share=share))
    finally:
        worker.close()
    plain, leaning = [said.payload for said in answers]
    assert leaning.data == pytest.approx(0.75 * plain.data + 0.25 * updates[2])
    assert [list(update) for update in updates] == [[2.0] * 10, [4.0] * 10, [6.0] * 10]


def payload(data: np.ndarray) -> Payload:
    return Payload(data, data.nbytes)
