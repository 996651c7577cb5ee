"""Commands of ours without the seconds that each needs to import torch and the command line: forked
from one process that has imported them, one for each process that runs tests.

``Popen`` and ``run`` take ``python -m MODULE ...``, ``python -c CODE ...`` and
``python SCRIPT ...`` as ``subprocess`` does, and what is started is a child of the caller with its
own streams, working directory, environment, session and command line, as ``/proc`` tells them. A
launcher started so has its warm process in the same way, a script its node, and a benchmark the run
that it measures. ``HOST`` in the environment names the network namespace to start in, ``FIRST`` a
script that runs before all else, as ``sitecustomize`` would.

Tests of how a command starts, of what it imports, of the processor time that it takes, and of what
it says when it cannot start use ``subprocess``; so every way to start is also taken as a shell
takes it: ``run`` in test_launch_run.py, its warm process in test_launch_warm.py, ``join`` in
test_usual_mistakes.py, ``hosts`` and its agents in test_hosts_command.py, ranks of torchrun, whose
nodes are not forked either, in test_torchrun.py, a script alone in test_examples.py, what
schedulers are told in test_slurm_script.py, what tends runs in test_tending.py.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import io
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import SourceLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import typer.main

WARM, NODE = "gossip.launch.local.warm", "gossip.node"
# What commands start themselves that imports torch.
STARTED_BY_COMMANDS = [
    ["-m", module] for module in (WARM, NODE, "gossip.launch.cli", "gossip.launch.demo.evaluate")
]
# What nearly every command would import.
OF_COMMANDS = (
    "gossip.launch.cli.commands",
    "gossip.launch.local.supervisor",
    "gossip.launch.local.feasible",
    "gossip.launch.report.run_model",
    "gossip.training.start",
    "gossip.aggregators.means",
    "gossip.topologies.rolling",
)
HOST, FIRST = "TEST_HOST", "TEST_FIRST"
READY_S = 100.0
REQUEST_BYTES_MAX, FDS_MAX = 2**18, 64
# Room for what /proc shows of a child, which is written over what it shows of this process.
ROOM_BYTES = 2**14
ROOM = "GOSSIP_TEST_ROOM"
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
LIBC = ctypes.CDLL(None, use_errno=True)
# What changes which code runs: a child that has another value of it would not be what it is without
# this file.
AT_START = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "LD_PRELOAD")
# As it is before any test has changed it.
STARTED_WITH = dict(os.environ)


def at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in AT_START if name in environment}


# --- the end of who runs tests --------------------------------------------------------------------


class Zygote:
    """The process that forks. It ends with the one that has started it."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.environment = STARTED_WITH
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), "-" * ROOM_BYTES],
                # Hash values are others than those of who runs tests, as in any other process.
                env={**self.environment, "PYTHONHASHSEED": "random", ROOM: "-" * ROOM_BYTES},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel.settimeout(READY_S)
        assert self._channel.recv(64) == b"ready", "the process that forks did not start"
        atexit.register(self.close)

    def fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """The pid of a new child of the caller."""
        with adopting_orphans():
            socket.send_fds(self._channel, [json.dumps(request).encode()], fds)
            return int(self._channel.recv(64))

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@contextmanager
def adopting_orphans() -> Iterator[None]:
    before = ctypes.c_int()
    LIBC.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


_zygotes: dict[int, Zygote] = {}


def zygote() -> Zygote:
    """That of this process."""
    if os.getpid() not in _zygotes:
        _zygotes[os.getpid()] = Zygote()
    return _zygotes[os.getpid()]


