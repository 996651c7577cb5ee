from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from event_rows import event_row

from gossip.errors import ConfigError
from gossip.launch import hold
from gossip.launch.guardian import stat
from gossip.launch.report import command as tend, launchers, run_state
from gossip.run.telemetry import JsonLines


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run that was begun, and that this process leads."""
    folder = begun(tmp_path / "runs" / "digits-0a1b")
    held = hold.mark_leader(folder)
    yield folder
    os.close(held)


def begun(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"name": folder.name, "peers": 3, "rounds": 400})
    )
    (folder / "environment.json").write_text(json.dumps({"started": 1000.0}))
    return folder


def leave_word(folder: Path, **changes: Any) -> None:
    """Of a launcher that is this process, but for ``changes``."""
    own = stat(os.getpid())
    fields = {
        "pid": os.getpid(),
        "started": own.started,
        "machine": launchers.this_machine(),
        "host": "vm",
        "user": os.getuid(),
        "since": 1000.0,
        "peers": [0, 1, 2],
        "ended": 0.0,
        **changes,
    }
    path = folder / launchers.FOLDER / f"{len(list(folder.glob('launchers/*')))}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fields))


def summarise(folder: Path, exit_code: int = 0) -> None:
    accuracy = {"mean_model": None, "worst_replica": 0.93}
    fields = {
        "rounds": 400,
        "accuracy": accuracy,
        "loss": 0.07,
        "exit_code": exit_code,
        "status": "finished",
    }
    (folder / "summary.json").write_text(json.dumps(fields))


def test_a_run_is_running_while_its_launcher_is(run: Path) -> None:
    with launchers.present(run, [0, 1, 2]):
        (own,) = launchers.of(run)
        assert (own.pid, own.peers, own.running) == (os.getpid(), (0, 1, 2), True)
        assert run_state.RunState(run).state == "running"
    assert launchers.of(run)[0].ended
    assert not launchers.of(run)[0].running


def test_a_pid_that_somebody_else_has_by_now_is_not_the_launcher(run: Path) -> None:
    leave_word(run, started=1)
    assert run_state.RunState(run).state == "killed"


@pytest.mark.parametrize(
    ("words", "summary", "state"),
    [
        ([], False, "not begun"),
        ([], True, "ended"),  # by a version that left no word
        ([{}], False, "running"),
        ([{}], True, "running"),  # the first launcher is done, one that has joined goes on
        ([{"ended": 2000.0}], True, "ended"),
        ([{"pid": 2**22 + 1}], False, "killed"),
        ([{"ended": 2000.0}], False, "ended"),  # its summary comes after that
        ([{"ended": 2000.0}, {"pid": 2**22 + 1}], False, "killed"),
        ([{"pid": 2**22 + 1}, {"ended": 2000.0}], True, "ended"),
        ([{"machine": "another"}], False, "elsewhere"),
        ([{"machine": "another", "ended": 2000.0}], True, "ended"),
        ([{"machine": "another"}, {}], False, "running"),
        # a process that leads no folder
        ([{"pid": os.getppid(), "started": stat(os.getppid()).started}], False, "copy"),
        ([{"pid": os.getppid(), "started": stat(os.getppid()).started}, {}], False, "running"),
    ],
)
def test_the_state_follows_from_launchers_and_summary(
    run: Path, words: list[dict[str, Any]], summary: bool, state: str
) -> None:
    for changes in words:
        leave_word(run, **changes)
    if summary:
        summarise(run)
    assert run_state.RunState(run).state == state


def test_what_is_no_word_of_a_launcher_is_left_alone(run: Path) -> None:
    leave_word(run)
    for name, text in {"a": "", "b": "[1]", "c": "{}", "d": '{"pid": 3}'}.items():
        (run / launchers.FOLDER / f"{name}.json").write_text(text)
    assert len(launchers.of(run)) == 1


def test_progress_is_read_from_the_last_rows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_word(run)
    events = JsonLines(run / "events.jsonl", "events")
    for number in range(2000):
        events.write(event_row("round", number % 3, 0.0, round=number, loss=0.5, alive=[0, 1]))
        events.write(event_row("metrics", number % 3, 0.0, accuracy=0.25 * (number % 3)))
    with (run / "events.jsonl").open("a") as file:
        file.write('{"t": 0.0, "peer": 1, "event": "round", "rou')  # just being written
    monkeypatch.setattr(run_state, "TAIL_BYTES", 10_000)
    seen = run_state.RunState(run)
    assert (seen.round, seen.loss, seen.alive, seen.accuracy, seen.outcome.exit_code) == (
        2000,
        0.5,
        2,
        0.0,
        None,
    )


def test_a_rotation_does_not_hide_the_progress(run: Path) -> None:
    leave_word(run)
    rotated = JsonLines(run / "rotated", "events")
    rotated.write(event_row("round", 0, 0.0, round=19, alive=[0, 1]))
    rotated.close()
    (run / "rotated").rename(run / "events.jsonl.000001")
    JsonLines(run / "events.jsonl", "events").close()
    assert run_state.RunState(run).round == 20


def test_who_has_joined_is_one_of_the_peers(run: Path) -> None:
    leave_word(run, peers=[0, 1, 2])
    leave_word(run, peers=[3, 4])
    assert run_state.RunState(run).peers == 5


def test_the_progress_of_tasks_is_read_from_the_file_of_each(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for peer in range(3):
        leave_word(run, peers=[peer])
        events = JsonLines(run / f"events-{peer}.jsonl", "events")
        for number in range(400 + peer):
            events.write(
                event_row("round", peer, 0.0, round=number, loss=number / 1000, alive=[0, 1, 2])
            )
        events.write(event_row("metrics", peer, 0.0, accuracy=0.25 * peer))
    seen = run_state.RunState(run)
    assert (seen.state, seen.round, seen.loss, seen.alive, seen.accuracy) == (
        "running",
        402,
        pytest.approx(0.4),
        3,
        0.0,
    )
    read: list[int] = []
    last_events = run_state._last_events
    monkeypatch.setattr(
        run_state,
        "_last_events",
        lambda path, most, broken: read.append(most) or last_events(path, most, broken),
    )
    assert run_state.RunState(run).round == 402
    assert sum(read) <= run_state.TAIL_BYTES, "no more of many than of one"


def test_the_end_is_read_from_the_summary(run: Path) -> None:
    leave_word(run, ended=2000.0)
    summarise(run)
    seen = run_state.RunState(run)
    assert (seen.round, seen.accuracy, seen.loss, seen.outcome.exit_code, seen.ended) == (
        400,
        0.93,
        0.07,
        0,
        2000.0,
    )


def test_runs_are_found_by_folder_and_by_name(run: Path) -> None:
    assert run_state.find(str(run)) == run
    assert run_state.find("digits-0a1b", run.parent) == run
    with pytest.raises(ConfigError, match=r"no run 'digit-0a1b'. Did you mean 'digits-0a1b'\?"):
        run_state.find("digit-0a1b", run.parent)
    with pytest.raises(ConfigError, match=r"no run 'quite-different'$"):
        run_state.find("quite-different", run.parent)


def test_the_list_has_a_line_for_each_run_the_latest_first(run: Path) -> None:
    leave_word(run, ended=2000.0)
    summarise(run)
    later = begun(run.parent / "later-77")
    os.utime(run / "config.json", (1, 1))
    with launchers.present(later, [0, 1, 2]):
        states = [run_state.RunState(folder) for folder in run_state.folders(run.parent)]
    head, first, second = tend.table(states, now=1000.0 + 3 * 3600, sizes=[999, 31 << 20])
    assert " ".join(head.split()) == "name state peers round began size acc loss exit"
    assert first.split() == ["later-77", "running", "3", "-", "3", "h", "ago", "999", "-", "-", "-"]
    assert second.split() == [
        "digits-0a1b",
        "ended",
        "3",
        "400/400",
        "3",
        "h",
        "ago",
        "31M",
        "0.930",
        "0.070",
        "0",
        "finished",
    ]
    assert json.loads(json.dumps(states[1].to_json()))["exit_code"] == 0


def test_processes_of_a_run_are_known_by_their_environment(run: Path, tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[bytes]:
        code = "print(flush=True); import sys; sys.stdin.read()"
        environment = {**os.environ, "GOSSIP_RUN_DIR": str(folder)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-S", "-c", code], env=environment, **pipes)  # type: ignore[call-overload,no-any-return]

    with start(run) as ours, start(tmp_path / "other") as others:
        for process in (ours, others):
            process.stdout.readline()
        assert launchers.processes_of(run) == [ours.pid]
        ours.kill()
        ours.wait()
        assert launchers.processes_of(run) == []
        others.kill()


def test_looking_at_runs_takes_a_moment_only(run: Path) -> None:
    """They are looked at again and again while a log is followed."""
    leave_word(run)
    (run / "events.jsonl").write_bytes(b'{"event": "round", "round": 1}\n' * 500_000)
    began = time.process_time()
    run_state.RunState(run).to_json()
    assert time.process_time() - began < 0.5
