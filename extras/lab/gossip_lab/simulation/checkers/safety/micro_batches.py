"""S20 to S23, S25, S26, S28, S31 and S33, for pipelines.

In each stage every micro-batch is used once, and all peers that compute it get the same gradient.
No computation uses outdated data, and no stage applies a round before all stages have committed it.
Audits find only Byzantine peers, and their work is then given to others. A rebuilt stage continues
in the round of the other stages. All members agree on the shares of the micro-batches. No member
begins a micro-batch that another member has reported as counted, and no activation is sent to a
peer that would drop it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar

from gossip.core import (
    SPEED_RATIO_MAX,
    Activation,
    Apply,
    BackwardDone,
    Committed,
    Contributed,
    Contribution,
    Counted,
    Payload,
    PeerId,
    Received,
    Report,
    RunForward,
    Send,
    StageDone,
    StartRound,
    Withdraw,
)
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    RunConditions,
    on_effect,
    on_event,
    on_report,
)

TOLERANCE = 1e-5  # for float32 sums in different orders
Members = tuple[tuple[PeerId, ...], ...]


class StageChecker(Checker):
    """Base of the checkers of a pipeline. ``stages`` has the members of each stage."""

    needs: ClassVar = ""
    kinds: ClassVar[list[Any]] = []

    def __init__(self, stages: Members, conditions: RunConditions | None = None) -> None:
        self.stages = stages
        self.stage_of = {p: at for at, members in enumerate(stages) for p in members}
        super().__init__(conditions)


class IdenticalGradients(StageChecker):
    """S21: all peers of a stage that compute the same micro-batch of a round get the same gradient,
    because they have the same parameters and inputs. Rounds in which a stage was rebuilt are
    excepted, because parts of them were computed before."""

    invariant = "S21"

    def make_records(self) -> None:
        # (stage, round) -> micro-batch -> gradient.
        self.gradients: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(dict)
        self.mixed: set[int] = set()  # rounds in which a stage was rebuilt
        # (peer, round, micro-batches) -> offered updates.
        self.offered: dict[tuple[PeerId, int, tuple[int, ...]], list[list[float]]] = {}

    @on_report("stage_rebuilt")
    def record_rebuilt(self, report: Report) -> None:
        self.mixed.add(report.fields["round"])

    @on_event
    def record_update(self, event: Contributed) -> None:
        offers = self.offered.setdefault((self.peer, event.round_id, event.micro_batches), [])
        offers.append([value for each in event.payloads for value in each.data.tolist()])

    @on_event
    def judge(self, event: BackwardDone) -> None:
        if event.audit or self.conditions.tampering:
            return  # an auditor may have received a different input
        found = self.trainer.gradients[event.round_id, event.micro_batch]
        stage = self.stage_of[self.peer]
        known = self.gradients[stage, event.round_id]
        if event.round_id in self.mixed:
            known[event.micro_batch] = found
            return
        self.demand(
            found == known.setdefault(event.micro_batch, found),
            f"stage {stage}, round {event.round_id}: the gradient of micro-batch "
            f"{event.micro_batch} differs from that of another member",
        )


class MicroBatchesCountedOnce(StageChecker):
    """S20: a commit with a result contains every micro-batch once, and the applied result is the
    mean over all micro-batches, as in a single process."""

    invariant = "S20"

    def __init__(
        self,
        computed: IdenticalGradients,
        micro_batches: int,
        conditions: RunConditions | None = None,
    ) -> None:
        super().__init__(computed.stages, conditions)
        self.computed, self.micro_batches = computed, micro_batches
        # Stage -> contributors, with their micro-batches, of its last commit.
        self._named: dict[int, tuple[Contribution, ...]] = {}

    @on_effect
    def judge_commit(self, committed: Committed) -> None:
        commit = committed.commit
        named = [b for c in commit.contributors for b in c.micro_batches]
        self.demand(
            not commit.digest or sorted(named) == list(range(self.micro_batches)),
            f"round {commit.round_id} is committed with the micro-batches {named}",
        )
        self._named[self.stage_of[self.peer]] = commit.contributors

    @on_effect
    def judge_apply(self, apply: Apply) -> None:
        if not apply.payloads or self.conditions.tampering:
            return
        parts = self.computed.gradients[self.stage_of[self.peer], apply.round_id]
        text = f"round {apply.round_id} is applied, but only {sorted(parts)} were ever computed"
        self.demand(len(parts) == self.micro_batches, text)
        found = [value for payload in apply.payloads for value in payload.data.tolist()]
        if apply.round_id in self.computed.mixed:
            apart = self._mixed_distance(apply.round_id, found)
            what = "any updates offered"
        else:
            mean = [sum(values) / len(parts) for values in zip(*parts.values(), strict=True)]
            apart, what = _distance(mean, found), "all micro-batches"
        self.demand(
            apart <= TOLERANCE,
            f"round {apply.round_id}: the result differs by {apart:g} from the mean of {what}",
        )

    def _mixed_distance(self, round_id: int, found: list[float]) -> float:
        """Return the distance of the result from the nearest possible mean of updates. In such a
        round, gradients of the same micro-batch may differ. So each contributor is represented by
        one of the updates that it has offered for its micro-batches in the commit."""
        named = self._named[self.stage_of[self.peer]]
        offers = [self.computed.offered[each.peer, round_id, each.micro_batches] for each in named]
        weights = [len(each.micro_batches) / self.micro_batches for each in named]
        return min(
            _distance(
                [
                    sum(w * value for w, value in zip(weights, values, strict=True))
                    for values in zip(*rows, strict=True)
                ],
                found,
            )
            for rows in product(*offers)
        )


def _distance(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


class NoStaleActivations(StageChecker):
    """S22: a member begins to compute only on an activation of the latest attempt that its sender
    has announced, and not on an activation of a former incarnation of the sender."""

    invariant = "S22"
    # ``id`` of a payload -> (payload, sender, incarnation of the sender, message) of a received
    # activation. The payload is stored so that no other object gets the same ``id``.
    _arrived = PerIncarnation(dict[int, tuple[Payload, PeerId, int, Activation]])
    # (sender, round, micro-batch) -> latest incarnation and attempt of the sender.
    _latest = PerIncarnation(dict[tuple[PeerId, int, int], tuple[int, int]])
    # (round, micro-batch) of the micro-batches that were computed in this round.
    _computed = PerIncarnation(set[tuple[int, int]])

    @on_event
    def record_attempt(self, event: Received, message: Activation | Withdraw) -> None:
        key, latest = (event.sender, message.round_id, message.micro_batch), self._latest
        latest[key] = max(latest.get(key, (0, 0)), (event.incarnation, message.attempt))
        if isinstance(message, Activation) and event.payload is not None:
            self._arrived[id(event.payload)] = (
                event.payload,
                event.sender,
                event.incarnation,
                message,
            )

    @on_report("stage_rebuilt", "restored")
    def forget_attempts(self, report: Report) -> None:
        # Until now the peer took no part, and rejected all messages.
        self._latest.clear()

    @on_effect
    def begin_round(self, start: StartRound) -> None:
        self._computed.clear()
        self._arrived = {
            key: each for key, each in self._arrived.items() if each[3].round_id >= start.round_id
        }

    @on_effect
    def judge(self, run: RunForward) -> None:
        place = run.round_id, run.micro_batch
        if run.payload is None or run.audit or place in self._computed:
            return  # computed again, on the same input
        self._computed.add(place)
        _, sender, life, message = self._arrived.get(id(run.payload), (None, -1, -1, None))
        text = f"micro-batch {run.micro_batch} of round {run.round_id} is computed on"
        if message is None or (message.round_id, message.micro_batch) != place:
            raise self.violated(f"{text} an input that was sent as {message}")
        attempt = self._latest.get((sender, *place), (0, 0))
        self.demand((life, message.attempt) >= attempt, f"{text} attempt {message.attempt}")
        member = self.core.membership.members[sender]
        self.demand(
            life >= member.incarnation, f"{text} a message of an old incarnation of {sender}"
        )


class StageCommitBarrier(StageChecker):
    """S23: a stage applies a round only after all other stages have committed it."""

    invariant = "S23"

    def make_records(self) -> None:
        # For each stage, the number of rounds for which a member has reported complete commits.
        self._committed = [0] * len(self.stages)

    @on_effect
    def record_commit(self, send: Send, done: StageDone) -> None:
        stage = self.stage_of[self.peer]
        self._committed[stage] = max(self._committed[stage], done.committed)

    @on_effect
    def judge(self, apply: Apply) -> None:
        behind = [
            stage
            for stage, committed in enumerate(self._committed)
            if committed <= apply.round_id and stage != self.stage_of[self.peer]
        ]
        text = f"round {apply.round_id} is applied, but not committed in stages {behind}"
        self.demand(not behind, text)


class AuditSoundness(StageChecker):
    """S25: audits find no honest peer, unless a stage has more Byzantine members than it tolerates.
    A peer in quarantine computes nothing, and has no micro-batch in a commit."""

    invariant = "S25"
    # Peers in quarantine in the peer's view, and changes by the present commit.
    _quarantined = PerIncarnation(set[PeerId])
    _changes = PerIncarnation(list[Report])

    def make_records(self) -> None:
        liars = self.conditions.stage_attackers
        self._is_tolerable = all(len(liars.intersection(members)) <= 1 for members in self.stages)

    @on_report("found_by_audit", "quarantined")
    def judge_finding(self, report: Report) -> None:
        subject = report.fields["subject"]
        true = self._is_tolerable and subject not in self.conditions.stage_attackers
        self.demand(not true, f"{report.event}: peer {subject} is honest")

    @on_report("quarantined", "parole")
    def record_change(self, report: Report) -> None:
        self._changes.append(report)

    @on_effect
    def judge_work(self, run: RunForward) -> None:
        text = f"it computes micro-batch {run.micro_batch}, but is in quarantine"
        self.demand(run.audit or self.peer not in self._quarantined, text)

    @on_effect
    def judge_commit(self, committed: Committed) -> None:
        """Check that no peer in quarantine has micro-batches in this commit. The changes of
        quarantine in a commit apply from the next round on."""
        working = {c.peer for c in committed.commit.contributors if c.micro_batches}
        quarantined = sorted(working & self._quarantined)
        text = (
            f"round {committed.commit.round_id} has micro-batches of {quarantined}, in quarantine"
        )
        self.demand(not quarantined, text)
        for change in self._changes:
            if change.event == "quarantined":
                self._quarantined.add(change.fields["subject"])
            else:
                self._quarantined.discard(change.fields["subject"])
        self._changes = []


class StageRebuilds(StageChecker):
    """S26: a stage is rebuilt only if no running member holds its state, and then continues in the
    round of the other stages."""

    invariant = "S26"

    @on_report("stage_rebuilt")
    def judge(self, report: Report) -> None:
        rounds = {p: host.core.rounds for p, host in self.swarm.hosts.items() if host.running}
        stage, round_id = self.stage_of[self.peer], report.fields["round"]
        own = self.stages[stage]
        holds = [p for p, of in rounds.items() if p in own and p != self.peer and of.mode != "off"]
        self.demand(
            not holds, f"stage {stage} is rebuilt, although its members {holds} have its state"
        )
        others = {p: of.round_id for p, of in rounds.items() if p not in own and of.mode != "off"}
        text = f"it continues in round {round_id}, but the other stages are in {others}"
        self.demand(round_id in others.values(), text)


class IdenticalMicroBatchShares(StageChecker):
    """S28: members of a stage with the same history agree on the shares of the micro-batches. The
    largest share is at most ``SPEED_RATIO_MAX`` times the smallest."""

    invariant = "S28"

    def make_records(self) -> None:
        # (stage, round, hash of the previous round) -> shares.
        self._weights: dict[tuple[int, int, bytes], Mapping[PeerId, float]] = {}

    @on_effect
    def judge(self, start: StartRound) -> None:
        if self.rolling.round_id != start.round_id:
            return  # the peer has moved to another round
        found = dict(self.core.weights)
        text = f"round {start.round_id}: micro-batches are shared by"
        place = self.stage_of[self.peer], start.round_id, self.rolling.chain
        known = self._weights.setdefault(place, found)
        self.demand(found == known, f"{text} {found} here, but by {known} elsewhere")
        apart = max(found.values()) / min(found.values())
        self.demand(apart <= SPEED_RATIO_MAX + TOLERANCE, f"{text} {found}")


@dataclass(slots=True)
class _CountedRound:
    """The present round of an incarnation.

    Attributes:
        reports: Peer -> (incarnation, its last report of counted micro-batches).
        own_micro_batches: Micro-batches that were in the local sum.
    """

    round_id: int = -1
    reports: dict[PeerId, tuple[int, Counted]] = field(default_factory=dict)
    own_micro_batches: set[int] = field(default_factory=set)


class NoWorkOnCountedMicroBatches(StageChecker):
    """S31: a member of the first stage does not begin a micro-batch that a reachable member has
    reported as counted. Micro-batches that were in its own sum are excepted."""

    invariant = "S31"
    _rounds = PerIncarnation(_CountedRound)

    @on_effect
    def begin_round(self, start: StartRound) -> None:
        self._rounds = _CountedRound(start.round_id)

    @on_event
    def record_own(self, event: BackwardDone) -> None:
        present = self._rounds
        if not event.audit and event.round_id == present.round_id:
            present.own_micro_batches.add(event.micro_batch)

    @on_event
    def record_counted(self, event: Received, counted: Counted) -> None:
        present = self._rounds
        life, before = present.reports.get(event.sender, (-1, counted))
        newer = (event.incarnation, counted.number) > (life, before.number)
        if counted.round_id == present.round_id and (life < 0 or newer):
            present.reports[event.sender] = event.incarnation, counted

    @on_effect
    def judge(self, run: RunForward) -> None:
        present, micro_batch = self._rounds, run.micro_batch
        if self.stage_of[self.peer] or run.audit or micro_batch in present.own_micro_batches:
            return
        membership = self.core.membership
        by = [
            other
            for other, (life, counted) in present.reports.items()
            if micro_batch in counted.micro_batches
            and other in self.core.weights
            and not membership.skip_reason(other)
            and life >= membership.members[other].incarnation
        ]
        text = f"begins on micro-batch {micro_batch} of round {run.round_id}, counted by {by}"
        self.demand(not by, text)


class ActivationsToStartedPeers(StageChecker):
    """S33: an activation is sent only to a peer whose recorded incarnation has begun a round.
    Otherwise the receiving node would drop the payload, and the sender would wait for a
    gradient."""

    invariant = "S33"

    def make_records(self) -> None:
        self._begun: set[PeerId] = set()

    def begin_incarnation(self) -> None:
        self._begun.discard(self.peer)

    @on_effect
    def record_start(self, start: StartRound) -> None:
        self._begun.add(self.peer)

    @on_report("restored")
    def record_restored(self, report: Report) -> None:
        self._begun.add(self.peer)

    @on_effect
    def judge(self, send: Send, sent: Activation) -> None:
        to, host = send.peer, self.swarm.hosts.get(send.peer)
        member = self.core.membership.members.get(to)
        if host is None or member is None or member.incarnation != host.incarnation:
            return  # the sender does not know the new incarnation yet
        text = f"micro-batch {sent.micro_batch} of round {sent.round_id} is sent to peer {to}"
        self.demand(to in self._begun, f"{text}, which has begun no round")
