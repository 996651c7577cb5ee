"""Replicated state of a peer: the chain of commits, and the ledger that follows from the chain."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from gossip.core.events import Apply, Committed, DataSlice, Effect, Payload, Report
from gossip.core.messages import (
    Commit,
    PeerId,
)
from gossip.core.settings import SNAPSHOTS_KEPT, UNEQUAL, CoreSettings
from gossip.topologies import Roster

from .chain import Lineage
from .commit_checks import is_sound
from .ledger import Ledger, Ledgers, LedgerStep, OwnLedgers
from .log import Held
from .prefetch import CursorLookahead
from .round_times import RoundTimes
from .stage_speeds import StageSpeeds

T = TypeVar("T")


class ReplicatedState:
    """Chain of commits and ledger of one peer. On all peers in the same round they are equal.
    ``adopt`` replaces them by the snapshot of another peer."""

    def __init__(self, settings: CoreSettings, local: PeerId = -1) -> None:
        """``local``: id of this peer. If its replica diverges, ``Apply.replica`` is set."""
        self.settings, self._local = settings, local
        self.lineage = Lineage(settings.run, settings.lineage)
        self.ledger = Ledger(settings)
        self._ledgers: Ledgers = OwnLedgers()
        self._change("", lambda ledger: None)
        # peers that were already reported as unlike their profile
        self._unlike_profile: set[PeerId] = set()
        self._unequal_reported = False
        self.round_times = RoundTimes()
        self.lookahead = CursorLookahead()
        # optimizer settings of the last step; empty if unknown
        self.rates: tuple[float, ...] = ()
        # roster and tables before each recent round
        self._snapshots: OrderedDict[int, tuple[Any, ...]] = OrderedDict()
        self._sharers: tuple[PeerId, ...] = ()  # Peers that get samples in the present round.
        # Peers that had samples in the last step but did not contribute.
        self._absent: frozenset[PeerId] = frozenset()
        self._reported_peers = 0  # Number of peers in the last ``batch`` report.
        self.whole = True  # Whether all initial peers have contributed to all steps so far.
        self.was_step = True  # Whether the last round was a step of the run.
        # Contributors to the first shard of the last round.
        self.contributors: tuple[PeerId, ...] = ()
        # Peers that contributed to all shards of the last round.
        self.in_all: frozenset[PeerId] = frozenset()

    def share(self, ledgers: Ledgers, headers: dict[int, tuple[Commit, bytes]]) -> None:
        """Share ``ledgers``, through which the ledger is changed, and ``headers``, the cache of
        headers, with other peers of a simulation. Call this before the first round."""
        assert self.lineage.next_round == 0, "a round was committed before"
        self.lineage.share_headers(headers)
        self._ledgers = ledgers
        self._change("share", Ledger.begin)

    def _change(self, key: Hashable, method: Callable[..., T], *arguments: Any) -> T:
        ledger, result = self._ledgers.change(self.ledger, key, method, *arguments)
        self.ledger, self.roster, self.collectives = ledger, ledger.roster, ledger.collectives
        self.trust, self.omissions, self.cursor = ledger.trust, ledger.omissions, ledger.cursor
        self.equivocations, self.audits = ledger.equivocations, ledger.audits
        return result

    def begin(self) -> tuple[frozenset[PeerId], frozenset[PeerId]]:
        """Begin the next round and assign its samples. Return the peers in quarantine, and the
        subset of proven Byzantine peers."""
        locked, proven, self._sharers, snapshot = self._ledgers.begin(self.ledger)
        self._snapshots[self.lineage.next_round] = snapshot
        if len(self._snapshots) > SNAPSHOTS_KEPT:
            self._snapshots.popitem(last=False)
        return locked, proven

    def configure_data(
        self, samples_total: int, batch: int, ahead: int = 0, extended: int = 0
    ) -> list[Effect]:
        self.lookahead.reach(ahead)
        sizes = samples_total, batch, extended
        self._change(("data", *sizes), Ledger.configure_data, *sizes)
        return self._report_batch(len(self._sharers))

    def _report_batch(self, n: int) -> list[Effect]:
        """Report the batch of a round of n peers, if n has changed since the last report."""
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

    def _report_round(self, commit: Commit, alive: int, step: LedgerStep) -> Report:
        """Return the report of a round. ``commit`` is the commit of its first shard."""
        fields = {
            "round": commit.round_id,
            "step": commit.round_id + 1 - self.collectives,
            "loss": commit.loss,
            "server": commit.server,
            "attempt": commit.made_at,
            "contributors": step.contributors[0],
            "took_us": step.took_us,
            "alive": alive,
            "trust": step.scores,
        }
        return Report("round", fields)

    @property
    def deadline_us(self) -> int:
        """Time after which a trainer starts no further local step of a round, in microseconds; 0
        means no limit."""
        shortens = self.settings.local_steps and self.settings.slices == "speed"
        return self.round_times.deadline_us if shortens else 0

    def pass_us(self, roster: Sequence[PeerId], to_come: Sequence[Commit] = ()) -> tuple[int, ...]:
        """Return the estimated time of each member of a stage for a micro-batch, in microseconds;
        empty without a pipeline. ``to_come``: commits of the present round, if they are to be
        included in the estimate."""
        return () if self.ledger.speeds is None else self.ledger.speeds.pass_us(roster, to_come)

    def _report_unlike_profile(self, speeds: StageSpeeds, round_id: int) -> list[Effect]:
        """Report the peers that need much more or less time for their passes than their profile
        predicts. Each peer is reported only once."""
        effects: list[Effect] = []
        for peer in self.roster.peers:
            apart = speeds.unlike_predicted(peer)
            if apart is not None and peer not in self._unlike_profile:
                self._unlike_profile.add(peer)
                fields = {"subject": peer, "measured_us": apart[0], "predicted_us": apart[1]}
                effects.append(Report("unlike_profile", {**fields, "round": round_id}))
        return effects

    def slice_of(self, peer: PeerId) -> DataSlice | None:
        """Return the samples of a peer in the present round; None while the size of the data is
        unknown."""
        if not self.cursor.configured:
            return None
        coming = self.lookahead.predict_rounds(self.cursor, self._sharers, peer, self._absent)
        return DataSlice(
            self.cursor.epoch, self.ledger.slices.get(peer, ()), coming, self.cursor.epoch_report()
        )

    def serving_roster(self) -> Roster:
        """Return the peers that may serve in the present round."""
        peers = self.roster.peers
        trusted = self.trust.servers(peers)
        able = self.omissions.servers(trusted) or trusted or peers
        return self.roster if able is peers else Roster(able, self.roster.lineage)

    def append(self, held: Held, made_here: Sequence[bool], alive: int) -> list[Effect]:
        """Append the commits of all shards of a round to the history.

        Args:
            held: The commits with their payloads, in order of the shards.
            made_here: Whether the local peer has made the commit of each shard.
            alive: Number of live peers of the next roster, for the report.
        """
        commits = [commit for commit, _ in held]
        first, round_id = commits[0], commits[0].round_id
        collectives_before, configured = self.collectives, self.cursor.configured
        chain = self.lineage.append(commits)
        step = self._change(chain, Ledger.apply, commits)
        self.was_step, self.in_all = step.is_step, step.in_all
        self.contributors = step.contributors[0]
        self.whole = self.whole and (not step.is_step or step.by_first)
        effects = [*step.found]
        if step.beyond is not None and step.beyond > UNEQUAL and not self._unequal_reported:
            self._unequal_reported = True
            fields = {"round": round_id, "beyond": round(step.beyond, 1), "f": self.settings.f}
            effects.append(Report("unequal_updates", fields))
        effects += step.turns
        effects += [
            Committed(commit, chain, made, trust=step.scores, **step.data)
            for commit, made in zip(commits, made_here, strict=True)
        ]
        if step.lost is None:
            self.rates = first.rates or self.rates
            effects.append(
                Apply(
                    round_id,
                    tuple([payload for _, payload in held if payload is not None]),
                    rates=first.rates,
                    is_step=step.is_step,
                    contributors=step.contributors,
                    collectives=collectives_before,
                    replica=first.replica if self._local in first.diverged else b"",
                    kind=first.kind,
                )
            )
        else:
            effects += step.lost
        if self.settings.local_steps:
            self.round_times.observe(step.took_us)
        if step.is_step:
            self._absent = step.absent
        effects += step.shares
        if configured:
            effects += self._report_batch(step.sharers_next)
        if self.ledger.speeds is not None:
            effects += self._report_unlike_profile(self.ledger.speeds, round_id)
        effects.append(self._report_round(first, alive, step))
        return effects

    # --- state transfer ---------------------------------------------------------------------------

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        """Return H of the round before ``round_id``, and the roster and tables before ``round_id``.
        Return None if these are not stored."""
        chain, kept = self.lineage.at(round_id - 1), self._snapshots.get(round_id)
        return None if chain is None or kept is None else (chain, kept)

    def first_snapshot(self) -> tuple[Any, ...]:
        """Return the snapshot before round 0, in the form of ``snapshot``. All peers are in the
        roster, and all tables are empty."""
        assert self.lineage.next_round == 0, "a round was committed before"
        return self.ledger.first_snapshot()

    def is_sound(self, commit: Commit, payload: Payload | None) -> bool:
        """Whether ``commit`` is a valid commit of the present round: all its fields are valid, and
        its payload is finite and has the digest of the commit."""
        peers = self.roster.peers
        if commit.roster != peers and not self.ledger.is_roster(commit.roster):
            return False
        return is_sound(commit, payload, peers, self.settings)

    def check(self, snapshot: tuple[Any, ...]) -> None:
        """Raise ValueError or OverflowError unless a snapshot can be adopted. Change nothing."""
        self.ledger.check(snapshot)

    def resume(self, whole: bool) -> None:
        """Resume from a checkpoint. ``whole``: whether all initial peers have contributed to every
        earlier step."""
        self.whole = whole

    def resume_count(self, collectives: int) -> None:
        """Set the number of earlier rounds that made no step of the run. A local trainer that is
        ahead of its restarted node has reported this number."""
        self._change(("count", collectives), Ledger.resume_count, collectives)

    def report_standings(self) -> list[Effect]:
        """Report the suspected and the quarantined peers when a run resumes from a checkpoint."""
        found = self.trust.standing_out(self.lineage.next_round - 1)
        return [each.report() for each in found if each.peer in self.roster]

    def adopt(self, round_id: int, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        """Adopt the state of another peer. It is the state before ``round_id``. Raises the errors
        of ``check``; after an error nothing has changed."""
        self.check(snapshot)
        self._change(("snapshot", repr(snapshot)), Ledger.adopt, snapshot)
        self._absent, self.rates = frozenset(), ()
        self.lineage.restart(round_id, chain)


def provenance(sender: PeerId, commit: Commit) -> dict[str, Any]:
    """Return the fields of a report that describe the origin of a commit."""
    return {
        "round": commit.round_id,
        "shard": commit.shard,
        "server": commit.server,
        "from": sender,
    }
