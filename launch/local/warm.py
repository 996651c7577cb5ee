"""Fast start of peers: they are forked from a fork server, a process that has already imported the
modules of peers.

A peer consists of two processes that import torch. Each import takes one to two seconds of
processor time. If eight peers start on two processors, this is most of the start time, and it also
delays restarts. So the launcher starts one fork server, which imports the modules and then forks at
each start of a peer. One child becomes the trainer, which continues as ``python -u script.py``
would. The other child becomes its node, which waits for ``gossip.init()``.

Forking is safe in the fork server: it has one thread, no socket except that to the launcher, and no
device context. The fork server forks twice, and the process in between exits at once, so that the
launcher adopts the peer as its own child (``PR_SET_CHILD_SUBREAPER``). So the launcher can wait for
a peer as for any child, and peers survive the death of the fork server.
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
from dataclasses import dataclass
from importlib.abc import SourceLoader
from io import open_code
from typing import Any, BinaryIO

from gossip.errors import LocalError
from gossip.interpreter import python_command
from gossip.launch.guardian import TOKEN_VARIABLE, stat

from .program import MODULE, Program

REQUEST_BYTES_MAX = 2**17
READY_S, FORK_S = 90.0, 10.0
"""Time without progress after which the fork server counts as stuck, in seconds: before it is
ready, and during a fork."""
LOOK_S = 1.0
ENDING_S = 0.5
AGAIN_S = 1.0  # pause after a failure, in seconds; each further failure doubles it
FAILURES_MAX = 5  # maximum number of consecutive failures
READY, CANNOT = b"ready", b"!"
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


class ForkServerGone(LocalError):
    """The fork server has failed, so no peer was forked. The reason was printed."""


@dataclass(eq=False)
class ForkedProcess:
    """Child of the launcher that the fork server has forked. It has those methods of
    ``subprocess.Popen`` that the launcher uses."""

    pid: int
    stdout: BinaryIO
    stderr: BinaryIO
    returncode: int | None = None

    def wait(self) -> int:
        """Wait until the process has ended, and reap it. Return its exit code."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class WarmStart:
    """Connection of the launcher to the fork server. If the fork server fails, peers start without
    it, more slowly.

    Args:
        environment: Environment of all peers.
        token: Marks the processes of the launcher in their environment.
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

    async def ready(self, stop: asyncio.Event) -> bool:
        """Wait until the fork server is ready or has failed, or ``stop`` is set: the wait can be
        long, because the import of torch cannot be interrupted. Return whether peers can be forked.
        If the fork server was killed, start another one, but not for some time after a failure, and
        never after ``FAILURES_MAX`` failures."""
        async with self._one_asks:
            if self._failures >= FAILURES_MAX or time.monotonic() < self._not_before:
                return False
            if self._process.poll() is not None:
                self._socket.close()
                self._ready = False
                self._open()
            if not self._ready:
                left_s = self._count_down(READY_S)
                loop = asyncio.get_running_loop()
                said = asyncio.ensure_future(loop.sock_recv(self._socket, REQUEST_BYTES_MAX))
                waits = [said, stopping := asyncio.ensure_future(stop.wait())]
                try:
                    while not said.done() and not stop.is_set() and (timeout := left_s()) > 0:
                        await asyncio.wait(
                            waits, timeout=min(timeout, LOOK_S), return_when="FIRST_COMPLETED"
                        )
                    self._ready = said.done() and said.result() == READY
                except OSError:
                    self._ready = False
                finally:
                    said.cancel()
                    stopping.cancel()
                if not self._ready and not stop.is_set():
                    self._fail("before it was ready")
            return self._ready and not stop.is_set()

    def _count_down(self, seconds: float) -> Callable[[], float]:
        """Return a function that returns the remaining part of ``seconds`` since the last progress
        of the fork server. On a busy machine or a slow disk, the fork server is slow, not stuck."""
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
        """End the fork server, print the reason, and start no other one for some time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A process that closes its channel is about to exit. Wait for its exit code.
            self._process.wait(ENDING_S)
        code = self._process.poll()
        self._process.kill()
        self._process.wait()
        if not why:
            why = (
                "it did not reply"
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
        self, words: Sequence[str], environment: Mapping[str, str], status: socket.socket
    ) -> ForkedProcess:
        """Fork a new peer, in a session of its own.

        Args:
            words: ``Program.words`` of the program.
            environment: Environment variables of this peer only.
            status: End of the status channel for the peer.
        Raises: ForkServerGone: The fork server was killed, does not reply, or cannot fork.
        ``ready`` starts another one.
        """
        request = json.dumps({"words": list(words), "environment": dict(environment)}).encode()
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
        """End the fork server. Forked peers continue."""
        self._socket.close()
        # Killing is safe, because the fork server has no other resources. During the import of
        # torch it would not notice a closed channel.
        self._process.kill()
        self._process.wait()
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


