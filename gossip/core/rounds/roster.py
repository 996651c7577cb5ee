"""Attendance in a round: the peers from which messages are expected, and the next roster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gossip.core.ledger import Lineage
from gossip.core.messages import PeerId
from gossip.core.view import MembersView
from gossip.topologies import Roster

from .departures import Departures
from .future_buffer import FutureBuffer


@dataclass(eq=False)
class Attendance:
    """Presence of peers in the present round, derived from the membership, the links and the
    reports of each peer."""

    local: PeerId
    view: MembersView
    lineage: Lineage
    departures: Departures
    future_buffer: FutureBuffer

    def skip_reason(self, peer: PeerId) -> str:
        """Return the reason not to expect a message from ``peer`` now; "" if a message is
        expected."""
        departures, heard = self.departures, self.future_buffer
        if peer in departures.done and departures.is_done(peer, self.lineage.next_round):
            return "it has finished"
        reason = self.view.skip_reason(peer)
        if reason or not (heard.unheard or heard.absent_at_start):
            return reason
        return heard.why_not(peer)

    def reachable(self, peers: Collection[PeerId]) -> Collection[PeerId]:
        """Return the peers among ``peers`` from which a message is expected, and the local peer."""
        heard = self.future_buffer
        if not (self.departures.done or heard.unheard or heard.absent_at_start):
            return self.view.reachable(peers)
        return [peer for peer in peers if peer == self.local or not self.skip_reason(peer)]

    def next_roster(
        self, roster: Roster, joining: Collection[PeerId], now: float
    ) -> tuple[PeerId, ...]:
        """Return the next roster: the members that are neither gone nor leaving, and the peers that
        are ready to join. A member that was absent at the start of the run, and has not arrived
        yet, later joins like a newcomer."""
        view, departures, absent = self.view, self.departures, self.future_buffer.absent_at_start

        def stays(peer: PeerId) -> bool:
            # A Byzantine peer may report the end of a member to this server only. If this server
            # then omitted the member, peers with a live link to the member would lower their trust
            # in the server. So a member with a live link stays.
            return not view.is_gone(peer) or (
                view.speaks_on(peer, now) and not departures.has_announced(peer)
            )

        came = [peer for peer in roster if peer not in absent]
        stay = {
            peer
            for peer in came
            if peer == self.local or (stays(peer) and not departures.leaves(peer))
        }
        come = {peer for peer in joining if not view.skip_reason(peer)}
        return tuple(sorted(stay | come))
