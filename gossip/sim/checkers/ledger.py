"""Who stood out when, told from what the rules said, and who may be in quarantine for it: what trust has to follow from."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from math import ceil, log

from gossip.core.messages import PeerId
from gossip.core.settings import TrustSettings
from gossip.core.trust import RECENT


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one peer.

    Attributes:
        in_a_row: Rounds in a row, of those in which it was judged, in which it stood out.
        counts: Rounds in which it did, since it was released last.
        locked_at: The round with which its quarantine began; -1: it is in none.
        released_at: The round with which its last one ended, likewise; its parole goes on from then.
    """

    in_a_row: int = 0
    counts: int = 0
    locked_at: int = -1
    released_at: int = -1


NOTHING = Record()


@dataclass(frozen=True, slots=True)
class Ledger:
    """The records after one round. ``wrong`` says what trust has made of it that does not follow."""

    settings: TrustSettings
    f: int
    records: dict[PeerId, Record] = field(default_factory=dict)
    wrong: tuple[PeerId, str] | None = None

    def locked(self, round_id: int) -> tuple[PeerId, ...]:
        """Who is in quarantine in that round: a gossip round may be far behind the last."""
        lasts = self.settings.quarantine_rounds
        return tuple(
            [peer for peer, record in self.records.items() if record.locked_at >= 0 and round_id <= record.locked_at + lasts]
        )

    def barred(self, round_id: int) -> tuple[PeerId, ...]:
        """Who may not serve in that round: in quarantine, or on parole."""
        parole = self.settings.parole_rounds
        return tuple(
            [
                peer
                for peer, record in self.records.items()
                if record.locked_at >= 0 or (record.released_at >= 0 and round_id <= record.released_at + parole)
            ]
        )

    def most(self, score: float) -> int:
        """Rounds of standing out that take a score below the threshold."""
        return ceil(log(self.settings.quarantine_below / score) / log(self.settings.memory))

    def after(
        self,
        round_id: int,
        judged: Iterable[tuple[PeerId, bool]],
        changes: Iterable[tuple[PeerId, str]],
        members: Collection[PeerId],
    ) -> Ledger:
        """What one more round makes of it.

        Args:
            judged: Whom the rule has seen, or who is proven faulty, and whether it stood out.
            changes: What trust says: ``(peer, "quarantined" or "parole")``.
        """
        records, wrong = dict(self.records), None
        for peer, stood_out in judged:
            record = records.get(peer, NOTHING)
            if record.locked_at < 0:
                row, counts = (record.in_a_row + 1, record.counts + 1) if stood_out else (0, record.counts)
                records[peer] = replace(record, in_a_row=row, counts=counts)
        for peer, change in changes:
            record = records.get(peer, NOTHING)
            if change == "quarantined":
                # On parole a score begins between the thresholds.
                between = (self.settings.suspect_below + self.settings.quarantine_below) / 2
                least = self.most(1.0 if record.released_at < 0 else between)
                if record.counts < least:
                    wrong = (
                        peer,
                        f"is locked up with round {round_id} for {record.counts} rounds of standing out; it takes {least}",
                    )
                records[peer] = replace(record, locked_at=round_id)
            elif change == "parole":
                lasted = round_id - record.locked_at
                if record.locked_at < 0 or lasted < self.settings.quarantine_rounds:
                    wrong = peer, f"is released with round {round_id}, and was locked up with {record.locked_at}"
                records[peer] = Record(released_at=round_id)
        return replace(self, records=records, wrong=wrong or self._lacks(round_id, records, members))

    def _lacks(self, round_id: int, records: dict[PeerId, Record], members: Collection[PeerId]) -> tuple[PeerId, str] | None:
        # Only who stands out as a rule is accused: what a peer sent before may clear it for as long as that is remembered.
        locked = [peer for peer, record in records.items() if record.locked_at >= 0]
        room = min(self.f - len(locked), (len(members) - 1) // 2 - len([peer for peer in locked if peer in members]))
        for peer, record in records.items():
            if record.locked_at >= 0:
                if round_id - record.locked_at > self.settings.quarantine_rounds:
                    return peer, f"is in quarantine for {round_id - record.locked_at} rounds"
            elif room > 0 and peer in members and record.in_a_row > RECENT + self.most(1.0):
                return peer, f"has stood out for {record.in_a_row} rounds in a row by round {round_id}, and is not locked up"
        return None
