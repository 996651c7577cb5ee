"""Ledger: the state that follows from the commits alone. Peers with the same commits have equal
ledgers.

A peer changes its ledger in place. In a simulation, many peers have equal ledgers, and each commit
changes these ledgers in the same way. So ``Ledgers`` lets the peers of a simulation share one
ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy, deepcopy
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from gossip.core.events import Apply, Effect, Report
from gossip.core.messages import ROUND_MAX, Collected, Commit, PeerId, is_further
from gossip.core.settings import CoreSettings
from gossip.topologies import Roster

from .audits import AuditTable
from .data_cursor import DataCursor, Ranges
from .equivocation import EquivocationDetector
from .omissions import OmissionTracker
from .stage_speeds import StageSpeeds
from .trust import TrustTable

T = TypeVar("T")

Peers: TypeAlias = frozenset[PeerId]

BegunRound: TypeAlias = tuple[Peers, Peers, tuple[PeerId, ...], tuple[Any, ...]]
"""Peers in quarantine in a round; the subset of proven Byzantine peers; the peers that get samples;
and the snapshot of the ledger before the round."""


class LedgerStep(NamedTuple):
    """Result of applying the commits of a round, which is equal for all peers with the same ledger.

    Attributes:
        found: Reports about convicted peers and about trust.
        beyond: Excess of the spread of updates over chance, in standard deviations; None if it was
            not measured.
        turns: Reports about peers that stop serving or serve again.
        scores: Trust of the peers with evidence.
        data: Fields of ``Committed`` that describe the use of the data.
        contributors: Contributors of each shard.
        in_all: Peers that contributed to every shard with contributors.
        took_us: Reported time of each contributor of the first shard, in microseconds.
        lost: Effects of the round if it has no result; None if it has a result.
        is_step: Whether the round was a step of the run.
        by_first: Whether all initial peers of the run contributed to the round.
        absent: Peers that had samples but did not contribute.
        shares: Reports about a completed epoch and about changed shares of the data.
        sharers_next: Number of peers that get samples in the next round.
    """

    found: tuple[Effect, ...]
    beyond: float | None
    turns: tuple[Effect, ...]
    scores: dict[PeerId, float]
    data: dict[str, Any]
    contributors: tuple[tuple[PeerId, ...], ...]
    in_all: frozenset[PeerId]
    took_us: list[int]
    lost: tuple[Effect, ...] | None
    is_step: bool
    by_first: bool
    absent: frozenset[PeerId]
    shares: tuple[Effect, ...]
    sharers_next: int


class Ledger:
    """Roster, trust table, data cursor and the other tables, before a round."""

    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self._first_peers = frozenset(settings.peers)
        self._updates_most = settings.updates_needed(settings.f)
        self.trust = TrustTable(
            settings.trust, settings.f, settings.updates_for, judged=settings.judged
        )
        self.omissions = OmissionTracker(settings.trust, settings.f)
        self.equivocations = EquivocationDetector(settings.f)
        pipeline = settings.pipeline
        # None if the members of the stage do not audit each other
        self.audits = AuditTable(settings.audit_votes) if pipeline and pipeline.audit else None
        # None without a pipeline
        self.speeds = StageSpeeds(settings.f, dict(pipeline.pass_us)) if pipeline else None
        self.cursor = DataCursor(
            len(settings.peers),
            fixed_global=settings.batch_policy == "fixed_global",
            paced=settings.slices == "speed" and not settings.local_steps,
        )
        self.roster = Roster(settings.peers, settings.lineage)
        self.collectives = 0  # Number of earlier rounds that made no step of the run.
        # The peers that get samples in the round that has begun, and their slices.
        self._sharers: tuple[PeerId, ...] = ()
        self.slices: dict[PeerId, Ranges] = {}

    def copy(self) -> Ledger:
        """Return a copy. Changes of the copy have no effect on this ledger."""
        made = copy(self)
        made.trust, made.omissions, made.equivocations, made.audits, made.speeds, made.cursor = (
            deepcopy(
                (
                    self.trust,
                    self.omissions,
                    self.equivocations,
                    self.audits,
                    self.speeds,
                    self.cursor,
                )
            )
        )
        return made

    # --- a round ----------------------------------------------------------------------------------

    def begin(self) -> BegunRound:
        """Begin the next round and assign its samples. A second call for the same round changes
        nothing."""
        locked = self.trust.quarantined()
        proven = self.trust.proven() if locked else locked
        self._sharers = self._next_sharers(proven)
        self.cursor.require(self._updates_needed(proven) if proven else self._updates_most)
        self.slices = self.cursor.assign(self._sharers)
        tables = [table.pack() for table in self._tables()]
        return locked, proven, self._sharers, (self.roster.peers, *tables, self.collectives)

    def _updates_needed(self, proven: frozenset[PeerId]) -> int:
        # A proven peer no longer counts towards f, so the rule needs fewer updates.
        return self.settings.updates_needed(
            self.settings.f - len(proven.intersection(self.roster.peers))
        )

    def _next_sharers(self, proven: frozenset[PeerId]) -> tuple[PeerId, ...]:
        """Return the peers that get samples in the next round. A proven Byzantine peer gets none. A
        peer in quarantine without proof still gets samples, because its update is used if the other
        peers send too few updates. If its update is not used, its samples are returned to the
        cursor."""
        peers = self.roster.peers
        return tuple([peer for peer in peers if peer not in proven]) if proven else peers

    def configure_data(self, samples_total: int, batch: int, extended: int) -> None:
        """Set the size of the data. Raises the errors of ``DataCursor.configure``."""
        self.cursor.configure(samples_total, batch, extended)
        self.slices = self.cursor.assign(self._sharers)

    def resume_count(self, collectives: int) -> None:
        """Set the number of earlier rounds that made no step of the run."""
        self.collectives = collectives

    def apply(self, commits: Sequence[Commit]) -> LedgerStep:
        """Apply the commits of the round that has begun, one for each shard, in order."""
        first, round_id = commits[0], commits[0].round_id
        lost = next((c for c in commits if not c.digest or c.kind != first.kind), None)
        proven, audits = self.equivocations.observe_round(commits), self.audits
        audited = () if audits is None else audits.observe_round(commits)
        used = {} if lost else _samples_used(commits)
        collectives_before = self.collectives
        collected, is_step = self._count_step(first)
        found: list[Effect] = [
            Report("found_by_audit", {"subject": peer, "round": round_id}) for peer in audited
        ]
        found += [each.report() for each in self.trust.observe_round(commits, proven, audited)]
        locked, beyond = self.trust.quarantined(), self.trust.spread.beyond_chance
        turns = self.omissions.observe_round(commits, locked)
        cursor = self.cursor
        data: dict[str, Any] = {
            "epoch": cursor.epoch,
            "samples_total": cursor.samples_total,
            "steps_per_epoch": cursor.steps_per_epoch,
            "slices": self.slices if cursor.configured else None,
        }
        lost_effects = (
            None
            if lost is None
            else self._lose(first, lost, collected, is_step, collectives_before)
        )
        took_us = {c.peer: c.took_us for c in first.contributors}
        levels_before = {} if cursor.pace.even else cursor.pace.levels()
        contributors = tuple([tuple([c.peer for c in commit.contributors]) for commit in commits])
        in_any = [frozenset(each) for each in contributors if each]
        shares: list[Effect] = []
        absent: frozenset[PeerId] = frozenset()
        if is_step:
            unused: dict[PeerId, str] = {}
            for commit in commits:
                for each in commit.rejected:
                    # a non-finite update in another shard has priority
                    if unused.get(each.peer) != "non_finite":
                        unused[each.peer] = each.reason
            epoch = cursor.commit(self._sharers, used, took_us, unused)
            absent = frozenset(self._sharers if used else ()).difference(used, unused)
            if epoch is not None:
                shares.append(Report("epoch", {"round": round_id, **asdict(epoch)}))
        self.roster = Roster(first.roster, self.roster.lineage)
        if levels_before or not cursor.pace.even:
            shares += self._report_shares(round_id, levels_before)
        if self.speeds is not None:
            self.speeds.observe_round(commits)
        return LedgerStep(
            tuple(found),
            beyond,
            tuple([Report(turn, {"subject": peer, "round": round_id}) for peer, turn in turns]),
            {peer: round(score, 3) for peer, score in self.trust.scores().items()},
            data,
            contributors,
            frozenset.intersection(*in_any) if in_any else frozenset(),
            list(took_us.values()),
            lost_effects,
            is_step,
            used.keys() >= self._first_peers,
            absent,
            tuple(shares),
            len(self._next_sharers(self.trust.proven() if locked else locked)),
        )

    def _count_step(self, first: Commit) -> tuple[tuple[Collected, ...], bool]:
        """Return the collected values (none unless the round was a collective operation), and
        whether the round was a step of the run. Also count the rounds that made no step of the
        run."""
        collected = first.collected
        if collected and len(collected) <= self.settings.callers_too_few(len(self.roster.peers)):
            collected = ()
        is_step = not (collected or (first.kind and is_further(first.kind)))
        self.collectives += not is_step
        return collected, is_step

    def _lose(
        self,
        first: Commit,
        lost: Commit,
        collected: tuple[Collected, ...],
        is_step: bool,
        collectives_before: int,
    ) -> tuple[Effect, ...]:
        """Return the effects of a round without a result. The commit ``lost`` has no result, or has
        a result of another kind of step than the commit of the first shard."""
        apply = Apply(
            lost.round_id,
            (),
            collected=collected,
            is_step=is_step,
            collectives=collectives_before,
            kind=first.kind,
        )
        skipped = {each.peer for each in first.rejected if each.reason == "skipped"}
        assigned = {p for p, had in self.slices.items() if had or not self.cursor.configured}
        if not is_step or assigned <= skipped:
            return (apply,)
        reason = lost.reason or "its shards are of steps of different kinds"
        return apply, Report("lost_round", {"round": lost.round_id, "reason": reason})

    def _report_shares(self, round_id: int, before: dict[PeerId, int]) -> list[Report]:
        """Report the changed shares of the samples."""
        after = self.cursor.pace.levels()
        if after == before:
            return []
        moved = [peer for peer in self._sharers if before.get(peer, 0) != after.get(peer, 0)]
        was, share = (
            {peer: 0.5 ** levels.get(peer, 0) for peer in moved} for levels in (before, after)
        )
        return [
            Report("share", {"subject": p, "was": was[p], "share": share[p], "round": round_id})
            for p in moved
        ]

    # --- state transfer ---------------------------------------------------------------------------

    def _tables(
        self,
    ) -> tuple[
        TrustTable | DataCursor | OmissionTracker | EquivocationDetector | StageSpeeds | AuditTable,
        ...,
    ]:
        """Return the tables in the order of a snapshot."""
        speeds = () if self.speeds is None else (self.speeds,)
        audits = () if self.audits is None else (self.audits,)
        return self.trust, self.cursor, self.omissions, self.equivocations, *speeds, *audits

    def first_snapshot(self) -> tuple[Any, ...]:
        """Return the snapshot before round 0. All peers are in the roster, and all tables are
        empty."""
        return (self.settings.peers, *[table.pack() for table in self._tables()], 0)

    def is_roster(self, peers: tuple[Any, ...]) -> bool:
        """Whether ``peers`` can be a roster of the run: at least one member, ascending. The input
        may come from a Byzantine peer."""
        ascending = all(type(peer) is int for peer in peers) and list(peers) == sorted(set(peers))
        return bool(peers) and ascending and all(map(self.settings.may_be, peers))

    def check(self, snapshot: tuple[Any, ...]) -> None:
        """Raise ValueError or OverflowError unless a snapshot can be adopted. Change nothing."""
        tables, snapshot = self._tables(), self._fitted(snapshot)
        if len(snapshot) != 2 + len(tables) or not isinstance(snapshot[0], list | tuple):
            raise ValueError(
                "a snapshot must have a roster, the trust table, the data cursor, omissions, "
                "equivocations, the times of members (in a pipeline), the votes (with audits), and "
                "the number of collective operations"
            )
        if type(snapshot[-1]) is not int or not 0 <= snapshot[-1] <= ROUND_MAX:
            raise ValueError("the number of collective operations is not a valid number")
        if not self.is_roster(tuple(snapshot[0])):
            raise ValueError(
                f"{snapshot[0]} is not a valid roster of the peers {self.settings.everybody}"
            )
        for table, packed in zip(tables, snapshot[1:-1], strict=True):
            copy(table).unpack(packed)

    def _fitted(self, snapshot: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the snapshot with an audit table if this run has audits, and otherwise without
        one. The checkpoint may come from a run with the opposite setting."""
        # number of parts without an audit table
        parts = 2 + len(self._tables()) - (self.audits is not None)
        if self.audits is not None and len(snapshot) == parts:
            return *snapshot[:-1], AuditTable(self.audits.needed).pack(), snapshot[-1]
        if self.audits is None and len(snapshot) == parts + 1:
            return *snapshot[: parts - 1], snapshot[-1]
        return snapshot

    def adopt(self, snapshot: tuple[Any, ...]) -> None:
        """Adopt a snapshot that ``check`` has accepted."""
        snapshot = self._fitted(snapshot)
        for table, packed in zip(self._tables(), snapshot[1:-1], strict=True):
            table.unpack(packed)
        self.collectives = snapshot[-1]
        self.roster = Roster(tuple(snapshot[0]), self.settings.lineage)


