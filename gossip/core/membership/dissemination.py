"""Queue of the rumors that are piggybacked on messages. It chooses the rumors for the next message,
and drops a rumor after it was sent a certain number of times."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field
from math import ceil, log2

from gossip.core.messages import PeerId, Rumor
from gossip.core.settings import SENDERS_MAX, MembershipSettings


def retransmit_limit(n: int, settings: MembershipSettings) -> int:
    """Return the number of times that a peer sends a rumor. memberlist uses log10, and sends a
    rumor only 4 times for n <= 9. If messages are lost, 4 times is too few: running peers were
    declared dead (docs/design_notes.md N5)."""
    return settings.retransmit_mult * ceil(log2(n + 1))


@dataclass(slots=True)
class _QueuedRumor:
    rumor: Rumor
    order: int  # Sequence number of the rumor, in order of arrival.
    known: set[PeerId] = field(default_factory=set)  # Peers that have sent this rumor.


class RumorQueue:
    """Queue of the rumors that this peer sends. There is one rumor about each member. About a
    suspect, there is one rumor of each accuser, at most ``accusers_max``."""

    def __init__(self, settings: MembershipSettings) -> None:
        self.settings = settings
        # the first accuser, and the confirmations that shorten the suspicion timeout
        self.accusers_max = max(1, settings.suspicion_mult - 1)
        self._about: dict[PeerId, dict[PeerId, _QueuedRumor]] = {}
        self._queued: dict[int, _QueuedRumor] = {}  # Entries by sequence number.
        # Queued sequence numbers; empty if there is nothing to send.
        self.waiting: Collection[int] = self._queued
        self._sent_times: dict[int, int] = {}  # Number of sends, by sequence number.
        # At index k, the sequence numbers of the rumors that were sent k times, ascending.
        self._waiting: list[list[int]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, rumor: Rumor) -> None:
        """Queue a rumor, and remove earlier rumors about the same member. If the rumor is a further
        accusation at the same standing, earlier accusations stay queued."""
        entries = self._about.setdefault(rumor.peer, {})
        others = [entry.rumor for entry in entries.values()]
        if any(
            r.status != "suspect" or rumor.status != "suspect" or r.incarnation != rumor.incarnation
            for r in others
        ):
            for entry in entries.values():
                self._remove_rumor(entry.order)
            entries.clear()
        if rumor.origin in entries:
            self._remove_rumor(entries[rumor.origin].order)
        elif len(entries) >= self.accusers_max:
            return
        self._order += 1
        entry = entries[rumor.origin] = self._queued[self._order] = _QueuedRumor(rumor, self._order)
        self._put(entry.order, 0)

    def record_sender(self, sender: PeerId, rumor: Rumor) -> None:
        """Record that ``sender`` has sent this rumor and need not receive it."""
        entries = self._about.get(rumor.peer)
        entry = entries.get(rumor.origin) if entries else None
        if entry is not None and len(entry.known) < SENDERS_MAX and entry.rumor == rumor:
            entry.known.add(sender)

    def begins_anew(self, peer: PeerId) -> None:
        """Remove ``peer`` from the known senders, because its new incarnation has none of the
        rumors."""
        for entry in self._queued.values():
            entry.known.discard(peer)

    def pick(self, n: int, limit: int, to: PeerId | None = None) -> tuple[Rumor, ...]:
        """Return at most ``limit`` rumors for one message, and count them as sent. The rumors that
        were sent least often come first; among these, the newest come first.

        Args:
            n: Number of members, which determines how often a rumor is sent.
            to: Receiver of the message. It gets no rumor about itself, and no rumor that it has
                sent itself. A rumor that it has sent itself counts as sent to it.
        """
        if not self._queued or limit <= 0:
            return ()
        chosen: list[_QueuedRumor] = []
        for orders in self._waiting:
            for order in reversed(orders):
                entry = self._queued[order]
                if entry.rumor.peer != to:
                    chosen.append(entry)
                    if len(chosen) == limit:
                        break
            if len(chosen) == limit:
                break
        last = retransmit_limit(n, self.settings)
        for entry in chosen:
            times = self._sent_times[entry.order] + 1
            self._remove_rumor(entry.order)
            if times < last:
                self._queued[entry.order] = entry
                self._put(entry.order, times)
                continue
            about = self._about[entry.rumor.peer]
            del about[entry.rumor.origin]
            if not about:
                del self._about[entry.rumor.peer]
        return tuple([entry.rumor for entry in chosen if to not in entry.known])

    def _put(self, order: int, times: int) -> None:
        while len(self._waiting) <= times:
            self._waiting.append([])
        insort(self._waiting[times], order)
        self._sent_times[order] = times

    def _remove_rumor(self, order: int) -> None:
        orders = self._waiting[self._sent_times.pop(order)]
        del orders[bisect_left(orders, order)]
        del self._queued[order]
