"""Types and ranges of rows: what one value could do to whoever computes with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from gossip.errors import ConfigError
from gossip.launch.local import Program
from gossip.launch.report.growing import REFUSED_BYTES_MAX, GrowingFile, RunFiles
from gossip.launch.report.html.figures import time_ticks
from gossip.observe import EVENTS, PEERS_MAX, ROUNDS_END, check_row
from gossip.run.telemetry import read_lines

DEEP: Any = [[[[[[[1]]]]]]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("t", 1e15),
        ("t", -1.0),
        ("wall", float("nan")),
        ("peer", -1),
        ("peer", PEERS_MAX),
        ("peer", True),
        ("subject", "1"),
        ("round", ROUNDS_END),
        ("round", 1.5),
        ("step", -1),
        ("reason", {"a": 1}),
        ("loss", "high"),
        ("loss", float("inf")),
        ("missing", [0, -1]),
        ("missing", 7),
        ("reasons", ["far", 3]),
        ("alive", [0.5]),
        ("trust", [0.5]),
        ("gpus", [None]),
        ("traffic", {"sent_bytes": []}),
        ("unknown", DEEP),
        ("unknown", float("inf")),
    ],
)
def test_a_value_of_another_type_or_size_is_refused_by_its_name(name: str, value: Any) -> None:
    kinds = [kind for kind, declared in EVENTS.items() if name in declared.types] or ["x"]
    for kind in kinds:
        if kind != "metrics" or name in ("t", "wall", "peer", "round"):
            with pytest.raises(ValueError, match=name):
                check_row({"event": kind, name: value}, "events.jsonl")


def test_a_field_that_an_event_does_not_have_may_be_of_any_type() -> None:
    row = {"event": "late", "loss": "high"}
    assert check_row(row, "events.jsonl") == row


@pytest.mark.parametrize("trust", [{"0": "high"}, {"-1": 0.5}, {"1000000000": 0.5}, 0.5])
def test_so_is_the_trust_of_a_round(trust: Any) -> None:
    with pytest.raises(ValueError, match="trust"):
        check_row({"event": "round", "trust": trust}, "events.jsonl")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("contributors", [0, 1]),
        ("contributors", [{"samples": 1}]),
        ("contributors", [{"peer": 0, "took_us": "long"}]),
        ("rejected", [{"peer": -1}]),
        ("trust", 0.5),
        ("slices", {"0": [0, 2]}),
        ("slices", {"one": [[0, 2]]}),
    ],
)
def test_so_is_a_part_of_a_commit(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        check_row({"round": 1, "server": 0, name: value}, "commits.jsonl")


def test_a_field_that_is_null_is_not_known() -> None:
    row = {"event": None, "peer": None, "trust": {"0": None}, "took_us": [None, 3]}
    assert check_row(row, "events.jsonl") == row


@pytest.mark.parametrize(
    ("row", "file"),
    [
        ({"t": 1.0, "peer": 0, "reason": 0.5, "shard": "a"}, "metrics.jsonl"),
        ({"t": 1.0, "peer": 0, "event": "metrics", "reason": 0.5}, "events-3.jsonl"),
    ],
)
def test_a_script_names_what_it_logs_as_it_likes(row: dict[str, Any], file: str) -> None:
    assert check_row(row, file) == row


def test_a_commit_is_no_row_of_metrics_by_what_it_says() -> None:
    with pytest.raises(ValueError, match="chain"):
        check_row({"event": "metrics", "round": 1, "chain": []}, "commits.jsonl")


def test_lines_that_are_refused_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    (tmp_path / "peer-0").mkdir()
    rows: list[dict[str, Any]] = [{"t": 1.0, "round": n, "server": 0} for n in range(5)]
    rows += [{"t": 1e15}, {"t": 2.0, "chain": []}]
    text = "\n".join(map(json.dumps, rows)) + "\n"
    (tmp_path / "peer-0" / "commits.jsonl").write_text(text)
    files = RunFiles(tmp_path)
    assert [commit.round for commit in files.commits()] == list(range(5))
    (line,) = files.broken
    assert line.startswith("2 lines of peer-0/commits.jsonl")
    assert "line 6: t is " in line
    written = read_lines(tmp_path / "peer-0" / "commits.jsonl")
    assert [row["round"] for row in written] == list(range(5))


def test_a_file_without_line_ends_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        file.truncate(2**40)
    growing = GrowingFile(tmp_path, path.name)
    assert list(growing.rows()) == []
    assert str(path) in growing.why_not
    assert growing._at < 2 * REFUSED_BYTES_MAX


@pytest.mark.parametrize("seconds", [1e-3, 1.0, 3e3, 1e6, 1e8, 2.0**33, 1e15])
def test_a_time_axis_has_few_ticks_however_long_it_is(seconds: float) -> None:
    assert 1 <= len(time_ticks(seconds)) <= 7


@pytest.mark.parametrize("script", ["\ud800", "x" * 5000, "a\0b", "\ud800/\ud800.py"])
def test_a_script_that_no_file_can_be_is_not_there(script: str) -> None:
    with pytest.raises(ConfigError):
        Program(script, ()).check()
