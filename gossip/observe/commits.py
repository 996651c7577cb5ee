"""Commits of a run. Each commit is a line of ``commits.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType

from .event import Declared, Part
from .fields import (
    Count,
    PeerId,
    Real,
    Roster,
    RoundId,
    RoundNumber,
    Row,
    Scores,
    Slices,
    Time,
    scores_of,
)


class ContributionRow(Part):
    """Contribution of one peer to a round.

    Attributes:
        weight: Weight of the peer's update in the result; 0 if the update was left out, None if no
            weight was reported.
        outlyingness: Outlyingness of the peer's update; 1 is typical.
        took_us: Time from the start of the round until the peer had computed its update, in
            microseconds; None if not reported.
    """

    peer: PeerId
    samples: int = 0
    weight: Real = None
    outlyingness: float = 0.0
    took_us: Count = None

    @property
    def update_s(self) -> float | None:
        return self.took_us / 1e6 if self.took_us else None


class RejectionRow(Part):
    """A peer without an update in the result, and the reason for it."""

    peer: PeerId
    reason: str = ""


class CommitRow(Declared):
    """Commit of a shard of a round, as recorded by the server that made it.

    Attributes:
        made_at: Attempt in which the commit was made: 0 for the first server of the round, 1 for
            the next server.
        roster: Peers of the next round.
        trust: Peer -> trust score after the round.
        reason: Why the round has no result; "" if it has one.
        chain, parent: Hash of the history up to this commit, and up to the commit before.
        rule_ms: Milliseconds from the last collected update to the commit; None if not recorded.
        slices: Peer -> ranges of the samples that are assigned to the peer.
        stage: Number of the server's stage in a pipeline.
    """

    t: Time = 0.0
    wall: Time | None = None
    round: RoundNumber
    server: PeerId
    shard: RoundNumber = 0
    stage: RoundNumber = 0
    attempt: RoundNumber = 0
    made_at: RoundNumber = 0
    lineage: str = ""
    chain: str = ""
    parent: str = ""
    digest: str = ""
    contributors: tuple[ContributionRow, ...] = ()
    rejected: tuple[RejectionRow, ...] = ()
    roster: Roster = ()
    loss: Real = None
    trust: Scores = None
    reason: str = ""
    rule_ms: Real = None
    epoch: RoundId = None
    slices: Slices = MappingProxyType({})
    samples_total: int = 0
    steps_per_epoch: int = 0

    @property
    def scores(self) -> dict[int, float]:
        """Peer -> trust score, without unknown scores."""
        return scores_of(self.trust)

    @property
    def peers(self) -> set[int]:
        """Peers that contributed to the commit."""
        return {each.peer for each in self.contributors}

    @property
    def rule_s(self) -> float | None:
        return None if self.rule_ms is None else self.rule_ms / 1000


def read_commits(rows: Iterable[Row]) -> Iterator[CommitRow]:
    """Yield the commits in rows that ``check_row`` has checked. A row without a round or a server
    is skipped."""
    return (commit for row in rows if (commit := _read(row)) is not None)


def _read(row: Row) -> CommitRow | None:
    found = _known(CommitRow, row)
    if "round" not in found or "server" not in found:
        return None
    for name, kind in (("contributors", ContributionRow), ("rejected", RejectionRow)):
        if parts := found.get(name):
            found[name] = tuple([kind.wrap(_known(kind, part)) for part in parts])
    return CommitRow.wrap(found)


def _known(kind: type[Declared], row: Row) -> Row:
    """Return the fields that ``kind`` declares and that are not null. Other declared fields have
    defaults."""
    fields = kind.fields
    return {name: value for name, value in row.items() if value is not None and name in fields}