# --- the process that forks -----------------------------------------------------------------------


def serve(channel: socket.socket) -> Callable[[], None]:
    """Fork at each request. This returns only in a child; the child must call the returned
    function. In the fork server it never returns."""
    while True:
        request, fds, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 3)
        if not request:
            os._exit(0)  # Nothing needs cleanup, and a regular exit is slow with torch.
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
            os.waitpid(between, 0)  # From now on, the peer is a child of the launcher.
        channel.send(os.read(told, 1024))
        os.close(told)


def _fork(tell: int) -> int | None:
    """Return the result of ``os.fork``. If it fails, send the reason to the launcher, and return
    None."""
    try:
        return os.fork()
    except OSError as error:
        os.write(tell, CANNOT + f"it cannot fork: {error.strerror}".encode())
        return None


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> Callable[[], None]:
    """Turn this process into a peer with its own session and output, and fork its node. Return the
    function that the process must call."""
    os.setsid()
    out, err, status = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.environ.update(request["environment"], GOSSIP_STATUS_FD=str(status))
    program = Program.of(request["words"])
    if program.shadowing(sys.modules):
        # A file of the user hides a module that is already imported here, so start a new
        # interpreter.
        os.set_inheritable(status, True)
        os.execv(program.command[0], program.command)
    from gossip.training import node_start

    peer = request["environment"]["GOSSIP_PEER"]
    node = node_start.fork_ahead()
    _call_it(f"gossip-node-{peer}" if node else f"gossip-peer-{peer}")
    return node or (lambda: run(program))


def run(program: Program) -> None:
    """Run a program as ``python script arguments`` or ``python -m module arguments`` does, with the
    same tracebacks."""
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
        # Print the traceback as the interpreter does, without the frames of this module.
        first = "<frozen runpy>" if program.module else program.script
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != first:
            frames = frames.tb_next
        error.__traceback__ = frames
        sys.excepthook(type(error), error, frames)
        sys.exit(1)


def _run_module(program: Program) -> None:
    sys.argv = [MODULE, *program.arguments]
    # The interpreter calls this function for -m. The public one does not run the code in __main__.
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
    """Loader that runs a file without writing a compiled file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: bytes | str) -> bytes:
        with open_code(os.fsdecode(os.path.abspath(path))) as file:
            return file.read()


def _call_it(name: str) -> None:
    """Set the name of this process that ps and top show."""
    _prctl(PR_SET_NAME, ctypes.create_string_buffer(name[:15].encode()))


def _prctl(option: int, value: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


def main() -> None:
    """Run ``python -m gossip.launch.local.warm FD``. FD is a socket; the launcher has its other
    end."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        import torch

        from gossip.node import Node  # noqa: F401 - imported for the forked peers
        from gossip.training import Session  # noqa: F401

        torch.set_num_threads(1)
        # The first optimizer of a process imports torch._dynamo, which takes as long as the import
        # of torch.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    except Exception:  # noqa: BLE001
        # Exit after any error, so that the launcher detects that no peer can be forked.
        traceback.print_exc()
        sys.exit(1)
    gc.collect()
    # Otherwise the first garbage collection in a peer would copy most of the shared pages.
    gc.freeze()
    try:
        channel.send(READY)
    except BrokenPipeError:
        sys.exit(1)  # The launcher has ended already.
    serve(channel)()


if __name__ == "__main__":
    main()
