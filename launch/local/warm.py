"""Starts peers in milliseconds: forks them from one process that has imported the modules of every
peer.

A peer consists of two processes that import torch, which takes one to two seconds of processor time
each. If eight peers start on two processors, this is most of the start time. It also delays the
restart of a killed peer. So the launcher starts one process that only imports the modules and forks
at each start of a peer. One child becomes the trainer, which continues as ``python -u script.py``
would. The other becomes its node, which waits for ``gossip.init()``.

Forking is safe there: the process has one thread, no socket except the one to the launcher, and no
device context. A peer becomes a child of the launcher: the process forks twice, the process in
between exits at once, and the launcher adopts the orphan (``PR_SET_CHILD_SUBREAPER``). So the
launcher can wait for a peer as for any child, and the process that forks may die without
consequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import SourceLoader
from io import open_code
from typing import Any, BinaryIO

from gossip.errors import LocalError
from gossip.interpreter import python_command
from gossip.launch.guardian import TOKEN_VARIABLE, stat

from .program import MODULE, Program

REQUEST_BYTES_MAX = 2**17
READY_S, FORK_S = 90.0, 10.0
"""Time without progress after which the process that forks is stuck: before it is ready, and
during a fork."""
LOOK_S = 1.0
ENDING_S = 0.5
AGAIN_S = 1.0  # pause after a failure; each further failure doubles it
FAILURES_MAX = 5  # consecutive failures
READY, CANNOT = b"ready", b"!"
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


class ForkServerGone(LocalError):
    """No peer was forked, and the reason was printed."""


class ForkedProcess:
    """A child that another process has forked, with the methods of ``subprocess.Popen`` that are
    used."""

    def __init__(self, pid: int, stdout: BinaryIO, stderr: BinaryIO) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait for the process to end, and reap it."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class WarmStart:
    """The launcher's connection to the process that forks. If that process fails, peers start
    without it, a little later.

    Args:
        environment: Environment of all peers.
        token: Marks the launcher's processes in their environment.
        say: Called with a line about each failure.
    """

    def __init__(
        self, environment: Mapping[str, str], token: str, say: Callable[[str], None]
    ) -> None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._environment, self._say = {**environment, TOKEN_VARIABLE: token}, say
        self._ready, self._one_asks = False, asyncio.Lock()
        self._failures, self._not_before = 0, 0.0
        self._open()

    def _open(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                python_command("-u", "-m", "gossip.launch.local.warm", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    async def ready_unless(self, stop: asyncio.Event) -> bool:
        """Whether peers can be forked, as ``ready`` returns it. False at once if ``stop`` is set,
        because an import of torch cannot be interrupted."""
        waits = [asyncio.ensure_future(self.ready()), asyncio.ensure_future(stop.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        # Read last: a fork for another caller may have failed in the meantime.
        return self._ready and not stop.is_set()

    async def ready(self) -> bool:
        """Whether peers can be forked. Wait until the process is ready or has failed. If it was
        killed, start another one. After a failure start none for some time, and after
        ``FAILURES_MAX`` failures none at all."""
        async with self._one_asks:
            if self._failures >= FAILURES_MAX or time.monotonic() < self._not_before:
                return False
            if self._process.poll() is not None:
                self._socket.close()
                self._ready = False
                self._open()
            if not self._ready:
                left_s = self._count_down(READY_S)
                said = asyncio.ensure_future(
                    asyncio.get_running_loop().sock_recv(self._socket, REQUEST_BYTES_MAX)
                )
                try:
                    while not said.done() and (timeout := left_s()) > 0:
                        await asyncio.wait([said], timeout=min(timeout, LOOK_S))
                    self._ready = said.done() and said.result() == READY
                except OSError:
                    self._ready = False
                finally:
                    said.cancel()
                if not self._ready:
                    self._fail("before it was ready")
            return self._ready

    def _count_down(self, seconds: float) -> Callable[[], float]:
        """Return a function for the rest of ``seconds`` since the process's last progress. On
        a busy machine or a slow disk the process is slow, not stuck."""
        seen, since = self._work, time.monotonic()

        def left_s() -> float:
            nonlocal seen, since
            if (now := self._work) != seen:
                seen, since = now, time.monotonic()
            return since + seconds - time.monotonic()

        return left_s

    @property
    def _work(self) -> tuple[int, int] | None:
        found = stat(self._process.pid)
        return None if found is None else found.work

    def _fail(self, when: str, why: str = "") -> None:
        """End the process, print the reason, and start no other one for some time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A process that closes its channel is about to exit: wait for its exit code.
            self._process.wait(ENDING_S)
        code = self._process.poll()
        self._process.kill()
        self._process.wait()
        if not why:
            why = (
                "it did not answer"
                if code is None
                else f"killed by signal {-code}"
                if code < 0
                else f"exit code {code}"
            )
        self._ready, self._failures = False, self._failures + 1
        wait_s = AGAIN_S * 2 ** (self._failures - 1)
        self._not_before = time.monotonic() + wait_s
        again = (
            "not tried again" if self._failures == FAILURES_MAX else f"tried again in {wait_s:g} s"
        )
        self._say(
            f"! the process that forks peers has ended {when} ({why}): peers start without it, "
            f"more slowly; it is {again}"
        )

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], status: socket.socket
    ) -> ForkedProcess:
        """Fork a new peer, in its own session.

        Args:
            command: ``[interpreter, "-u", script, *arguments]``, with ``"-m", module`` instead of
                the script where it is a module.
            environment: Variables of this peer alone.
            status: The peer's end of the status channel.
        Raises: ForkServerGone: The process that forks was killed, does not reply, or cannot fork.
            ``ready`` starts another one.
        """
        request = json.dumps(
            {"words": list(command[2:]), "environment": dict(environment)}
        ).encode()
        if len(request) > REQUEST_BYTES_MAX:
            raise LocalError(
                f"the script's arguments take {len(request)} bytes, at most {REQUEST_BYTES_MAX} "
                "are possible"
            )
        out, err = os.pipe(), os.pipe()
        try:
            socket.send_fds(self._socket, [request], [out[1], err[1], status.fileno()])
            left_s = self._count_down(FORK_S)
            while not select.select([self._socket], [], [], min(max(0.0, left_s()), LOOK_S))[0]:
                if left_s() <= 0:
                    raise TimeoutError(f"no answer for {FORK_S:.0f} s")
            answer = self._socket.recv(REQUEST_BYTES_MAX)
            if not answer:
                raise ConnectionResetError
            if answer.startswith(CANNOT):
                raise OSError(answer[1:].decode(errors="replace"))
            pid = int(answer)
        except OSError as error:
            os.close(out[0])
            os.close(err[0])
            self._fail("while it forked a peer", str(error))
            raise ForkServerGone("a peer could not be forked") from error
        finally:
            os.close(out[1])
            os.close(err[1])
        self._failures = 0
        return ForkedProcess(
            pid, os.fdopen(out[0], "rb", buffering=0), os.fdopen(err[0], "rb", buffering=0)
        )

    def close(self) -> None:
        """End the process that forks. Peers that it has forked continue."""
        self._socket.close()
        # It holds no resources, and during the import of torch it would not notice a closed
        # channel.
        self._process.kill()
        self._process.wait()
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


