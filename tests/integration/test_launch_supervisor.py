from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gossip.config import resolve
from gossip.launch.local import runs
from gossip.launch.local.outcome import RunOutcome
from gossip.launch.local.peer_process import PeerProcess
from gossip.launch.local.program import Program
from gossip.launch.local.supervisor import Supervisor
from gossip.launch.report.run_model import RunModel
from gossip.run.rendezvous import SeedFolder
from gossip.run.telemetry import read_lines

FAKE = Path(__file__).with_name("launch_fake_peer.py")
ROUNDS = 5  # as that has


class LineScreen:
    """A screen that keeps what it is told, and does something when it hears a word."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.lines: list[tuple[int, str, bool]] = []
        self.when: list[tuple[Callable[[RunModel], bool], Callable[[], Any]]] = []

    def output(self, peer: int, text: str, err: bool) -> None:
        self.lines.append((peer, text, err))

    def print_line(self, text: str) -> None:
        self.said.append(text)

    def tick(self, view: RunModel) -> None:
        for entry in [entry for entry in self.when if entry[0](view)]:
            self.when.remove(entry)
            entry[1]()

    def close(self, view: RunModel) -> None:
        pass


def supervisor(tmp_path: Path, mode: str, **options: Any) -> tuple[Supervisor, LineScreen]:
    folder = tmp_path / "run"
    folder.mkdir()
    resolved = resolve({"peers": 3, "run_dir": str(folder), "name": "t", "warm": False, **options})
    config = resolved.with_values("drawn", run="00000000000000aa", f=0).config
    config.dump(folder / "config.json")
    heard = LineScreen()
    return Supervisor(config, Program(str(FAKE), (mode,)), heard), heard


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(") ", 1)[1][0] not in "ZX"
    except FileNotFoundError:
        return False


def pids_of(folder: Path) -> list[int]:
    """Trainers and nodes that ever lived in this run."""
    rows = list(read_lines(folder / "events.jsonl"))
    for event in ("spawned", "started"):
        assert {row["peer"] for row in rows if row["event"] == event} == {0, 1, 2}, (
            "somebody's pid is not known"
        )
    return [row["pid"] for row in rows if row["event"] in ("spawned", "started")]


async def run(watched: Supervisor) -> RunOutcome:
    return await asyncio.wait_for(watched.run(), 60)


async def test_peers_that_finish_make_a_run_that_finishes(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "finish")
    outcome = await run(watched)
    assert outcome.exit_code == 0
    assert outcome.finished == [0, 1, 2]
    assert {(peer, text) for peer, text, err in heard.lines if not err} == {
        (peer, f"hello from {peer}.0") for peer in range(3)
    }
    assert all((peer, "to stderr", True) in heard.lines for peer in range(3))
    log = (tmp_path / "run" / "peer-1" / "out.log").read_text()
    assert "hello from 1.0" in log
    assert "to stderr" in log
    assert not any(map(alive, pids_of(tmp_path / "run")))
    assert not any("insecure" in line for line in heard.said)
    path = tmp_path / "run" / "events.jsonl"
    assert json.loads(path.read_text().splitlines()[0]) == {"schema": "gossip.events/2"}
    assert {(row["peer"], row["event"]) for row in read_lines(path)} >= {
        (peer, name) for peer in range(3) for name in ("started", "halted", "exited")
    }


async def test_what_breaks_the_watcher_ends_the_run_and_its_peers(tmp_path: Path) -> None:
    """Nobody else gives up on peers that do not come: without it such a run would have no end."""
    watched, heard = supervisor(tmp_path, "polite")

    def breaks() -> None:
        raise OSError("no screen")

    heard.when.append((lambda view: len(view.lives.ready) == 3, breaks))
    with pytest.raises(OSError, match="no screen"):
        await run(watched)
    assert not any(map(alive, pids_of(tmp_path / "run")))


async def test_a_planned_crash_is_no_failure_and_told_as_final(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "crash@1")
    (tmp_path / "run" / "seeds").mkdir()
    outcome = await run(watched)
    assert outcome.exit_code == 0
    assert outcome.unplanned == []
    assert [life.how for life in outcome.lives if life.peer == 1] == ["killed by SIGKILL"]
    assert not any("not in the fault plan" in line for line in heard.said)
    folder = SeedFolder(tmp_path / "run" / "seeds", 0, 3)
    assert [(seed.peer, seed.ended) for seed in folder.poll_seeds(0.0, False)] == [
        (1, True),
        (2, True),
    ]


async def test_a_death_that_nobody_planned_is_told(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "killed@1")
    outcome = await run(watched)
    assert outcome.exit_code == 0
    assert outcome.unplanned == [1]
    assert any(
        "1 killed by SIGKILL" in line and "not in the fault plan" in line for line in heard.said
    )


async def test_a_peer_that_the_plan_restarts_has_the_next_incarnation(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "restart@1")
    back = lambda view: view.rows[1].incarnation == 1 and view.rows[1].state in ("training", "done")  # noqa: E731
    heard.when.append((back, lambda: (tmp_path / "run" / "go").touch()))
    outcome = await run(watched)
    assert outcome.finished == [0, 1, 2]
    assert [(life.incarnation, life.how) for life in outcome.lives if life.peer == 1] == [
        (0, "killed by SIGKILL"),
        (1, "exit code 0"),
    ]
    assert (1, "hello from 1.1", False) in heard.lines
    assert outcome.unplanned == []


async def test_a_peer_that_comes_back_when_all_others_are_done_is_sent_home(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "late@1")
    back = lambda view: view.rows[1].incarnation == 1 and view.rows[1].state == "here"  # noqa: E731
    heard.when.append((back, lambda: (tmp_path / "run" / "go").touch()))
    outcome = await run(watched)
    assert outcome.exit_code == 0
    assert outcome.finished == [0, 2]
    assert outcome.unplanned == []
    assert any("peer 1 returned too late" in line for line in heard.said)


async def test_who_is_started_again_too_late_is_sent_home_in_silence(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "late-silent@1")
    spawned = lambda view: view.rows[1].incarnation == 1  # noqa: E731
    heard.when.append((spawned, lambda: (tmp_path / "run" / "go").touch()))
    outcome = await run(watched)
    assert outcome.finished == [0, 2]
    assert outcome.last_lives[1].how == "killed by SIGTERM"
    assert outcome.unplanned == []
    assert "! peer 1 returned too late: the others have finished" in heard.said


async def test_a_peer_whose_start_takes_until_the_others_are_done_is_sent_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, heard = supervisor(tmp_path, "late-silent@1")
    begin, dismiss = watched.processes.begin_life, watched.shutdown.dismiss_latecomers
    others_are_done = asyncio.Event()

    async def begin_late(peer: int, incarnation: int, *rest: Any) -> Any:
        if incarnation == 1:
            (tmp_path / "run" / "go").touch()
            await others_are_done.wait()
        return await begin(peer, incarnation, *rest)

    def see_who_is_done() -> None:
        dismiss()
        if watched.ongoing.ended == {0, 2}:
            others_are_done.set()

    monkeypatch.setattr(watched.processes, "begin_life", begin_late)
    monkeypatch.setattr(watched.shutdown, "dismiss_latecomers", see_who_is_done)
    outcome = await run(watched)
    assert outcome.finished == [0, 2]
    assert "! peer 1 returned too late: the others have finished" in heard.said


async def test_a_peer_that_is_sent_home_and_stays_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.launch.local.shutdown.STOP_GRACE_S", 0.2)
    watched, heard = supervisor(tmp_path, "late-deaf@1")
    back = lambda view: view.rows[1].incarnation == 1 and view.rows[1].state == "here"  # noqa: E731
    heard.when.append((back, lambda: (tmp_path / "run" / "go").touch()))
    outcome = await run(watched)
    assert outcome.finished == [0, 2]
    assert outcome.unplanned == []
    assert "! killing peer 1: not gone after 0 s" in heard.said


@pytest.mark.parametrize("mode", ["restart@1", "late@1"])
async def test_the_last_lines_say_which_planned_faults_never_took_place_or_only_by_half(
    tmp_path: Path, mode: str
) -> None:
    watched, heard = supervisor(tmp_path, mode, faults=["restart:1@1+100ms", "crash:server@50"])
    begun = ("training", "done") if mode == "restart@1" else ("here",)
    back = lambda view: view.rows[1].incarnation == 1 and view.rows[1].state in begun  # noqa: E731
    heard.when.append((back, lambda: (tmp_path / "run" / "go").touch()))
    outcome = await run(watched)
    assert runs.finish(tmp_path / "run", outcome, heard, as_json=False) == 0
    half = "restart:1@1+100ms (peer 1 was started again, but in no round before the end)"
    assert [line for line in heard.said if line.startswith("! planned")] == [
        "! planned, and never took place: crash:server@50 (it was not due when the run ended, "
        f"after round {ROUNDS})",
        *([f"! planned, and took place only in part: {half}"] if mode == "late@1" else []),
    ]


async def test_a_peer_that_hangs_by_plan_is_woken(tmp_path: Path) -> None:
    watched, _ = supervisor(tmp_path, "hang@1")
    outcome = await run(watched)
    assert outcome.finished == [0, 1, 2]
    rows = list(read_lines(tmp_path / "run" / "events.jsonl"))
    stopped = next(row["t"] for row in rows if row["event"] == "fault")
    woken = next(row["t"] for row in rows if row["event"] == "continued")
    assert woken - stopped >= 0.2


async def test_a_peer_that_sleeps_through_the_end_is_no_unplanned_loss(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "oversleeps@1")
    outcome = await run(watched)
    assert outcome.exit_code == 0
    assert outcome.finished == [0, 2]
    assert outcome.unplanned == []
    assert any("peer 1 returned too late: quorum lost" in line for line in heard.said)


async def test_the_first_script_that_raises_is_explained_in_twelve_lines_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    watched, heard = supervisor(tmp_path, "raise@2")
    outcome = await run(watched)
    assert outcome.exit_code == 0
    start = next(number for number, line in enumerate(heard.said) if line.startswith("x peer 2"))
    told = heard.said[start:]
    assert len([line for line in told if line.startswith(("x peer 2", "  "))]) <= 12
    assert any("launch_fake_peer.py" in line and "raise ValueError" in line for line in told)
    assert any("ValueError: Expected input batch_size" in line for line in told)
    assert any("out.log" in line for line in told)


async def test_a_script_that_raises_everywhere_ends_with_1_explained_once(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "raise-early")
    outcome = await run(watched)
    assert outcome.exit_code == 1
    assert len([line for line in heard.said if line.startswith("x peer")]) == 3
    assert len([line for line in heard.said if "log: " in line]) == 1
    assert any("ImportError: no module named pickles" in line for line in heard.said)


@pytest.mark.parametrize("when", ["early", "ready"])
async def test_who_waits_for_peers_that_have_failed_is_stopped(tmp_path: Path, when: str) -> None:
    watched, heard = supervisor(tmp_path, f"raise-{when}-all-but-1")
    outcome = await run(watched)
    assert (outcome.exit_code, outcome.stopped, outcome.finished) == (1, "", [])
    said = "! stopping 1, as 2 of 3 peers are needed; failed before the first round: 0,2"
    assert said in heard.said


async def test_who_waits_for_peers_of_whom_one_has_failed_is_not_stopped(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "raise-early@2")
    outcome = await run(watched)
    assert outcome.finished == [0, 1]
    assert not any("failed before the first round" in line for line in heard.said)


async def test_nobody_is_started_after_the_run_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while the process that peers are forked from imports torch."""
    watched, _ = supervisor(tmp_path, "finish", warm=True)

    class Warm:
        def __init__(self, *_: Any) -> None:
            pass

        async def ready(self, stop: asyncio.Event) -> bool:
            watched.shutdown.on_signal(signal.SIGINT)
            return stop.is_set()

        def start(self, *_: Any) -> None:
            pytest.fail("a peer was started")

        def close(self) -> None:
            pass

    monkeypatch.setattr("gossip.launch.local.processes.WarmStart", Warm)
    outcome = await run(watched)
    assert (outcome.exit_code, outcome.lives) == (130, [])


