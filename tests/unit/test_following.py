"""The helper that tests wait with: it misses nothing,
and gives up when there is nobody left to write."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from following import following


def test_rows_are_read_once_each_and_only_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with following(tmp_path) as files:
        assert files.rows("events.jsonl") == []
        path.write_text('{"schema": "x"}\n{"event": "round", "round": 1}\n{"event": "rou')
        assert [row["round"] for row in files.rows("events.jsonl")] == [1]
        with path.open("a") as file:
            file.write('nd", "round": 2}\n{"event": "skip"}\n')
        assert [row["round"] for row in files.rows("events.jsonl", "round")] == [1, 2]
        assert len(files.rows("events.jsonl", "round", "skip")) == 3


def test_a_file_in_a_folder_that_is_yet_to_come_is_seen_as_soon_as_it_has_grown(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs" / "out" / "events.jsonl"

    def write() -> None:
        path.parent.mkdir(parents=True)
        with path.open("a") as file:
            for number in range(300):
                file.write(json.dumps({"event": "round", "round": number}) + "\n")
                file.flush()

    with following(path.parent) as files:
        writer = threading.Thread(target=write)
        writer.start()
        found = files.until(lambda: files.rows("events.jsonl", "round")[299:], "the last", 20)
        writer.join()
    assert found == [{"event": "round", "round": 299}]


def test_nobody_waits_for_a_writer_that_has_ended(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", ""])
    began = time.monotonic()
    with (
        following(tmp_path) as files,
        pytest.raises(pytest.fail.Exception, match="a row never came and its writer has ended"),
    ):
        files.until(lambda: files.rows("events.jsonl"), "a row", 100, writer.pid)
    assert time.monotonic() - began < 60
    writer.wait()


def test_what_does_not_come_in_time_is_told_with_its_story(tmp_path: Path) -> None:
    with (
        following(tmp_path) as files,
        pytest.raises(pytest.fail.Exception, match="a row never came\nonce upon a time"),
    ):
        files.until(
            lambda: files.rows("events.jsonl"), "a row", 0.05, story=lambda: "once upon a time"
        )
