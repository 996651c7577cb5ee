"""Trust in the peers of a run: suspicions with time and reason, and updates of little weight."""

from __future__ import annotations

from gossip.observe import Judgement, events

from .happenings import SuspicionRecord
from .participation import low_influence
from .peer_row import PeerRow

SHARES = {1.0: "whole", 0.5: "half", 0.25: "quarter"}


class TrustRecord:
    """Judgements of peers about each other. The methods apply events, and return the lines to print
    about them.

    Attributes:
        suspicions, quarantines: Peers that were suspected, and peers that were quarantined.
        unequal_updates: Deviations beyond chance by which the updates of the same peers are farther
            out; None: not reported.
        low_influence: Peer -> mean weight of 20 updates in multiples of an equal weight, if it was
            below half.
    """

    def __init__(self) -> None:
        self.suspicions: dict[int, SuspicionRecord] = {}
        self.quarantines: set[int] = set()
        self.unequal_updates: float | None = None
        self.low_influence: dict[int, float] = {}
        self._shares: dict[int, int] = {}  # peer -> round in which its share changed last

    def _suspected(self, row: PeerRow, event: events.Suspected, subject: PeerRow) -> list[str]:
        if event.trust is not None:
            subject.trust = event.trust
        subject.set_reasons(event)
        first = SuspicionRecord(event.round, subject.trust, list(subject.reasons))
        known = self.suspicions.setdefault(subject.peer, first)
        known.trust = min(known.trust, subject.trust)
        if subject.suspected:
            return []
        subject.suspected = True
        return [
            f"? peer {subject.peer} suspected Byzantine at round {event.round}: trust "
            f"{_trust(event)}{_because(event)}"
        ]

    def _quarantined(self, row: PeerRow, event: events.Quarantined, subject: PeerRow) -> list[str]:
        if subject.quarantined:
            return []
        subject.quarantined = True
        if event.reasons:
            subject.set_reasons(event)
        self.quarantines.add(subject.peer)
        trust = f"trust {_trust(event)}{_because(event)}"
        return [f"- peer {subject.peer} quarantined at round {event.round}: {trust}"]

    def _parole(self, row: PeerRow, event: events.Parole, subject: PeerRow) -> list[str]:
        if not subject.quarantined:
            return []
        subject.quarantined = False
        return [f"~ peer {subject.peer} on parole from round {event.round}"]

    def _trusted(self, row: PeerRow, event: events.Trusted, subject: PeerRow) -> list[str]:
        was = subject.suspected
        subject.suspected, subject.quarantined = False, False
        subject.reasons, subject.reasons_round = (), None
        return [f"~ peer {subject.peer} is trusted again"] if was else []

    def _share(self, row: PeerRow, event: events.Share, subject: PeerRow) -> list[str]:
        """Record the share of the batch. The first report counts."""
        peer = subject.peer
        if self._shares.get(peer, 0) >= (event.round or 0):
            return []
        share = event.share or 1.0
        self._shares[peer] = event.round or 0
        size = SHARES.get(share, f"{share:.2f}")
        # The last reported share may be outdated: a peer that left the roster and returned begins
        # with a whole one.
        if share >= (event.was or 1.0):
            why = "it is quick enough for that"
        elif subject.quarantined:
            why = "it is in quarantine"
        elif subject.skipped_by or subject.state in ("gone", "stopped"):
            why = "it is away"
        else:
            why = "it was slower than most, or away"
        return [f"= peer {peer} gets {size} batches from round {self._shares[peer] + 1} on: {why}"]

    def _low_influence(
        self, row: PeerRow, event: events.LowInfluence, subject: PeerRow
    ) -> list[str]:
        """Report a peer once, unless it is suspected or quarantined."""
        if subject.suspected or subject.quarantined or subject.peer in self.low_influence:
            return []
        self.low_influence[subject.peer] = event.share or 0.0
        return low_influence({subject.peer: self.low_influence[subject.peer]})

    def _unequal_updates(self, row: PeerRow, event: events.UnequalUpdates) -> list[str]:
        if self.unequal_updates is not None:
            return []
        self.unequal_updates = event.beyond or 0.0
        if not event.f:
            return []
        return [
            "! the updates of the same peers are farther out round after round "
            f"({self.unequal_updates:g} deviations beyond chance): they have other data. A rule "
            "without a judge may take them for liars, and liars for them: run with --reference "
            "256; see docs/protection.md"
        ]


def _trust(event: Judgement) -> str:
    return "?" if event.trust is None else f"{event.trust:.2f}"


def _because(event: Judgement) -> str:
    return f" ({'; '.join(event.reasons[:2])})" if event.reasons else ""