def is_possible(command: Sequence[str]) -> bool:
    """Whether the command runs a script as the launcher does."""
    return (
        len(command) > 2
        and list(command[:2]) == [sys.executable, "-u"]
        and (command[2] == MODULE or not command[2].startswith("-"))
    )


# --- the process that forks -----------------------------------------------------------------------


def serve(channel: socket.socket) -> Callable[[], None]:
    """Fork at each request. Return in a child only: the function that the child must call. The
    process itself never returns."""
    while True:
        request, fds, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 3)
        if not request:
            os._exit(0)  # Nothing needs cleanup, and with torch a regular exit takes long.
        told, tell = os.pipe()
        between = _fork(tell)
        if between == 0:
            child = _fork(tell)
            if child:
                os.write(tell, str(child).encode())
            if child != 0:
                os._exit(0)
            os.close(told)
            os.close(tell)
            channel.close()
            return _become(json.loads(request), fds)
        os.close(tell)
        for fd in fds:
            os.close(fd)
        if between is not None:
            os.waitpid(between, 0)  # From now on the child is the launcher's.
        channel.send(os.read(told, 1024))
        os.close(told)


def _fork(tell: int) -> int | None:
    """Return the result of ``os.fork``. None if it has failed, and the launcher receives the
    reason."""
    try:
        return os.fork()
    except OSError as error:
        os.write(tell, CANNOT + f"it cannot fork: {error.strerror}".encode())
        return None


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> Callable[[], None]:
    """Turn this process into a peer, with its own session and output, and start its node."""
    os.setsid()
    out, err, status = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.environ.update(request["environment"], GOSSIP_STATUS_FD=str(status))
    program = Program.of(request["words"])
    if program.shadowing(sys.modules):
        # The script has files with the names of modules that are already imported here.
        os.set_inheritable(status, True)
        os.execv(program.command[0], program.command)
    from gossip.training import node_start

    peer = request["environment"]["GOSSIP_PEER"]
    node = node_start.fork_ahead()
    _call_it(f"gossip-node-{peer}" if node else f"gossip-peer-{peer}")
    return node or (lambda: run(program))


