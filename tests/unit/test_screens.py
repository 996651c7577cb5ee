"""What a terminal shows of a run, and what is left on it."""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal

from gossip.launch.report.live_frame import NO_LOSS, About
from gossip.launch.report.run_model import RunModel
from gossip.launch.report.screens import LastingStream, LiveScreen, PlainScreen, screen_for
from gossip.observe import read_event

ABOUT = About("train-1", "2 peers, rolling, mean (f=0)", "runs/train-1")


def stepped(view: RunModel, step: int, **fields: Any) -> None:
    for peer in view.rows:
        own = {"round": step - 1, "step": step, "alive": len(view.rows), **fields}
        at = time.monotonic() - 10 + step / 10
        view.apply(read_event({"t": at, "peer": peer, "event": "round", **own}))


class Written(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Written:
    """A terminal as stdout, 80 characters wide."""
    written = Written()
    for name, value in {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", written)
    return written


def shown(out: Written, width: int = 80) -> Terminal:
    terminal = Terminal(width, 24)
    terminal.feed(out.getvalue().replace("\n", "\r\n"))
    return terminal


def test_the_state_of_the_run_stands_below_events(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal_of(monkeypatch)
    view, screen = RunModel(2), LiveScreen(ABOUT)
    screen.print_line("= first")
    for step in (1, 2, 3):
        stepped(view, step)
        screen.tick(view)
        screen.output(0, f"line {step} of 0", err=False)
        screen.print_line(f"+ event {step}")
    screen.close(view)
    screen.print_line("finished")
    terminal = shown(out)
    lines = [line for line in terminal.lines if line]
    assert sum("train-1: 2 peers" in line for line in lines) == 1
    assert [line for line in lines if "of 0" in line] == [f"0| line {at} of 0" for at in (1, 2, 3)]
    assert lines.index("train-1: 2 peers, rolling, mean (f=0)") > lines.index("0| line 3 of 0")
    assert lines[-1].endswith("finished")
    assert (terminal.broken, terminal.modes) == ([], [])
    assert terminal.cursor[1] == 0


def test_a_terminal_that_becomes_narrower_keeps_nothing_of_the_lines_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = terminal_of(monkeypatch)
    view, screen = RunModel(2), LiveScreen(ABOUT)
    screen.print_line("+ before")
    stepped(view, 1)
    screen.tick(view)
    terminal = shown(out)
    assert max(map(len, terminal.lines)) > 40
    out.seek(out.truncate(0))
    terminal.narrow(40)
    monkeypatch.setenv("COLUMNS", "40")
    screen.print_line("+ later")
    screen.close(view)
    terminal.feed(out.getvalue().replace("\n", "\r\n"))
    for once in ("+ before", "+ later", "train-1: 2 peers", "files:", "   1 training"):
        assert terminal.text.count(once) == 1
    assert terminal.broken == []


def test_an_event_breaks_at_words_in_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal_of(monkeypatch)
    screen = LiveScreen(ABOUT)
    screen.print_line(
        "= batch: 3 peers x 32 samples, 96 a round (fixed_local); the learning rate is left"
    )
    first, second, _ = shown(out).lines
    assert first.startswith("00:00.0  = batch")
    assert second.startswith(" " * 9)
    assert max(map(len, (first, second))) < 80


def test_what_the_launcher_itself_writes_to_stderr_stays_out_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = terminal_of(monkeypatch)
    monkeypatch.setattr(sys, "stderr", stderr := Written())
    view, screen = RunModel(2), LiveScreen(ABOUT)
    stepped(view, 1)
    screen.tick(view)
    print("a warning", file=sys.stderr)
    print("its end", end="", file=sys.stderr)
    screen.close(view)
    assert sys.stderr is stderr
    lines = shown(out).lines
    assert lines.index("its end") == lines.index("a warning") + 1
    assert lines.index("a warning") < lines.index("train-1: 2 peers, rolling, mean (f=0)")


def test_without_colours_only_the_cursor_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal_of(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    view, screen = RunModel(2), LiveScreen(ABOUT)
    screen.print_line("! careful")
    stepped(view, 1)
    screen.tick(view)
    screen.close(view)
    assert "\x1b[3" not in out.getvalue()
    assert "careful" in out.getvalue()


def test_the_line_that_gives_a_loss_is_named_once_and_not_to_who_logs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = terminal_of(monkeypatch)
    for fields, times in (({}, 1), ({"loss": 0.5}, 0)):
        out.truncate(0)
        view, screen = RunModel(2), LiveScreen(ABOUT)
        for step in range(1, 20):
            stepped(view, step, **fields)
            screen.tick(view)
        screen.close(view)
        assert shown(out).text.replace("\n         ", "").count("add peer.log(loss=") == times


def test_plain_lines_name_it_too_and_have_no_empty_loss(capsys: pytest.CaptureFixture[str]) -> None:
    view, screen = RunModel(2), PlainScreen(every_s=0.0)
    for step in (20, 30):
        stepped(view, step)
        screen.tick(view)
    out = capsys.readouterr().out
    assert out.count(NO_LOSS) == 1
    assert "loss -" not in out
    assert "round    19  2 alive" in out


def test_elsewhere_than_on_a_terminal_each_line_is_shown_with_its_peer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen, view = screen_for(ABOUT), RunModel(2)
    stepped(view, 1)
    screen.tick(view)
    screen.output(0, "alike", err=False)
    screen.output(1, "alike", err=False)
    merged = screen_for(ABOUT, output="merged")
    merged.tick(view)
    merged.output(0, "alike", err=False)
    merged.output(1, "alike", err=False)
    out = capsys.readouterr().out
    assert "train-1: 2 peers, rolling, mean (f=0), in runs/train-1" in out
    assert [line for line in out.splitlines() if "alike" in line] == [
        "0| alike",
        "1| alike",
        "all| alike",
    ]


def test_what_a_peer_wrote_is_shown_before_it_is_said_that_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = PlainScreen(output="merged")
    plain.tick(RunModel(2))
    out = terminal_of(monkeypatch)
    for screen in (live := LiveScreen(ABOUT), plain):
        screen.tick(RunModel(2))
        screen.output(1, "last words", err=False)
        screen.print_line("error: train.py raised in peer 1")
    live.close(RunModel(2))
    for text in (shown(out).text, capsys.readouterr().out):
        assert "last words" in text.partition("error: train.py")[0]


def test_stderr_of_peers_goes_where_stderr_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = terminal_of(monkeypatch)
    view, screen = RunModel(2), LiveScreen(ABOUT)
    stepped(view, 1)
    screen.tick(view)
    for peer in (0, 1):
        screen.output(peer, "a warning", err=True)
    assert "a warning" not in out.getvalue()
    assert capsys.readouterr().err == "all| a warning\n"


class Failing(io.StringIO):
    """A stream that takes ``left`` writes more."""

    def __init__(self, left: int, number: int, fd: int) -> None:
        super().__init__()
        self.left, self.number, self.fd = left, number, fd

    def write(self, text: str) -> int:
        if not self.left:
            raise OSError(self.number, os.strerror(self.number))
        self.left -= 1
        return super().write(text)

    def fileno(self) -> int:
        return self.fd

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_lines_that_cannot_be_written_go_to_the_folder(number: int, tmp_path: Path) -> None:
    with (tmp_path / "theirs").open("w") as file:
        inner = Failing(1, number, file.fileno())
        stream = LastingStream(inner)
        stream.spare = str(tmp_path / "screen.log")
        for line in ("one\n", "two\n", "three\n"):
            assert stream.write(line) == len(line)
            assert stream.isatty() == (line == "one\n")
        print("what others write", file=file, flush=True)
    assert inner.getvalue() == "one\n"
    assert (tmp_path / "screen.log").read_text() == "two\nthree\n"
    assert (tmp_path / "theirs").read_text() == ""


def test_lines_for_which_there_is_no_room_at_all_are_dropped(tmp_path: Path) -> None:
    with (tmp_path / "theirs").open("w") as file:
        stream = LastingStream(Failing(0, errno.ENOSPC, file.fileno()))
        stream.spare = "/dev/full"
        assert stream.write("one\n") == 4


def test_a_live_screen_whose_terminal_is_closed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "theirs").open("w") as file:
        monkeypatch.setattr(sys, "stdout", Failing(0, errno.EIO, file.fileno()))
        screen = LiveScreen(About("a", "b", str(tmp_path), 3))
        screen.print_line("+ somebody is back")
        screen.close(RunModel(1))
    assert "somebody is back" in (tmp_path / "screen.log").read_text()
