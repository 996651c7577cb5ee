"""Substitute for a launcher if a scheduler starts the script. Prints events of the swarm, and makes
the peer leave when its parent process ends.

A launcher receives reports from its peers over their status sockets, and a peer detects the end of
the launcher when its socket closes. Here a thread of the peer's own process has the other end of
the socket. The thread prints important events. It closes the socket when the parent process has
ended, because a killed torchrun would leave its workers running.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from gossip.run import parse_json, shown

LINE_MAX = 2**20
QUIET_S = 2.0  # minimum interval between two lines with the same start


def open_voice(peer: int) -> int:
    """Start the thread. Return the peer's end of the status socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    parent = _parent()
    threading.Thread(
        target=_listen, args=(peer, ours, parent), name="gossip-voice", daemon=True
    ).start()
    return theirs.detach()


def _parent() -> int:
    """Return a file descriptor that becomes readable when the parent process ends. Return -1 if the
    parent has already ended, or is the init process."""
    pid = os.getppid()
    if pid <= 1:
        return -1
    try:
        found = os.pidfd_open(pid)
    except OSError:
        return -1
    return found if os.getppid() == pid else -1


def _listen(peer: int, ours: socket.socket, parent: int) -> None:
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    if parent >= 0:
        poll.register(parent, select.POLLIN)
    rest, said = b"", dict[str, float]()
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if parent in ready:
            ours.shutdown(socket.SHUT_RDWR)  # close() would leave a forked child's copy open
            return
        *lines, rest = (rest + ours.recv(65536)).split(b"\n")
        rest = rest if len(rest) <= LINE_MAX else b""
        for line in lines:
            event = parse_json(line)
            text, t = words(peer, event), float(event.get("t") or 0.0)
            if text and t - said.get(text[:24], -QUIET_S) >= QUIET_S:
                said[text[:24]] = t
                print(f"gossip: {shown(text)}", file=sys.stderr, flush=True)


def words(peer: int, event: Mapping[str, Any]) -> str:
    """Return the line to print for an event, or "". If peers are missing, only the lowest of the
    present peers prints a line."""
    about, missing = event.get("subject"), event.get("missing") or []
    match event.get("event"):
        case "waiting" if all(other in missing for other in range(peer)):
            return (
                f"waiting for peers {', '.join(map(str, missing))} since {event.get('waited_s')} s"
            )
        case "dead":
            return f"peer {about} is dead, reports peer {event.get('by', peer)}; the others go on"
        case "paused":
            return (
                f"paused at round {event.get('round')}: alive are {event.get('alive')}, a round "
                f"needs {event.get('need')}"
            )
        case "resumed":
            return f"going on: alive are {event.get('alive')}"
        case "quarantined":
            return f"peer {about} is in quarantine from round {event.get('round')} on"
        case "identical_updates" if peer == min(event.get("peers") or [peer]):
            return f"peers {event.get('peers')} train on the same batches: use peer.shard(loader)"
        case "error":
            return f"peer {peer}: {event.get('message')}"
    return ""
