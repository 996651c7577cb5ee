"""Evidence from which the decisions about trust must follow: which peers stood out in each round
according to the rules, and which peers may therefore be in quarantine."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from math import ceil, log

from gossip.core import TRUST_ROUNDS, CoreSettings, PeerId, TrustSettings
from gossip_lab.simulation.checkers.base import updates_needed


@dataclass(frozen=True, slots=True)
class Record:
    """Record of one peer. Durations are numbers of applied rounds, because round numbers may have
    gaps.

    Attributes:
        in_a_row: Number of latest consecutive rounds, of those that judged the peer, in which the
            peer clearly stood out.
        counts: Number of rounds since its last release in which the peer stood out or may have
            stood out.
        refused: Number of its results that more than f peers have rejected since its last release.
            Two results of one attempt count as several.
        twice: Number of attempts since its last release in which the peer made two results. Each of
            the two is confirmed by more than f peers.
        quarantined_for: Number of rounds since its quarantine began; -1 if the peer is not in
            quarantine.
        released_for: Number of rounds since its last quarantine ended and its parole began; -1 if
            it was never in quarantine.
        ordinary: Number of updates in its present quarantine that did not clearly stand out.
        ordinary_in_a_row: Number of latest consecutive updates in its present quarantine that
            cannot have stood out.
    """

    in_a_row: int = 0
    counts: int = 0
    refused: int = 0
    twice: int = 0
    quarantined_for: int = -1
    released_for: int = -1
    ordinary: int = 0
    ordinary_in_a_row: int = 0


NOTHING = Record()
CLEARLY = 2
StatedResult = tuple[PeerId, PeerId, int, bytes, bytes]
Accusations = dict[tuple[PeerId, int], frozenset[PeerId]]
Equivocations = dict[tuple[PeerId, int, bytes], dict[bytes, frozenset[PeerId]]]


@dataclass(frozen=True, slots=True)
class RoundEvidence:
    """Evidence of one round against peers.

    Attributes:
        judged: ``(peer, mark)`` for peers that the rule has measured, in quarantine or not, and for
            peers with an update that was not finite. The mark is 2 if the peer clearly stood out, 1
            if it may have stood out, and 0 otherwise.
        charged: ``(accuser, peer, round)``: the accuser claims that it has rejected the peer's
            result of this round.
        stated: ``(witness, peer, round, turn, content)``: the witness claims that the peer's result
            of this round and attempt has the hash ``content``.
    """

    judged: Iterable[tuple[PeerId, int]]
    charged: Iterable[tuple[PeerId, PeerId, int]] = ()
    stated: Iterable[StatedResult] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Records of all peers after a round. ``wrong`` is (peer, error text) if a decision of the core
    does not follow from the records."""

    settings: CoreSettings
    records: dict[PeerId, Record] = field(default_factory=dict)
    # (peer, round) -> peers that claim to have rejected its result.
    accusations: Accusations = field(default_factory=dict)
    equivocations: Equivocations = field(default_factory=dict)
    """(peer, round, attempt) -> hash of its result -> peers that claim to have received it."""
    wrong: tuple[PeerId, str] | None = None

    @property
    def trust(self) -> TrustSettings:
        return self.settings.trust

    def quarantined(self) -> tuple[PeerId, ...]:
        """Return the peers in quarantine in the next round."""
        lasts = self.trust.quarantine_rounds
        return tuple(
            [peer for peer, record in self.records.items() if 0 <= record.quarantined_for < lasts]
        )

    def proven(self) -> tuple[PeerId, ...]:
        """Return the peers in quarantine that are proven Byzantine."""
        return tuple([peer for peer in self.quarantined() if self.records[peer].twice])

    def updates_needed(self, roster: Collection[PeerId]) -> int:
        """Return the number of updates that the rule needs. Each proven Byzantine peer in
        ``roster`` reduces the f of the rule by one."""
        return updates_needed(self.settings, roster, self.proven())

    def excluded_servers(self) -> tuple[PeerId, ...]:
        """Return the peers that must not serve in the next round, because they are in quarantine or
        on parole."""
        parole, records = self.trust.parole_rounds, self.records.items()
        return tuple(
            [
                peer
                for peer, record in records
                if record.quarantined_for >= 0 or 0 <= record.released_for < parole
            ]
        )

    def most(self, score: float) -> int:
        """Return the number of rounds as an outlier after which the trust falls from ``score``
        below the threshold of quarantine."""
        return ceil(log(self.trust.quarantine_below / score) / log(self.trust.memory))

    def after(
        self,
        round_id: int,
        evidence: RoundEvidence,
        changes: Iterable[tuple[PeerId, str]],
        members: Collection[PeerId],
    ) -> Ledger:
        """Return the ledger after one more round.

        Args:
            changes: Changes in this round that the core has reported: ``(peer, "quarantined" or
                "parole")``.
        """
        records = {peer: _advance_round(record) for peer, record in self.records.items()}
        _count_standing_out(records, evidence.judged)
        accusations = self._count_refusals(records, evidence.charged)
        equivocations = self._count_equivocations(records, evidence.stated)
        wrong = None
        changes = list(changes)
        others = {peer for peer, change in changes if change == "quarantined"}
        short = len(set(members) - set(self.quarantined())) < self.updates_needed(members)
        for peer, change in changes:
            record = records.get(peer, NOTHING)
            if change == "quarantined":
                if why := self._missing_evidence(record):
                    wrong = peer, f"is quarantined with round {round_id} for {why}"
                records[peer] = replace(record, quarantined_for=0, ordinary=0, ordinary_in_a_row=0)
            elif change == "parole":
                trusted = self._may_be_trusted(record)
                may_go = record.quarantined_for >= 0 and (trusted or short or bool(others - {peer}))
                if record.quarantined_for < self.trust.quarantine_rounds and not may_go:
                    lasted = (
                        f"was in quarantine for {record.quarantined_for} rounds"
                        if record.quarantined_for >= 0
                        else "was not in quarantine"
                    )
                    wrong = peer, f"is released with round {round_id}, but {lasted}"
                records[peer] = Record(released_for=0)
        wrong = wrong or self._find_missing_change(round_id, records, members)
        return replace(
            self, records=records, accusations=accusations, equivocations=equivocations, wrong=wrong
        )

    def _count_refusals(
        self, records: dict[PeerId, Record], charged: Iterable[tuple[PeerId, PeerId, int]]
    ) -> Accusations:
        accusations = dict(self.accusations)
        for accuser, peer, of_round in charged:
            before = accusations.get((peer, of_round), frozenset())
            accusations[peer, of_round] = by = before | {accuser}
            if len(before) <= self.settings.f < len(by):
                _refuse(records, peer, 1)
        return accusations

    def _count_equivocations(
        self, records: dict[PeerId, Record], stated: Iterable[StatedResult]
    ) -> Equivocations:
        equivocations = dict(self.equivocations)
        for witness, peer, of_round, turn, content in stated:
            contents = equivocations[peer, of_round, turn] = dict(
                equivocations.get((peer, of_round, turn), {})
            )
            twice = self._is_twice(contents)
            contents[content] = contents.get(content, frozenset()) | {witness}
            if not twice and self._is_twice(contents):
                trust = self.trust
                _refuse(records, peer, ceil(log(trust.twice_memory) / log(trust.served_memory)))
                records[peer] = replace(records[peer], twice=records[peer].twice + 1)
        return equivocations

    def _is_twice(self, contents: dict[bytes, frozenset[PeerId]]) -> bool:
        """Whether more than f peers have received one result, and more than f peers a different
        result."""
        return sum(len(by) > self.settings.f for by in contents.values()) > 1

    def _may_be_trusted(self, record: Record) -> bool:
        """Whether the peer may be trusted again, after the number of its updates in quarantine that
        did not clearly stand out. Its trust is assumed to begin with the highest value that is
        possible in quarantine."""
        trust = self.trust
        left = (1.0 - trust.trusted_above) / (1.0 - trust.quarantine_below)
        return record.ordinary >= ceil(log(left) / log(trust.memory))

    def _missing_evidence(self, record: Record) -> str:
        """Return a text about the evidence against a quarantined peer if this evidence is
        insufficient, else ""."""
        # After a release, trust begins between the two thresholds.
        between = (self.trust.suspect_below + self.trust.quarantine_below) / 2
        start = 1.0 if record.released_for < 0 else between
        least = self.most(start)
        results = ceil(log(self.trust.quarantine_below / start) / log(self.trust.served_memory))
        if record.counts >= least or record.refused >= results:
            return ""
        return (
            f"{record.counts} rounds of standing out, of {least} required; "
            f"{record.refused} rejected results, of {results}"
        )

    def _find_missing_change(
        self, round_id: int, records: dict[PeerId, Record], members: Collection[PeerId]
    ) -> tuple[PeerId, str] | None:
        # A missing quarantine is a violation only after a long time, because stored earlier updates
        # may outweigh the latest ones.
        quarantined = [peer for peer, record in records.items() if record.quarantined_for >= 0]
        if len([peer for peer in quarantined if not records[peer].twice]) > self.settings.f:
            return quarantined[
                0
            ], f"is in quarantine with {quarantined}, more than f, without proof"
        inside = len([peer for peer in quarantined if peer in members])
        proven = len([peer for peer in quarantined if peer in members and records[peer].twice])
        needed = self.settings.updates_needed(self.settings.f - proven)
        room = min(
            self.settings.f - len(quarantined),
            (len(members) - 1) // 2 - inside,
            len(members) - inside - needed,
        )
        for peer, record in records.items():
            if record.quarantined_for >= 0:
                if record.quarantined_for > self.trust.quarantine_rounds:
                    return peer, f"is in quarantine for {record.quarantined_for} rounds"
                ordinary = record.ordinary_in_a_row
                if ordinary >= self.trust.updates_to_return and not record.refused:
                    return peer, f"is in quarantine after {ordinary} ordinary updates in a row"
            elif room > 0 and peer in members and record.in_a_row > TRUST_ROUNDS + self.most(1.0):
                return (
                    peer,
                    (
                        f"has stood out for {record.in_a_row} rounds in a row by round "
                        f"{round_id}, but is not in quarantine"
                    ),
                )
        return None


def _count_standing_out(
    records: dict[PeerId, Record], judged: Iterable[tuple[PeerId, int]]
) -> None:
    for peer, stood_out in judged:
        record = records.get(peer, NOTHING)
        row = record.in_a_row + 1 if stood_out == CLEARLY else 0
        record = replace(record, in_a_row=row, counts=record.counts + bool(stood_out))
        if record.quarantined_for >= 0:
            record = replace(
                record,
                ordinary=record.ordinary + (stood_out != CLEARLY),
                ordinary_in_a_row=0 if stood_out else record.ordinary_in_a_row + 1,
            )
        records[peer] = record


def _refuse(records: dict[PeerId, Record], peer: PeerId, results: int) -> None:
    record = records.get(peer, NOTHING)
    records[peer] = replace(record, refused=record.refused + results)


def _advance_round(record: Record) -> Record:
    if record.quarantined_for < 0 and record.released_for < 0:
        return record
    return replace(
        record,
        quarantined_for=record.quarantined_for + (record.quarantined_for >= 0),
        released_for=record.released_for + (record.released_for >= 0),
    )