class Ledgers(Protocol):
    """Interface through which peers change their ledgers, so that several peers can share one
    ledger."""

    def change(
        self, ledger: Ledger, key: Hashable, method: Callable[..., T], *arguments: Any
    ) -> tuple[Ledger, T]:
        """Call ``method(ledger, *arguments)``, which changes the ledger. Return the changed ledger
        and the result. ``key`` identifies the method and its arguments."""

    def begin(self, ledger: Ledger) -> BegunRound:
        """Return ``ledger.begin()``."""


class OwnLedgers:
    """Ledgers that are not shared: each peer changes its own ledger in place."""

    def change(
        self, ledger: Ledger, key: Hashable, method: Callable[..., T], *arguments: Any
    ) -> tuple[Ledger, T]:
        return ledger, method(ledger, *arguments)

    begin = staticmethod(Ledger.begin)


def _samples_used(commits: Sequence[Commit]) -> dict[PeerId, int]:
    """Return the number of samples that each peer has used in a round, for the peers that
    contributed to all shards. If a peer has reported different numbers for the shards, the lowest
    number is used."""
    first, *others = [{c.peer: c.samples for c in commit.contributors} for commit in commits]
    if not others:
        return first
    return {
        peer: min([samples, *[other[peer] for other in others]])
        for peer, samples in first.items()
        if all(peer in other for other in others)
    }
