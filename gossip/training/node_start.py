"""Starts this peer's node, either as a process or as a thread that runs the same code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import psutil

from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.interpreter import python_command
from gossip.ipc import Channel
from gossip.run import number

KILLED_S = 5.0  # time for a killed process to end


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """Identity and environment of this peer.

    Attributes:
        run_dir: The run's folder; None if the run writes no files.
        status_fd: Socket to the launcher; None if there is no launcher. An end of file shows that
            the launcher has ended.
        config_path: File from which a node process reads its settings. If it is None, the node is a
            thread.
    """

    config: RunConfig
    peer: int = 0
    incarnation: int = 0
    run_dir: Path | None = None
    status_fd: int | None = None
    config_path: str | None = None


class NodeHandle(Protocol):
    """Handle of a started node."""

    def ended(self, within_s: float) -> bool:
        """Whether the node ends within this time, or has already ended."""
        ...

    def kill(self) -> None:
        """Kill the node. A node in a thread can only be asked to end."""
        ...

    def last_words(self) -> str:
        """Return why the node ended, as text for a message."""
        ...


StartNode: TypeAlias = Callable[[int, socket.socket], NodeHandle]
"""``(incarnation, end) -> handle``. The node owns ``end``, its end of the channel."""


def starter(place: PeerPlace) -> StartNode:
    """Return the function that starts nodes of this peer."""
    if place.config.node == "thread" or place.config_path is None:
        return lambda incarnation, end: NodeThread(place, incarnation, end)

    def start(incarnation: int, end: socket.socket) -> NodeHandle:
        global _ahead
        ahead, _ahead = _ahead, None
        if ahead is None:
            return _start_process(place, incarnation, end)
        return _wake_process(place, incarnation, end, ahead)

    return start


def connect(start: StartNode, incarnation: int) -> tuple[Channel, NodeHandle]:
    """Start a node. Return the channel to the node, and its handle."""
    ours, theirs = Channel.pair()
    channel = Channel(ours)
    try:
        return channel, start(incarnation, theirs)
    except BaseException:
        channel.close()
        theirs.close()
        raise


class NodeProcess:
    """Handle of a node in its own process."""

    def __init__(self, place: PeerPlace, process: psutil.Process) -> None:
        self._place, self._process, self._started_wall = place, process, time.time()
        self._code: int | None = None

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    def ended(self, within_s: float) -> bool:
        try:
            self._code = self._process.wait(within_s)
        except psutil.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.kill()
        self.ended(KILLED_S)

    def last_words(self) -> str:
        if not self.ended(0):
            return "it closed its channel, but its process still runs"
        said = self._written_error()
        if said or self._code is None:
            return said or "its exit status is not known"
        if self._code < 0:
            return f"killed by {signal.Signals(-self._code).name}"
        return f"exit status {self._code}"

    def _written_error(self) -> str:
        """Return the error that the node wrote to its folder in this incarnation; "" if there is
        none."""
        if self._place.run_dir is None:
            return ""
        path = self._place.run_dir / f"peer-{self._place.peer}" / "node_error.json"
        try:
            if path.stat().st_mtime < self._started_wall:
                return ""
            error = json.loads(path.read_text("utf-8"))
            return f"{error['type']}: {error['message']}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""  # the file is missing or incomplete: report the exit status


def _start_process(place: PeerPlace, incarnation: int, end: socket.socket) -> NodeProcess:
    """Start ``python -m gossip.node``. The variable ``GOSSIP_NODE_FD`` names the file descriptor of
    the node's end of the channel."""
    inherited = [end.fileno()]
    environment = {
        **os.environ,
        "GOSSIP_NODE_FD": str(end.fileno()),
        "GOSSIP_PEER": str(place.peer),
        "GOSSIP_INCARNATION": str(incarnation),
        "GOSSIP_CONFIG": str(place.config_path),
    }
    if place.run_dir is not None:
        environment["GOSSIP_RUN_DIR"] = str(place.run_dir)
    if place.status_fd is not None:
        inherited.append(place.status_fd)
        environment["GOSSIP_STATUS_FD"] = str(place.status_fd)
    command = python_command("-m", "gossip.node")
    with end:
        process = psutil.Popen(
            command, pass_fds=inherited, env=environment, stdin=subprocess.DEVNULL
        )
    return NodeProcess(place, process)


