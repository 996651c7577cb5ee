"""What is known of a run and its peers, by the files of its folder."""

import json
from pathlib import Path

import pytest
from recorded_run import BEGAN, ROUNDS, RecordedRun

from gossip.launch.report.peer_row import PeerFigures
from gossip.launch.report.run_reader import RunReader


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    return RecordedRun(tmp_path / "run")


def read(run: RecordedRun) -> RunReader:
    reader = RunReader(run.folder)
    reader.update()
    return reader


def figures_of(reader: RunReader) -> dict[int, PeerFigures]:
    return {peer: row.figures for peer, row in reader.view.rows.items()}


def test_of_each_peer_it_is_known_what_it_has_contributed(run: RecordedRun) -> None:
    reader = read(run.whole())
    assert {peer: row.figures.contributed for peer, row in reader.view.rows.items()} == {
        0: 40,
        1: 30,
        2: 10,
        3: 40,
    }
    assert reader.view.rows[2].figures.participation == 0.25
    assert sum(row.figures.served for row in reader.view.rows.values()) == ROUNDS


def test_the_late_share_is_of_rounds_that_were_closed_without_it(run: RecordedRun) -> None:
    reader = read(run.whole())
    assert reader.view.rows[2].figures.late_share(ROUNDS - 1) == 30 / 40
    assert reader.view.rows[0].figures.late_share(ROUNDS - 1) == 0.0


def test_reading_on_comes_to_the_same_as_reading_at_once(run: RecordedRun) -> None:
    growing = RunReader(run.folder)
    for first in range(0, ROUNDS, 7):
        run.rounds(first, min(first + 7, ROUNDS))
        growing.update()
    at_once = read(run)
    assert figures_of(growing) == figures_of(at_once)
    assert list(growing.view.commits) == list(at_once.view.commits)
    assert list(growing.happenings) == list(at_once.happenings)


def test_a_commit_that_two_have_written_down_counts_once(run: RecordedRun) -> None:
    run.rounds(0, 5)
    written = (run.folder / "peer-0" / "commits.jsonl").read_text()
    (run.folder / "peer-3" / "commits.jsonl").write_text(written)
    reader = read(run)
    assert len(reader.view.commits) == 5
    assert reader.view.rows[0].figures.contributed == 5


def test_times_are_those_of_the_wall_clock(run: RecordedRun) -> None:
    reader = read(run.whole())
    assert reader.view.began == BEGAN
    assert reader.view.last_at == pytest.approx(BEGAN + 5.7)


def test_what_a_peer_uses_is_that_of_its_last_row(run: RecordedRun) -> None:
    known = read(run.whole()).view.rows[0].figures
    assert (known.usage.cpu_s, known.usage.sent_bytes) == (4.0, 5 << 20)
    assert known.cpu() == pytest.approx(2.0 / 4.5)


def test_rows_that_are_not_as_ours_are_counted_and_stop_nobody(run: RecordedRun) -> None:
    run.rounds(0, 3)
    run.event(9.0, 0, "round", round="many", trust=7)
    run.event(9.0, 10**9, "round", round=3)
    run.event(9.0, 0, "suspected", subject=10**9)
    with (run.folder / "peer-0" / "commits.jsonl").open("a") as file:
        file.write(json.dumps({"round": 3, "server": "a", "contributors": 7}) + "\n")
        file.write(json.dumps({"round": 4, "server": 1, "contributors": [1, {}]}) + "\n")
    reader = read(run)
    events, commits = reader.broken
    assert events.startswith("3 lines of events.jsonl")
    assert commits.startswith("2 lines of peer-0/commits.jsonl")
    assert reader.view.progress.round == 2
    assert 10**9 not in reader.view.rows
    assert [each.round for each in reader.view.commits] == [0, 1, 2]


def test_the_rounds_of_a_newcomer_are_counted_from_its_first(run: RecordedRun) -> None:
    run.rounds(0, 20)
    given = {"peer": 9, "samples": 32, "weight": 0.5, "outlyingness": 1.0, "took_us": 1}
    for number in range(20, 24):
        row = {"t": 1.0, "wall": BEGAN + run.at(number), "round": number, "server": 0}
        row |= {"contributors": [given] if number < 23 else [], "roster": [0, 9]}
        with (run.folder / "peer-0" / "commits.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    known = read(run).view.rows[9].figures
    assert (known.contributed, known.rounds) == (3, 4)


def test_a_round_that_two_servers_have_closed_without_a_peer_counts_once(run: RecordedRun) -> None:
    run.rounds(0, 10)
    for server in (0, 1):
        run.event(2.5, server, "late", round=9, shard=server, missing=[2], waited_s=0.1)
    assert list(read(run).view.rows[2].figures.late_rounds) == [9]
