"""Collective operations: what peers give, what all make of it, and where a call is made."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch
from test_doubts import ResultBench

from gossip.core import COLLECTED_BYTES_MAX
from gossip.core.events import Contributed, Payload, Report
from gossip.core.ledger.replicated_state import ReplicatedState
from gossip.core.messages import Collected, Commit, Contribution, Update
from gossip.core.rounds.shard import ShardRound
from gossip.core.settings import CoreSettings
from gossip.errors import ConfigError
from gossip.training.collective_calls import CollectiveCalls
from gossip.training.collectives import (
    ANSWERS_KEPT,
    BEGINNING,
    CollectiveAnswers,
    Collectives,
    RunOver,
    after_epoch,
    before_epoch,
    bytes_max,
    means_of,
    numbers_of,
    pack_object,
    packed,
    plain_of,
    write_whole,
)

PLAIN = [None, True, 7, -(2**40), 0.5, "text", b"bytes", [1, [2, {"a": None}]], {"a": 1, 3: [4.0]}]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_comes_back(value: Any) -> None:
    assert plain_of(pack_object(value)) == value


def run_of(peer: int, f: int = 0, told: list[str] | None = None) -> Any:
    """The run of a peer, with the texts that it prints in ``told``."""
    return SimpleNamespace(
        peer=peer,
        config=SimpleNamespace(f=f, peers_max=4),
        answers=CollectiveAnswers(f),
        view=SimpleNamespace(alive=4),
        notify=[].append if told is None else told.append,
    )


def test_tensors_with_one_element_are_numbers_and_tuples_lists() -> None:
    assert plain_of(pack_object({"loss": torch.tensor(0.5), "at": (1, 2)})) == {
        "loss": 0.5,
        "at": [1, 2],
    }


@pytest.mark.parametrize(
    "value", [object(), torch.zeros(3), {(1, 2): 3}, {"a": {1, 2}}, 2**70], ids=range(5)
)
def test_other_data_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="only plain data"):
        pack_object(value)


def test_what_is_nested_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="nested more than 16 deep"):
        pack_object(endless)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\x91" * 5000, b"\x92\x01"]
)
def test_bytes_that_are_no_data_are_none(data: bytes) -> None:
    assert plain_of(data) is None


def test_too_much_is_refused_with_sizes_and_a_way_out() -> None:
    most = bytes_max(4)
    packed((0, 0, "gather"), b"x" * most, most)
    with pytest.raises(ConfigError, match=f"got {most + 1:,} bytes, but a peer can pass"):
        packed((0, 0, "gather"), b"x" * (most + 1), most)
    assert 4 * len(packed((2**40, 99, "broadcast"), b"x" * most, most)) <= COLLECTED_BYTES_MAX


def test_a_number_is_a_number() -> None:
    assert numbers_of({"a": 1, "b": torch.tensor([2.5])}) == {"a": 1.0, "b": 2.5}
    for value in ("1", True, torch.zeros(2), None):
        with pytest.raises(ConfigError, match=r"mean\(a=...\)"):
            numbers_of({"a": value})


# --- the mean -------------------------------------------------------------------------------------


def given(*rows: Any) -> dict[int, bytes]:
    return {peer: pack_object(row) for peer, row in enumerate(rows)}


def test_the_mean_is_that_of_all_who_gave_these_numbers() -> None:
    means = means_of(given({"a": 1, "b": 4}, {"a": 2.0, "b": 6.0}, {"a": 3}, "junk"), ["a", "b"], 0)
    assert means == {"a": 1.5, "b": 5.0}
    assert means.peers == (0, 1)


@pytest.mark.parametrize("lie", [1e300, -1e300, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("liars", [1, 2])
def test_liars_move_the_mean_no_further_than_honest_numbers_reach(lie: float, liars: int) -> None:
    honest = [0.4, 0.5, 0.6, 0.45, 0.55]
    rows = [{"a": value} for value in honest] + [{"a": lie}] * liars
    assert min(honest) <= means_of(given(*rows), ["a"], liars)["a"] <= max(honest)


def test_with_too_few_for_that_it_is_the_median() -> None:
    assert means_of(given({"a": 1}, {"a": 2}, {"a": 900}), ["a"], 3)["a"] == 2.0
    assert means_of(given({"a": 1}, {"a": 3}), ["a"], 1)["a"] == 2.0


def test_of_nothing_there_is_no_mean() -> None:
    means = means_of({}, ["a"], 0)
    assert math.isnan(means["a"])
    assert means.peers == ()


def test_what_a_late_peer_would_give_is_not_made() -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return pack_object("own")

    found = Collectives(run_of(1), lambda data: False)
    answer = packed((BEGINNING, 0, "search"), pack_object("theirs"), 999)
    found.answers.collected([(0, answer)])
    assert found.objects("search", make) == {0: "theirs"}
    assert not made
    assert found.answered == (0,)


# --- where a call is made -------------------------------------------------------------------------


def test_calls_of_a_place_are_counted_and_those_of_the_next_begin_anew() -> None:
    answers = CollectiveAnswers()
    answers.reached(4)
    assert [answers.next_place("mean"), answers.next_place("any")] == [
        (4, 0, "mean"),
        (4, 1, "any"),
    ]
    answers.reached(4)
    assert answers.next_place("mean") == (4, 2, "mean")
    answers.reached(5)
    assert answers.next_place("mean") == (5, 0, "mean")


def test_the_first_commit_with_a_place_decides() -> None:
    answers, place = CollectiveAnswers(), (4, 0, "mean")
    answers.collected([(0, packed(place, b"a", 9)), (2, packed(place, b"c", 9))])
    answers.collected([(1, packed(place, b"late", 9))])
    assert answers.find(place) == {0: b"a", 2: b"c"}


def test_calls_before_behind_and_between_epochs_are_of_other_places() -> None:
    """And of none that a step has."""
    places = [place(epoch) for epoch in range(3) for place in (before_epoch, after_epoch)]
    assert len({*places, BEGINNING, *range(100)}) == 6 + 1 + 100


def test_what_is_no_call_is_left_out() -> None:
    answers, place = CollectiveAnswers(), (4, 0, "mean")
    junk = [b"", b"junk", msgpack.packb([1, 2]), msgpack.packb(["a", 0, "mean", b""])]
    answers.collected([(0, packed(place, b"a", 9)), *enumerate(junk, 1)])
    assert answers.find(place) == {0: b"a"}


def test_so_many_answers_are_kept_and_handed_over() -> None:
    answers = CollectiveAnswers()
    for at in range(ANSWERS_KEPT + 5):
        answers.collected([(0, packed((at, 0, "any"), b"x", 9))])
    assert answers.find((4, 0, "any")) is None
    other = CollectiveAnswers()
    other.adopt(answers.state())
    assert other.state() == answers.state()
    assert other.find((ANSWERS_KEPT + 4, 0, "any")) == {0: b"x"}
    for wrong in (7, [[1, 2]], [[1, 2, "any", [[0, "no hex"]]]]):
        with pytest.raises(ValueError, match="not a valid answer"):
            other.adopt(wrong)


def test_large_answers_are_not_kept_without_end() -> None:
    answers = CollectiveAnswers()
    for at in range(10):
        answers.collected([(0, packed((at, 0, "any"), b"x" * 20_000, 20_000))])
    assert answers.find((9, 0, "any")) is not None
    assert len(answers.state()) <= 2


# --- the operations -------------------------------------------------------------------------------


def calls_of(collectives: Collectives) -> CollectiveCalls:
    """The calls of a prepared script."""
    calls = CollectiveCalls()
    vars(calls)["_collective"] = lambda operation: collectives
    return calls


class Commits:
    """Stands for the rounds: each commits what is given, with what the others give."""

    def __init__(self, peer: int, f: int = 0, over: bool = False) -> None:
        self.peer, self.over = peer, over
        self.others: dict[int, Any] = {}
        self.operations = Collectives(run_of(peer, f), self.contribute)
        self.operations.answers.reached(0)
        self.calls = calls_of(self.operations)

    def contribute(self, data: bytes) -> bool:
        if self.over:
            raise RunOver
        at, calls, operation, _ = msgpack.unpackb(data)
        everybody = {self.peer: data}
        for peer, value in self.others.items():
            value = value(operation) if callable(value) else value
            if value is not None:
                everybody[peer] = packed((at, calls, operation), value, 10**6)
        self.operations.answers.collected(sorted(everybody.items()))
        return False


def test_any_needs_more_than_f() -> None:
    for f, true, answer in ((0, 1, True), (1, 1, False), (1, 2, True)):
        rounds = Commits(0, f)
        rounds.others = {peer: pack_object(peer <= true) for peer in (1, 2, 3)}
        assert rounds.calls.any(False) is answer
        assert rounds.operations.answered == (0, 1, 2, 3)


def test_broadcast_takes_the_value_of_the_lowest_who_gave_one() -> None:
    rounds = Commits(1)
    rounds.others = {0: pack_object(None), 2: pack_object("two"), 3: pack_object("three")}
    assert rounds.calls.broadcast(None) == "two"
    assert rounds.calls.broadcast("own") == "own"
    rounds.others = {}
    assert rounds.calls.broadcast(None) is None


def test_who_is_alone_with_the_end_of_the_run_answers_itself() -> None:
    rounds = Commits(2, over=True)
    assert rounds.calls.gather([1]) == {2: [1]}
    assert rounds.operations.answered == (2,)


def test_one_does_the_work_and_another_when_it_fails_or_dies() -> None:
    done: list[int] = []
    rounds = Commits(2)
    rounds.others = {0: b"", 3: b""}
    rounds.others[0] = lambda operation: b"" if operation == "once" else pack_object("disk full")
    assert rounds.operations.once(lambda: done.append(1)) == ""
    assert done == [1]
    # The lowest dies before it has answered that it is done.
    rounds.others[0] = lambda operation: b"" if operation == "once" else None
    assert rounds.operations.once(lambda: done.append(2)) == ""
    assert done == [1, 2]
    rounds.others[0] = lambda operation: b"" if operation == "once" else pack_object("")
    assert rounds.operations.once(lambda: done.append(3)) == ""
    assert done == [1, 2], "the other has done it"


def test_where_nobody_can_it_is_said_why() -> None:
    def fails() -> None:
        raise OSError(28, "No space left on device")

    rounds = Commits(2)
    rounds.others = {0: pack_object("No space left on device")}
    assert "No space left" in rounds.operations.once(fails)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "new" / "model"
    write_whole(place, b"one")
    write_whole(place, b"two")
    assert place.read_bytes() == b"two"
    assert [path.name for path in place.parent.iterdir()] == ["model"]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        write_whole(tmp_path / "file" / "below", b"three")


def test_f_liars_cannot_answer_for_a_place_that_is_to_come() -> None:
    """Else they would decide what the others find when they come there."""
    answers, place, to_come = CollectiveAnswers(f=1), (4, 0, "mean"), (6, 0, "mean")
    answers.collected(
        [(0, packed(place, b"a", 9)), (1, packed(place, b"b", 9)), (2, packed(to_come, b"lie", 9))]
    )
    assert answers.find(to_come) is None
    assert answers.find(place) == {0: b"a", 1: b"b"}


def test_a_call_that_nobody_else_makes_ends_and_is_told() -> None:
    told: list[str] = []
    given: list[bytes] = []

    def contribute(data: bytes) -> bool:
        given.append(data)
        return True  # the others train

    calls = calls_of(Collectives(run_of(1, 1, told), contribute))
    assert calls.gather("x") == {1: "x"}
    assert len(told) == 1
    assert told[0].startswith("gather has the answer of this peer alone")
    assert len(given) == 3


# --- in the core ----------------------------------------------------------------------------------


def answered(f: int, callers: int) -> ShardRound:
    """A shard that ``callers`` peers have called in, and peer 7 has given an update."""
    shard = ShardRound(0, (0, 1, 2))
    shard.serve(0)
    for peer in range(callers):
        call = Update(b"l", 0, 0, 0, b"", 0, None, collective=b"given")
        shard.served.answers[peer] = call, None
    update = Update(b"l", 0, 0, 0, b"", 8, None)
    shard.served.answers[7] = update, Payload(None, 4)
    shard.served.close((), (), f)
    return shard


@pytest.mark.parametrize("f", [0, 1, 2])
def test_an_operation_of_more_than_f_aggregates_nothing(f: int) -> None:
    """Else a single liar who gives an update in one would make the model."""
    shard = answered(f, callers=f + 1)
    assert shard.served.rows == ()
    assert [each.peer for each in shard.served.collected] == list(range(f + 1))


@pytest.mark.parametrize("f", [1, 2])
def test_f_peers_alone_make_no_operation_of_a_step(f: int) -> None:
    shard = answered(f, callers=f)
    assert [row.peer for row in shard.served.rows] == [7]
    assert len(shard.served.collected) == f, "they get their answer all the same"


def test_what_does_not_fit_a_commit_is_left_out() -> None:
    shard = ShardRound(0, (0, 1, 2))
    shard.serve(0)
    for peer, size in enumerate((10_000, 20_000, 10_000)):
        call = Update(b"l", 0, 0, 0, b"", 0, None, collective=b"x" * size)
        shard.served.answers[peer] = call, None
    shard.served.close((), (), 0)
    assert [each.peer for each in shard.served.collected] == [0, 2]


COLLECTIVE = Commit(b"l", 0, 0, 0, 0, 0, b"", b"", (), (), (0, 1, 2, 3), None, "nothing")
UPDATED = (Contribution(0, 8, 1.0, 1.0),)


@pytest.mark.parametrize(
    ("given", "sound"),
    [
        ({"collected": (Collected(0, b"a"), Collected(3, b"b"))}, True),
        ({"collected": (Collected(3, b"b"), Collected(0, b"a"))}, False),
        ({"collected": (Collected(0, b"a"), Collected(0, b"b"))}, False),
        ({"collected": (Collected(9, b"a"),)}, False),
        ({"collected": (Collected(0, b"x" * (COLLECTED_BYTES_MAX + 1)),)}, False),
        ({"collected": (Collected(0, b"a"),), "shard": 1}, False),
        ({"collected": (Collected(0, b"a"),), "digest": b"d" * 16, "contributors": UPDATED}, True),
        (
            {
                "collected": (Collected(0, b"a"), Collected(1, b"a")),
                "digest": b"d" * 16,
                "contributors": UPDATED,
            },
            False,
        ),
    ],
)
def test_which_commits_of_an_operation_are_sound(given: dict[str, Any], sound: bool) -> None:
    state = ReplicatedState(CoreSettings(b"r", b"l", 0, (0, 1, 2, 3), f=1))
    commit = dataclasses.replace(COLLECTIVE, **given)
    payload = Payload(None, 4, digest=commit.digest) if commit.digest else None
    assert state.is_sound(commit, payload) is sound


@pytest.mark.parametrize(
    ("gave", "says", "refused"),
    [(b"mine", b"mine", False), (b"mine", b"other", True), (b"", b"forged", True)],
)
def test_a_commit_that_misquotes_us_is_refused(gave: bytes, says: bytes, refused: bool) -> None:
    bench = ResultBench(n=4, f=1)
    collected = (Collected(0, b"a"), Collected(1, says))
    commit = dataclasses.replace(COLLECTIVE, collected=collected)
    instead = bench.judge_commit(0, commit, None, Contributed(0, 0, (), collective=gave))
    assert (instead is not None) is refused


@pytest.mark.parametrize(("collected", "refused"), [((), True), ((Collected(0, b"a"),), False)])
def test_who_learns_of_a_death_a_moment_later_takes_the_commit_of_an_operation(
    collected: tuple[Collected, ...], refused: bool
) -> None:
    """Real processes: a refusal left peer 0 with an answer of (0, 2, 3), the others with (2, 3)."""
    bench = ResultBench(n=4, f=1)
    commit = dataclasses.replace(COLLECTIVE, collected=collected, roster=(0, 1, 3))
    instead = bench.judge_commit(0, commit, None, Contributed(0, 0, (), collective=b"mine"))
    assert (instead is not None) is refused


def test_the_number_of_operations_is_handed_over() -> None:
    states = [ReplicatedState(CoreSettings(b"r", b"l", 0, (0, 1))) for _ in range(2)]
    for state in states:
        state.begin()
    commit = dataclasses.replace(
        COLLECTIVE, parent=states[0].lineage.head, roster=(0, 1), collected=(Collected(0, b"a"),)
    )
    effects = states[0].append(((commit, None),), [True], 2)
    (told,) = [each.fields for each in effects if isinstance(each, Report)]
    assert (told["round"], told["step"]) == (0, 0)
    states[0].begin()
    kept = states[0].snapshot(1)
    assert states[0].snapshot(0)[1] != kept[1]
    states[1].adopt(1, *kept)
    assert [state.collectives for state in states] == [1, 1]
