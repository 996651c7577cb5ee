"""``gossip stop``: sends signals to the launchers of a run. They are identified by pid and start
time, never by name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gossip.errors import ConfigError, LocalError
from gossip.launch import hold
from gossip.launch.signals import AT_ONCE
from gossip.run import TEXT_MAX, shown

from . import launchers
from .launchers import Launcher
from .run_state import RunState, still_here

PROGRESS_EVERY_S = 2.0
# Time within which a launcher must end after the request to kill its peers, in seconds. Then the
# launcher is killed, and its guardian ends the peers.
NOW_S = 5.0
GUARDIAN_S = 5.0  # more than the guardian of a killed launcher needs
POLL_S = 0.05


class StillRunning(LocalError):
    """Processes of the run have not ended."""

    def __init__(self, name: str, pids: Sequence[int], waited_s: float) -> None:
        super().__init__(
            f"{name} still runs after {waited_s:.0f} s: pids {', '.join(map(str, pids))}",
            f"gossip stop --now {name}",
        )
        self.pids = tuple(pids)


def stop(run: RunState, now: bool, timeout_s: float, say: Callable[[str], None]) -> None:
    """End a run. Return when no process of the run is left on this machine.

    Args:
        now: Whether to kill the peers; otherwise each finishes its round and leaves.
        timeout_s: Maximum time to wait for the end, in seconds.
        say: Called with lines about the progress.
    Raises:
        ConfigError: The run belongs to another user, was started on another machine, or its records
            name a process that is no launcher of the run.
        StillRunning: The run has not ended in time.
    """
    _refuse_others(run)
    for line in run.broken:
        say(f"! {line}")
    own = [one for one in run.launchers if one.running]
    _refuse_impostors(run, own)
    _skip_strays(run, own, say)
    elsewhere = [one for one in run.launchers if not one.here and not one.ended]
    if not own:
        _end_leftovers(run, elsewhere, now, say)
        return
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        handles = [stack.enter_context(_handle(one)) for one in own]
        for one, handle in zip(own, handles, strict=True):
            _ask(run, one, handle, now)
        say(
            f"stopping {run.name}: "
            f"{'its peers are killed' if now else 'its peers leave after their round'} (launcher "
            f"pid {', '.join(str(one.pid) for one in own)})"
        )
        patience_s = NOW_S if now else timeout_s
        if not _wait(run, own, began, patience_s, say):
            if not now:
                raise StillRunning(
                    run.name, [one.pid for one in own if one.alive], time.monotonic() - began
                )
            say("the launcher does not respond: it is killed, and its guardian ends the peers")
            for handle in handles:
                _send(handle, signal.SIGKILL)
            _wait(run, own, began, NOW_S + GUARDIAN_S, say)
    left = _wait_for_processes(run.folder)
    if left:
        raise StillRunning(run.name, left, time.monotonic() - began)
    after = RunState(run.folder)
    at = f" at round {after.round}" if after.round is not None else ""
    code = after.outcome.exit_code
    how = f", exit code {code}" if code is not None else ""
    say(
        f"{run.name} has ended after {time.monotonic() - began:.1f} s{at}{how}: none of its "
        "processes is left here"
    )
    for one in elsewhere:
        say(
            f"! its launcher on {one.host} (pid {one.pid}) still runs: gossip stop {run.folder}, "
            "there"
        )


def _refuse_others(run: RunState) -> None:
    """Refuse to stop a run of another user, even as root: the pids in that user's files may be
    forged.

    Raises: ConfigError.
    """
    user, owner = os.geteuid(), os.stat(run.folder).st_uid
    if owner != user:
        raise ConfigError(
            f"{run.name} is user {_user_name(owner)}'s: only that user can stop it",
            f"as that user: gossip stop {run.folder}",
        )
    strange = [one for one in run.launchers if one.running and {one.owner, one.user} != {user}]
    if strange:
        names = ", ".join(
            sorted({_user_name(one.owner if one.owner != user else one.user) for one in strange})
        )
        raise ConfigError(
            f"a record in {run.folder} that names a launcher of {run.name} belongs to user "
            f"{names}: nothing was signalled",
            f"as that user: gossip stop {run.folder}",
        )


def _refuse_impostors(run: RunState, own: Sequence[Launcher]) -> None:
    """Check that the recorded processes are launchers of the run.

    Raises: ConfigError: A record names a process that launches no peers.
    """
    for one in own:
        if one.running and not launchers.is_launcher(one.pid, run.folder):
            raise ConfigError(
                f"a record in {run.folder} names pid {one.pid} as a launcher of {run.name}, but it "
                f"is another process: {shown(launchers.command_of(one.pid))[:TEXT_MAX]}; nothing "
                "was signalled",
                f"if it is a launcher: kill -TERM {one.pid}",
            )


def _skip_strays(run: RunState, own: Sequence[Launcher], say: Callable[[str], None]) -> None:
    """Report the recorded launchers that do not lead this folder. They are not signalled.

    Raises: ConfigError: There is no other launcher.
    """
    for one in [one for one in run.launchers if one.strays]:
        why, hint = _why_strays(one)
        what = (
            f"a record in {run.folder} names pid {one.pid} as a launcher of {run.name}, but {why}"
        )
        if not own:
            raise ConfigError(f"{what}; nothing was signalled", hint)
        say(f"! {what}; it was not signalled")


def _why_strays(launcher: Launcher) -> tuple[str, str]:
    """Return the reason why a recorded process does not lead the folder, and a hint for the
    user."""
    if led := [shown(folder) for folder in hold.led_by(launcher.pid)]:
        return f"it leads {', '.join(led)}: this folder is a copy", "; ".join(
            f"gossip stop {folder}" for folder in led
        )
    command = shown(launchers.command_of(launcher.pid))[:TEXT_MAX]
    return (
        (
            "it does not lead this folder: the folder is a copy, or the record is forged (its "
            f"command: {command})"
        ),
        f"if it is a launcher nevertheless: kill -TERM {launcher.pid}",
    )


def _end_leftovers(
    run: RunState, elsewhere: Sequence[Launcher], now: bool, say: Callable[[str], None]
) -> None:
    """Handle a run that has no launcher on this machine: if ``now``, kill its remaining processes.
    Report the state of the run.

    Raises: ConfigError: A launcher on another machine leads the run. StillRunning: Some of its
    processes remain.
    """
    if elsewhere:
        where = ", ".join(f"{one.host} (pid {one.pid})" for one in elsewhere)
        raise ConfigError(
            f"{run.name} was started on {where}: this machine cannot stop it",
            f"there: gossip stop {run.folder}",
        )
    left = launchers.processes_of(run.folder)
    if left and now:
        for pid in left:
            _kill(pid, run.folder)
        left = _wait_for_processes(run.folder)
    if left:
        raise StillRunning(run.name, left, 0.0)
    how = (
        f": {run.status}, exit code {run.outcome.exit_code}"
        if run.status
        else ""
        if run.state != "killed"
        else ": its launcher was killed"
    )
    say(
        f"{run.name} has not begun"
        if run.state == "not begun"
        else f"{run.name} is over already{how}"
    )


@contextlib.contextmanager
def _handle(launcher: Launcher) -> Iterator[int]:
    """Yield a descriptor of the launcher's process, or -1 if that process has ended. The descriptor
    never refers to a process that reuses the pid."""
    try:
        handle = os.pidfd_open(launcher.pid)
    except ProcessLookupError:
        yield -1
        return
    try:
        # Check this after the descriptor is open, because the pid may have been reused before.
        yield (
            handle
            if launcher.running and launchers.is_launcher(launcher.pid, launcher.folder)
            else -1
        )
    finally:
        os.close(handle)


def _ask(run: RunState, launcher: Launcher, handle: int, now: bool) -> None:
    try:
        _send(handle, AT_ONCE if now else signal.SIGTERM)
        _send(handle, signal.SIGCONT)  # A stopped process handles the signal only after SIGCONT.
    except PermissionError:
        raise ConfigError(
            f"{run.name} is user {_user_name(launcher.user)}'s: only that user can stop its "
            f"launcher (pid {launcher.pid})",
            f"as that user: gossip stop {run.folder}",
        ) from None


def _send(handle: int, number: int) -> None:
    if handle >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


def _wait(
    run: RunState,
    own: Sequence[Launcher],
    began: float,
    timeout_s: float,
    say: Callable[[str], None],
) -> bool:
    """Wait until all of these launchers have ended, at most until ``timeout_s`` after ``began``.
    Return whether they have."""
    reported = began
    while any(one.alive for one in own):
        now = time.monotonic()
        if now - began >= timeout_s:
            return False
        if now - reported >= PROGRESS_EVERY_S:
            reported = now
            peers = still_here(run.folder)
            what = (
                f"peers {', '.join(map(str, peers))} still run"
                if peers
                else "its launcher writes the summary"
            )
            say(f"{now - began:5.1f} s  {what} (at most {timeout_s:.0f} s)")
        time.sleep(POLL_S)
    return True


def _wait_for_processes(folder: Path) -> list[int]:
    """Wait until the guardian of a run has ended its processes, at most ``GUARDIAN_S``. Return the
    remaining pids."""
    until = time.monotonic() + GUARDIAN_S
    while (left := launchers.processes_of(folder)) and time.monotonic() < until:
        time.sleep(POLL_S)
    return left


def _kill(pid: int, folder: Path) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(pid)
        try:
            # Check after opening the descriptor: if the pid was reused before, the check fails.
            if pid in launchers.processes_of(folder):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _user_name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