class Popen(subprocess.Popen[Any]):
    """``subprocess.Popen`` of a command that can be forked.

    Raises: ValueError: It cannot.
    """

    def _fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        return zygote().fork(request, fds)

    def _started_with(self) -> Mapping[str, str]:
        """The environment of the process that forks."""
        return zygote().environment

    def _execute_child(  # type: ignore[override]
        self,
        args,
        executable,
        preexec_fn,
        close_fds,
        pass_fds,
        cwd,
        env,
        startupinfo,
        creationflags,
        shell,
        p2cread,
        p2cwrite,
        c2pread,
        c2pwrite,
        errread,
        errwrite,
        *others,
    ) -> None:
        start_new_session = others[-2]
        command = [os.fspath(word) for word in args]
        environment = dict(os.environ if env is None else env)
        assert not preexec_fn, "nothing runs between fork and exec where there is none"
        if why := why_cold(command, environment, self._started_with()):
            raise ValueError(f"{command[:4]} cannot be forked: {why}")
        streams = [
            own if own >= 0 else inherited
            for own, inherited in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2))
        ]
        request = {
            "command": command,
            "environment": environment,
            "folder": os.fspath(cwd or os.getcwd()),
            "session": bool(start_new_session),
            "fds": [0, 1, 2, *pass_fds],
        }
        self.pid = self._fork(request, [*streams, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def why_cold(
    command: Sequence[str], environment: Mapping[str, str], started_with: Mapping[str, str]
) -> str:
    """Why this cannot be forked by a process that was started with an environment; empty when it
    can."""
    _, rest = split(command)
    if command[0] != sys.executable or len(rest) < 2:
        return "it is no module, no code and no script for this interpreter"
    if at_start(environment) != at_start(started_with):
        return "its environment changes how the interpreter starts"
    return ""


def run(command: Sequence[str], *, timeout: float | None = None, **options: Any) -> Any:
    """``subprocess.run`` of a command that can be forked, without ``check``."""
    options.pop("check", None)
    if options.pop("capture_output", False):
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def forked_warm_processes() -> Iterator[None]:
    """Launchers in this process have the process that forks their peers forked, too."""
    own, warm = dict(vars(subprocess)), import_module(WARM)
    with mock.patch.object(warm, "subprocess", types.SimpleNamespace(**{**own, "Popen": Popen})):
        yield


# --- the process that forks, and what becomes of a fork -------------------------------------------


def serve(channel: socket.socket) -> Callable[[], None]:
    """Forks for whoever asks. Returns in a child only, with what that has to do."""
    while True:
        request, fds, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, FDS_MAX)
        if not request:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            if child := os.fork():
                os.write(tell, str(child).encode())
                os._exit(0)
            channel.detach()  # or its end would close what has its number by then
            return become(json.loads(request), fds)
        for fd in (tell, *fds):
            os.close(fd)
        os.waitpid(between, 0)  # only then is the child that of who asked
        channel.send(os.read(told, 64))
        os.close(told)


def become(request: Mapping[str, Any], fds: Sequence[int]) -> Callable[[], None]:
    """Makes this process what ``exec`` would have made of it. Returns what it has to run."""
    if request["session"]:
        os.setsid()
    # who runs tests in the background of a shell ignores it, and so would each child
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place(fds, request["fds"])
    os.chdir(request["folder"])
    # Spawned processes look for a script there, and it is read when the module is imported.
    import_module("multiprocessing.process").ORIGINAL_DIR = request["folder"]
    os.environ.clear()
    os.environ.update(request["environment"])
    if host := os.environ.get(HOST):
        move_in(host)
    command = request["command"]
    show(command, request["environment"])
    random.seed()
    flags, rest = split(command)
    sys.argv, sys.orig_argv = [rest[0] or rest[1], *rest[2:]], list(command)
    open_streams("-u" in flags)
    if "-P" not in flags:
        beside = os.path.dirname(os.path.realpath(rest[1]))
        sys.path.insert(0, {"-m": request["folder"], "-c": ""}.get(rest[0], beside))
    if first := os.environ.get(FIRST):
        runpy.run_path(first)
    if rest[1] not in (WARM, NODE):
        # A demo also starts a process that judges what it has trained.
        Spare.install(2 if rest[2:3] == ["demo"] else 1)
        os.execve = execute
    return lambda: run_main(*rest[:2])


def move_in(host: str) -> None:
    """Makes this process one of a network namespace."""
    with open(f"/run/netns/{host}") as namespace:
        if LIBC.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot move into {host}")


def split(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options of the interpreter, and the rest, which begins with -m or -c, or with nothing in
    front of a script."""
    at = 1
    while command[at : at + 1] in (["-u"], ["-P"]):
        at += 1
    flags, rest = list(command[1:at]), list(command[at:])
    if rest[:1] in (["-m"], ["-c"]):
        return flags, rest
    if not rest or rest[0].startswith("-"):
        return [*flags, *rest], []
    return flags, ["", *rest]


def place(fds: Sequence[int], wanted: Sequence[int]) -> None:
    """Gives descriptors the wanted numbers, and closes all others."""
    above = max(200, *wanted) + 1
    for fd, number in [
        (fcntl.fcntl(fd, fcntl.F_DUPFD, above), number)
        for fd, number in zip(fds, wanted, strict=True)
    ]:
        os.dup2(fd, number)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in wanted:
            try:
                os.close(fd)
            except OSError:  # the one that the folder was read with
                continue


def open_streams(unbuffered: bool) -> None:
    """As an interpreter does when it starts."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            open(fd, "wb", buffering=0 if unbuffered else -1, closefd=False),  # noqa: SIM115
            encoding="utf-8",
            errors=errors,
            line_buffering=line_buffering or unbuffered,
            write_through=unbuffered,
        )
        for fd, errors, line_buffering in ((1, "strict", False), (2, "backslashreplace", True))
    )


