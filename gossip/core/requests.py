"""Requests that the parts of a peer make of it: work that needs more than the part itself.

A part adds a request where its cause arises. The peer handles the requests after each event, in
the order of ``Request``. There is one request of each kind at most. A request that cannot be
fulfilled yet is added again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias, TypeVar, get_args

from .events import Stop
from .frozen import record
from .messages import PeerId


@record
class ConfirmResult:
    """Compare the last result with those of the other peers."""


@record
class LostTrack:
    """Adopt a state of ``donor``: this peer is too far behind, or on a fork."""

    donor: PeerId
    reason: str


@record
class ServeStates:
    """Serve the state transfers that wait for a round once it begins."""


@record
class FollowRounds:
    """Apply commits of others: this peer is not in the roster of the round that begins."""


@record
class LeaveRun:
    """Leave, as ``event`` requests, when no other peer counts on this one."""

    event: Stop


@record
class EndDrain:
    """Leave once no other peer needs the local state."""


Request: TypeAlias = ConfirmResult | LostTrack | ServeStates | FollowRounds | LeaveRun | EndDrain
Kind = TypeVar("Kind", bound=Request)


ORDER: tuple[type[Request], ...] = get_args(Request)


class Requests:
    """Open requests of one peer, the last of each kind."""

    def __init__(self) -> None:
        self._open: dict[type, Request] = {}

    def add(self, request: Request) -> None:
        self._open[type(request)] = request

    def find(self, kind: type[Kind]) -> Kind | None:
        """Return the open request of this kind."""
        return self._open.get(kind)  # type: ignore[return-value]

    def drain(self) -> Iterable[Request]:
        """Remove and return one request after the other. A request of an earlier kind that is added
        during this call stays open."""
        return self._pop_all() if self._open else ()

    def _pop_all(self) -> Iterator[Request]:
        for kind in ORDER:
            if (request := self._open.pop(kind, None)) is not None:
                yield request
