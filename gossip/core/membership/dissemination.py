"""The queue of rumors that are piggybacked on messages: which to send next, and when each has been
sent often enough."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field
from math import ceil, log2

from gossip.core.messages import PeerId, Rumor
from gossip.core.settings import MembershipSettings

TELLERS_MAX = 16
"""Peers of which is kept that they told a rumour: in a large swarm it is hardly ever one of those
that is to be told."""


def retransmit_limit(n: int, settings: MembershipSettings) -> int:
    """How often a peer sends a rumor. memberlist takes log10, which is 4 times for n <= 9. With
    lost messages that is too few: running peers were declared dead (docs/design_notes.md N5)."""
    return settings.retransmit_mult * ceil(log2(n + 1))


@dataclass(slots=True)
class _QueuedRumor:
    rumor: Rumor
    order: int  # of its coming
    known: set[PeerId] = field(default_factory=set)  # who has told it to us


class RumorQueue:
    """The rumors that this peer has to send: one about each subject, and about a suspect one of
    each accuser, ``accusers_max`` at most."""

    def __init__(self, settings: MembershipSettings) -> None:
        self.settings = settings
        # the first one and those whose confirmation counts
        self.accusers_max = max(1, settings.suspicion_mult - 1)
        self._about: dict[PeerId, dict[PeerId, _QueuedRumor]] = {}
        self._queued: dict[int, _QueuedRumor] = {}  # by order
        self.waiting: Collection[int] = self._queued  # empty: there is nothing to tell
        self._said: dict[int, int] = {}  # order -> how often
        self._waiting: list[list[int]] = []  # how often said -> orders, ascending
        self._order = 0

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, rumor: Rumor) -> None:
        """Replaces what was said about the subject before,
        unless it is a further accusation of the same standing."""
        sayings = self._about.setdefault(rumor.peer, {})
        others = [saying.rumor for saying in sayings.values()]
        if any(
            r.status != "suspect" or rumor.status != "suspect" or r.incarnation != rumor.incarnation
            for r in others
        ):
            for saying in sayings.values():
                self._remove_rumor(saying.order)
            sayings.clear()
        if rumor.origin in sayings:
            self._remove_rumor(sayings[rumor.origin].order)
        elif len(sayings) >= self.accusers_max:
            return
        self._order += 1
        saying = sayings[rumor.origin] = self._queued[self._order] = _QueuedRumor(
            rumor, self._order
        )
        self._put(saying.order, 0)

    def record_sender(self, sender: PeerId, rumor: Rumor) -> None:
        """``sender`` has sent this rumor, so it need not be sent to it."""
        sayings = self._about.get(rumor.peer)
        saying = sayings.get(rumor.origin) if sayings else None
        if saying is not None and len(saying.known) < TELLERS_MAX and saying.rumor == rumor:
            saying.known.add(sender)

    def begins_anew(self, peer: PeerId) -> None:
        """A new life of ``peer``, which knows nothing of what the former one has told."""
        for saying in self._queued.values():
            saying.known.discard(peer)

    def pick(self, n: int, limit: int, to: PeerId | None = None) -> tuple[Rumor, ...]:
        """At most ``limit`` rumors for one message: first those that were sent least often, of
        these the newest. Counts them as sent.

        Args:
            n: members, by which it is known how often each rumor is sent.
            to: the receiver. It gets no rumor about itself, and none that it has sent here; the
                latter count as sent.
        """
        if not self._queued or limit <= 0:
            return ()
        chosen: list[_QueuedRumor] = []
        for orders in self._waiting:
            for order in reversed(orders):
                saying = self._queued[order]
                if saying.rumor.peer != to:
                    chosen.append(saying)
                    if len(chosen) == limit:
                        break
            if len(chosen) == limit:
                break
        last = retransmit_limit(n, self.settings)
        for saying in chosen:
            said = self._said[saying.order] + 1
            self._remove_rumor(saying.order)
            if said < last:
                self._queued[saying.order] = saying
                self._put(saying.order, said)
                continue
            about = self._about[saying.rumor.peer]
            del about[saying.rumor.origin]
            if not about:
                del self._about[saying.rumor.peer]
        return tuple([saying.rumor for saying in chosen if to not in saying.known])

    def _put(self, order: int, said: int) -> None:
        while len(self._waiting) <= said:
            self._waiting.append([])
        insort(self._waiting[said], order)
        self._said[order] = said

    def _remove_rumor(self, order: int) -> None:
        orders = self._waiting[self._said.pop(order)]
        del orders[bisect_left(orders, order)]
        del self._queued[order]
