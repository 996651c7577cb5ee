"""Replicated state: the chain of commits, and the roster, trust and data cursor that follow from
it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict
from math import inf
from typing import Any

from gossip.core.events import Apply, Committed, DataSlice, Effect, Payload, Report
from gossip.core.messages import (
    ACCUSATIONS_MAX,
    AUDIT_VOTES_MAX,
    COLLECTED_BYTES_MAX,
    DIGEST_BYTES,
    ROUND_MAX,
    Collected,
    Commit,
    Contribution,
    PeerId,
    is_further,
)
from gossip.core.settings import CoreSettings
from gossip.topologies import Roster

from .audits import AuditTable
from .chain import Lineage
from .data_cursor import DataCursor, Ranges
from .equivocation import EquivocationDetector
from .log import Held
from .omissions import OmissionTracker
from .prefetch import CursorLookahead
from .rates import are_sound
from .round_times import RoundTimes
from .spread import UNEQUAL
from .stage_speeds import StageSpeeds
from .trust import FAR_MAX, TrustTable

REASONS = {"non_finite", "wrong_size", "quarantined", "skipped"}
"""Reasons of a rejection."""
PARTS = 6
"""Number of parts of a snapshot without the tables of a pipeline."""
SNAPSHOTS_KEPT = 8
"""Number of stored snapshots: a trainer that packs its state may be so many rounds behind."""


class ReplicatedState:
    """State that follows from the commits alone, so all peers at the same round have the same.
    ``adopt`` replaces it by the snapshot of another peer."""

    def __init__(self, settings: CoreSettings, local: PeerId = -1) -> None:
        """``local``: id of this peer. If its replica differs, ``Apply.replica`` is set."""
        self.settings, self._local = settings, local
        self._first_peers = frozenset(settings.peers)
        self._updates_most = settings.updates_needed(settings.f)
        self.lineage = Lineage(settings.run, settings.lineage)
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
        self._unlike_profile: set[PeerId] = set()  # peers already reported
        self._unequal_reported = False
        self.cursor = DataCursor(
            len(settings.peers),
            fixed_global=settings.batch_policy == "fixed_global",
            paced=settings.slices == "speed" and not settings.local_steps,
        )
        self.round_times = RoundTimes()
        self.lookahead = CursorLookahead()
        self.roster = Roster(settings.peers, settings.lineage)
        # of the last step; empty if unknown
        self.rates: tuple[float, ...] = ()
        # roster, tables and cursor before each recent round
        self._snapshots: OrderedDict[int, tuple[Any, ...]] = OrderedDict()
        self._sharers: tuple[PeerId, ...] = ()  # peers that get samples in this round
        self._slices: dict[PeerId, Ranges] = {}
        # had samples in the last step, but no update in it
        self._absent: frozenset[PeerId] = frozenset()
        self._reported_peers = 0  # in the last report of the batch
        self.whole = True  # all initial peers had updates in all steps so far
        self.collectives = 0  # rounds so far that were no steps
        self.was_step = True  # in the last round

    def begin(self) -> tuple[frozenset[PeerId], frozenset[PeerId]]:
        """Begin the next round and assign its samples. Return the peers in quarantine, and those of
        them that are proven Byzantine."""
        round_id, locked = self.lineage.next_round, self.trust.quarantined()
        proven = self.trust.proven() if locked else locked
        self._sharers = self._next_sharers(proven)
        self.cursor.require(self._updates_needed(proven) if proven else self._updates_most)
        self._slices = self.cursor.assign(self._sharers)
        tables = [table.pack() for table in self._tables()]
        self._snapshots[round_id] = (self.roster.peers, *tables, self.collectives)
        while len(self._snapshots) > SNAPSHOTS_KEPT:
            self._snapshots.popitem(last=False)
        return locked, proven

    def _updates_needed(self, proven: frozenset[PeerId]) -> int:
        # A proven peer no longer counts towards f, so the rule needs fewer updates.
        return self.settings.updates_needed(
            self.settings.f - len(proven.intersection(self.roster.peers))
        )

    def _next_sharers(self, proven: frozenset[PeerId]) -> tuple[PeerId, ...]:
        """Return the peers that get samples in the next round. A proven Byzantine peer gets none. A
        peer that is only suspected gets some: its updates are used if those of the others are too
        few. Otherwise its samples are returned to the cursor."""
        peers = self.roster.peers
        return tuple([peer for peer in peers if peer not in proven]) if proven else peers

    def configure_data(
        self, samples_total: int, batch: int, ahead: int = 0, extended: int = 0
    ) -> list[Effect]:
        self.lookahead.reach(ahead)
        self.cursor.configure(samples_total, batch, extended)
        self._slices = self.cursor.assign(self._sharers)
        return self._report_batch(len(self._sharers))

    def _report_batch(self, n: int) -> list[Effect]:
        """Report the batch of a round of n peers if it has changed."""
        if n == self._reported_peers or not n:
            return []
        self._reported_peers, samples = n, self.cursor.round_samples(n)
        fields = {
            "policy": self.settings.batch_policy,
            "peers": n,
            "local": -(-samples // n),
            "samples": samples,
        }
        return [Report("batch", {"round": self.lineage.next_round, **fields})]

    def _report_shares(self, round_id: int, before: dict[PeerId, int]) -> list[Effect]:
        """Report peers with a changed share of a round."""
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

    def _report_round(self, commit: Commit, alive: int, scores: dict[PeerId, float]) -> Report:
        """Return the report of a round, from the commit of its first shard."""
        fields = {
            "round": commit.round_id,
            "step": commit.round_id + 1 - self.collectives,
            "loss": commit.loss,
            "server": commit.server,
            "attempt": commit.made_at,
            "contributors": [c.peer for c in commit.contributors],
            "took_us": [c.took_us for c in commit.contributors],
            "alive": alive,
            "trust": scores,
        }
        return Report("round", fields)

    @property
    def deadline_us(self) -> int:
        """Time after which a trainer starts no further local step of a round, in microseconds; 0:
        none."""
        shortens = self.settings.local_steps and self.settings.slices == "speed"
        return self.round_times.deadline_us if shortens else 0

    def pass_us(self, roster: Sequence[PeerId], to_come: Sequence[Commit] = ()) -> tuple[int, ...]:
        """Return the assumed time of each member of a stage for a micro-batch, in
        microseconds; empty without a pipeline. ``to_come``: the commits of the present round, if
        the result depends on them."""
        return () if self.speeds is None else self.speeds.pass_us(roster, to_come)

    def _observe_speeds(self, speeds: StageSpeeds, commits: Sequence[Commit]) -> list[Effect]:
        """Report, once for each peer, that its passes take much longer or shorter than its profile
        predicts."""
        effects: list[Effect] = []
        speeds.observe_round(commits)
        for peer in self.roster.peers:
            apart = speeds.unlike_predicted(peer)
            if apart is not None and peer not in self._unlike_profile:
                self._unlike_profile.add(peer)
                fields = {"subject": peer, "measured_us": apart[0], "predicted_us": apart[1]}
                where = {"round": commits[0].round_id}
                effects.append(Report("unlike_profile", {**fields, **where}))
        return effects

    def slice_of(self, peer: PeerId) -> DataSlice | None:
        """Return the samples of a peer in this round; None while the size of the data is
        unknown."""
        if not self.cursor.configured:
            return None
        coming = self.lookahead.predict_rounds(self.cursor, self._sharers, peer, self._absent)
        return DataSlice(
            self.cursor.epoch, self._slices.get(peer, ()), coming, self.cursor.epoch_report()
        )

    def serving_roster(self) -> Roster:
        """Return the peers that may serve in this round."""
        peers = self.roster.peers
        trusted = self.trust.servers(peers)
        able = self.omissions.servers(trusted) or trusted or peers
        return self.roster if able is peers else Roster(able, self.roster.lineage)

    def append(self, held: Held, made_here: Sequence[bool], alive: int) -> list[Effect]:
        """Append a round with commits of all shards to the history.

        Args:
            held: The commits with their payloads, in order of the shards.
            made_here: Whether this peer has made the commit, for each.
            alive: Number of live peers of the next roster, for the report.
        """
        commits = [commit for commit, _ in held]
        round_id = commits[0].round_id
        first = commits[0]
        lost = next((c for c in commits if not c.digest or c.kind != first.kind), None)
        proven, audits = self.equivocations.observe_round(commits), self.audits
        audited = () if audits is None else audits.observe_round(commits)
        chain = self.lineage.append(commits)
        used = {} if lost else _samples_used(commits)
        collectives_before = self.collectives
        collected = self._count_step(commits[0])
        self.whole = self.whole and (not self.was_step or used.keys() >= self._first_peers)
        effects: list[Effect] = [
            Report("found_by_audit", {"subject": peer, "round": round_id}) for peer in audited
        ]
        effects += [each.report() for each in self.trust.observe_round(commits, proven, audited)]
        locked, beyond = self.trust.quarantined(), self.trust.beyond_chance
        if beyond is not None and beyond > UNEQUAL and not self._unequal_reported:
            self._unequal_reported = True
            fields = {"round": round_id, "beyond": round(beyond, 1), "f": self.settings.f}
            effects.append(Report("unequal_updates", fields))
        turns = self.omissions.observe_round(commits, locked)
        effects += [Report(turn, {"subject": peer, "round": round_id}) for peer, turn in turns]
        configured = self.cursor.configured
        data: dict[str, Any] = {
            "epoch": self.cursor.epoch,
            "samples_total": self.cursor.samples_total,
            "steps_per_epoch": self.cursor.steps_per_epoch,
            "slices": self._slices if configured else None,
        }
        scores = {peer: round(score, 3) for peer, score in self.trust.scores().items()}
        effects += [
            Committed(commit, chain, made, trust=scores, **data)
            for commit, made in zip(commits, made_here, strict=True)
        ]
        if lost is None:
            self.rates = commits[0].rates or self.rates
            effects.append(
                Apply(
                    round_id,
                    tuple(payload for _, payload in held if payload is not None),
                    rates=commits[0].rates,
                    is_step=self.was_step,
                    contributors=tuple(
                        [tuple([each.peer for each in commit.contributors]) for commit in commits]
                    ),
                    collectives=collectives_before,
                    replica=commits[0].replica if self._local in commits[0].diverged else b"",
                    kind=commits[0].kind,
                )
            )
        else:
            effects += self._lose_round(commits, lost, collected, collectives_before)
        before = {} if self.cursor.pace.even else self.cursor.pace.levels()
        took_us = {c.peer: c.took_us for c in commits[0].contributors}
        self.round_times.observe(took_us.values())
        if self.was_step:
            unused: dict[PeerId, str] = {}
            for commit in commits:
                for each in commit.rejected:
                    if unused.get(each.peer) != "non_finite":  # in another shard
                        unused[each.peer] = each.reason
            epoch = self.cursor.commit(self._sharers, used, took_us, unused)
            self._absent = frozenset(self._sharers if used else ()).difference(used, unused)
            if epoch is not None:
                effects.append(Report("epoch", {"round": round_id, **asdict(epoch)}))
        self.roster = Roster(commits[0].roster, self.roster.lineage)
        if before or not self.cursor.pace.even:
            effects += self._report_shares(round_id, before)
        if configured:
            out = self.trust.proven() if locked else locked
            effects += self._report_batch(len(self._next_sharers(out)))
        unlike = self._observe_speeds(self.speeds, commits) if self.speeds is not None else ()
        effects += [*unlike, self._report_round(commits[0], alive, scores)]
        return effects

    def _count_step(self, first: Commit) -> tuple[Collected, ...]:
        """Record whether the round was a step. Return the values of the peers if it was a
        collective operation."""
        collected = first.collected
        if collected and len(collected) <= self.settings.callers_too_few(len(self.roster.peers)):
            collected = ()
        self.was_step = not (collected or (first.kind and is_further(first.kind)))
        self.collectives += not self.was_step
        return collected

    def _lose_round(
        self,
        commits: Sequence[Commit],
        lost: Commit,
        collected: tuple[Collected, ...],
        collectives_before: int,
    ) -> list[Effect]:
        """Return the effects of a lost round: commit ``lost`` has no result, or one for another
        kind of step."""
        effects: list[Effect] = [
            Apply(
                lost.round_id,
                (),
                collected=collected,
                is_step=self.was_step,
                collectives=collectives_before,
                kind=commits[0].kind,
            )
        ]
        skipped = {each.peer for each in commits[0].rejected if each.reason == "skipped"}
        assigned = {p for p, had in self._slices.items() if had or not self.cursor.configured}
        if self.was_step and not assigned <= skipped:
            reason = lost.reason or "its shards are of steps of different kinds"
            effects.append(Report("lost_round", {"round": lost.round_id, "reason": reason}))
        return effects

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

    # --- state transfer ---------------------------------------------------------------------------

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        """Return H of the round before ``round_id``, and roster and tables as they were then; None
        if they are not stored."""
        chain, kept = self.lineage.at(round_id - 1), self._snapshots.get(round_id)
        return None if chain is None or kept is None else (chain, kept)

    def first_snapshot(self) -> tuple[Any, ...]:
        """Return the snapshot before round 0, in the form of ``snapshot``: all peers are in the
        roster, and all tables are empty."""
        assert self.lineage.next_round == 0, "a round was committed before"
        return (self.settings.peers, *[table.pack() for table in self._tables()], 0)

    def is_roster(self, peers: tuple[Any, ...]) -> bool:
        """Whether ``peers`` can be a roster of the run: at least one member, ascending. The input
        may be Byzantine."""
        ascending = all(type(peer) is int for peer in peers) and list(peers) == sorted(set(peers))
        return bool(peers) and ascending and all(map(self.settings.may_be, peers))

    def is_sound(self, commit: Commit, payload: Payload | None) -> bool:
        """Whether this can be a commit of the present round: all its fields are valid, and its
        payload is finite and matches the digest."""
        if commit.roster != self.roster.peers and not self.is_roster(commit.roster):
            return False
        if not (
            self.may_have_contributed(commit)
            and (not commit.accusations or self._may_accuse(commit))
            and (not commit.collected or self._may_have_collected(commit))
            and (not commit.audits or self._may_have_audited(commit))
            and (not commit.rates or are_sound(commit.rates))
            and 0.0 <= commit.length < inf
            and (not (commit.replica or commit.diverged) or self._may_have_compared(commit))
        ):
            return False
        pipeline = self.settings.pipeline
        if pipeline is not None and commit.digest:
            whole = not commit.rejected
            if not _is_once(commit.contributors, pipeline.micro_batches, whole):
                return False
        return commit.digest == (payload.digest if payload is not None else b"") and (
            payload is None or payload.finite
        )

    def may_have_contributed(self, commit: Commit) -> bool:
        """Whether contributors and rejected peers are in the present roster, each once, ascending,
        with samples, and with an outlyingness that a rule can return."""
        contributors, rejected = (
            [c.peer for c in commit.contributors],
            [r.peer for r in commit.rejected],
        )
        named = set(contributors) | set(rejected)
        once = len(named) == len(contributors) + len(rejected)
        ascending = contributors == sorted(contributors) and rejected == sorted(rejected)
        with_samples = all(c.samples > 0 for c in commit.contributors)
        measures = [c.outlyingness for c in commit.contributors]
        measures += [r.outlyingness for r in commit.rejected]
        return (
            once
            and ascending
            and with_samples
            and all(0.0 <= far <= FAR_MAX for far in measures)
            and named <= set(self.roster.peers)
            and (not rejected or {each.reason for each in commit.rejected} <= REASONS)
            and bool(contributors) <= bool(commit.digest)
        )

    def _may_have_compared(self, commit: Commit) -> bool:
        """Whether the peers with other replicas are in the present roster, each once, ascending,
        and the commit of the first shard has the replica of most."""
        named = list(commit.diverged)
        ascending = named == sorted(set(named)) and set(named) <= set(self.roster.peers)
        return ascending and bool(commit.replica) and not commit.shard

    def _may_have_collected(self, commit: Commit) -> bool:
        """Whether the values of a collective operation are from peers of the present roster, each
        once, ascending, within the size limit, and in the place of an aggregate."""
        given = [each.peer for each in commit.collected]
        ascending = given == sorted(set(given)) and set(given) <= set(self.roster.peers)
        fits = sum([len(each.data) for each in commit.collected]) <= COLLECTED_BYTES_MAX
        too_few = self.settings.callers_too_few(len(self.roster.peers))
        instead = len(given) <= too_few or not (commit.digest or commit.kind)
        return ascending and fits and instead and not (given and commit.shard)

    def _may_accuse(self, commit: Commit) -> bool:
        """Whether the accusations are about members of the run and rounds up to this one, each
        once, ascending, and within the limit."""
        named = [
            (
                accusation.peer,
                accusation.round_id,
                accusation.silent,
                accusation.turn,
                accusation.content,
            )
            for accusation in commit.accusations
        ]
        known = all(self.settings.may_be(peer) and at <= commit.round_id for peer, at, *_ in named)
        sizes = (0, 0), (DIGEST_BYTES, DIGEST_BYTES)
        known = known and all(
            (len(c.turn), len(c.content)) in sizes and not (c.silent and c.turn)
            for c in commit.accusations
        )
        return known and len(named) <= ACCUSATIONS_MAX and named == sorted(set(named))

    def _may_have_audited(self, commit: Commit) -> bool:
        """Whether the votes are about members of the stage, rounds up to this one and possible
        neighbours, each once, ascending, and within the limit."""
        pipeline = self.settings.pipeline
        if pipeline is None or self.audits is None or commit.shard:
            return False
        stage = pipeline.stage_of(self.settings.peers[0])
        assert stage is not None, "a stage has members of the plan"
        for vote in commit.audits:
            sides = ((vote.before, stage - 1), (vote.behind, stage + 1))
            known = all(side is None or pipeline.stage_of(side) == at for side, at in sides)
            in_time = vote.round_id <= commit.round_id
            if not (known and in_time and self.settings.may_be(vote.peer)):
                return False
            if vote.micro_batch >= pipeline.micro_batches:
                return False
        answers = [(vote.peer, vote.round_id, vote.micro_batch) for vote in commit.audits]
        return len(answers) <= AUDIT_VOTES_MAX and answers == sorted(set(answers))

    def check(self, snapshot: tuple[Any, ...]) -> None:
        """Check that a snapshot can be adopted. Raises ValueError or OverflowError if not; changes
        nothing."""
        tables, snapshot = self._tables(), self._fitted(snapshot)
        if len(snapshot) != 2 + len(tables) or not isinstance(snapshot[0], list | tuple):
            raise ValueError(
                "a snapshot has a roster, the trust table, the data cursor, omissions, "
                "equivocations, in a pipeline the times of members, with audits the votes, and the "
                "number of collective operations"
            )
        if type(snapshot[-1]) is not int or not 0 <= snapshot[-1] <= ROUND_MAX:
            raise ValueError("the number of collective operations is not a valid number")
        if not self.is_roster(tuple(snapshot[0])):
            raise ValueError(f"{snapshot[0]} is not a roster of {self.settings.everybody}")
        for table, packed in zip(tables, snapshot[1:-1], strict=True):
            copy(table).unpack(packed)

    def _fitted(self, snapshot: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the snapshot with or without a table of audits, as this run needs it. A checkpoint
        may come from a run with the other setting."""
        parts = PARTS + (self.speeds is not None)
        if self.audits is not None and len(snapshot) == parts:
            return *snapshot[:-1], AuditTable(self.audits.needed).pack(), snapshot[-1]
        if self.audits is None and len(snapshot) == parts + 1:
            return *snapshot[: parts - 1], snapshot[-1]
        return snapshot

    def resume(self, whole: bool) -> None:
        """Resume from a checkpoint. ``whole``: every step before it had updates of all peers."""
        self.whole = whole

    def resume_count(self, collectives: int) -> None:
        """Set the number of rounds that were collective operations, by a local trainer that is
        ahead of this node."""
        self.collectives = collectives

    def report_standings(self) -> list[Effect]:
        """Report the suspected and the quarantined peers as a run resumes from a checkpoint."""
        found = self.trust.standing_out(self.lineage.next_round - 1)
        return [each.report() for each in found if each.peer in self.roster]

    def adopt(self, round_id: int, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        """Adopt the state of another peer before ``round_id``. Raises as ``check`` does; then
        nothing has changed."""
        self.check(snapshot)
        snapshot = self._fitted(snapshot)
        for table, packed in zip(self._tables(), snapshot[1:-1], strict=True):
            table.unpack(packed)
        self.collectives, self._absent = snapshot[-1], frozenset()
        self.roster, self.rates = Roster(tuple(snapshot[0]), self.settings.lineage), ()
        self.lineage.restart(round_id, chain)


def _samples_used(commits: Sequence[Commit]) -> dict[PeerId, int]:
    """Return the reported samples of each peer that contributed to all shards of a round. If its
    reports differ, the least one counts."""
    first, *others = [{c.peer: c.samples for c in commit.contributors} for commit in commits]
    if not others:
        return first
    return {
        peer: min([samples, *[other[peer] for other in others]])
        for peer, samples in first.items()
        if all(peer in other for other in others)
    }


def _is_once(contributors: Iterable[Contribution], micro_batches: int, whole: bool) -> bool:
    """Whether each micro-batch is in at most one contribution; with ``whole``, in exactly one."""
    named = [b for each in contributors for b in each.micro_batches]
    once = len(set(named)) == len(named) and all(b < micro_batches for b in named)
    return once and (not whole or len(named) == micro_batches)


def provenance(sender: PeerId, commit: Commit) -> dict[str, Any]:
    """Return the origin of a commit, for a report."""
    return {
        "round": commit.round_id,
        "shard": commit.shard,
        "server": commit.server,
        "from": sender,
    }
