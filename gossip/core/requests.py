"""Requests from the parts of a peer to the peer, for work that involves several parts.

A part of the peer adds a request when the need for it arises. After each event the peer handles the
open requests in the order of ``Request``. At most one request of each kind is open. A request that
cannot be fulfilled yet is added again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias, TypeVar, get_args

from .events import Stop
from .frozen import record
from .messages import PeerId


@record
class ConfirmResult:
    """Compare the last result with the last results of the other peers."""


@record
class LostTrack:
    """Adopt the state of ``donor``, because this peer is too far behind or on a fork."""

    donor: PeerId
    reason: str


@record
class ServeStates:
    """Reply to the waiting state requests, as soon as the round that they request begins."""


@record
class FollowRounds:
    """Apply the commits of other peers while this peer is not in the roster of the current
    round."""


@record
class LeaveRun:
    """Leave for the reason in ``event``, once no other peer needs this peer for a round."""

    event: Stop


@record
class EndDrain:
    """End the drain phase and leave, once no other peer needs the local state."""


Request: TypeAlias = ConfirmResult | LostTrack | ServeStates | FollowRounds | LeaveRun | EndDrain
Kind = TypeVar("Kind", bound=Request)


ORDER: tuple[type[Request], ...] = get_args(Request)


class Requests:
    """Open requests of one peer, at most one of each kind. A later request replaces an earlier
    one."""

    def __init__(self) -> None:
        self._open: dict[type, Request] = {}

    def add(self, request: Request) -> None:
        self._open[type(request)] = request

    def find(self, kind: type[Kind]) -> Kind | None:
        """Return the open request of this kind, or None."""
        return self._open.get(kind)  # type: ignore[return-value]

    def drain(self) -> Iterable[Request]:
        """Remove and yield the open requests in order. A request that is added during this call
        stays open if its kind has already been passed."""
        return self._pop_all() if self._open else ()

    def _pop_all(self) -> Iterator[Request]:
        for kind in ORDER:
            if (request := self._open.pop(kind, None)) is not None:
                yield request
