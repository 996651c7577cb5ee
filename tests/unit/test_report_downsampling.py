"""Columns of numbers, and how they become the points of a picture."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from gossip.launch.report import words
from gossip.launch.report.html import curves, figures
from gossip.launch.report.html.columns import CommitColumns, Series
from gossip.launch.report.html.downsampling import Buckets
from gossip.launch.report.peer_row import TotalCount
from gossip.observe import CommitRow, read_commits


def columns_of(commits: Iterable[CommitRow]) -> CommitColumns:
    found = CommitColumns()
    for commit in commits:
        found.add(commit)
    found.settle()
    return found


def test_each_part_of_the_time_has_the_mean_of_its_values_and_a_gap_has_none() -> None:
    buckets = Buckets(4.0, 4)
    x, y = np.array([0.1, 0.2, 1.5, 3.9]), np.array([1.0, 3.0, 5.0, 7.0])
    np.testing.assert_array_equal(buckets.means(x, y), [2.0, 5.0, np.nan, 7.0])
    np.testing.assert_array_equal(buckets.centers, [0.5, 1.5, 2.5, 3.5])


def test_values_that_come_seldom_are_joined_and_a_long_silence_is_a_gap() -> None:
    buckets = Buckets(60.0, 60)
    x = np.array([0.5, 10.5, 20.5, 59.5])
    curve = buckets.curve(x, np.array([0.0, 10.0, 20.0, 30.0]))
    np.testing.assert_allclose(curve[[0, 5, 10, 20]], [0.0, 5.0, 10.0, 20.0])
    assert np.isnan(curve[21:59]).all()
    dense = buckets.curve(np.append(np.arange(30), 40.0), np.ones(31))
    assert np.isfinite(dense[:30]).all()
    assert np.isnan(dense[30:40]).all()


def test_a_spike_of_one_round_in_a_hundred_thousand_is_the_longest_of_its_part() -> None:
    buckets = Buckets(100_000.0)
    x = np.arange(100_000.0)
    y = np.ones(100_000)
    y[54_321] = 9.0
    longest = buckets.quantile(x, y, 1.0)
    assert (longest == 9.0).sum() == 1
    assert longest[int(54_321 / buckets.width)] == 9.0
    np.testing.assert_array_equal(buckets.quantile(x, y, 0.5), np.ones(buckets.count))


def test_what_lies_outside_is_in_the_nearest_part_and_a_run_without_duration_has_one() -> None:
    buckets = Buckets(2.0, 2)
    np.testing.assert_array_equal(buckets.of(np.array([-1.0, 5.0])), [0, 1])
    np.testing.assert_array_equal(Buckets(0.0, 2).of(np.array([3.0])), [0])


def test_trust_holds_until_it_changes_and_its_lowest_value_is_not_lost() -> None:
    buckets = Buckets(4.0, 4)
    held = buckets.held(np.array([1.1, 2.2, 2.6]), np.array([1.0, 0.1, 0.8]))
    np.testing.assert_array_equal(held, [np.nan, 1.0, 0.1, 0.8])


def test_a_swarm_is_its_mean_between_the_lowest_and_the_highest_of_those_that_logged() -> None:
    nan = np.nan
    rows = {1: np.array([1.0, 2.0, nan, nan]), 4: np.array([3.0, nan, 5.0, nan])}
    line = curves.swarm_line(rows, np.arange(4.0))
    np.testing.assert_array_equal(line.y, [2.0, 2.0, 5.0, nan])
    np.testing.assert_array_equal(line.low, [1.0, 2.0, 5.0, nan])
    np.testing.assert_array_equal(line.high, [3.0, 2.0, 5.0, nan])
    assert line.name.startswith("mean of up to 2 peers"), "not all have a value at each time"
    assert curves.swarm_line({1: line.x, 4: line.x}, line.x).name.startswith("mean of 2 peers")
    alone = curves.swarm_line({3: np.array([7.0])}, np.zeros(1))
    assert (alone.name, alone.low, alone.y.tolist()) == ("peer 3", None, [7.0])


def test_a_counter_that_begins_anew_goes_on_from_its_total() -> None:
    total = TotalCount()
    for value in (10, 30, 5, 7):
        total.record(value)
    assert total.total == 37


def test_what_is_no_number_is_counted_and_left_out() -> None:
    series = Series()
    logged = series.logged
    logged.add({"t": 1.0, "peer": 0, "round": 0, "loss": None, "word": "x", "accuracy": 0.5})
    logged.add({"t": 2.0, "peer": 0, "round": 1, "loss": 0.25})
    assert list(series.metrics) == ["loss", "accuracy"]
    assert logged.lost["loss"] == 1
    np.testing.assert_array_equal(logged.found["loss"].by_time.y(0), [0.25])
    np.testing.assert_array_equal(logged.found["loss"].by_round.x(0), [1.0])


def commit(round_id: int, took_us: dict[int, int], **fields: object) -> dict[str, object]:
    return {
        "t": 10.0 + round_id,
        "round": round_id,
        "lineage": "aa",
        "server": 0,
        "digest": f"d{round_id}",
        "chain": f"h{round_id}",
        "parent": f"h{round_id - 1}",
        "contributors": [{"peer": p, "took_us": t, "weight": 0.5} for p, t in took_us.items()],
        **fields,
    }


def columns_from(rows: list[dict[str, object]]) -> CommitColumns:
    return columns_of(read_commits(rows))


def test_the_slowest_of_each_round_is_who_took_longest() -> None:
    rows = [commit(0, {0: 1000, 1: 3000, 2: 2000}), commit(1, {0: 5000, 2: 2000}), commit(2, {})]
    who, longest = columns_from(rows).slowest()
    assert who.tolist() == [1, 0, -1]
    np.testing.assert_allclose(longest, [0.003, 0.005, np.nan])


def test_a_commit_counts_once_and_a_branch_that_was_given_up_does_not() -> None:
    main = [commit(at, {0: 1000, 1: 1000, 2: 1000}) for at in range(6)]
    side = [
        commit(
            at,
            {3: 1000},
            chain=f"s{at}",
            digest=f"e{at}",
            parent=f"{'h' if at == 3 else 's'}{at - 1}",
        )
        for at in (3, 4)
    ]
    columns = columns_from([*main, *side, *main])
    assert columns.round.tolist() == [0, 1, 2, 3, 4, 5]
    assert set(columns.who.tolist()) == {0, 1, 2}
    assert [branch.first for branch in columns.given_up] == [3]
    assert np.isnan(columns.lasted_s[0])
    assert columns.lasted_s[1:].tolist() == [1.0] * 5


def test_an_uneven_number_of_contributors_keeps_its_rows_with_their_commits() -> None:
    columns = columns_from([commit(1, {5: 7000}), commit(0, {0: 1000, 1: 2000})])
    assert columns.round.tolist() == [0, 1]
    assert columns.who[columns.of == 1].tolist() == [5]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0:00.0"), (9.96, "0:10.0"), (61.25, "1:01.2"), (3600.0, "1:00:00.0")],
)
def test_a_moment_is_said_to_a_tenth_of_a_second(seconds: float, said: str) -> None:
    assert words.clock(seconds, exact=True) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.08612, "0.0861"), (1234.0, "1,234"), (2.1e9, "2.1e+09"), (10.0004, "10"), (None, "-")],
)
def test_a_number_has_three_digits_that_matter(value: float | None, said: str) -> None:
    assert figures.number(value) == said


def test_many_peers_are_named_by_their_ranges() -> None:
    assert figures.peers([3]) == "peer 3"
    assert figures.peers([4, 0, 1, 2, 7, 8]) == "peers 0-2,4,7,8"
    assert figures.peers(range(0, 40, 2)).endswith("and 14 more")


@pytest.mark.parametrize("duration_s", [0.5, 7.0, 300.0, 86_400.0, 9e6])
def test_a_time_axis_has_a_few_round_ticks(duration_s: float) -> None:
    ticks = figures.time_ticks(duration_s)
    assert 1 <= len(ticks) <= 7
    assert ticks[0] == 0.0
    assert ticks[-1] <= duration_s
