"""Calls functions of the script after changes of the roster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .serving import NodeService


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """Change of the roster between two steps. The tuples of peers are ascending.

    Attributes:
        round_id: Next round of this peer, the first with the new roster.
        joined: Peers that have joined or returned.
        died: Peers that have died without an announcement.
        left: Peers that have announced their departure, for example after SIGTERM. If the
            announcement is lost, the peer is in ``died``.
    """

    round_id: int
    joined: tuple[int, ...] = ()
    died: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


class MembershipCallbacks:
    """Registry of the functions to call after changes of the roster."""

    def __init__(self, node: NodeService) -> None:
        self._node = node
        self._known: tuple[int, ...] | None = None
        self._functions: list[Callable[[MembershipChange], object]] = []

    def add(self, function: Callable[[MembershipChange], object]) -> None:
        """Register ``function``, which is called after each change from now on."""
        self._functions.append(function)

    def notify(self) -> None:
        """Call the functions if the roster has changed since the last call. The first roster is not
        a change."""
        node, before = self._node, self._known
        if not node.has_begun:
            return
        roster = self._known = node.view.roster
        if before is None or roster == before:
            return
        gone, left = {*before} - {*roster}, {*node.view.left}
        changed = {*roster} - {*before}, gone - left, gone & left
        peers = [tuple(sorted(each)) for each in changed]
        change = MembershipChange(node.applied.round_id, *peers)
        for function in self._functions:
            function(change)
