"""The end of ``gossip plan link`` that measures, and the process of the other end."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

from gossip.errors import LocalError
from gossip.interpreter import python_command
from gossip.transport import new_pair

from .link_end import LinkEnd, TwoKeys


class LinkTurns:
    """This end of the link. It starts the process of the other end, and stops it afterwards.

    Args:
        via: Prefix that runs a command on the other host, such as ``ssh lab2``; "" if both ends are
            on this host.
    """

    def __init__(self, host: str, other_host: str, via: str) -> None:
        self._other_host = other_host
        self._mine, self._theirs = new_pair(), new_pair()
        self._end = LinkEnd(0, host, TwoKeys(self._mine, self._theirs.public, 0))
        command = [*shlex.split(via), *python_command("-m", "gossip_pipelines.plan.link_end")]
        self._other = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> LinkTurns:
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *about: object) -> None:
        # If open sockets are left to the garbage collector, this process may never end.
        self._end.close()
        with self._other:
            self._other.terminate()
            try:
                self._other.wait(10)
            except subprocess.TimeoutExpired:
                self._other.kill()

    def _connect(self) -> None:
        theirs = self._theirs
        pair = [theirs.public, theirs.secret]
        self._send_order(host=self._other_host, pair=pair, other=self._mine.public)
        reply = self._read_reply()
        self._send_order(addresses=self._end.addresses)
        linked = self._end.connect(reply["addresses"])
        assert self._other.stdout is not None
        self._end.poll_until(self._other.stdout)
        if not (self._read_reply()["linked"] and linked):
            raise LocalError("the two ends cannot connect to each other")

    def _send_order(self, **what: Any) -> None:
        assert self._other.stdin is not None
        try:
            self._other.stdin.write(json.dumps(what) + "\n")
            self._other.stdin.flush()
        except BrokenPipeError:
            raise LocalError("the other end has ended") from None

    def _read_reply(self) -> dict[str, Any]:
        assert self._other.stdout is not None
        line = self._other.stdout.readline()
        if not line:
            raise LocalError("the other end has ended")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def one_by_one(self, numbers: int, count: int) -> list[float]:
        """Send ``count`` payloads of ``numbers`` values, each after the reply to the previous one.
        Return the seconds from each payload to its reply."""
        self._end.expect(numbers)
        self._send_order(numbers=numbers, count=count)
        self._read_reply()
        return [self._end.send_payload() for _ in range(count)]
