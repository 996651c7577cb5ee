"""``gossip stop``: ends a run by asking its launchers, each known by pid and start time; nothing is
looked up by name."""

from __future__ import annotations

import contextlib
import os
import select
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
from .run_state import RunState, read_state, still_here

TELL_EVERY_S = 2.0
# a launcher that kills its peers is gone well before; one that is not is killed,
# and its guardian ends the peers
NOW_S = 5.0
GUARDIAN_S = 5.0  # more than it takes the guardian of a launcher that was killed
POLL_S = 0.05


class StillRunning(LocalError):
    """Processes that were to end are still there."""

    def __init__(self, name: str, pids: Sequence[int], waited_s: float) -> None:
        super().__init__(name, pids, waited_s)
        self.name, self.pids, self.waited_s = name, tuple(pids), waited_s

    def __str__(self) -> str:
        return (
            f"{self.name} is still there after {self.waited_s:.0f} s: pids "
            f"{', '.join(map(str, self.pids))}"
        )

    @property
    def hint(self) -> str:
        return f"gossip stop --now {self.name}"


def stop(run: RunState, now: bool, timeout_s: float, say: Callable[[str], None]) -> None:
    """Ends a run, and returns when no process of it is left on this machine.

    Args:
        now: Kills the peers; otherwise each finishes its round and leaves.
        timeout_s: How long to wait for that.
        say: Takes a line of progress.
    Raises:
        ConfigError: It is another user's, or led from another machine, or names a process that is
            no launcher of it.
        NotGone: It has not ended in time.
    """
    _refuse_others(run)
    for line in run.broken:
        say(f"! {line}")
    own = [one for one in run.launchers if one.running]
    _refuse_impostors(run, own)
    _pass_over_strays(run, own, say)
    elsewhere = [one for one in run.launchers if not one.here and not one.ended]
    if not own:
        _end_what_is_left(run, elsewhere, now, say)
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
        if not _wait(run, handles, began, patience_s, say):
            if not now:
                raise StillRunning(
                    run.name, [one.pid for one in own if one.alive], time.monotonic() - began
                )
            say("the launcher does not answer: it is killed, and its guardian ends the peers")
            for handle in handles:
                _send(handle, signal.SIGKILL)
            _wait(run, handles, began, NOW_S + GUARDIAN_S, say)
    left = _wait_for_processes(run.folder)
    if left:
        raise StillRunning(run.name, left, time.monotonic() - began)
    after = read_state(run.folder)
    at = f" at round {after.round}" if after.round is not None else ""
    how = f", exit code {after.exit_code}" if after.exit_code is not None else ""
    say(
        f"{run.name} has ended after {time.monotonic() - began:.1f} s{at}{how}: no process of it "
        "is left here"
    )
    for one in elsewhere:
        say(
            f"! its launcher on {one.host} (pid {one.pid}) goes on: gossip stop {run.folder}, there"
        )


def _refuse_others(run: RunState) -> None:
    """Refuse to stop a run of another user, as root too: a pid in that user's files may be any
    process that the user wants to have ended.

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
            f"in {run.folder} user {names} says which process is a launcher of {run.name}: no "
            "process is ended by their word",
            f"as that user: gossip stop {run.folder}",
        )


def _refuse_impostors(run: RunState, own: Sequence[Launcher]) -> None:
    """Raises: ConfigError: A record names a process that launches no peers."""
    for one in own:
        if one.running and not launchers.is_launcher(one.pid, run.folder):
            raise ConfigError(
                f"in {run.folder} it is said that pid {one.pid} is a launcher of {run.name}, and "
                f"it is none, but: {shown(launchers.command_of(one.pid))[:TEXT_MAX]}; nothing was "
                "signalled",
                f"if you know that it is one all the same: kill -TERM {one.pid}",
            )


def _pass_over_strays(run: RunState, own: Sequence[Launcher], say: Callable[[str], None]) -> None:
    """Raises: ConfigError: All that are there of those that records name lead other folders."""
    for one in [one for one in run.launchers if one.strays]:
        why, hint = _why_strays(one)
        what = (
            f"in {run.folder} it is said that pid {one.pid} is a launcher of {run.name}, and {why}"
        )
        if not own:
            raise ConfigError(f"{what}; nothing was signalled", hint)
        say(f"! {what}; it is left alone")


def _why_strays(launcher: Launcher) -> tuple[str, str]:
    """Return what a recorded process does in place of leading the folder, and what the user can
    do."""
    if led := [shown(folder) for folder in hold.led_by(launcher.pid)]:
        return f"it leads {', '.join(led)}: this folder is a copy", "; ".join(
            f"gossip stop {folder}" for folder in led
        )
    command = shown(launchers.command_of(launcher.pid))[:TEXT_MAX]
    return (
        (
            "it does not lead this folder, which is a copy, or the record is made up (its "
            f"command: {command})"
        ),
        f"if you know that it is one all the same: kill -TERM {launcher.pid}",
    )


def _end_what_is_left(
    run: RunState, elsewhere: Sequence[Launcher], now: bool, say: Callable[[str], None]
) -> None:
    """Kill what is left of a run that has no launcher here, if ``now``. Report how the run stands.

    Raises: ConfigError: A launcher elsewhere leads it. StillRunning: Processes of it are left.
    """
    if elsewhere:
        where = ", ".join(f"{one.host} (pid {one.pid})" for one in elsewhere)
        raise ConfigError(
            f"{run.name} is led from {where}: this machine cannot stop it",
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
        f": {run.status}, exit code {run.exit_code}"
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
    """A descriptor that means this very process, whatever happens to its number. -1: it is gone."""
    try:
        handle = os.pidfd_open(launcher.pid)
    except ProcessLookupError:
        yield -1
        return
    try:
        # Looked at when the handle is there: before it, the number might have changed hands.
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
        _send(handle, signal.SIGCONT)  # whoever was stopped could not hear it
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
    handles: Sequence[int],
    began: float,
    timeout_s: float,
    say: Callable[[str], None],
) -> bool:
    """Whether all launchers have ended, ``timeout_s`` after ``began`` at the latest."""
    told = began
    left = [handle for handle in handles if handle >= 0]
    while left:
        now = time.monotonic()
        if now - began >= timeout_s:
            return False
        if now - told >= TELL_EVERY_S:
            told = now
            peers = still_here(run.folder)
            who = (
                f"peers {', '.join(map(str, peers))} are still here"
                if peers
                else "its launcher writes down how it went"
            )
            say(f"{now - began:5.1f} s  {who} (at most {timeout_s:.0f} s)")
        poll = select.poll()
        for handle in left:
            poll.register(handle, select.POLLIN)
        due = min(told + TELL_EVERY_S, began + timeout_s) - now
        gone = {handle for handle, _ in poll.poll(max(1.0, due * 1000))}
        left = [handle for handle in left if handle not in gone]
    return True


def _wait_for_processes(folder: Path) -> list[int]:
    """Wait for the guardian of a run whose launcher is gone. Return the processes that are still
    there."""
    until = time.monotonic() + GUARDIAN_S
    while (left := launchers.processes_of(folder)) and time.monotonic() < until:
        time.sleep(POLL_S)
    return left


def _kill(pid: int, folder: Path) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(pid)
        try:
            if pid in launchers.processes_of(
                folder
            ):  # the handle means what this looks at, or what came after and is none of ours
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _user_name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
