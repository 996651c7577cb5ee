"""Starting peers in milliseconds: they are forked from one process that has imported what
every peer needs.

A peer is two processes that import torch, which takes one to two seconds of a processor each. Eight
peers that start on two processors wait for that longest of all, and a peer that was killed is
missed meanwhile. So the launcher starts one process that imports it all once, does nothing else,
and forks whenever a peer is to be started: into the trainer, which goes on as
``python -u script.py`` would, and into its node, which waits for ``gossip.init()``.

Forking is safe there: the process has one thread, no sockets but the one to the launcher, and no
device context. A peer is the launcher's own child: the fork happens twice, the one between ends at
once, and the launcher adopts what is left over (``PR_SET_CHILD_SUBREAPER``). It can wait for it
like for any other, and this process may die without anybody noticing.
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
"""The process that forks is stuck if it has done nothing for so long, before it is ready and when
it is to fork."""
LOOK_S = 1.0
ENDING_S = 0.5
AGAIN_S = 1.0  # after a failure; twice as long after the next one
FAILURES_MAX = 5  # one after the other
READY, CANNOT = b"ready", b"!"
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


class ForkServerGone(LocalError):
    """Nothing was forked, and the reason has been said."""


class ForkedProcess:
    """A child that somebody else has forked for us,
    as far as ``subprocess.Popen`` is needed of it."""

    def __init__(self, pid: int, stdout: BinaryIO, stderr: BinaryIO) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None

    def wait(self) -> int:
        """Waits for its end, and lets its pid go."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class WarmStart:
    """The launcher's end. Whatever becomes of the other end, peers can be started: without it,
    and a little later.

    Args:
        environment: That of all peers.
        token: The launcher's word in their environment.
        say: Takes a line about what went wrong.
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
        """Whether peers can be forked, as ``ready`` returns it. False at once if ``stop`` is set:
        an import of torch cannot be hurried."""
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
        """Whether peers can be forked: waits until they can, or it is clear that the process will
        not have it. When somebody has killed the process there is another; when it fails, none for
        a while, and after ``FAILURES_MAX`` failures no more."""
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
                    self._fail("before it could")
            return self._ready

    def _count_down(self, seconds: float) -> Callable[[], float]:
        """Return what is left of ``seconds`` since the process was last seen to work: on a busy
        machine, or on a slow disk, it is slow, and not stuck."""
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
        """Ends the process, says so, and leaves it be for a while."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # who closes its channel is about to end: how is worth knowing
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
        """A new peer, in a session of its own.

        Args:
            command: ``[interpreter, "-u", script, *arguments]``, with ``"-m", module`` in place of
                the script where it is a module.
            environment: What this peer alone has.
            status: Its end of the status channel.
        Raises: Gone: Somebody has killed the process that forks, it does not answer, or it cannot
            fork. ``ready`` knows.
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
            self._fail("when it was to fork one", str(error))
            raise ForkServerGone("a peer could not be forked") from error
        finally:
            os.close(out[1])
            os.close(err[1])
        self._failures = 0
        return ForkedProcess(
            pid, os.fdopen(out[0], "rb", buffering=0), os.fdopen(err[0], "rb", buffering=0)
        )

    def close(self) -> None:
        """No more peers will be started. Those that were are left alone."""
        self._socket.close()
        # it holds nothing; and while it imports torch it would not see the end of the channel
        self._process.kill()
        self._process.wait()
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


def is_possible(command: Sequence[str]) -> bool:
    """Whether this is how the launcher has Python run a script."""
    return (
        len(command) > 2
        and list(command[:2]) == [sys.executable, "-u"]
        and (command[2] == MODULE or not command[2].startswith("-"))
    )


# --- the process that forks -----------------------------------------------------------------------


def serve(channel: socket.socket) -> Callable[[], None]:
    """Forks for whoever asks. Returns in a child only, with what that has to do; in the process
    itself it does not return."""
    while True:
        request, fds, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 3)
        if not request:
            os._exit(0)  # there is nothing to clear up, and with torch that takes a while
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
            os.waitpid(between, 0)  # only then is the child the launcher's
        channel.send(os.read(told, 1024))
        os.close(told)


def _fork(tell: int) -> int | None:
    """Return the result of ``os.fork``. None: it has failed, and the launcher receives the
    reason."""
    try:
        return os.fork()
    except OSError as error:
        os.write(tell, CANNOT + f"it cannot fork: {error.strerror}".encode())
        return None


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> Callable[[], None]:
    """Makes this process a peer: a session of its own, its own output, and its node beside it."""
    os.setsid()
    out, err, status = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.environ.update(request["environment"], GOSSIP_STATUS_FD=str(status))
    program = Program.of(request["words"])
    if program.shadowing(sys.modules):
        # The script finds files of its own under names that are imported here already.
        os.set_inheritable(status, True)
        os.execv(program.command[0], program.command)
    from gossip.training import node_start

    peer = request["environment"]["GOSSIP_PEER"]
    node = node_start.fork_ahead()
    _call_it(f"gossip-node-{peer}" if node else f"gossip-peer-{peer}")
    return node or (lambda: run(program))


def run(program: Program) -> None:
    """Run a program as ``python script arguments`` or ``python -m module arguments`` does, down to
    what a traceback shows."""
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
        # as the interpreter does, without showing how we got there
        first = "<frozen runpy>" if program.module else program.script
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != first:
            frames = frames.tb_next
        error.__traceback__ = frames
        sys.excepthook(type(error), error, frames)
        sys.exit(1)


def _run_module(program: Program) -> None:
    sys.argv = [MODULE, *program.arguments]
    # The function that the interpreter itself calls for -m; what is public runs in another module.
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
    """Runs a file without leaving a compiled one behind."""

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
    """``python -m gossip.launch.local.warm FD``:
    the launcher is at the other end of the descriptor."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        import torch

        from gossip.node import Node  # noqa: F401 - for those who will be forked
        from gossip.training import Session  # noqa: F401

        torch.set_num_threads(1)
        # The first optimizer of a process imports torch._dynamo,
        # which takes as long again as torch itself.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    except Exception:  # noqa: BLE001
        # whatever it is, the launcher has to know that no peer can be started
        traceback.print_exc()
        sys.exit(1)
    gc.collect()
    gc.freeze()  # or the first collection would copy most of what is shared
    try:
        channel.send(READY)
    except BrokenPipeError:
        sys.exit(1)  # the launcher could not begin, and has said why
    serve(channel)()


if __name__ == "__main__":
    main()
