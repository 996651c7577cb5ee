"""Processes of one peer, seen from the launcher: start, output, signals, and the end of the last
process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gossip.interpreter import python_command
from gossip.launch.guardian import TOKEN_VARIABLE, members, reap, signal_group, stat
from gossip.observe import Row, check_row, events
from gossip.run import Appender, parse_json

from .program import Program
from .warm import ForkedProcess, WarmStart

# Time for the node to announce the death of its trainer, send its queued messages and exit, in
# seconds.
GROUP_GRACE_S = 8.0
LEFT_BEHIND_S = 1.0  # seconds for other processes of the group to exit
DRAIN_S = 1.0
LAST_WORDS_S = 0.2
POLL_S = 0.05
LINE_MAX = 64 * 1024
TAIL_LINES = 100  # enough for the tracebacks of a DataLoader worker and of its trainer


@dataclass(frozen=True, slots=True)
class ProcessLife:
    """Record of a process of a peer that has ended, with an exit code or by a signal."""

    peer: int
    incarnation: int
    code: int | None
    signal: int | None
    tail: tuple[str, ...]  # last lines that it wrote to stderr
    began_at: float  # monotonic seconds
    ended_at: float

    @property
    def how(self) -> str:
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        return f"exit code {self.code}"


def signal_name(number: int) -> str:
    return (
        signal.Signals(number).name
        if number in {item.value for item in signal.Signals}
        else f"signal {number}"
    )


@dataclass(frozen=True)
class PeerCommand:
    """Command with which a launcher starts each of its peers.

    Attributes:
        token: Marks the processes of this launcher in their environment.
        warm: Forks the process of the peer; None to start a new process with ``environment``.
    """

    program: Program
    environment: Mapping[str, str]
    token: str
    warm: WarmStart | None


@dataclass(frozen=True)
class PeerListener:
    """Callbacks of a peer's process.

    Attributes:
        on_line: Called with each line of output, and whether the line went to stderr.
        on_row: Called with each row from the status channel of the peer.
        on_exit: Called when the trainer has ended, usually after the calls for its last output.
    """

    on_line: Callable[[str, bool], None]
    on_row: Callable[[Row], None]
    on_exit: Callable[[ProcessLife], None]


class PeerProcess:
    """Processes of a peer, from its start until the last of them has ended."""

    def __init__(
        self,
        peer: int,
        incarnation: int,
        how: PeerCommand,
        log: Appender,
        listener: PeerListener,
    ) -> None:
        self.peer, self.incarnation, self.token = peer, incarnation, how.token
        self._listener = listener
        self._began_at = time.monotonic()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._log = log
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        own = {"GOSSIP_PEER": str(peer), "GOSSIP_INCARNATION": str(incarnation)}
        self._process: subprocess.Popen[bytes] | ForkedProcess
        try:
            if how.warm is not None:
                self._process = how.warm.start(how.program.words, own, theirs)
            else:
                self._process = subprocess.Popen(
                    how.program.command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={
                        **how.environment,
                        **own,
                        "GOSSIP_STATUS_FD": str(theirs.fileno()),
                        TOKEN_VARIABLE: how.token,
                    },
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            self._log.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        found = stat(self.pid)
        assert found is not None, "a child that was not reaped exists, at least as a zombie"
        self.started_ticks = found.started
        self._status = ours

    @property
    def running(self) -> bool:
        """Whether the trainer has not ended yet."""
        found = stat(self.pid)
        return found is not None and found.started == self.started_ticks and found.state not in "ZX"

    def send_trainer(self, number: int) -> None:
        """Send a signal to the trainer only. Its pid cannot be reused before the launcher reaps
        it."""
        if self._process.returncode is None:
            os.kill(self.pid, number)

    def send_all(self, number: int) -> bool:
        """Send a signal to the trainer, the node and all their children. Return whether there was
        any process."""
        return signal_group(self.pid, self.started_ticks, self.token, number)

    def members(self) -> list[int]:
        return members(self.pid, self.started_ticks, self.token)

    async def wait_gone(self) -> ProcessLife:
        """Read all output until the last process of the peer has ended. Kill processes that outlive
        the trainer by more than ``GROUP_GRACE_S``."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        readers = [
            asyncio.create_task(self._read_status()),
            asyncio.create_task(self._read_output(self._process.stdout, False)),
            asyncio.create_task(self._read_output(self._process.stderr, True)),
        ]
        try:
            code, ended_at = await self._wait_trainer()
            # Read the last output, for a short time. If the whole peer was killed, the channels end
            # at once.
            await asyncio.wait(readers, timeout=LAST_WORDS_S)
            life = ProcessLife(
                self.peer,
                self.incarnation,
                code if code >= 0 else None,
                -code if code < 0 else None,
                tuple(self._tail),
                self._began_at,
                ended_at,
            )
            self._listener.on_exit(life)
            until = time.monotonic() + GROUP_GRACE_S
            while self.members():
                if readers[0].done():  # Trainer and node have ended: only their children are left.
                    until = min(until, time.monotonic() + LEFT_BEHIND_S)
                if time.monotonic() >= until:
                    self.send_all(signal.SIGKILL)
                    break
                await asyncio.sleep(POLL_S)
            # All writers have ended, except children with their own session, for which the launcher
            # does not wait.
            await asyncio.wait(readers, timeout=DRAIN_S)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            self._log.close()
        reap(self.pid)
        self._process.wait()  # From now on the pid can be reused.
        return life

    async def _wait_trainer(self) -> tuple[int, float]:
        """Wait for the trainer. Return its exit code (negative for a signal) and the time of its
        end.

        The trainer stays a zombie, so that its pid and group are not reused before the cleanup.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[int, float]] = loop.create_future()

        def set_end(code: int, at: float) -> None:
            if not ended.done():
                ended.set_result((code, at))

        def wait() -> None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            at = time.monotonic()
            assert found is not None
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            if not loop.is_closed():
                loop.call_soon_threadsafe(set_end, code, at)

        threading.Thread(target=wait, name=f"wait-peer-{self.peer}", daemon=True).start()
        return await ended

    async def _read_status(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._status, limit=2**20)
        try:
            while line := await reader.readline():
                try:
                    row = check_row(parse_json(line), "events")
                except ValueError as error:
                    row = self._error(f"a status line that is not an event, {error}: {line[:80]!r}")
                if row.get("event") is not None:
                    self._listener.on_row({**row, "peer": self.peer})
        except (ConnectionError, ValueError) as error:
            self._listener.on_row(self._error(f"its status channel broke: {error}"))
        finally:
            writer.close()

    def _error(self, message: str) -> Row:
        return events.Error(peer=self.peer, message=message).to_row(time.monotonic(), time.time())

    async def _read_output(self, pipe: Any, err: bool) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        rest = b""
        try:
            while chunk := await reader.read(LINE_MAX):
                self._log.append(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LINE_MAX:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._line(line, err)
        finally:
            if rest:
                self._line(rest, err)
            transport.close()

    def _line(self, line: bytes, err: bool) -> None:
        # A progress bar redraws its line with carriage returns. Show only its last state.
        text = line.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
        if err:
            self._tail.append(text)
        self._listener.on_line(text, err)


class ProcessLeader(Protocol):
    """Leader of a process group."""

    pid: int
    started_ticks: int


class Guardian:
    """Connection of the launcher to ``guardian.py``. If the guardian is killed, another one is
    started and receives all data again."""

    def __init__(self, token: str) -> None:
        self.token = token
        self._lines: dict[int | Path, str] = {}
        """Lines for a guardian that is started again, by process or socket."""
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            python_command("-I", "-S", str(Path(__file__).resolve().parents[1] / "guardian.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            bufsize=1,
            cwd="/",
        )
        assert process.stdin is not None
        process.stdin.writelines([f"token {self.token}\n", *self._lines.values()])
        return process

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, process: ProcessLeader) -> None:
        self._add(process.pid, f"watch {process.pid} {process.started_ticks}\n")

    def remove_socket(self, path: Path) -> None:
        """Register a socket that the guardian removes if this launcher is killed."""
        self._add(path, f"socket {path}\n")

    def _add(self, key: int | Path, line: str) -> None:
        self._lines[key] = line
        self._send_line(line)

    def forget(self, process: ProcessLeader) -> None:
        self._lines.pop(process.pid, None)
        self._send_line(f"forget {process.pid}\n")

    def revive(self) -> bool:
        """Start the guardian again if it has ended. Return whether it had."""
        if self._process.poll() is None:
            return False
        self._close_pipe()
        self._process = self._start()
        return True

    def _send_line(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
        except BrokenPipeError:
            self.revive()  # The new process receives all data, including this line.

    def close(self) -> None:
        """End the guardian."""
        self._send_line("done\n")
        self._close_pipe()
        self._process.send_signal(signal.SIGCONT)  # The guardian may be stopped.
        self._process.wait()

    def _close_pipe(self) -> None:
        assert self._process.stdin is not None
        # The guardian may have ended before it read the rest.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
