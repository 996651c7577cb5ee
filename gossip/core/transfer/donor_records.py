"""Records about donors during one recovery: refusals, deadlines, backoff and false states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gossip.core.messages import PeerId
from gossip.core.settings import REFUSALS_MAX, CoreSettings

from .attestation import NoStateEvidence, StateSources
from .backoff import Backoff
from .deadlines import DonorDeadlines
from .donor import BUSY, NO_STATE, TAKES_OVER


class DonorRecords:
    """Records of which donors have claimed, refused or not delivered a state.

    Attributes:
        attackers: Peers that have sent a wrong piece.
    """

    def __init__(self, local: PeerId, settings: CoreSettings, swarm: StateSources) -> None:
        self.settings, self.attackers = settings, set[PeerId]()
        self.no_state = NoStateEvidence(local, settings.f, swarm)
        self.deadlines = DonorDeadlines(settings.rounds.round_timeout_s, settings.f)
        self.backoff = Backoff(settings.membership.probe_interval_s)
        # for each donor, number of its states that the trainer could not load, since the trainer
        # last loaded a state
        self._refused: Counter[PeerId] = Counter()

    def clear(self) -> None:
        """Clear the records for a new recovery."""
        self.no_state.clear()
        self.deadlines.clear()
        self.attackers.clear()
        self.backoff.clear()

    def note_state(self, peer: PeerId) -> None:
        """Record that a peer has or claims a state."""
        self.no_state.note_state(peer)
        self.deadlines.note_state(peer)

    def attest(self, peer: PeerId, now: float) -> None:
        """Record that a peer attests a state."""
        self.no_state.note_state(peer)
        self.deadlines.claim(peer, now)

    def refuse(self, peer: PeerId, reason: str, now: float) -> None:
        """Record that a peer has refused to send a state, for ``reason``."""
        self.no_state.record_refusal(peer, reason)
        if reason == NO_STATE:
            self.deadlines.deny(peer)
        else:
            self.deadlines.note_state(peer)
        if reason in (BUSY, TAKES_OVER):  # the peer may send a state later
            self.deadlines.claim(peer, now)

    def fail(self, peer: PeerId, now: float, loaded: bool = False) -> None:
        """Record that a peer has not delivered a usable state. ``loaded``: the state was delivered,
        but the trainer could not load it."""
        self.backoff.failed(peer, now)
        self.deadlines.fail(peer, loaded)

    def record_load(self, peer: PeerId | None, problem: str) -> None:
        """Record whether the trainer could load the state of a peer. ``problem``: reason if it
        could not, otherwise ""."""
        if not problem:
            self._refused.clear()
        elif peer is not None:
            self._refused[peer] += 1

    def rested(self, donors: Iterable[PeerId], now: float) -> list[PeerId]:
        """Return the donors that may receive a request, because their backoff is over."""
        return [peer for peer in donors if not self.backoff.is_resting(peer, now)]

    def stateless(self, now: float) -> set[PeerId]:
        """Return the peers that have no state according to their last report, and the peers with a
        deadline that has passed."""
        return self.no_state.stateless | self.deadlines.overdue(now)

    @property
    def fits_no_state(self) -> bool:
        """Whether the trainer could not load the states of so many donors that not all of them can
        be Byzantine."""
        refused = self._refused
        return refused.total() >= REFUSALS_MAX and len(refused) > self.settings.f
