"""Record of the trust in peers: suspicions with time and reason, and peers with updates of little
weight."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gossip.observe import Event, Judgement, events

from .happenings import SuspicionRecord
from .participation import low_influence
from .peer_row import PeerRow

STANDINGS: Mapping[type[Event], str] = {
    events.Suspected: "suspected",
    events.Quarantined: "in quarantine",
    events.Parole: "on parole",
    events.Cleared: "trusted again",
    events.Trusted: "trusted again",
}
"""Standing of a peer after the event."""
SHARES = {1.0: "whole", 0.5: "half", 0.25: "quarter"}


class TrustRecord:
    """Verdicts of peers about each other. The methods apply events, and return the lines to print
    about them.

    Attributes:
        suspicions, quarantines: Peers that were suspected, and peers that were quarantined.
        unequal_updates: How much more often than by chance the updates of the same peers are
            outlying, in standard deviations; None if not reported.
        verdicts: Time of the first report of a verdict, by (peer, standing, round). ``standing``:
            last standing of each judged peer.
        low_influence: Mean weight of 20 updates of a peer, in multiples of an equal weight. It
            contains only peers with too little weight.
    """

    def __init__(self) -> None:
        self.suspicions: dict[int, SuspicionRecord] = {}
        self.quarantines: set[int] = set()
        self.unequal_updates: float | None = None
        self.low_influence: dict[int, float] = {}
        self.verdicts: dict[tuple[int, str, int | None], float] = {}
        self.standing: dict[int, str] = {}
        # round in which the batch share of a peer last changed, by peer
        self._shares: dict[int, int] = {}

    def _on_judged(self, event: Judgement, row: PeerRow, subject: PeerRow) -> None:
        """Record an event about a peer's trust."""
        standing = self.standing[subject.peer] = STANDINGS[type(event)]
        self.verdicts.setdefault((subject.peer, standing, event.round), event.t)
        if event.trust is not None:
            self.record_scores({subject.peer: event.trust})

    def _on_round(self, event: events.Round, row: PeerRow) -> None:
        if self.suspicions:
            self.record_scores(event.scores)

    def record_scores(self, scores: Mapping[int, float]) -> None:
        """Record trust scores of peers, of which the lowest of each suspected peer is kept."""
        for peer, suspicion in self.suspicions.items():
            suspicion.trust = min(suspicion.trust, scores.get(peer, suspicion.trust))

    def first_verdict(self, who: Collection[int], standing: str) -> tuple[float, int | None] | None:
        """Return time and round of the first report that one of these peers has this standing; None
        if there is none."""
        found = (
            (t, round_id)
            for (peer, word, round_id), t in self.verdicts.items()
            if peer in who and word == standing
        )
        return next(found, None)

    def _on_suspected(self, event: events.Suspected, row: PeerRow, subject: PeerRow) -> list[str]:
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

    def _on_quarantined(
        self, event: events.Quarantined, row: PeerRow, subject: PeerRow
    ) -> list[str]:
        if subject.quarantined:
            return []
        subject.quarantined = True
        if event.reasons:
            subject.set_reasons(event)
        self.quarantines.add(subject.peer)
        trust = f"trust {_trust(event)}{_because(event)}"
        return [f"- peer {subject.peer} quarantined at round {event.round}: {trust}"]

    def _on_parole(self, event: events.Parole, row: PeerRow, subject: PeerRow) -> list[str]:
        if not subject.quarantined:
            return []
        subject.quarantined = False
        return [f"~ peer {subject.peer} on parole from round {event.round}"]

    def _on_trusted(self, event: events.Trusted, row: PeerRow, subject: PeerRow) -> list[str]:
        was = subject.suspected
        subject.suspected, subject.quarantined = False, False
        subject.reasons, subject.reasons_round = (), None
        return [f"~ peer {subject.peer} is trusted again"] if was else []

    def _on_share(self, event: events.Share, row: PeerRow, subject: PeerRow) -> list[str]:
        """Record a change of the peer's share of the batch. Only the first report of a change
        counts."""
        peer = subject.peer
        if self._shares.get(peer, 0) >= (event.round or 0):
            return []
        share = event.share or 1.0
        self._shares[peer] = event.round or 0
        size = SHARES.get(share, f"{share:.2f}")
        # Compare with ``was``, not with the last reported share: a peer that left the roster and
        # returned begins with a full share.
        if share >= (event.was or 1.0):
            why = "it is quick enough for that"
        elif subject.quarantined:
            why = "it is in quarantine"
        elif subject.skipped_by or subject.state in ("gone", "stopped"):
            why = "it is away"
        else:
            why = "it was slower than most, or away"
        return [f"= peer {peer} gets {size} batches from round {self._shares[peer] + 1} on: {why}"]

    def _on_low_influence(
        self, event: events.LowInfluence, row: PeerRow, subject: PeerRow
    ) -> list[str]:
        """Return lines about a peer once, and only if it is neither suspected nor quarantined."""
        if subject.suspected or subject.quarantined or subject.peer in self.low_influence:
            return []
        self.low_influence[subject.peer] = event.share or 0.0
        return low_influence({subject.peer: self.low_influence[subject.peer]})

    def _on_unequal_updates(self, event: events.UnequalUpdates, row: PeerRow) -> list[str]:
        if self.unequal_updates is not None:
            return []
        self.unequal_updates = event.beyond or 0.0
        if not event.f:
            return []
        return [
            "! the updates of the same peers are farther out in every round "
            f"({self.unequal_updates:g} deviations beyond chance): their data differ. A rule "
            "without a judge may confuse them with Byzantine peers: run with --reference "
            "256; see docs/protection.md"
        ]


def _trust(event: Judgement) -> str:
    return "?" if event.trust is None else f"{event.trust:.2f}"


def _because(event: Judgement) -> str:
    return f": {'; '.join(event.reasons[:2])}" if event.reasons else ""
