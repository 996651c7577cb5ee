"""Rumours on their way to everybody: which to say next, and when each has been said often enough."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from .messages import PeerId, Rumour
from .settings import MembershipSettings


def retransmit_limit(n: int, settings: MembershipSettings) -> int:
    """How often one peer says one rumour. log2, not memberlist's log10: that is 4 times for n <= 9, and peers die of it (F13)."""
    return settings.retransmit_mult * ceil(log2(n + 1))


@dataclass(slots=True)
class _Saying:
    rumour: Rumour
    said: int
    order: int


class Rumours:
    """What this peer has to tell. At most one rumour a subject, and for a suspect one an accuser, up to ``accusers_max``."""

    def __init__(self, settings: MembershipSettings) -> None:
        self.settings = settings
        self.accusers_max = max(1, settings.suspicion_mult - 1)  # the first one and those whose confirmation counts
        self._about: dict[PeerId, dict[PeerId, _Saying]] = {}
        self._order = 0

    def __len__(self) -> int:
        return sum(len(sayings) for sayings in self._about.values())

    def add(self, rumour: Rumour) -> None:
        """Replaces what was said about the subject before, unless it is a further accusation of the same standing."""
        sayings = self._about.setdefault(rumour.peer, {})
        others = [saying.rumour for saying in sayings.values()]
        if any(r.status != "suspect" or rumour.status != "suspect" or r.incarnation != rumour.incarnation for r in others):
            sayings.clear()
        if rumour.origin not in sayings and len(sayings) >= self.accusers_max:
            return
        self._order += 1
        sayings[rumour.origin] = _Saying(rumour, 0, self._order)

    def pick(self, n: int, limit: int, skip: PeerId | None = None) -> tuple[Rumour, ...]:
        """At most ``limit`` rumours for one message, those said least first, the newest of those first. Counts them as said.

        Args:
            n: members, for the number of times that each is said.
            skip: leave out what is said about this peer.
        """
        if not self._about:
            return ()
        waiting = [saying for peer, sayings in self._about.items() if peer != skip for saying in sayings.values()]
        waiting.sort(key=lambda saying: (saying.said, -saying.order))
        chosen = waiting[:limit]
        last = retransmit_limit(n, self.settings)
        for saying in chosen:
            saying.said += 1
            if saying.said >= last:
                about = self._about[saying.rumour.peer]
                del about[saying.rumour.origin]
                if not about:
                    del self._about[saying.rumour.peer]
        return tuple(saying.rumour for saying in chosen)
