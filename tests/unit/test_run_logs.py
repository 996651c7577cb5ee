from __future__ import annotations

import os
from pathlib import Path

import pytest

from gossip.launch.report import run_logs
from gossip.launch.report.run_logs import Tail


class LoggedRun:
    """A run's folder, and what was shown of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[tuple[int, str]] = []

    def write(self, peer: int, data: bytes) -> None:
        path = self.folder / f"peer-{peer}" / run_logs.LOG
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def note(self, peer: int, line: str) -> None:
        self.seen.append((peer, line))


@pytest.fixture
def run(tmp_path: Path) -> LoggedRun:
    return LoggedRun(tmp_path)


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("lines", [0, 1, 2, 5, 6, 7, None])
def test_the_last_lines_are_those_of_the_text(
    run: LoggedRun, lines: int | None, end: bytes, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logs, "BLOCK_BYTES", block)
    text = b"one\n\nthree\nfour\n\nsix" + end
    run.write(0, text)
    run_logs.show(run.folder, [0], lines, run.note)
    everything = text.decode().splitlines()
    assert [line for _, line in run.seen] == (
        everything if lines is None else everything[len(everything) - min(lines, 6) :]
    )


def test_nothing_is_shown_of_an_empty_log(run: LoggedRun) -> None:
    run.write(0, b"")
    run_logs.show(run.folder, [0], 3, run.note)
    assert run.seen == []


def test_following_shows_newcomers_and_what_was_written_last(
    run: LoggedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write(0, b"old\nolder\n")
    tails = run_logs.show(run.folder, [0], 1, run.note)
    happenings = iter(
        [
            lambda: run.write(0, b"ne"),
            lambda: run.write(0, b"w\n"),
            lambda: run.write(7, b"hello\n"),
        ]
    )

    def sleep(seconds: float) -> None:
        next(happenings)()

    turns = iter([True, True, True, False])

    def goes_on() -> bool:
        more = next(turns)
        if not more:
            # before it ended; what asks first and reads then misses nothing
            run.write(0, b"no end")
        return more

    monkeypatch.setattr(run_logs, "sleep", sleep)
    run_logs.follow(run.folder, tails, lambda peer: True, goes_on, run.note)
    assert run.seen == [(0, "older"), (0, "new"), (0, "no end"), (7, "hello")]


def test_only_the_peers_that_were_asked_for_are_followed(run: LoggedRun) -> None:
    run.write(3, b"mine\n")
    run.write(4, b"not mine\n")
    run_logs.follow(run.folder, {}, lambda peer: peer == 3, lambda: False, run.note)
    assert run.seen == [(3, "mine")]


def test_of_a_progress_bar_its_last_state_is_shown(run: LoggedRun) -> None:
    run.write(0, b" 1%\r50%\r99%\rwhat\xff is this\r\n")
    assert list(Tail(run.folder, f"peer-0/{run_logs.LOG}", None).read()) == ["what\ufffd is this"]


def test_a_line_without_end_does_not_fill_the_memory(run: LoggedRun) -> None:
    run.write(0, b"x" * (3 * run_logs.LINE_BYTES_MAX))
    lines = list(Tail(run.folder, f"peer-0/{run_logs.LOG}", None).read())
    assert sum(map(len, lines)) == 3 * run_logs.LINE_BYTES_MAX
    assert max(map(len, lines)) <= run_logs.LINE_BYTES_MAX


def _lines(run: LoggedRun, lines: int | None = None) -> list[str]:
    return list(Tail(run.folder, f"peer-0/{run_logs.LOG}", lines).read())


@pytest.mark.parametrize("lines", [None, 3])
def test_a_log_with_a_hole_is_not_read(run: LoggedRun, lines: int | None) -> None:
    run.write(0, b"first\n")
    os.truncate(run.folder / "peer-0" / run_logs.LOG, 2**40)
    run.write(0, b"last\n")
    tail = Tail(run.folder, f"peer-0/{run_logs.LOG}", lines)
    assert list(tail.read()) == []
    assert "out.log has a hole" in tail.why_not


def test_a_log_that_grows_while_it_is_opened_has_no_hole(
    run: LoggedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write(0, b"first\n")
    measure = os.fstat

    def measure_and_write(fd: int) -> os.stat_result:
        found = measure(fd)
        run.write(0, b"later\n")
        return found

    monkeypatch.setattr(run_logs.os, "fstat", measure_and_write)
    assert _lines(run)[:2] == ["first", "later"]


def test_the_last_lines_are_few_bytes_whatever_is_in_them(run: LoggedRun) -> None:
    run.write(0, b"\x01" * 2_000_000)
    assert [len(line) for line in _lines(run, 3)] == [run_logs.LINE_BYTES_MAX] * 3
