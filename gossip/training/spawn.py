"""Starting this peer's node: as a process of its own, or as a thread. The same node runs in both."""

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

from gossip.config import RunConfig
from gossip.errors import ConfigError

from .channel import Channel


@dataclass(frozen=True, slots=True)
class Place:
    """Who this peer is, and where.

    Attributes:
        run_dir: The run's folder; None: the run leaves nothing behind.
        status_fd: A socket to the launcher, whose end of file says that the launcher is gone; None: there is no launcher.
        config_path: What a node process reads its settings from; None: it must be a thread.
    """

    config: RunConfig
    peer: int = 0
    incarnation: int = 0
    run_dir: Path | None = None
    status_fd: int | None = None
    config_path: str | None = None


class NodeHandle(Protocol):
    """A node that was started."""

    def ended(self, within_s: float) -> bool:
        """Whether it has ended, or does so within the time."""
        ...

    def kill(self) -> None:
        """Ends it now, as far as that is possible."""
        ...

    def last_words(self) -> str:
        """What is known about its end."""
        ...


StartNode: TypeAlias = Callable[[int, socket.socket], NodeHandle]
"""``(incarnation, the node's end of the channel, which it takes over) -> handle``."""


def starter(place: Place) -> StartNode:
    """How nodes are started at this place."""
    if place.config.node == "thread" or place.config_path is None:
        return lambda incarnation, end: NodeThread(place, incarnation, end)
    return lambda incarnation, end: NodeProcess(place, incarnation, end)


def connect(start: StartNode, incarnation: int) -> tuple[Channel, NodeHandle]:
    """A new node, and the channel to it."""
    ours, theirs = Channel.pair()
    channel = Channel(ours)
    try:
        return channel, start(incarnation, theirs)
    except BaseException:
        channel.close()
        theirs.close()
        raise


class NodeProcess:
    """``python -m gossip.node``, which finds its end of the channel under the number in ``GOSSIP_NODE_FD``."""

    def __init__(self, place: Place, incarnation: int, end: socket.socket) -> None:
        self._place, self._started_wall = place, time.time()
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
        # -P keeps the working folder off the path: a user's random.py there must not become the node's.
        command = [sys.executable, "-P", "-m", "gossip.node"]
        self._process = subprocess.Popen(command, pass_fds=inherited, env=environment, stdin=subprocess.DEVNULL)
        end.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self, within_s: float) -> bool:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        code = self._process.poll()
        if code is None:
            return "it closed its channel and lives on"
        said = self._written_error()
        if said:
            return said
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def _written_error(self) -> str:
        """What the node itself wrote down, when it did so in this life."""
        if self._place.run_dir is None:
            return ""
        path = self._place.run_dir / f"peer-{self._place.peer}" / "node_error.json"
        try:
            if path.stat().st_mtime < self._started_wall:
                return ""
            error = json.loads(path.read_text("utf-8"))
            return f"{error['type']}: {error['message']}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""  # It wrote none, or died writing it: its exit status has to do.


class NodeThread:
    """The node in a thread of this process, for scripts without a launcher, notebooks and tests."""

    def __init__(self, place: Place, incarnation: int, end: socket.socket) -> None:
        self._place, self._incarnation, self._end = place, incarnation, end
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"gossip-node-{place.peer}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            from gossip.node import Node, NodeSpec

            place = self._place
            Node(NodeSpec(place.config, place.peer, self._incarnation, place.run_dir, place.status_fd), self._end).run()
        except BaseException as error:  # noqa: BLE001 - it is told by last_words, to whoever finds the channel closed
            self._error = error
        finally:
            # Shut down first: that reaches the trainer even when somebody else still holds the descriptor.
            with contextlib.suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)
            self._end.close()

    def ended(self, within_s: float) -> bool:
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """A thread cannot be killed: it is told by the end of its channel, and left alone if it does not listen."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def last_words(self) -> str:
        if self._error is None:
            return "its thread ended"
        return f"{type(self._error).__name__}: {self._error}"


def from_environment() -> Place | None:
    """What the launcher said in ``GOSSIP_*``; None when there is no launcher.

    Raises: ConfigError: It said something that cannot be.
    """
    path = os.environ.get("GOSSIP_CONFIG")
    if path is None:
        return None
    run_dir, status_fd = os.environ.get("GOSSIP_RUN_DIR"), _number("GOSSIP_STATUS_FD", None)
    place = Place(
        config=RunConfig.load(path),
        peer=_number("GOSSIP_PEER", 0) or 0,
        incarnation=_number("GOSSIP_INCARNATION", 0) or 0,
        run_dir=Path(run_dir) if run_dir else None,
        status_fd=status_fd,
        config_path=path,
    )
    if place.peer >= place.config.peers:
        raise ConfigError(f"GOSSIP_PEER is {place.peer}, the run has peers 0 to {place.config.peers - 1}")
    return place


def _number(name: str, default: int | None) -> int | None:
    text = os.environ.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{name} = {text!r} is not a number", "it is set by the launcher: unset it to run alone")
    return int(text)
