"""Connection of the launcher to one agent: starts ssh, reads the frames of the agent, measures its
clock, and detects its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gossip.errors import LocalError, Malformed
from gossip.launch.guardian import TOKEN_VARIABLE, stat
from gossip.launch.local import Guardian

from . import frames, ssh
from .agent import VERSION
from .frames import Decoder, Frame
from .hostlist import Host

HELLO_S = 60.0  # long, because Python and gossip may be read from a slow disk
ANSWER_S = 60.0
PING_S = 1.0
BYE_S = 3.0
TAIL_LINES = 40
LAST_WORDS_S = 0.5
CLOCK_SAMPLES = 32

NONSENSE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    Malformed,
)
"""Exceptions that the handling of a malformed frame, or a failed write on this machine, may
raise."""


class AgentLost(LocalError):
    """The agent of a host has ended, or does not reply."""


class RemoteAgent:
    """One process of the agent of a host.

    Args:
        argv: Command that starts the agent.
        on_frame: Called with each frame that is not a reply.
        on_end: Called once, after the last frame.
    """

    def __init__(
        self,
        host: Host,
        argv: Sequence[str],
        guardian: Guardian,
        on_frame: Callable[[RemoteAgent, Frame], None],
        on_end: Callable[[RemoteAgent], None],
    ) -> None:
        self.host, self.name, self._argv = host, host.name, list(argv)
        self._guardian, self._on_frame, self._on_end = guardian, on_frame, on_end
        self._decoder = Decoder()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._asked: dict[str, asyncio.Future[Frame]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._pings: dict[int, float] = {}
        # last clock samples: round-trip time, and differences of the monotonic and wall clocks, in
        # seconds
        self._clocks: deque[tuple[float, float, float]] = deque(maxlen=CLOCK_SAMPLES)
        self.heard_at = time.monotonic()
        self.over = False
        self.closing = False
        self.stumbled = False  # whether a frame could not be handled

    async def open(self) -> None:
        """Start the agent. Raises: Unreachable: The agent does not start."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, TOKEN_VARIABLE: self._guardian.token},
                # Ctrl-C must not reach ssh, because the launcher stops the agents.
                start_new_session=True,
            )
        except OSError as error:
            raise ssh.Unreachable(
                self.host.target, f"cannot start {self._argv[0]}: {error.strerror}", "--ssh COMMAND"
            ) from error
        self.pid = self._process.pid
        found = stat(self.pid)
        self.started_ticks = found.started if found is not None else 0
        self._guardian.watch(self)
        self._tasks = [asyncio.create_task(work) for work in (self._read_errors(), self._read())]
        try:
            hello = await self._expect("hello", HELLO_S)
        except AgentLost:
            code = self._process.returncode if self.over else None
            await self.close(now=True)
            raise ssh.explain(self.host, code, [*self._decoder.noise, *self._tail]) from None
        if hello.get("version") != VERSION:
            await self.close(now=True)
            raise ssh.Unreachable(
                self.host.target,
                "the version of gossip there has another agent protocol",
                "install the same version on all hosts",
            )
        self._tasks.append(asyncio.create_task(self._keep_pinging()))

    @property
    def is_open(self) -> bool:
        """Whether the process of the agent is running."""
        return bool(self._tasks) and not self.over

    @property
    def shift_s(self) -> float:
        """Difference between the local and the agent's monotonic clock, in seconds. It is added to
        the agent's times to get local times."""
        return min(self._clocks)[1] if self._clocks else 0.0

    @property
    def clock_s(self) -> float:
        """Difference between the agent's and the local wall clock, in seconds. It is positive if
        the agent's clock is ahead."""
        return min(self._clocks)[2] if self._clocks else 0.0

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.heard_at

    @property
    def last_words(self) -> str:
        return str(
            ssh.explain(self.host, self._process.returncode, [*self._decoder.noise, *self._tail])
        )

    def send(self, kind: str, **fields: Any) -> None:
        """Send a frame to the agent. The frame is dropped if the agent has ended, which ``on_end``
        reports."""
        assert self._process.stdin is not None
        if not self.over and not self._process.stdin.is_closing():
            self._process.stdin.write(frames.encode({"kind": kind, **fields}))

    async def ask(self, kind: str, answer: str, within_s: float = ANSWER_S, **fields: Any) -> Frame:
        """Send a request, and return the reply, a frame of the kind ``answer``. Raises: AgentLost:
        No reply arrived."""
        self.send(kind, **fields)
        return await self._expect(answer, within_s)

    async def _expect(self, kind: str, within_s: float) -> Frame:
        if self.over:
            raise AgentLost(f"{self.name} has ended")
        future = self._asked[kind] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(future, within_s)
        except TimeoutError:
            raise AgentLost(f"{self.name} did not reply in {within_s:.0f} s") from None
        finally:
            self._asked.pop(kind, None)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for frame in frames.read(self._process.stdout, self._decoder):
                self._receive_frame(frame)
        except NONSENSE as error:
            # No more frames can be read, so end the agent.
            self._tail.append(f"its frames are malformed: {type(error).__name__}: {error}")
            self._signal(signal.SIGKILL)
        await self._process.wait()
        await asyncio.wait(self._tasks[:1], timeout=LAST_WORDS_S)
        self._guardian.forget(self)
        self._end()

    def _receive_frame(self, frame: Frame) -> None:
        self.heard_at = time.monotonic()
        if frame["kind"] == "pong":
            self._pong(frame)
        elif (future := self._asked.get(frame["kind"])) is not None and not future.done():
            future.set_result(frame)
        else:
            self._handle_frame(frame)

    def _end(self) -> None:
        """Record that no more frames will arrive."""
        if self.over:
            return
        self.over = True
        for future in self._asked.values():
            if not future.done():
                future.set_exception(AgentLost(f"{self.name} has ended"))
        self._on_end(self)

    def _handle_frame(self, frame: Frame) -> None:
        """Handle a frame of the agent. If the frame is malformed, or its data cannot be written
        here (a full disk), drop the frame. Host and run continue."""
        try:
            self._on_frame(self, frame)
        except NONSENSE as error:
            if not self.stumbled:
                self.stumbled = True
                self._handle_frame(
                    {
                        "kind": "say",
                        "text": f"! some of its output is lost: {type(error).__name__}: {error}",
                    }
                )

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError, OSError):  # a line is too long, or the pipe is broken
            async for line in self._process.stderr:
                self._tail.append(line.decode("utf-8", "replace").rstrip())

    async def _keep_pinging(self) -> None:
        """Ping the agent. The agent uses the pings to distinguish a dead launcher from an
        interrupted network."""
        for number in itertools.count():
            self._pings[number] = time.monotonic()
            self._pings.pop(number - CLOCK_SAMPLES, None)
            self.send("ping", n=number)
            await asyncio.sleep(PING_S if number > 3 else 0.05)

    def _pong(self, frame: Frame) -> None:
        sent = self._pings.pop(frame["n"], None)
        if sent is not None:
            trip, middle = self.heard_at - sent, (self.heard_at + sent) / 2
            wall = time.time() - (time.monotonic() - middle)
            self._clocks.append((trip, middle - float(frame["mono"]), float(frame["wall"]) - wall))

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def close(self, now: bool = False) -> None:
        """Disconnect from the agent, which then ends its peers. ``now``: whether to close without
        waiting for the agent."""
        self.closing = True
        if not self.over:
            self.send("bye")
            assert self._process.stdin is not None
            self._process.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._tasks[1]), 0.0 if now else BYE_S)
        if not self.over:
            self._signal(signal.SIGKILL)
            await asyncio.wait(self._tasks[1:2], timeout=BYE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end()  # called even if SIGKILL has not ended the process in time