def run(program: Program) -> None:
    """Run a program as ``python script arguments`` or ``python -m module arguments`` does,
    including the frames of tracebacks."""
    sys.orig_argv = program.command
    if program.first_folder is not None:
        sys.path.insert(0, program.first_folder)
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    try:
        if program.module:
            _run_module(program)
        else:
            _run_script(program, main)
    except Exception as error:  # noqa: BLE001
        # As the interpreter does, without the frames of this module.
        first = "<frozen runpy>" if program.module else program.script
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != first:
            frames = frames.tb_next
        error.__traceback__ = frames
        sys.excepthook(type(error), error, frames)
        sys.exit(1)


def _run_module(program: Program) -> None:
    sys.argv = [MODULE, *program.arguments]
    # The interpreter calls this function for -m; the public one runs the code in another module.
    as_main = getattr(runpy, "_run_module_as_main")  # noqa: B009
    as_main(program.script)


def _run_script(program: Program, main: types.ModuleType) -> None:
    script = program.script
    sys.argv = program.words
    main.__dict__.update(__file__=script)
    loader = _Script(script)
    try:
        loader.get_data(script)
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {os.path.abspath(script)!r}: [Errno "
            f"{error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        sys.exit(2)
    loader.exec_module(main)


class _Script(SourceLoader):
    """Runs a file without writing a compiled one."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: bytes | str) -> bytes:
        with open_code(os.fsdecode(os.path.abspath(path))) as file:
            return file.read()


def _call_it(name: str) -> None:
    """Set the name of this process in ps and top."""
    _prctl(PR_SET_NAME, ctypes.create_string_buffer(name[:15].encode()))


def _prctl(option: int, value: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


def main() -> None:
    """Run ``python -m gossip.launch.local.warm FD``: the launcher holds the other end of the
    descriptor."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        import torch

        from gossip.node import Node  # noqa: F401 - for the forked peers
        from gossip.training import Session  # noqa: F401

        torch.set_num_threads(1)
        # The first optimizer of a process imports torch._dynamo, which takes as long as torch
        # itself.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    except Exception:  # noqa: BLE001
        # After any error the launcher must detect that no peer can be forked.
        traceback.print_exc()
        sys.exit(1)
    gc.collect()
    gc.freeze()  # Otherwise the first collection would copy most of the shared pages.
    try:
        channel.send(READY)
    except BrokenPipeError:
        sys.exit(1)  # The launcher has failed to start, and has printed the reason.
    serve(channel)()


if __name__ == "__main__":
    main()
