"""Whom a commit names for the next round, and whom it is sent to."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gossip.topologies.base import Roster

from .events import Effect, Payload, Send
from .messages import Commit, PeerId
from .view import View


def next_roster(
    local: PeerId, view: View, roster: Roster, joining: Collection[PeerId], leaves: Callable[[PeerId], bool]
) -> tuple[PeerId, ...]:
    """Who takes part in the next round: those who do, are not gone and do not leave, and who is ready to."""
    stay = {peer for peer in roster if peer == local or not (view.is_gone(peer) or leaves(peer))}
    come = {peer for peer in joining if not view.skip_reason(peer)}
    return tuple(sorted(stay | come))


def spread(local: PeerId, view: View, roster: Roster, commit: Commit, payload: Payload | None) -> list[Effect]:
    """To everybody of this round and of the next."""
    # A newcomer that alone held it would be on a branch of its own: the others do not ask it. So it hears of it last.
    everybody = [*roster.peers, *[peer for peer in commit.roster if peer not in roster]]
    return [Send(peer, commit, payload) for peer in everybody if peer != local and not view.is_gone(peer)]
