"""Words that somebody else has chosen, on their way to our screen, and answers that are none."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossip.errors import LocalError, TrainingWarning
from gossip.launch.local import desks, failures
from gossip.launch.local.peer_process import PeerProcess
from gossip.launch.local.running import OngoingRun
from gossip.launch.report.live_frame import About
from gossip.launch.report.run_model import RunModel
from gossip.launch.report.screens import LiveScreen, PlainScreen
from gossip.observe import events, read_event
from gossip.training import voice, watch

EVIL = "\x1b]0;owned\x07 \x1b[2J\x9b31m \x7f\x00 [red]as it is[/red]"
SEEN = r"\x1b]0;owned\x07 \x1b[2J\x9b31m \x7f\x00 [red]as it is[/red]"
DEEP = b"[" * 100_000


def only_text(written: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in written)


def test_a_peers_output_is_not_sent_raw_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()
    screen.output(1, EVIL, err=False)
    screen.output(1, EVIL, err=True)
    screen.print_line(f"! peer 1: {EVIL}")
    out, err = capsys.readouterr()
    assert (out.count(SEEN), err.count(SEEN)) == (2, 1)
    assert only_text(out + err)


def test_the_table_shows_others_words_and_obeys_none(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    view = RunModel(2)
    view.apply(read_event({"t": 0.0, "peer": 0, "event": "ready"}))
    view.apply(
        read_event(
            {
                "t": 0.0,
                "peer": 0,
                "event": "suspected",
                "subject": 1,
                "trust": 0.1,
                "round": 3,
                "reasons": [EVIL],
            }
        )
    )
    screen = LiveScreen(About("title", "what", "folder"))
    screen.output(0, EVIL, err=False)
    screen.tick(view)
    screen.close(view)
    assert r"\x1b]0;owned" in written.getvalue()
    assert only_text(written.getvalue())


def test_a_peers_message_is_one_line_whatever_is_in_it() -> None:
    """Otherwise it could say what the launcher says: that others are dead."""
    said: list[str] = []
    run: Any = SimpleNamespace(view=RunModel(2), print_line=said.append, _relays=False)
    run._events = SimpleNamespace(write=lambda row: None)
    error = events.Error(peer=0, message="no\n00:04.9  x 1 dead after 3 ms")
    OngoingRun.receive(run, error.to_row(0.0, 0.0))
    assert said == [r"! peer 0: no\n00:04.9  x 1 dead after 3 ms"]


def test_under_a_scheduler_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    parent, child = os.pipe()
    ours, theirs = socket.socketpair()

    def note(text: str, **_: Any) -> None:
        said.append(text)
        os.close(child)  # whoever listens ends with its parent

    monkeypatch.setattr(voice, "print", note, raising=False)
    with ours, theirs:
        theirs.sendall(json.dumps({"event": "error", "message": EVIL}).encode() + b"\n")
        listening = threading.Thread(target=voice._listen, args=(0, ours, parent))
        listening.start()
        listening.join(30)
    os.close(parent)
    assert said == [f"gossip: peer 0: {SEEN}"]


def test_an_error_of_a_script_that_tells_of_others_is_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    error = LocalError(EVIL)
    with pytest.raises(SystemExit):
        watch.ExceptHook(lambda error: None)(LocalError, error, None)
    err = capsys.readouterr().err
    assert SEEN in err
    assert only_text(err)


def test_each_warning_about_the_training_is_recorded_once() -> None:
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as printed:
        warnings.simplefilter("always")
        before, end = warnings.showwarning, watch.record_warnings(texts.append)
        warnings.warn("another library's", UserWarning, stacklevel=1)
        for number in range(4 * watch.WARNINGS_MAX):
            warnings.warn(str(number // 2), TrainingWarning, stacklevel=1)
        end()
        assert warnings.showwarning is before
    assert texts == [*map(str, range(watch.WARNINGS_MAX))]
    assert len(printed) == 4 * watch.WARNINGS_MAX + 1


@pytest.mark.parametrize("what", ["deep", "pipe", "link"])
def test_the_error_of_a_peer_is_passed_over_when_it_is_none(tmp_path: Path, what: str) -> None:
    path = tmp_path / "error.json"
    match what:
        case "deep":
            path.write_bytes(DEEP)
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/dev/zero")
    assert failures.read_error(tmp_path, 0) is None


@pytest.mark.parametrize("answer", [b"[1]", b"null", DEEP, b'{"a"'])
def test_an_answer_of_a_desk_that_is_none_is_told(tmp_path: Path, answer: bytes) -> None:
    with desks.open_socket(tmp_path, desks.name_of(None), socket.socket.bind) as desk:
        desk.listen()

        def serve() -> None:
            end, _ = desk.accept()
            with end:
                end.recv(4096)
                end.sendall(answer + b"\n")

        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(desks.RunUnreachable, match="does not answer"):
            desks.ask(tmp_path, {"drill": "heal"})
        serving.join(30)


async def test_a_status_line_deep_in_brackets_is_told_and_the_next_is_read() -> None:
    ours, theirs = socket.socketpair()
    told: list[dict[str, Any]] = []
    peer = SimpleNamespace(_status=ours, peer=3, _listener=SimpleNamespace(on_row=told.append))
    peer._error = partial(PeerProcess._error, peer)
    theirs.sendall(DEEP + b'\n{"event": "ready"}\n')
    theirs.close()
    await asyncio.wait_for(PeerProcess._read_status(peer), 30)  # type: ignore[arg-type]
    assert [event["event"] for event in told] == ["error", "ready"]