async def test_a_run_without_keys_says_so(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "finish", insecure=True)
    await run(watched)
    assert any("insecure" in line and "can join" in line for line in heard.said)


async def test_a_lost_quorum_is_told_apart_from_a_script_that_raised(tmp_path: Path) -> None:
    watched, _ = supervisor(tmp_path, "quorum")
    assert (await run(watched)).exit_code == 5


async def test_a_node_whose_trainer_died_does_not_stay_behind(tmp_path: Path) -> None:
    watched, _ = supervisor(tmp_path, "trainer-dies@0")
    outcome = await run(watched)
    assert outcome.unplanned == [0]
    assert not any(map(alive, pids_of(tmp_path / "run")))


async def test_a_node_that_does_not_leave_after_its_trainer_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.launch.local.peer_process.GROUP_GRACE_S", 0.2)
    watched, _ = supervisor(tmp_path, "node-stays")
    outcome = await run(watched)
    assert outcome.finished == [0, 1, 2]
    assert not any(map(alive, pids_of(tmp_path / "run")))


async def test_a_child_of_the_script_that_outlives_the_peer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.launch.local.peer_process.GROUP_GRACE_S", 1e6)
    watched, _ = supervisor(tmp_path, "grandchild")
    outcome = await run(watched)
    assert outcome.finished == [0, 1, 2]
    children = [int(path.read_text()) for path in (tmp_path / "run").glob("child-*")]
    assert len(children) == 3
    assert not any(map(alive, children))


