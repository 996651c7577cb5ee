"""S20 to S23, S25, S26, S28, S31 and S33, of pipelines: every micro-batch counts once in each
stage, whoever computes it gets the same, nothing old is computed on, no stage goes on before all
have committed, audits find liars alone, whose work is done by others from then on, a stage that is
made anew goes on with the others, members agree on how much of the micro-batches each of them gets,
nobody begins to compute what another has counted, and nothing is sent to who would drop it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from typing import Any

from gossip.core import (
    SPEED_RATIO_MAX,
    Activation,
    Apply,
    BackwardDone,
    Committed,
    Contributed,
    Contribution,
    Counted,
    Effect,
    Event,
    PeerId,
    Received,
    Report,
    RunForward,
    Send,
    StageDone,
    StartRound,
    Withdraw,
)
from gossip_lab.simulation.checkers.base import Checker, RunConditions
from gossip_lab.simulation.world import AnySwarm

TOLERANCE = 1e-5  # sums of float32 in another order
Members = tuple[tuple[PeerId, ...], ...]


class StageChecker(Checker):
    """``stages``: the members of each stage."""

    def __init__(self, stages: Members, circumstances: RunConditions | None = None) -> None:
        super().__init__(circumstances)
        self.stages = stages
        self.stage_of = {p: at for at, members in enumerate(stages) for p in members}


class ComputesAlike(StageChecker):
    """S21: whoever computes a micro-batch of a round in a stage gets the same gradient: it had the
    same parameters, the same activation and the same gradient of its output. That is not so in the
    round in which a stage was made anew: some of it was computed before."""

    invariant = "S21"
    events = (BackwardDone, Contributed)
    effects = (Report,)

    def make_records(self) -> None:
        # by stage and round, then by micro-batch
        self.gradients: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(dict)
        self.mixed: set[int] = set()  # rounds in which a stage was made anew
        # the updates of these: by peer, round and micro-batches
        self.offered: dict[tuple[PeerId, int, tuple[int, ...]], list[list[float]]] = {}

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Report) and effect.event == "stage_rebuilt":
            self.mixed.add(effect.fields["round"])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Contributed):
            offers = self.offered.setdefault((peer, event.round_id, event.micro_batches), [])
            offers.append([value for each in event.payloads for value in each.data.tolist()])
            return
        assert isinstance(event, BackwardDone)
        if event.audit:
            return
        found = swarm.hosts[peer].trainer.gradients[event.round_id, event.micro_batch]  # type: ignore[union-attr]
        place = self.stage_of[peer], event.round_id
        if self.circumstances.tampering:
            return  # who computes it again may have been given something else
        if event.round_id in self.mixed:
            self.gradients[place][event.micro_batch] = found
            return
        before = self.gradients[place].setdefault(event.micro_batch, found)
        text = (
            f"stage {place[0]}, round {event.round_id}: another gradient of micro-batch "
            f"{event.micro_batch} than a member had before"
        )
        self.demand(found == before, swarm, peer, text)


class CountsOnce(StageChecker):
    """S20: a commit that changes something has every micro-batch once, and what is applied is the
    mean over all of them, as one process would have it."""

    invariant = "S20"
    effects = (Committed, Apply)

    def __init__(
        self,
        computed: ComputesAlike,
        micro_batches: int,
        circumstances: RunConditions | None = None,
    ) -> None:
        super().__init__(computed.stages, circumstances)
        self.computed, self.micro_batches = computed, micro_batches
        # who had which micro-batches in the last commit of each stage
        self._named: dict[int, tuple[Contribution, ...]] = {}

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Committed):
            named = [b for c in effect.commit.contributors for b in c.micro_batches]
            text = f"round {effect.commit.round_id} is committed with the micro-batches {named}"
            whole = list(range(self.micro_batches))
            self.demand(not effect.commit.digest or sorted(named) == whole, swarm, peer, text)
            self._named[self.stage_of[peer]] = effect.commit.contributors
        elif isinstance(effect, Apply) and effect.payloads and not self.circumstances.tampering:
            self._compare(swarm, peer, effect)

    def _compare(self, swarm: AnySwarm, peer: PeerId, apply: Apply) -> None:
        stage = self.stage_of[peer]
        parts = self.computed.gradients[stage, apply.round_id]
        text = f"round {apply.round_id} is applied, and only {sorted(parts)} were ever computed"
        self.demand(len(parts) == self.micro_batches, swarm, peer, text)
        if apply.round_id in self.computed.mixed:
            self._compare_mixed(swarm, peer, apply)
            return
        mean = [sum(values) / len(parts) for values in zip(*parts.values(), strict=True)]
        found = [value for payload in apply.payloads for value in payload.data.tolist()]
        apart = max(abs(a - b) for a, b in zip(mean, found, strict=True))
        text = f"round {apply.round_id}: applied is {apart:g} off the mean over all micro-batches"
        self.demand(apart <= TOLERANCE, swarm, peer, text)

    def _compare_mixed(self, swarm: AnySwarm, peer: PeerId, apply: Apply) -> None:
        """Gradients of one micro-batch may differ, so the mean is that of updates: of each
        contributor one that it has offered of the micro-batches that the commit names."""
        named = self._named[self.stage_of[peer]]
        found = [value for payload in apply.payloads for value in payload.data.tolist()]
        offers = [
            self.computed.offered[each.peer, apply.round_id, each.micro_batches] for each in named
        ]
        weights = [len(each.micro_batches) / self.micro_batches for each in named]
        apart = min(
            max(
                abs(sum(w * row[at] for w, row in zip(weights, rows, strict=True)) - value)
                for at, value in enumerate(found)
            )
            for rows in product(*offers)
        )
        text = f"round {apply.round_id}: applied is {apart:g} off the mean of any updates offered"
        self.demand(apart <= TOLERANCE, swarm, peer, text)


class UsesNothingOld(StageChecker):
    """S22: the activation that a member begins to compute on is of the latest attempt that its
    sender has told it of, and of no life of its sender before the one that it knows as a member."""

    invariant = "S22"
    events = (Received,)
    effects = (RunForward, StartRound, Report)

    def make_records(self) -> None:
        self._clear: dict[PeerId, tuple[dict[Any, Any], ...]] = {}

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        # Whose payloads came how; the latest attempt by sender, round and micro-batch; what was
        # computed in this round
        self._clear[peer] = ({}, {}, {})

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if not isinstance(event, Received):
            return
        came, latest, _ = self._clear[peer]
        message, sender = event.message, event.sender
        if isinstance(message, Activation | Withdraw):
            key = sender, message.round_id, message.micro_batch
            latest[key] = max(latest.get(key, (0, 0)), (event.incarnation, message.attempt))
        if isinstance(message, Activation) and event.payload is not None:
            # Kept with the payload, so that no other object gets its id.
            came[id(event.payload)] = (event.payload, sender, event.incarnation, message)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        came, latest, computed = self._clear[peer]
        if isinstance(effect, Report):
            if effect.event in ("stage_rebuilt", "restored"):
                latest.clear()  # until then it took part in nothing, and refused what came
            return
        if isinstance(effect, StartRound):
            computed.clear()
            for key in [k for k, (*_, m) in came.items() if m.round_id < effect.round_id]:
                del came[key]
            return
        if not isinstance(effect, RunForward) or effect.payload is None or effect.audit:
            return
        place = effect.round_id, effect.micro_batch
        if place in computed:
            return  # again, on what it had
        computed[place] = True
        _, sender, life, message = came.get(id(effect.payload), (None, -1, -1, None))
        text = f"micro-batch {effect.micro_batch} of round {effect.round_id} is computed on"
        right = message is not None and (message.round_id, message.micro_batch) == place
        self.demand(right, swarm, peer, f"{text} what was sent as {message}")
        attempt = latest.get((sender, *place), (0, 0))
        self.demand(
            (life, message.attempt) >= attempt, swarm, peer, f"{text} attempt {message.attempt}"
        )
        member = swarm.inspections[peer].membership.members[sender]
        known = life >= member.incarnation
        self.demand(known, swarm, peer, f"{text} words of a former life of {sender}")


class GoesOnTogether(StageChecker):
    """S23: a stage applies a round when every other one has committed it."""

    invariant = "S23"
    effects = (StageDone, Apply)

    def __init__(self, stages: Members, circumstances: RunConditions | None = None) -> None:
        super().__init__(stages, circumstances)
        self._committed = [0] * len(stages)  # rounds that somebody of the stage held all commits of

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, StageDone):
            stage = self.stage_of[peer]
            self._committed[stage] = max(self._committed[stage], effect.message.committed)
        elif isinstance(effect, Apply):
            behind = [
                stage
                for stage, committed in enumerate(self._committed)
                if committed <= effect.round_id and stage != self.stage_of[peer]
            ]
            text = f"round {effect.round_id} is applied, and not committed in stages {behind}"
            self.demand(not behind, swarm, peer, text)


class FindsLiarsAlone(StageChecker):
    """S25: audits find nobody who answers truly, while no more members of a stage lie than it
    bears; and who is in quarantine computes nothing, and has no micro-batch in a commit."""

    invariant = "S25"
    effects = (Report, Committed, RunForward)

    def __init__(self, stages: Members, circumstances: RunConditions | None = None) -> None:
        super().__init__(stages, circumstances)
        liars = self.circumstances.answering_falsely
        crowds = [members for members in stages if len(liars.intersection(members)) > 1]
        self._bears = not crowds
        # who is in quarantine as each peer sees it, and what the present commit changes about that
        self._locked = self.per_life(set[PeerId])
        self._changes = self.per_life(list[Report])

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Report):
            if effect.event in ("found_by_audit", "quarantined") and self._bears:
                subject = effect.fields["subject"]
                liar = subject in self.circumstances.answering_falsely
                self.demand(liar, swarm, peer, f"{effect.event}: peer {subject} has told the truth")
            if effect.event in ("quarantined", "parole"):
                self._changes[peer].append(effect)
        elif isinstance(effect, Committed):
            self._judge(swarm, peer, effect)
        elif isinstance(effect, RunForward) and not effect.audit:
            text = f"it computes micro-batch {effect.micro_batch}, and is in quarantine"
            self.demand(peer not in self._locked[peer], swarm, peer, text)

    def _judge(self, swarm: AnySwarm, peer: PeerId, committed: Committed) -> None:
        """Check that no peer in quarantine has computed micro-batches of this round. The changes
        that a commit makes hold from the next round on."""
        working = {c.peer for c in committed.commit.contributors if c.micro_batches}
        locked = sorted(working & self._locked[peer])
        text = f"round {committed.commit.round_id} has micro-batches of {locked}, in quarantine"
        self.demand(not locked, swarm, peer, text)
        for change in self._changes[peer]:
            if change.event == "quarantined":
                self._locked[peer].add(change.fields["subject"])
            else:
                self._locked[peer].discard(change.fields["subject"])
        self._changes[peer] = []


class StageGoesOn(StageChecker):
    """S26: a stage is made anew only when nobody who is up holds its state, and goes on in the
    round that the other stages are in."""

    invariant = "S26"
    effects = (Report,)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Report) or effect.event != "stage_rebuilt":
            return
        rounds = {p: host.core.rounds for p, host in swarm.hosts.items() if host.running}
        own = self.stages[self.stage_of[peer]]
        holds = [p for p, of in rounds.items() if p in own and p != peer and of.mode != "off"]
        text = f"stage {self.stage_of[peer]} is made anew, and {holds} of it hold its state"
        self.demand(not holds, swarm, peer, text)
        others = {p: of.round_id for p, of in rounds.items() if p not in own and of.mode != "off"}
        text = f"it goes on in round {effect.fields['round']}, and the other stages are in {others}"
        self.demand(effect.fields["round"] in others.values(), swarm, peer, text)


class SharesAlike(StageChecker):
    """S28: members of a stage that have the same history give each other the same parts of the
    micro-batches, and nobody more than ``SPEED_RATIO_MAX`` times another's."""

    invariant = "S28"
    effects = (StartRound,)

    def make_records(self) -> None:
        # by stage, round, and the hash of the round before
        self._weights: dict[tuple[int, int, bytes], Mapping[PeerId, float]] = {}

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        assert isinstance(effect, StartRound)
        seen = swarm.inspections[peer]
        assert seen.rolling is not None, "a stage has rolling rounds"
        if seen.rolling.round_id != effect.round_id:
            return  # it has gone on meanwhile
        found, text = dict(seen.weights), f"round {effect.round_id}: micro-batches are shared by"
        place = self.stage_of[peer], effect.round_id, seen.rolling.chain
        known = self._weights.setdefault(place, found)
        self.demand(found == known, swarm, peer, f"{text} {found} here, by {known} elsewhere")
        apart = max(found.values()) / min(found.values())
        self.demand(apart <= SPEED_RATIO_MAX + TOLERANCE, swarm, peer, f"{text} {found}")


