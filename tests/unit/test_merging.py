"""Lines that peers write alike are shown once; none is lost, held for long, or put before another
of the same peer."""

from __future__ import annotations

from random import Random

import pytest

from gossip.launch.report.merging import (
    HOLD_S,
    PENDING_MAX,
    PeerOutput,
    SharedLine,
    label,
)
from gossip.launch.report.run_model import RunModel


def told(lines: list[SharedLine]) -> list[tuple[str, list[int]]]:
    return [(each.text, sorted(each.peers)) for each in lines]


def view_of(**states: str) -> RunModel:
    view = RunModel(len(states))
    for peer, state in enumerate(states.values()):
        view.rows[peer].state = state  # type: ignore[assignment]
    return view


def output_of(peers: int) -> PeerOutput:
    """Of a run whose peers all train."""
    output = PeerOutput()
    output.poll_lines(view_of(**dict.fromkeys("abcd"[:peers], "training")), 0.0)
    return output


def test_a_line_is_shown_when_the_last_peer_has_written_it() -> None:
    merger = output_of(3)
    assert merger.wrote(1, "accuracy 0.93", False, 0.0) == []
    assert merger.wrote(0, "accuracy 0.93", False, 0.1) == []
    assert told(merger.wrote(2, "accuracy 0.93", False, 0.2)) == [("accuracy 0.93", [0, 1, 2])]


def test_lines_that_differ_come_with_their_peers_and_none_waits_longer_than_it_may() -> None:
    merger = output_of(2)
    assert merger.wrote(0, "a", False, 0.0) == []
    assert merger.wrote(1, "b", False, 0.5) == []
    assert merger.poll_lines(view_of(a="training", b="training"), HOLD_S - 0.01) == []
    assert told(merger.poll_lines(view_of(a="training", b="training"), HOLD_S)) == [("a", [0])]
    assert told(merger.poll_lines(view_of(a="training", b="training"), HOLD_S + 0.5)) == [
        ("b", [1])
    ]


def test_what_came_before_a_line_that_is_due_is_shown_before_it() -> None:
    merger = output_of(2)
    merger.wrote(0, "own", False, 0.0)
    merger.wrote(0, "alike", False, 0.0)
    assert told(merger.wrote(1, "alike", False, 0.1)) == [("own", [0]), ("alike", [0, 1])]


def test_an_equal_line_before_ones_own_last_is_another_line() -> None:
    merger = output_of(3)
    merger.wrote(0, "a", False, 0.0)
    merger.wrote(1, "b", False, 0.0)
    merger.wrote(1, "a", False, 0.0)
    assert told(merger.rest()) == [("a", [0]), ("b", [1]), ("a", [1])]


def test_stdout_and_stderr_are_not_joined() -> None:
    merger = output_of(2)
    merger.wrote(0, "a", False, 0.0)
    assert told(merger.wrote(1, "a", True, 0.0)) == []
    assert len(merger.rest()) == 2


def test_no_more_lines_wait_than_are_allowed() -> None:
    merger, shown = output_of(2), list[SharedLine]()
    for number in range(PENDING_MAX + 10):
        shown += merger.wrote(0, f"{number}", False, 0.0)
    assert [each.text for each in shown] == [f"{number}" for number in range(10)]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_peers_write_each_ones_lines_are_all_shown_in_their_order(seed: int) -> None:
    draw, now, merger = Random(seed), 0.0, output_of(4)
    view = view_of(**dict.fromkeys("abcd", "training"))
    running, shown = set(range(4)), list[SharedLine]()
    wrote: dict[int, list[str]] = {peer: [] for peer in running}
    for _ in range(400):
        now += draw.random() * 0.1
        if len(running) > 1 and draw.random() < 0.005:
            running.discard(ended := draw.choice(sorted(running)))
            view.rows[ended].state = "gone"
            shown += merger.poll_lines(view, now)
        peer, text = draw.choice(sorted(running)), draw.choice("abc")
        wrote[peer].append(text)
        shown += merger.wrote(peer, text, False, now)
        for each in (found := merger.poll_lines(view, now)):
            assert now - each.since < HOLD_S + 0.1
        shown += found
    shown += merger.rest()
    for peer, texts in wrote.items():
        assert [each.text for each in shown if peer in each.peers] == texts
    assert sum(len(each.peers) for each in shown) == sum(map(len, wrote.values()))


def test_nobody_waits_for_a_peer_that_has_died() -> None:
    output = PeerOutput()
    output.poll_lines(view_of(a="training", b="training", c="training"), 0.0)
    output.wrote(2, "x", False, 0.0)
    output.wrote(0, "x", False, 0.0)
    (shown,) = output.poll_lines(view_of(a="training", b="gone", c="training"), 0.1)
    assert (label(shown, output.everybody(shown)), shown.text) == ("all|", "x")


def test_who_is_done_before_the_others_write_is_one_of_all() -> None:
    output = PeerOutput()
    output.poll_lines(view_of(a="training", b="training"), 0.0)
    output.wrote(0, "x", False, 0.0)
    assert output.poll_lines(view_of(a="done", b="training"), 0.1) == []
    (shown,) = output.wrote(1, "x", False, 0.2)
    assert label(shown, output.everybody(shown)) == "all|"


def test_a_label_names_who_wrote_it() -> None:
    output = PeerOutput()
    output.poll_lines(view_of(a="training", b="training", c="training", d="training"), 0.0)
    some, one = SharedLine("", False, [1, 3, 2], 0.0), SharedLine("", False, [2], 0.0)
    assert label(some, output.everybody(some)) == "1-3|"
    assert label(one, output.everybody(one)) == "2|"


def test_each_line_is_shown_at_once() -> None:
    view = view_of(a="training", b="training", c="training")
    output = PeerOutput("all")
    output.poll_lines(view, 0.0)
    lines = [each for peer in (1, 0, 2) for each in output.wrote(peer, "x", False, 0.0)]
    assert [each.peers for each in lines] == [[1], [0], [2]]
