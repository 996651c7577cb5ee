"""Trials of a run on one machine: killed launchers, restarts, suspensions, limits, hostile
surroundings. The table of all trials is in docs/testing.md."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from effort import effort, only_long
from trial import Trial, build_command, make_script, start_trial

from gossip.run import checkpoints

pytestmark = pytest.mark.timeout(1200)

RESTARTS_APART_S = effort(0.0, 10.0)
SUSPENSIONS, SUSPENDED_S = effort((2, 2.0), (10, 60.0))
"""A peer that alone stands still for this long counts as dead after about 1 s."""

# --- kill -9 of the launcher ----------------------------------------------------------------------

SAVES = """
fsync = os.fsync
def slow(fd):
    Path("saves").touch()
    time.sleep(0.05)
    fsync(fd)
os.fsync = slow
peer.save_every("ck", 10)
"""
"""Each checkpoint takes long enough to be hit."""


def has_spawned(run: Trial) -> bool:
    return len(run.rows("spawned")) == len(run.peers)


def is_saving(run: Trial) -> bool:
    saved = checkpoints.listed(run.folder / "ck")
    return bool(saved) and bool([*(run.folder / "ck").glob(".*.incomplete")])


def has_trained(run: Trial) -> bool:
    return all((run.folder / f"end-{peer}").exists() for peer in run.peers)


@pytest.mark.parametrize(
    "moment", effort([is_saving], [has_spawned, is_saving, has_trained]), ids=lambda m: m.__name__
)
def test_a_run_whose_launcher_is_killed_can_be_resumed(tmp_path: Path, moment: object) -> None:
    command = build_command(3, "--resume", "auto")
    text = make_script(ready=SAVES, end="time.sleep(2.0)" if moment is has_trained else "")
    with start_trial(tmp_path, command, text) as run:
        if moment is has_trained:
            run.wait_for_rounds(15)
            run.plan_end()
        run.wait(lambda: moment(run), str(moment))  # type: ignore[operator]
        run.launcher.kill()
        assert run.launcher.wait() == -signal.SIGKILL
        run.wait_for_no_process()
        newest, damaged = checkpoints.newest_good(tmp_path / "ck")
        assert not damaged
        assert (newest is None) == (moment is has_spawned)
        at = newest.step if newest is not None else 0
        (tmp_path / "until").unlink(missing_ok=True)
    run.record.rename(run.record.with_name("killed"))
    with start_trial(tmp_path, command, text) as again:
        again.wait_for_rounds(3)
        again.finish(resumed_at=at)
    newest, damaged = checkpoints.newest_good(tmp_path / "ck")
    assert not damaged
    assert newest.step > at
    assert not [*(tmp_path / "ck").glob(".*.incomplete")]


# --- restarts and suspensions ---------------------------------------------------------------------


@only_long
def test_all_peers_are_restarted_one_after_the_other(tmp_path: Path) -> None:
    with start_trial(tmp_path, build_command(3, "--restarts", "1")) as run:
        run.wait_for_rounds(5)
        for peer in run.peers:
            since = time.monotonic()
            run.kill_peer(peer)
            run.wait_for_life(peer, 1)
            run.wait(lambda since=since: time.monotonic() >= since + RESTARTS_APART_S, "10 s")
        summary = run.finish()
    assert sorted(row["peer"] for row in summary["restarts"]) == [*run.peers]
    assert summary["rounds_lost"] == 0


def test_a_run_that_is_suspended_as_a_whole_goes_on(tmp_path: Path) -> None:
    with start_trial(tmp_path, build_command(3)) as run:
        for _ in range(SUSPENSIONS):
            run.wait_for_rounds(10)
            run.signal_all(signal.SIGSTOP)
            time.sleep(SUSPENDED_S)  # how long it stands still is the point
            run.signal_all(signal.SIGCONT)
        summary = run.finish()
    assert (summary["deaths"], summary["rejoins"]) == ([], [])


# --- limits and surroundings ----------------------------------------------------------------------

LIMITS = ["control group", "address space"]
GROUP_BYTES, HOARD_BYTES = 400 * 2**20, 2**30


@contextmanager
def limit_memory() -> Iterator[Path]:
    """Make a control group with little memory (version 1 or 2); yield its list of processes."""
    root = Path("/sys/fs/cgroup")
    parent = root / "memory" if (root / "memory").is_dir() else root
    group = parent / f"gossip-trial-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if parent != root else "memory.max")
    try:
        try:
            group.mkdir()
            with limit.open("r+") as file:
                file.write(str(GROUP_BYTES))
        except OSError as error:
            pytest.skip(f"no control group here limits memory: {error}")
        yield group / "cgroup.procs"
    finally:
        if group.is_dir():
            group.rmdir()


ADDRESS_SPACE = f"""
def address_space():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE") + {GROUP_BYTES}
"""
HOARD = f"if peer.id == 1 and first_life and peer.round == 5: b'x' * {HOARD_BYTES}"


@pytest.mark.parametrize("limit", effort(LIMITS[:1], LIMITS))
def test_a_peer_that_hits_its_memory_limit_is_started_again(tmp_path: Path, limit: str) -> None:
    with limit_memory() if limit == "control group" else nullcontext() as group:
        begin = {
            "control group": f"open({str(group)!r}, 'w').write(str(os.getpid()))",
            "address space": "resource.setrlimit(resource.RLIMIT_AS, (address_space(),) * 2)",
        }[limit]
        text = make_script(
            begin=ADDRESS_SPACE, ready=f"if peer.id == 1 and first_life: {begin}", step=HOARD
        )
        with start_trial(tmp_path, build_command(3, "--restarts", "1"), text) as run:
            run.wait_for_life(1, 1)
            summary = run.finish()
    (death,) = summary["deaths"]
    assert death["peer"] == 1
    how = {"control group": "killed by SIGKILL", "address space": "exit code 1"}[limit]
    assert [row["why"] for row in summary["restarts"]] == [how]


READ_ONLY = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none "$HOME" && exec "$@"', "sh"]
"""For root, which may write into any folder that is not on a read-only file system."""


@only_long
def test_under_nohup_and_with_a_read_only_home_a_run_outlives_its_terminal(tmp_path: Path) -> None:
    ours, terminal = os.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    command = [*(READ_ONLY if os.geteuid() == 0 else ()), "nohup", *build_command(2)]
    with start_trial(
        tmp_path,
        command,
        peers=2,
        start=subprocess.Popen,
        environment={"HOME": str(home)},
        preexec_fn=own_terminal,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as run:
        os.close(terminal)
        run.wait_for_rounds(5)
        os.close(ours)  # the kernel sends SIGHUP to the launcher
        run.wait_for_rounds(5)
        run.finish()
    assert "finished" in (tmp_path / "nohup.out").read_text()


# --- peers that differ ----------------------------------------------------------------------------


def test_peers_with_another_rate_and_another_seed_hold_equal_replicas(tmp_path: Path) -> None:
    other = "rate *= 10 if peer.id == 1 else 1; torch.manual_seed(peer.id)"
    with start_trial(tmp_path, build_command(3), make_script(begin=other)) as run:
        run.wait_for_rounds(5)
        summary = run.finish()
    assert (summary["deaths"], summary["suspected"]) == ([], [])
