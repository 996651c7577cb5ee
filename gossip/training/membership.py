"""Changes of the roster, for functions of the script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .exchange import Exchange


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """Change of the roster between two steps. The tuples of peers are ascending.

    Attributes:
        round_id: Next round of this peer, its first step with the new roster.
        joined: Peers that have joined or returned.
        died: Peers that are gone and have not announced it.
        left: Peers that have announced their leave, such as after SIGTERM. If the announcement is
            lost, the peer is in ``died``.
    """

    round_id: int
    joined: tuple[int, ...] = ()
    died: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


class MembershipCallbacks:
    """Functions of the script that are called after changes of the roster."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._known: tuple[int, ...] | None = None
        self._functions: list[Callable[[MembershipChange], object]] = []

    def add(self, function: Callable[[MembershipChange], object]) -> None:
        """Call ``function`` after each change from now on."""
        self._functions.append(function)

    def notify(self) -> None:
        """Call the functions if the roster has changed since the last call. The first roster is no
        change."""
        exchange, before = self._exchange, self._known
        if not exchange.has_begun:
            return
        roster = self._known = exchange.roster
        if before is None or roster == before:
            return
        gone, left = {*before} - {*roster}, {*exchange.left}
        changed = {*roster} - {*before}, gone - left, gone & left
        change = MembershipChange(exchange.round_id, *[tuple(sorted(each)) for each in changed])
        for function in self._functions:
            function(change)