class LeavesWhatIsCounted(StageChecker):
    """S31: a member of the first stage does not begin on a micro-batch that a member within reach
    has told it to have counted, but for what has been in its own sum."""

    invariant = "S31"
    events = (Received, BackwardDone)
    effects = (RunForward, StartRound)

    def make_records(self) -> None:
        self._round: dict[PeerId, int] = {}
        self._told: dict[PeerId, dict[PeerId, tuple[int, Counted]]] = {}  # and in which life
        self._had: dict[PeerId, set[int]] = {}  # in its own sum, in this round

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._begin(peer, -1)

    def _begin(self, peer: PeerId, round_id: int) -> None:
        self._round[peer], self._told[peer], self._had[peer] = round_id, {}, set()

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        here = self._round[peer]
        if isinstance(event, BackwardDone):
            if not event.audit and event.round_id == here:
                self._had[peer].add(event.micro_batch)
        elif isinstance(event, Received) and isinstance(event.message, Counted):
            told, known = event.message, self._told[peer]
            life, before = known.get(event.sender, (-1, told))
            newer = (event.incarnation, told.number) > (life, before.number)
            if told.round_id == here and (life < 0 or newer):
                known[event.sender] = event.incarnation, told

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, StartRound):
            self._begin(peer, effect.round_id)
            return
        assert isinstance(effect, RunForward)
        micro_batch = effect.micro_batch
        if self.stage_of[peer] or effect.audit or micro_batch in self._had[peer]:
            return
        seen = swarm.inspections[peer]
        by = [
            other
            for other, (life, told) in self._told[peer].items()
            if micro_batch in told.micro_batches
            and other in seen.weights
            and not seen.membership.skip_reason(other)
            and life >= seen.membership.members[other].incarnation
        ]
        text = f"begins on micro-batch {micro_batch} of round {effect.round_id}, counted by {by}"
        self.demand(not by, swarm, peer, text)


class SendsToWhoHasBegun(StageChecker):
    """S33: an activation goes to nobody who has begun no round in the life that its sender knows of
    it: its node would drop the payload, and the sender wait for a gradient."""

    invariant = "S33"
    effects = (Activation, StartRound, Report)

    def make_records(self) -> None:
        self._begun: set[PeerId] = set()

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._begun.discard(peer)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, StartRound) or getattr(effect, "event", "") == "restored":
            self._begun.add(peer)
        if not isinstance(effect, Send) or not isinstance(effect.message, Activation):
            return
        to, host = effect.peer, swarm.hosts.get(effect.peer)
        member = swarm.inspections[peer].membership.members.get(to)
        if host is None or member is None or member.incarnation != host.incarnation:
            return  # it cannot know of that life
        sent = effect.message
        text = f"micro-batch {sent.micro_batch} of round {sent.round_id} is sent to peer {to}"
        self.demand(to in self._begun, swarm, peer, f"{text}, which has begun no round")
