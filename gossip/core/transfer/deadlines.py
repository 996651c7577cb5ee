"""Deadlines of the peers from which a recovering peer requests a state.

Up to f Byzantine peers may claim to have a state, or not deny that they have one, and never send
it. So each peer that receives a request has a deadline of ``DONOR_FACTOR`` round timeouts: half of
it for the transfer, and half for a trainer that is busy when the request arrives. With f = 0 there
is no deadline.

Each correct piece of a state renews the deadline, and the deadline does not end while a payload is
in transfer. There are two cases in which the number of renewals is not limited. First, the pieces
of a state that f + 1 peers attest: there are finitely many, and Byzantine peers cannot make further
pieces. Second, a piece of any other state, if more pieces of this state have now arrived from the
peer than of every earlier state.

All other renewals are limited to the number of times that a donor sends the same piece to one peer
(``GIVEN_TIMES_MAX``). These renewals allow for broken transfers, for changed states, and for peers
that first claim a state and then deny it or are absent. The number of absences of peers without a
claim has the same limit. A denial without an earlier claim uses no renewal.

If more than f peers claim a state, not all of them can be Byzantine. So their claims stay valid
after the deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from gossip.core.messages import PeerId
from gossip.core.settings import DONOR_FACTOR, GIVEN_TIMES_MAX


@dataclass(slots=True)
class _Deadline:
    # Start of the deadline: time of the first request, or of the last correct piece that renewed
    # the deadline.
    since: float
    moves_until: float = -inf
    breaks_off: bool = False  # Whether the transfer of a piece has begun but is not complete.
    state: bytes = b""  # Outline of the state to which the last pieces belong.
    pieces: int = 0  # Number of received pieces of ``state``.
    pieces_max: int = 0  # Largest number of received pieces of any state.
    # Whether the last piece renewed the deadline without using a limited renewal.
    renews: bool = False
    claimed_at: float = -inf  # Time of the last claim of a state.


class DonorDeadlines:
    """Deadlines of the peers that received a request during one recovery."""

    def __init__(self, round_timeout_s: float, f: int) -> None:
        self.patience_s, self.f = DONOR_FACTOR * round_timeout_s, f
        self._deadlines: dict[PeerId, _Deadline] = {}
        self._renewals: Counter[PeerId] = Counter()
        self._absences: Counter[PeerId] = Counter()  # Absences of peers without a claim.
        # Peers that have claimed a state since their last renewal.
        self._claimed: set[PeerId] = set()

    def clear(self) -> None:
        self._deadlines.clear()
        self._renewals.clear()
        self._absences.clear()
        self._claimed.clear()

    def ask(self, peers: Iterable[PeerId], now: float) -> None:
        for peer in peers:
            self._deadlines.setdefault(peer, _Deadline(now))

    def claim(self, peer: PeerId, now: float) -> None:
        """Record that a peer claims or attests a state."""
        self._deadline_of(peer, now).claimed_at = now
        self.note_state(peer)

    def note_state(self, peer: PeerId) -> None:
        """Record that a peer claims or sends a state, so that a later denial uses a renewal."""
        self._claimed.add(peer)

    def deny(self, peer: PeerId) -> None:
        """Record that a peer denies that it has a state."""
        if not self.is_used_up(peer):
            self._renewals[peer] += peer in self._claimed
            self._drop(peer)

    def keep(self, here: Collection[PeerId]) -> None:
        """Drop the deadlines of all peers that are not in ``here``. They are absent, and receive
        new requests after their return."""
        for peer in self._deadlines.keys() - set(here):
            if peer in self._claimed:
                self.deny(peer)
            elif self._absences[peer] < GIVEN_TIMES_MAX:
                self._absences[peer] += 1
                self._drop(peer)

    def move(self, peer: PeerId, until: float, now: float) -> None:
        """Record that a part of a payload from a peer arrived. The next part is due at
        ``until``."""
        deadline = self._deadline_of(peer, now)
        deadline.breaks_off = True
        self.note_state(peer)
        if deadline.renews or not self.is_used_up(peer):
            deadline.moves_until = until

    def deliver(self, peer: PeerId, state: bytes, now: float, vouched: bool = False) -> None:
        """Record a correct piece of the state with outline ``state``. ``vouched``: f + 1 peers
        attest this state."""
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
        """Record that a peer has not delivered a usable state. ``loaded``: the state was delivered,
        but the trainer could not load it."""
        deadline = self._deadlines.get(peer)
        if deadline is not None and (deadline.breaks_off or loaded):
            deadline.breaks_off = deadline.renews = False
            deadline.pieces = 0 if loaded else deadline.pieces
            self._renewals[peer] += 1

    def is_used_up(self, peer: PeerId) -> bool:
        """Whether all limited renewals of a peer are used up. From then on, only unlimited renewals
        are possible."""
        return self._renewals[peer] > GIVEN_TIMES_MAX

    def is_over(self, peer: PeerId, now: float) -> bool:
        """Whether the deadline of a peer has passed. Claims of the peer do not extend it."""
        deadline = self._deadlines.get(peer)
        if deadline is None or self.f == 0:
            return False
        return now >= max(deadline.since + self.patience_s, deadline.moves_until)

    def overdue(self, now: float) -> set[PeerId]:
        """Return the peers with a deadline that has passed. If more than f peers claim a state,
        these peers are excluded."""
        over = {peer for peer in self._deadlines if self.is_over(peer, now)}
        claimers = {
            peer
            for peer, deadline in self._deadlines.items()
            if now < deadline.claimed_at + self.patience_s
        }
        return over - claimers if len(claimers) > self.f else over

    def _deadline_of(self, peer: PeerId, now: float) -> _Deadline:
        return self._deadlines.setdefault(peer, _Deadline(now))

    def _drop(self, peer: PeerId) -> None:
        self._deadlines.pop(peer, None)
        self._claimed.discard(peer)