def show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Writes over what ``/proc`` shows of this process, which would be that of who forked it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[45:49])
    words = [f"{name}={text}" for name, text in environment.items()]
    for start, end, texts in ((arg_start, arg_end, command), (env_start, env_end, words)):
        shown = b"".join(os.fsencode(text) + b"\0" for text in texts)
        assert len(shown) < end - start, "more than there is room for"
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def end(run: Callable[[], None]) -> None:
    """Runs it, and ends as an interpreter does, but for taking apart what was imported: that takes
    each process 0.3 s of a processor."""
    code = 0
    try:
        run()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code = int(ended.code or 0)
    # What else is raised goes on to the interpreter, which shows it.
    getattr(threading, "_shutdown")()  # noqa: B009
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    try:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
    except OSError:
        sys.exit(code)  # the interpreter has a message for that
    os._exit(code & 0xFF)


class Text(SourceLoader):
    """Runs a text as a module. ``name``: what tracebacks call it."""

    def __init__(self, name: str, text: bytes) -> None:
        self._name, self._text = name, text

    def get_filename(self, fullname: str) -> str:
        return self._name

    def get_data(self, path: str) -> bytes:
        return self._text


def run_main(how: str, what: str) -> None:
    """As ``python -m what``, ``python -c what`` or ``python what``."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if how == "-c":
        Text("<string>", what.encode()).exec_module(main)
        return
    if not how:
        main.__file__ = os.path.abspath(what)
        Text(main.__file__, Path(what).read_bytes()).exec_module(main)
        return
    spec = find_spec(what)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{what}.__main__")
    assert spec is not None, what
    assert spec.origin is not None, what
    main.__spec__, main.__file__, main.__package__ = spec, spec.origin, spec.parent
    sys.argv[0] = spec.origin
    Text(spec.origin, Path(spec.origin).read_bytes()).exec_module(main)


class Spare:
    """A child that was forked before anything ran, and becomes the first of what its parent starts
    that would have to import torch: the warm process of a launcher, the node of a script."""

    unused: ClassVar[list[Spare]] = []

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._channel.close()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            request, fds, _, _ = socket.recv_fds(theirs, REQUEST_BYTES_MAX, FDS_MAX)
            if not request:
                os._exit(0)
            theirs.detach()
            end(become(json.loads(request), fds))
        theirs.close()

    def turn_into(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        socket.send_fds(self._channel, [json.dumps(request).encode()], fds)
        self._channel.close()
        return self.pid

    def dismiss(self) -> None:
        self._channel.close()
        os.waitpid(self.pid, 0)

    @staticmethod
    def install(count: int) -> None:
        Spare.unused = [Spare() for _ in range(count)]
        subprocess.Popen = LaunchersPopen  # type: ignore[misc]


Exec = subprocess.Popen


class LaunchersPopen(Popen):
    """``subprocess.Popen`` in a process that was forked: the first of
    ``STARTED_BY_COMMANDS`` are its spare children, and all else is executed."""

    def _fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        return Spare.unused.pop().turn_into(request, fds)

    def _started_with(self) -> Mapping[str, str]:
        return os.environ

    def _execute_child(self, args: Any, *rest: Any) -> None:  # type: ignore[override]
        command = [args] if isinstance(args, str | bytes) else [os.fspath(word) for word in args]
        known = command[0] == sys.executable and split(command)[1][:2] in STARTED_BY_COMMANDS
        if known and Spare.unused and not rest[1]:  # preexec_fn
            super()._execute_child(args, *rest)
        else:
            Exec._execute_child(self, args, *rest)  # type: ignore[attr-defined]


really_execute = os.execve


def execute(path: Any, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """``os.execve`` in a process that was forked: it goes on as another command of ours, where that
    can be forked."""
    if split(command)[1][:2] not in STARTED_BY_COMMANDS or why_cold(
        command, environment, os.environ
    ):
        really_execute(path, command, environment)
    while Spare.unused:
        Spare.unused.pop().dismiss()
    request = {
        "command": list(command),
        "environment": dict(environment),
        "folder": os.getcwd(),
        "session": False,
        "fds": [0, 1, 2],
    }
    end(become(request, [0, 1, 2]))


def share_command_line() -> None:
    """Make the command line once. Each command would make all of it anew, which takes 60 ms of a
    processor."""
    ours, make = import_module("gossip.launch.cli").app, typer.main.get_command
    made = make(ours)
    typer.main.get_command = lambda app: made if app is ours else make(app)
    if testing := sys.modules.get("typer.testing"):
        setattr(testing, "_get_command", typer.main.get_command)  # noqa: B010


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    sys.path.pop(0)  # of this file
    import torch

    from gossip.node import Node  # noqa: F401
    from gossip.training import Session  # noqa: F401

    for name in OF_COMMANDS:
        import_module(name)
    share_command_line()
    # the first optimizer of a process imports torch._dynamo
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    torch.set_num_threads(1)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"
    gc.collect()
    gc.freeze()
    channel.send(b"ready")
    end(serve(channel))


if __name__ == "__main__":
    main()
