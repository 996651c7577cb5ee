"""Starting peers in milliseconds: they are forked from one process that has imported what every peer needs.

A peer is two processes that import torch, which takes one to two seconds of a processor each. Eight peers that start on two
processors wait for that longest of all, and a peer that was killed is missed meanwhile. So the launcher starts one process that
imports it all once, does nothing else, and forks whenever a peer is to be started: into the trainer, which goes on as
``python -u script.py`` would, and into its node, which waits for ``gossip.init()``.

Forking is safe there: the process has one thread, no sockets but the one to the launcher, and no device context. A peer is the
launcher's own child: the fork happens twice, the one between ends at once, and the launcher adopts what is left over
(``PR_SET_CHILD_SUBREAPER``). It can wait for it like for any other, and this process may die without anybody noticing.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import select
import socket
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import SourceLoader
from io import open_code
from typing import Any, BinaryIO

from gossip.errors import LocalError

from .guardian import TOKEN_VARIABLE

REQUEST_BYTES_MAX = 2**17
FORK_S = 10.0
READY = b"ready"
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


class Gone(LocalError):
    """The process that forks is no more; ``ready`` makes another."""


class Forked:
    """A child that somebody else has forked for us, as far as ``subprocess.Popen`` is needed of it."""

    def __init__(self, pid: int, stdout: BinaryIO, stderr: BinaryIO) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None

    def wait(self) -> int:
        """Waits for its end, and lets its pid go."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class WarmStart:
    """The launcher's end.

    Args:
        environment: That of all peers.
        token: The launcher's word in their environment.
    """

    def __init__(self, environment: Mapping[str, str], token: str) -> None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._environment = {**environment, TOKEN_VARIABLE: token}
        self._ready, self._one_asks = False, asyncio.Lock()
        self._open()

    def _open(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-P", "-m", "gossip.launch.warm", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    async def ready(self) -> None:
        """Until peers can be started; when somebody has killed the process, until there is another.

        Raises: LocalError: It cannot import what peers need.
        """
        async with self._one_asks:
            if self._process.poll() is not None:
                self._socket.close()
                self._ready = False
                self._open()
            if not self._ready:
                said = await asyncio.get_running_loop().sock_recv(self._socket, REQUEST_BYTES_MAX)
                if said != READY:
                    raise LocalError("peers cannot be started: importing torch and gossip failed", "what it said is above")
                self._ready = True

    def start(self, command: Sequence[str], environment: Mapping[str, str], status: socket.socket) -> Forked:
        """A new peer, in a session of its own.

        Args:
            command: ``[interpreter, "-u", script, *arguments]``.
            environment: What this peer alone has.
            status: Its end of the status channel.
        Raises: Gone: Somebody has killed the process that forks, or it does not answer.
        """
        script, *arguments = command[2:]
        request = json.dumps({"script": script, "arguments": arguments, "environment": dict(environment)}).encode()
        if len(request) > REQUEST_BYTES_MAX:
            raise LocalError(f"the script's arguments take {len(request)} bytes, at most {REQUEST_BYTES_MAX} are possible")
        out, err = os.pipe(), os.pipe()
        try:
            socket.send_fds(self._socket, [request], [out[1], err[1], status.fileno()])
            if not select.select([self._socket], [], [], FORK_S)[0]:
                raise TimeoutError(f"no answer for {FORK_S:.0f} s")
            pid = int(self._socket.recv(REQUEST_BYTES_MAX) or b"0")
            if not pid:
                raise ConnectionResetError("it closed its channel")
        except OSError as error:
            os.close(out[0])
            os.close(err[0])
            self._process.kill()
            self._process.wait()
            raise Gone(f"the process that starts peers is gone: {error}") from error
        finally:
            os.close(out[1])
            os.close(err[1])
        return Forked(pid, os.fdopen(out[0], "rb", buffering=0), os.fdopen(err[0], "rb", buffering=0))

    def close(self) -> None:
        """No more peers will be started. Those that were are left alone."""
        self._socket.close()
        self._process.wait()  # it has nothing to do but to see the end of the channel
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


def is_possible(command: Sequence[str]) -> bool:
    """Whether this is how the launcher has Python run a script."""
    return len(command) > 2 and list(command[:2]) == [sys.executable, "-u"] and not command[2].startswith("-")


# --- the process that forks -----------------------------------------------------------------------------------------------


def serve(channel: socket.socket) -> Callable[[], None]:
    """Forks for whoever asks. Returns in a child only, with what that has to do; in the process itself it does not return."""
    while True:
        request, fds, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 3)
        if not request:
            sys.exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(tell, str(child).encode())
                os._exit(0)
            os.close(told)
            os.close(tell)
            channel.close()
            return _become(json.loads(request), fds)
        os.close(tell)
        for fd in fds:
            os.close(fd)
        os.waitpid(between, 0)  # only then is the child the launcher's
        channel.send(os.read(told, 32))
        os.close(told)


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> Callable[[], None]:
    """Makes this process a peer: a session of its own, its own output, and its node beside it."""
    os.setsid()
    out, err, status = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.environ.update(request["environment"], GOSSIP_STATUS_FD=str(status))
    from gossip.training import spawn

    peer = request["environment"]["GOSSIP_PEER"]
    node = spawn.fork_ahead()
    _call_it(f"gossip-node-{peer}" if node else f"gossip-peer-{peer}")
    return node or (lambda: run_script(request["script"], request["arguments"]))


def run_script(script: str, arguments: Sequence[str]) -> None:
    """As ``python script arguments`` does, down to what a traceback shows."""
    sys.argv = [script, *arguments]
    sys.orig_argv = [sys.executable, "-u", script, *arguments]
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=__builtins__, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    loader = _Script(script)
    try:
        loader.get_data(script)
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {os.path.abspath(script)!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    try:
        loader.exec_module(main)
    except Exception as error:  # noqa: BLE001 - as the interpreter does, without showing how we got there
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != script:
            frames = frames.tb_next
        error.__traceback__ = frames
        sys.excepthook(type(error), error, frames)
        sys.exit(1)


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
    """What ps and top call this process."""
    _prctl(PR_SET_NAME, ctypes.create_string_buffer(name[:15].encode()))


def _prctl(option: int, value: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


def main() -> None:
    """``python -m gossip.launch.warm FD``: the launcher is at the other end of the descriptor."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        import torch

        import gossip.node
        import gossip.training.session  # noqa: F401 - for those who will be forked

        torch.set_num_threads(1)
    except Exception:  # noqa: BLE001 - whatever it is, the launcher has to know that no peer can be started
        traceback.print_exc()
        sys.exit(1)
    gc.collect()
    gc.freeze()  # or the first collection would copy most of what is shared
    channel.send(READY)
    serve(channel)()


if __name__ == "__main__":
    main()