@dataclass(frozen=True, slots=True)
class _PreforkedNode:
    """Node that was forked before it is needed. The node waits until it receives its incarnation
    and its channel through the other end of ``join_server``."""

    pid: int
    join_server: socket.socket


_ahead: _PreforkedNode | None = None


def fork_ahead() -> Callable[[], None] | None:
    """Fork this peer's first node in advance. The process must have only one thread, and must have
    imported all modules of a node.

    Returns: In the node, the function that it must run. In the trainer None: its first call of
        ``StartNode`` uses the forked node.
    """
    global _ahead
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := os.fork():
        theirs.close()
        _ahead = _PreforkedNode(pid, ours)
        # A child that the script forks before it needs the node must not hold this socket.
        # Otherwise the node would continue to wait after the end of the script.
        os.register_at_fork(after_in_child=ours.close)
        return None
    ours.close()
    return lambda: _wait_and_run(theirs)


def _wait_and_run(join_server: socket.socket) -> None:
    said, fds, _, _ = socket.recv_fds(join_server, 32, 1)
    join_server.close()
    if not said:
        sys.exit(0)  # the script has ended and has not used its node
    os.environ.update(GOSSIP_INCARNATION=said.decode(), GOSSIP_NODE_FD=str(fds[0]))
    from gossip.node import loop as node

    code = node.main()
    # Exit without the interpreter's cleanup, as processes of multiprocessing do, because the
    # cleanup of torch takes a third of a second of processor time.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wake_process(
    place: PeerPlace, incarnation: int, end: socket.socket, ahead: _PreforkedNode
) -> NodeProcess:
    """Use the node that was forked with this trainer."""
    node = NodeProcess(place, psutil.Process(ahead.pid))
    # If the node has been killed, sending fails. The trainer then detects the end of the channel.
    with ahead.join_server, end, contextlib.suppress(ConnectionError):
        socket.send_fds(ahead.join_server, [str(incarnation).encode()], [end.fileno()])
    return node


class NodeThread:
    """Handle of a node in a thread of this process, for scripts without a launcher, notebooks and
    tests."""

    def __init__(self, place: PeerPlace, incarnation: int, end: socket.socket) -> None:
        self._place, self._incarnation, self._end = place, incarnation, end
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"gossip-node-{place.peer}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            from gossip.node import Node, NodeSpec

            place = self._place
            Node(
                NodeSpec(
                    place.config, place.peer, self._incarnation, place.run_dir, place.status_fd
                ),
                self._end,
            ).run()
        except BaseException as error:  # noqa: BLE001
            # ``last_words`` reports it when the trainer has detected the end of the channel
            self._error = error
        finally:
            # With a shutdown, the trainer detects the end even if another process still holds the
            # file descriptor.
            with contextlib.suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)
            self._end.close()

    def ended(self, within_s: float) -> bool:
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Shut the channel down, so that the thread ends. A thread cannot be killed."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def last_words(self) -> str:
        if self._error is None:
            return "its thread ended"
        return f"{type(self._error).__name__}: {self._error}"


def from_environment() -> PeerPlace | None:
    """Return this peer's place, read from the launcher's ``GOSSIP_*`` variables; None without a
    launcher.

    Raises: ConfigError: A variable has an invalid value.
    """
    path = os.environ.get("GOSSIP_CONFIG")
    if path is None:
        return None
    run_dir, status_fd = os.environ.get("GOSSIP_RUN_DIR"), _number("GOSSIP_STATUS_FD")
    place = PeerPlace(
        config=RunConfig.load(path),
        peer=_number("GOSSIP_PEER") or 0,
        incarnation=_number("GOSSIP_INCARNATION") or 0,
        run_dir=Path(run_dir) if run_dir else None,
        status_fd=status_fd,
        config_path=path,
    )
    if place.peer >= place.config.peers_max:
        raise ConfigError(
            f"GOSSIP_PEER is {place.peer}, but the run has peers 0 to {place.config.peers_max - 1}"
        )
    return place


def _number(name: str) -> int | None:
    return number(os.environ, name) if os.environ.get(name) else None
