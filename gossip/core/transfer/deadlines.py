"""How long a peer that needs a state counts on each of those who may have one.

Up to f peers may be there, claim a state, or not deny it, and never give it. So whoever was asked
has ``PATIENCE_FACTOR`` round timeouts: for what a transfer may take, and as long again for a
trainer that is busy when it is asked. With f = 0 nobody lies, and everybody has all the time.

The time begins anew with each right piece of a state, and does not end while a payload moves. A
state for which f + 1 vouch has a last piece, and liars cannot make others. What nobody vouches for
counts on, once the renewals are used up, as far as more of one state is here than of any before.

Else the time begins anew only so often as a donor gives the same piece to one peer
(``GIVEN_TIMES_MAX``): for transfers that broke off, for other states, and for who had claimed to
have one and then denied it, or was away. As often for who was away and had claimed nothing. Who
denies, and had claimed nothing, has none: what it says next is the first that it says.

More than f cannot all be Byzantine: who says that it has a state counts for as long as so many do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from gossip.core.messages import PeerId
from gossip.core.rounds import TRANSFER_FACTOR

from .donor import GIVEN_TIMES_MAX

PATIENCE_FACTOR = 2.0 * TRANSFER_FACTOR


@dataclass(slots=True)
class _Deadline:
    since: float  # it was asked first, or has sent a right piece last
    moves_until: float = -inf
    breaks_off: bool = False  # something came, of which nothing is whole yet
    state: bytes = b""  # what stands for the state whose pieces came last
    pieces: int = 0  # of that state
    pieces_max: int = 0  # of any
    renews: bool = False  # its last payload was a right piece that renews the time in any case
    said_at: float = -inf  # that it has a state


class DonorDeadlines:
    """Deadlines of the peers that received a request in one recovery."""

    def __init__(self, round_timeout_s: float, f: int) -> None:
        self.patience_s, self.f = PATIENCE_FACTOR * round_timeout_s, f
        self._deadlines: dict[PeerId, _Deadline] = {}
        self._renewals: Counter[PeerId] = Counter()
        self._absences: Counter[PeerId] = Counter()  # of who had claimed nothing
        self._claimed: set[PeerId] = set()  # since its time began anew last

    def clear(self) -> None:
        self._deadlines.clear()
        self._renewals.clear()
        self._absences.clear()
        self._claimed.clear()

    def ask(self, peers: Iterable[PeerId], now: float) -> None:
        for peer in peers:
            self._deadlines.setdefault(peer, _Deadline(now))

    def claim(self, peer: PeerId, now: float) -> None:
        """It says that it has a state, or vouches for one."""
        self._deadline_of(peer, now).said_at = now
        self.note_state(peer)

    def note_state(self, peer: PeerId) -> None:
        """It says or shows that it has a state, or will: a denial after that is another tale."""
        self._claimed.add(peer)

    def deny(self, peer: PeerId) -> None:
        """It says that it has none."""
        if not self.is_used_up(peer):
            self._renewals[peer] += peer in self._claimed
            self._forget(peer)

    def keep(self, here: Collection[PeerId]) -> None:
        """The others are away: they are asked anew when they are back."""
        for peer in self._deadlines.keys() - set(here):
            if peer in self._claimed:
                self.deny(peer)
            elif self._absences[peer] < GIVEN_TIMES_MAX:
                self._absences[peer] += 1
                self._forget(peer)

    def move(self, peer: PeerId, until: float, now: float) -> None:
        """Something comes from it as fast as its link carries it: more of it by ``until``."""
        deadline = self._deadline_of(peer, now)
        deadline.breaks_off = True
        self.note_state(peer)
        if deadline.renews or not self.is_used_up(peer):
            deadline.moves_until = until

    def deliver(self, peer: PeerId, state: bytes, now: float, vouched: bool = False) -> None:
        """It has sent a right piece of what ``state`` stands for. ``vouched``: f + 1 peers say that
        they have that state."""
        deadline = self._deadline_of(peer, now)
        deadline.breaks_off = False
        self.note_state(peer)
        if deadline.state != state:
            if deadline.state and not vouched:
                self._renewals[peer] += 1
            deadline.state, deadline.pieces = state, 0
        deadline.pieces += 1
        deadline.renews = vouched or deadline.pieces > deadline.pieces_max
        deadline.pieces_max = max(deadline.pieces, deadline.pieces_max)
        if deadline.renews or not self.is_used_up(peer):
            deadline.since = now

    def fail(self, peer: PeerId, loaded: bool = False) -> None:
        """It has not delivered what it was asked for. ``loaded``: or what cannot be loaded."""
        deadline = self._deadlines.get(peer)
        if deadline is not None and (deadline.breaks_off or loaded):
            deadline.breaks_off = deadline.renews = False
            deadline.pieces = 0 if loaded else deadline.pieces
            self._renewals[peer] += 1

    def is_used_up(self, peer: PeerId) -> bool:
        """Whether its time begins anew with right pieces only."""
        return self._renewals[peer] > GIVEN_TIMES_MAX

    def is_over(self, peer: PeerId, now: float) -> bool:
        """Whether it has had its time, whatever is said."""
        deadline = self._deadlines.get(peer)
        if deadline is None or self.f == 0:
            return False
        return now >= max(deadline.since + self.patience_s, deadline.moves_until)

    def overdue(self, now: float) -> set[PeerId]:
        """Return the peers whose time is up. If more than f peers claim a state, those peers are
        left out."""
        over = {peer for peer in self._deadlines if self.is_over(peer, now)}
        say_so = {
            peer
            for peer, deadline in self._deadlines.items()
            if now < deadline.said_at + self.patience_s
        }
        return over - say_so if len(say_so) > self.f else over

    def _deadline_of(self, peer: PeerId, now: float) -> _Deadline:
        return self._deadlines.setdefault(peer, _Deadline(now))

    def _forget(self, peer: PeerId) -> None:
        self._deadlines.pop(peer, None)
        self._claimed.discard(peer)
