"""Commits of a run. A line of ``commits.jsonl`` is one."""

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
        weight: Weight of its update in the result; 0: it was left out; None: not
            reported.
        outlyingness: How far out it was; 1 is typical.
        took_us: Time from the start of the round until its update was there; None: not reported.
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
    """An update that is not in the result, and the reason."""

    peer: PeerId
    reason: str = ""


class CommitRow(Declared):
    """Result of a shard of a round, as its maker has written it down.

    Attributes:
        made_at: 0: made by the first server of the round; 1: by the next one, and so on.
        roster: Peers of the next round.
        trust: Peer -> trust after the round.
        reason: Why there is no result; "": there is one.
        chain: Hash of the history that ends with it; ``parent``: of the history before it.
        rule_ms: From the end of the collecting to the commit; None: its maker has not written it.
        slices: Peer -> ranges of samples that it was to read.
        stage: Whose commit it is, in a pipeline.
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
        """Trust in each peer, as far as it is known."""
        return scores_of(self.trust)

    @property
    def peers(self) -> set[int]:
        """Peers that contributed to it."""
        return {each.peer for each in self.contributors}

    @property
    def rule_s(self) -> float | None:
        return None if self.rule_ms is None else self.rule_ms / 1000


def read_commits(rows: Iterable[Row]) -> Iterator[CommitRow]:
    """Yield the commits in checked rows. A row without a round or a server is left out."""
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
    """Return the fields of the kind that are not null. The others have their defaults."""
    fields = kind.fields
    return {name: value for name, value in row.items() if value is not None and name in fields}