async def test_one_interrupt_wakes_those_who_sleep_so_that_they_can_leave(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "asleep")
    heard.when.append(
        (lambda view: len(view.lives.ready) == 3, lambda: os.kill(os.getpid(), signal.SIGINT))
    )
    outcome = await run(watched)
    assert outcome.finished == [0, 1, 2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_one_signal_lets_the_peers_leave(tmp_path: Path, number: int, code: int) -> None:
    watched, heard = supervisor(tmp_path, "polite")
    heard.when.append(
        (lambda view: len(view.lives.ready) == 3, lambda: os.kill(os.getpid(), number))
    )
    outcome = await run(watched)
    assert outcome.exit_code == code
    assert outcome.finished == [0, 1, 2]
    again = "stopping after this round (Ctrl-C again: stop now)"
    assert number != signal.SIGINT or any(again in line for line in heard.said)


@pytest.mark.parametrize("mode", ["stubborn", "stopped"])
async def test_two_interrupts_kill_whoever_does_not_leave(tmp_path: Path, mode: str) -> None:
    watched, heard = supervisor(tmp_path, mode)
    heard.when.append(
        (lambda view: len(view.lives.ready) == 3, lambda: os.kill(os.getpid(), signal.SIGINT))
    )
    heard.when.append(
        (
            lambda view: watched.ongoing.outcome.stopped == "interrupt",
            lambda: os.kill(os.getpid(), signal.SIGINT),
        )
    )
    outcome = await run(watched)
    assert outcome.exit_code == 130
    assert any("stopping now: killing peers" in line for line in heard.said)
    assert not any(map(alive, pids_of(tmp_path / "run")))


async def test_a_run_that_does_not_start_says_who_is_missing_and_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.launch.local.start_wait.START_SLACK_S", 0.2)
    monkeypatch.setattr("gossip.launch.local.start_wait.WAITING_EVERY_S", 0.1)
    monkeypatch.setattr("gossip.launch.local.shutdown.STOP_GRACE_S", 0.1)
    watched, heard = supervisor(tmp_path, "never-starts", start_timeout_s=0.3)
    outcome = await run(watched)
    assert outcome.exit_code == 4
    assert any("waiting for peers 0, 1, 2" in line for line in heard.said)
    assert any("0 of 2 needed peers started" in line for line in heard.said)


async def test_the_start_timeout_counts_from_the_first_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.launch.local.start_wait.START_SLACK_S", 0.1)
    monkeypatch.setattr("gossip.launch.local.start_wait.WAITING_EVERY_S", 0.1)
    watched, heard = supervisor(tmp_path, "finish", start_timeout_s=0.3)
    forks = asyncio.Event()
    begin = watched.processes.begin_life

    async def begin_later(*life: Any) -> PeerProcess | None:
        await forks.wait()
        return await begin(*life)

    monkeypatch.setattr(watched.processes, "begin_life", begin_later)
    monkeypatch.setattr("gossip.launch.local.start_wait.starved_s", lambda pid: 60.0)
    heard.when.append((lambda view: len(heard.said) > 2, forks.set))
    outcome = await run(watched)
    assert outcome.finished == [0, 1, 2]
    assert any("waiting for the process that forks peers" in line for line in heard.said)


@pytest.mark.parametrize("starved", [True, False])
async def test_a_peer_that_gets_no_processor_is_slow_and_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starved: bool
) -> None:
    monkeypatch.setattr("gossip.launch.local.start_wait.START_SLACK_S", 0.1)
    monkeypatch.setattr("gossip.launch.local.start_wait.WAITING_EVERY_S", 0.1)
    monkeypatch.setattr("gossip.launch.local.shutdown.STOP_GRACE_S", 0.1)
    watched, heard = supervisor(tmp_path, "never-starts", start_timeout_s=0.1)
    began = time.monotonic()
    wait_s = lambda pid: (time.monotonic() - began) * starved  # noqa: E731
    monkeypatch.setattr("gossip.launch.local.start_wait.starved_s", wait_s)
    heard.when.append(
        (lambda view: time.monotonic() > began + 1.5, lambda: watched.shutdown.end("terminate"))
    )
    outcome = await run(watched)
    assert outcome.exit_code == (143 if starved else 4)
    assert not any("out.log" in line for line in heard.said), "nobody has printed anything"


async def test_a_guardian_that_is_killed_is_replaced(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "polite")
    first: list[int] = []

    def kill_it() -> None:
        first.append(watched.processes.guardian.pid)
        os.kill(first[0], signal.SIGKILL)

    heard.when.append((lambda view: len(view.lives.ready) == 3, kill_it))
    heard.when.append(
        (
            lambda view: bool(first) and watched.processes.guardian.pid != first[0],
            lambda: os.kill(os.getpid(), signal.SIGINT),
        )
    )
    outcome = await run(watched)
    assert outcome.exit_code == 130
    assert any("guardian" in line for line in heard.said)


def test_python_runs_this_file_with_its_own_interpreter() -> None:
    assert Program("t.py", ("--help", "-n")).command == [
        sys.executable,
        "-u",
        "t.py",
        "--help",
        "-n",
    ]
