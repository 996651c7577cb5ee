"""Trainer scripts without the seconds that each needs to import torch: forked from a process that
has imported it.

A script runs as ``python -c`` would run it, in a session of its own, to the interpreter's own end,
with its own signals and exit status. Only its traceback begins a frame too early.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

PATIENCE_S = 60.0
NURSERY = """
import fcntl, json, os, signal, socket, sys
sys.path.insert(0, sys.argv[2])
import trainer_fakes, gossip.training.exchange, gossip.training.start
join_server = socket.socket(fileno=int(sys.argv[1]))
while True:
    asked, fds, _, _ = socket.recv_fds(join_server, 1 << 16, 16)
    if not asked:
        sys.exit()
    if os.fork() == 0:
        break
    for fd in fds:
        os.close(fd)
join_server.close()
script = json.loads(asked)
told = socket.socket(fileno=fds.pop(0))
child = os.fork()
if child:  # it only waits, since nobody else may
    for fd in fds:
        os.close(fd)
    told.send(str(child).encode())
    told.send(str(os.waitpid(child, 0)[1]).encode())
    os._exit(0)
told.close()
os.setsid()
# Who runs the tests in the background may ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Out of the way first, so that none is overwritten by another's number.
copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 200) for fd in fds]
for copy, wanted in zip(copies, script["fds"]):
    os.dup2(copy, wanted)
    os.close(copy)
for fd in set(fds) - set(script["fds"]):
    os.close(fd)
exec(compile(script["code"], "<string>", "exec"), {"__name__": "__main__"})
"""


class Script:
    """What a test needs of ``subprocess.Popen``, with pipes for all three streams."""

    def __init__(self, join_server: socket.socket, code: str, pass_fds: Sequence[int] = ()) -> None:
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given, written = os.pipe()
        said, out = os.pipe()
        complained, err = os.pipe()
        words = json.dumps({"code": code, "fds": [0, 1, 2, *pass_fds]}).encode()
        socket.send_fds(join_server, [words], [theirs.fileno(), given, out, err, *pass_fds])
        theirs.close()
        for fd in (given, out, err):
            os.close(fd)
        self.stdin: TextIO = os.fdopen(written, "w")
        self.stdout: TextIO = os.fdopen(said)
        self.stderr: TextIO = os.fdopen(complained)
        self.returncode: int | None = None
        self._told.settimeout(PATIENCE_S)
        self.pid = int(self._told.recv(64))

    def wait(self, timeout: float) -> int:
        """Its exit code, a signal as a negative one. Raises: subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(int(self._told.recv(64)))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("the script", timeout) from None
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def communicate(self, text: str = "", timeout: float = PATIENCE_S) -> tuple[str, str]:
        """What it says yet, once it has ended. Its pipes hold that;
        more than 64 KiB they would not."""
        with suppress(BrokenPipeError):
            self.stdin.write(text)
            self.stdin.close()
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()

    def close(self) -> bool:
        """Returns whether it had ended; ends it."""
        ended = self.poll() is not None
        if not ended:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait(PATIENCE_S)
        for stream in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                stream.close()
        self._told.close()
        return ended


class Nursery:
    """The process that forks them."""

    def __init__(self) -> None:
        self._join_server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-c", NURSERY, str(theirs.fileno()), str(Path(__file__).parent)]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()

    def start(self, code: str, pass_fds: Sequence[int] = ()) -> Script:
        return Script(self._join_server, code, pass_fds)

    def close(self) -> None:
        self._join_server.close()
        self._process.wait(PATIENCE_S)
