"""Gossip rounds, which have no server, no commit and no barrier.

In each round every peer pushes its gradient to the peers that the plan of the topology names. Every
few rounds it also pushes its parameters. The peer then waits for the pushes that the plan directs
to it, at most for an adaptive grace period. It aggregates the received pushes with its own update,
and continues. Every peer can compute every plan, so a push outside the plan is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Literal, TypeAlias

from gossip.core.events import (
    Aggregate,
    Aggregated,
    Applied,
    Apply,
    Arriving,
    Contributed,
    Effect,
    Payload,
    Received,
    Report,
    Row,
    Send,
    StartRound,
    Token,
)
from gossip.core.frozen import record
from gossip.core.latest import Latest
from gossip.core.ledger import DataShare, TrustTable, genesis
from gossip.core.messages import (
    Commit,
    Contribution,
    GatherValue,
    Hello,
    PeerId,
    Push,
    Rejection,
    Update,
)
from gossip.core.requests import Requests
from gossip.core.settings import CONTRIBUTIONS_KEPT, STASH_ROUNDS, CoreSettings
from gossip.core.timers import Timers
from gossip.core.view import MembersView
from gossip.errors import ConfigError
from gossip.topologies import Roster, pull_of

from .direct_gather import DirectGather, GatherOverdue
from .future_buffer import FutureBuffer
from .mixing import MixingController
from .plan_cache import GossipTopology, PlanCache
from .pushes import Kind, Pushed, PushStore
from .timeouts import Deadline

GossipMessage: TypeAlias = Push | GatherValue
Phase: TypeAlias = Literal["off", "computing", "collecting", "aggregating", "applying"]


@record
class GossipTimer:
    """Timer for the end of the grace period of a round."""

    round_id: int


@dataclass(slots=True)
class GossipRound:
    """State of the present round."""

    sources: tuple[PeerId, ...] = ()
    own: Contributed | None = None
    grace: Token | None = None
    # by ticket of a running rule: whether the rule mixes parameters
    tickets: dict[int, bool] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    others_mixed: int = 0
    aggregate: Payload | None = None
    mix: Payload | None = None
    verdicts: list[Contribution] = field(default_factory=list)
    outside: tuple[Row, ...] = ()  # Updates of quarantined peers, which are only measured.
    measures: list[Rejection] = field(default_factory=list)  # Results of measuring ``outside``.


class GossipRounds:
    """Gossip rounds of one peer.

    The trust table depends only on the verdicts of this peer, because peers cannot agree on a
    common trust table without commits. ``shard_bytes`` must have one entry before the first round,
    because the rules need whole vectors.

    Args:
        rng: Random order of the local sends. If all peers had the same order, all uplinks would
            serve the same peer first.
    """

    def __init__(
        self,
        local: PeerId,
        settings: CoreSettings,
        topology: GossipTopology,
        view: MembersView,
        timers: Timers[Any],
        rng: Random,
    ) -> None:
        self.local, self.settings, self.view, self.timers = local, settings, view, timers
        rounds, self.requests = settings.rounds, Requests()
        self.trust = TrustTable(
            settings.trust, settings.f, settings.updates_for, judged=settings.judged
        )
        self.deadline = Deadline(rounds.grace_mads, rounds.grace_floor_s, rounds.round_timeout_s)
        self.mixing = MixingController(local, settings.gossip, settings.f)
        self.pushes = PushStore(settings.gossip.staleness_max)
        self.future_buffer = FutureBuffer()
        self._gather = DirectGather(local, settings, view, timers)
        self.shard_bytes: tuple[int, ...] = ()
        self._parameter_bytes = 0
        self.finished: set[PeerId] = set()  # peers that have completed the training
        self.phase: Phase = "off"
        self.round_id = 0
        self._rng = rng
        self.plans = PlanCache(local, settings, topology, view)
        self._data: tuple[int, int, int] | None = None  # samples_total, batch, ahead
        self._contributed_at: Latest[int, float] = Latest(CONTRIBUTIONS_KEPT)
        self._next_ticket = 1
        self._previous: Payload | None = None  # last aggregate that this peer has applied
        self._round = GossipRound()
        # non-finite pushes since the last verdicts
        self._faulty: dict[PeerId, Rejection] = {}
        # --- state --------------------------------------------------------------------------------

    @property
    def mode(self) -> Literal["off", "active"]:
        return "off" if self.phase == "off" else "active"

    @property
    def mixes(self) -> bool:
        """Whether parameters are exchanged in the present round."""
        return self.mixing.is_due(self.round_id)

    @property
    def roster(self) -> Roster:
        """Peers in the plans of this peer: the configured peers that are neither dead nor have
        left."""
        return Roster(self.plans.members(), self.settings.lineage)

    def validate_state(self) -> None:
        """Check the invariants of the rounds."""
        present, phase = self._round, self.phase
        assert bool(present.tickets) == (phase == "aggregating"), "rules run while it aggregates"
        assert present.grace is None or phase == "collecting", "only a collecting peer waits"
        assert (present.own is None) == (phase in ("off", "computing")), "an update of its round"

    def quorum(self) -> int:
        """Return 1, because without commits a peer can continue alone."""
        return 1

    def prepare(self, shard_bytes: tuple[int, ...], result_bytes: tuple[int, ...] = ()) -> None:
        """Set the size of the single shard in bytes, and the size of the parameters if it differs.
        Called when the trainer has built its model."""
        self.shard_bytes, self._parameter_bytes = shard_bytes, sum(result_bytes)

    def branch(self) -> tuple[bytes, tuple[PeerId, ...]]:
        """Return an empty branch, because gossip rounds have no history."""
        return b"", ()

    def begin_branch(self, state: bytes) -> None:
        """Do nothing, because gossip rounds have no history to bind to the initial weights."""

    def start(self, now: float) -> list[Effect]:
        """Start with round ``round_id``. The trainer has the state before this round."""
        return self.begin(self.round_id, now)

    def begin(self, round_id: int, now: float) -> list[Effect]:
        """Begin ``round_id``, which need not follow the previous round. The trainer is idle."""
        assert len(self.shard_bytes) == 1, "a gossip round exchanges whole vectors: one shard"
        self.round_id, self.phase = round_id, "computing"
        self._round = GossipRound(self.plans.sources(round_id))
        self.pushes.drop_older(round_id)
        return [self._go()]

    def stop(self, now: float) -> list[Effect]:
        """Stop participation until ``start``."""
        effects: list[Effect] = [*self.timers.cancel(self._round.grace), *self._gather.stop()]
        self.phase, self._round = "off", GossipRound(self._round.sources)
        return effects

    def resume(self, now: float) -> list[Effect]:
        """Continue with the round after the round in which ``stop`` was called. No state of another
        peer was adopted."""
        return self.begin(self.round_id + 1, now)

    def jump(self, round_id: int, now: float) -> list[Effect]:
        """Continue with ``round_id``, after the trainer has adopted the state before this round."""
        return [*self.stop(now), *self.begin(round_id, now)]

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        """Return the genesis hash and an empty snapshot. Gossip rounds have no chain of commits,
        the position in the data follows from the round number, and each peer has its own trust
        table."""
        return genesis(self.settings.run, self.settings.lineage), ()

    def check(self, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        """Raise ValueError unless ``chain`` and ``snapshot`` come from gossip rounds of this
        run."""
        if chain != genesis(self.settings.run, self.settings.lineage) or snapshot:
            raise ValueError("the state does not come from gossip rounds of this run")

    def adopt(self, round_id: int, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        self.check(chain, snapshot)
        self.round_id, self._previous = round_id, None

    def configure_data(
        self, samples_total: int, batch: int, ahead: int = 0, extended: int = 0
    ) -> list[Effect]:
        """Set the sizes of the data that the trainer reads through its node. If the trainer waits
        for a round, repeat ``StartRound`` with the samples of the round."""
        if samples_total < 1 or batch < 1:
            raise ConfigError(
                f"data: {samples_total} samples in batches of {batch} cannot be divided among peers"
            )
        if extended:
            raise ConfigError(
                "data: the unused samples of an epoch are known only in rolling rounds",
                "use the topology rolling, or leave out remainder",
            )
        self._data = (samples_total, batch, ahead)
        return [self._go()] if self.phase == "computing" else []

    def on_disconnect(self, peer: PeerId) -> None:
        """Handle the loss of the link to ``peer``."""
        self.future_buffer.on_disconnect(peer)

    def payload_bytes(self, message: Update | Commit | Push) -> int:
        """Return the required length of the payload of ``message`` in bytes; -1 if no payload is
        admitted."""
        if not isinstance(message, Push) or len(self.shard_bytes) != 1:
            return -1
        if message.what == "parameters":
            return self._parameter_bytes or self.shard_bytes[0]
        return self.shard_bytes[0] if message.samples else 0

    # --- the trainer ------------------------------------------------------------------------------

    def on_contributed(self, event: Contributed, now: float) -> list[Effect]:
        if self.phase != "computing" or event.round_id != self.round_id:
            return []
        if event.collective:
            others = self._others()
            return [*self._gather.broadcast_value(event.collective, others, now), *self._gathered()]
        present, self.phase = self._round, "collecting"
        present.own = event
        self._contributed_at[self.round_id] = now
        if self.mixes:
            self.mixing.learn(self.local, self.round_id, event.sketch)
        return [*self._push(event), *self._maybe_close(now)]

    def on_aggregated(self, event: Aggregated, now: float) -> list[Effect]:
        present = self._round
        mix = present.tickets.pop(event.ticket, None)
        if mix is None or self.phase != "aggregating":
            return []  # The round in which this rule was started has been stopped.
        effects: list[Effect] = []
        if mix:
            present.mix = event.payload
            if event.payload is None:
                effects.append(
                    Report("mixing_failed", {"round": self.round_id, "reason": event.reason})
                )
        else:
            present.aggregate = event.payload if event.payload is not None else self._own_update()
            if event.payload is None:
                effects.append(
                    Report("lost_round", {"round": self.round_id, "reason": event.reason})
                )
                present.rows = tuple(row for row in present.rows if row.peer == self.local)
            else:
                present.verdicts = self._verdicts_of(event)
                measured = zip(present.outside, event.outside, strict=False)
                present.measures = [
                    Rejection(row.peer, "quarantined", far) for row, far in measured
                ]
        return effects if present.tickets else [*effects, *self._apply()]

    def on_applied(self, event: Applied, now: float) -> list[Effect]:
        if self.phase != "applying" or event.round_id != self.round_id:
            return []
        following = self.round_id + 1
        newest = self._newest()
        if newest <= following + STASH_ROUNDS:
            return self.begin(following, now)
        # The other peers are far ahead, so continue in their round. If the pushes of their last
        # exchange of parameters are still accepted, continue with the round of that exchange,
        # because mixing matters most after a gap.
        target = newest - 1
        mixing = [
            at
            for at in range(target - self.settings.gossip.staleness_max + 1, target + 1)
            if self.mixing.is_due(at)
        ]
        target = mixing[-1] if mixing else target
        return [
            Report("behind", {"round": following, "ahead": newest - following}),
            *self.begin(target, now),
        ]

    # --- messages and time ------------------------------------------------------------------------

    def on_message(self, event: Received, now: float) -> list[Effect]:
        sender, push, payload = event.sender, event.message, event.payload
        if isinstance(push, GatherValue):
            return [*self._gather.on_message(event), *self._gathered()]
        assert isinstance(push, Push)
        known = (
            push.lineage == self.settings.lineage
            and self.settings.may_be(sender)
            and sender != self.local
        )
        if (
            not known
            or not self.plans.is_planned(sender, push.round_id)
            or not self.pushes.meet(sender, event.incarnation)
        ):
            return []
        self._time(push, now)
        if push.round_id < self.round_id - self.settings.gossip.staleness_max:
            self.pushes.note(push.what, sender, push.round_id)
            return []
        if payload is not None and not payload.finite:
            self._faulty[sender] = Rejection(sender, "non_finite")
            payload = None  # the push ends the wait for its sender, but its payload is not used
        if push.what == "parameters" and payload is not None:
            self.mixing.learn(sender, push.round_id, push.sketch)
        self.future_buffer.record_round(sender, push.round_id)
        self.pushes.add(push.what, sender, Pushed(push.round_id, push.samples, payload))
        far = self.round_id + 1 + STASH_ROUNDS  # the limit of ``on_applied``
        if self.phase == "collecting" and push.round_id > far and self._newest() > far:
            # End the round now, because ``on_applied`` then skips to the round of the other peers.
            # Otherwise two returning peers could wait for pushes of rounds that both will skip.
            return self._close()
        return self._maybe_close(now)

    def on_hello(self, sender: PeerId, hello: Hello, now: float) -> list[Effect]:
        """Record the round of ``sender``, and whether it has completed the training."""
        self.future_buffer.record_round(sender, hello.round_id)
        if hello.stage == "ready":
            self.finished.discard(sender)
            return []
        self.finished.add(sender)
        # A finished peer will not push any more, so a wait for it ends.
        return [*self._maybe_close(now), *self._gathered()]

    def on_pause(self, paused_s: float, now: float) -> list[Effect]:
        """Do nothing after a pause of this process, because no other peer depends on this peer."""
        return []

    def on_arriving(self, event: Arriving, now: float) -> list[Effect]:
        """Do nothing while a push arrives. Stale pushes are also used, so no wait is extended
        beyond its grace period."""
        return []

    def on_compiling(self, now: float) -> list[Effect]:
        """Do nothing while the trainer compiles, because no other peer waits for this peer."""
        return []

    def on_progress(self, peer: PeerId, step: int, now: float) -> list[Effect]:
        """Ignore the step of a peer in an ack, because the pushes of that peer also carry its
        round."""
        return []

    def on_view_change(self, now: float) -> list[Effect]:
        """End the wait for peers that are skipped after a change of the view."""
        self.mixing.forget(self.view.is_gone)
        return [*self._maybe_close(now), *self._gathered()]

    def on_timer(self, timer: GossipTimer | GatherOverdue, now: float) -> list[Effect]:
        present = self._round
        if isinstance(timer, GatherOverdue):
            return self._gathered(overdue=self._gather.is_overdue(timer))
        if timer.round_id != self.round_id or self.phase != "collecting":
            return []
        present.grace = None
        late = self._awaited()
        return [Report("late", {"round": self.round_id, "missing": late}), *self._close()]

    # --- collective operations --------------------------------------------------------------------

    def _others(self) -> tuple[PeerId, ...]:
        return tuple(
            [p for p in self.plans.members() if p != self.local and p not in self.finished]
        )

    def _gathered(self, overdue: bool = False) -> list[Effect]:
        """Pass the collected values to the trainer if no further value is awaited. The operation
        does not advance the round: the trainer computes the present round again afterwards."""
        if not overdue and not self._gather.is_over(self._others()):
            return []
        effects, collected = self._gather.close()
        answer = Apply(self.round_id - 1, (), collected=collected, is_step=False)
        return [*effects, answer, self._go()]

    # --- collecting -------------------------------------------------------------------------------

    def _go(self) -> StartRound:
        samples = None
        if self._data is not None:
            # Without commits, peers cannot agree on a new number of shares. So a peer that joins
            # later reads the same share as one of the first peers.
            known, n = self.local in self.plans.first, len(self.plans.first)
            rank = self.plans.first.index(self.local) if known else self.local % n
            samples_total, batch, ahead = self._data
            samples = DataShare(rank, n, samples_total, batch).slice(self.round_id, ahead)
        return StartRound(
            self.round_id, samples, want_parameters=self.mixes, roster=self.plans.members()
        )

    def _push(self, own: Contributed) -> list[Effect]:
        plans = self.plans
        targets = [
            peer
            for peer in plans.targets(self.local, self.round_id, plans.members())
            if not self.view.skip_reason(peer) and peer not in self.finished
        ]
        self._rng.shuffle(targets)
        stamp = (self.settings.lineage, self.round_id)
        gradient = own.payloads[0] if own.payloads and own.samples else None
        push = Push(*stamp, "gradient", own.samples if gradient is not None else 0, own.loss, b"")
        if not self.mixes or own.parameters is None:
            return [Send(peer, push, gradient) for peer in targets]
        mixed = Push(*stamp, "parameters", own.samples, own.loss, own.sketch)
        pairs = [
            (Send(peer, push, gradient), Send(peer, mixed, own.parameters)) for peer in targets
        ]
        return [send for pair in pairs for send in pair]

    def _awaited(self) -> list[PeerId]:
        """Return the sources that this peer still waits for. They have not delivered all pushes of
        this round, and are neither skipped, finished nor in quarantine."""
        kinds: tuple[Kind, ...] = ("gradient", "parameters") if self.mixes else ("gradient",)
        missing = self.pushes.missing(kinds, self._round.sources, self.round_id)
        if not missing:
            return []
        barred = self.trust.quarantined() | self.finished
        return [peer for peer in missing if peer not in barred and not self.view.skip_reason(peer)]

    def _maybe_close(self, now: float) -> list[Effect]:
        present = self._round
        if self.phase != "collecting":
            return []
        if not self._awaited():
            return self._close()
        if present.grace is not None:
            return []
        timer = self.timers.set(now + self.deadline.grace_s(), GossipTimer(self.round_id))
        present.grace = timer.token
        return [timer]

    def _close(self) -> list[Effect]:
        present = self._round
        effects: list[Effect] = list(self.timers.cancel(present.grace))
        present.grace, self.phase = None, "aggregating"
        own = self._own_update()
        present.rows = self._rows_of("gradient", own)
        if len(present.rows) == 1 and own is not None:
            present.aggregate = own  # the only update needs no rule
        elif present.rows:
            effects.append(self._ask(present.rows, mix=False))
        if self.mixes and present.own is not None:
            rows = self._rows_of("parameters", present.own.own_parameters or present.own.parameters)
            present.others_mixed = len(rows) - 1
            if present.others_mixed > 0 and any(row.peer == self.local for row in rows):
                effects.append(self._ask(rows, mix=True))
        return effects if present.tickets else [*effects, *self._apply()]

    def _rows_of(self, kind: Kind, own: Payload | None) -> tuple[Row, ...]:
        present = self._round
        assert present.own is not None
        locked = self.trust.quarantined()
        plan = self.plans.plan(self.round_id, self.plans.members())
        pull = partial(pull_of, plan, self.local)
        taken = {
            peer: pushed
            for peer, pushed in self.pushes.pop_pushes(kind, self.round_id, present.sources).items()
            if pushed.payload is not None
        }
        others = {peer: pushed for peer, pushed in taken.items() if peer not in locked}
        # Updates of quarantined peers are used only if the rule tolerates f Byzantine peers with
        # these updates and not without them. They are not used if the rule is reduced to a plain
        # average or if there is no other update, because they would then have full weight.
        needed = self.settings.updates_needed(self.settings.f) - (own is not None)
        is_alone = not others and own is None
        if is_alone or not len(others) < needed <= len(taken):
            if kind == "gradient":
                present.outside = tuple(
                    [
                        Row(peer, pushed.payload, pushed.samples, pull(peer))
                        for peer, pushed in sorted(taken.items())
                        if peer in locked and pushed.payload is not None
                    ]
                )
            taken = others
        # Parameters of all peers have the same weight, because they are not means over samples.
        rows = [
            Row(peer, pushed.payload, pushed.samples if kind == "gradient" else 1, pull(peer))
            for peer, pushed in taken.items()
            if pushed.payload is not None
        ]
        if own is not None:
            rows.append(Row(self.local, own, present.own.samples if kind == "gradient" else 1))
        return tuple(sorted(rows, key=lambda row: row.peer))

    def _ask(self, rows: tuple[Row, ...], mix: bool) -> Aggregate:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._round.tickets[ticket] = mix
        own = next((index for index, row in enumerate(rows) if row.peer == self.local), None)
        # Parameters are aggregated as differences from the local parameters. The differences of an
        # earlier round had another origin, so the rule gets no previous aggregate.
        return Aggregate(
            ticket,
            self.round_id,
            0,
            rows,
            self._tolerated(len(rows)),
            own,
            mix,
            None if mix else self._previous,
            outside=() if mix else self._round.outside,
            own_share=0.0 if mix or own is None else self._own_share(len(rows) - 1),
        )

    def _own_share(self, others: int) -> float:
        """Return the fixed share of the local model difference in the applied difference. The rest
        is the share of the rule's result.

        In a bipartite graph, such as an even ring, each half of the peers sends only to the other
        half. If the two halves differ in some direction, the mean or median of a peer's inputs has
        the sign of its neighbours. Steps with this sign would drive the halves farther apart, and
        the momentum of the outer step would accumulate them. With a share of one half for the local
        difference, no direction is reversed. Gradient steps need no share, because they are much
        smaller than the differences after several local steps.
        """
        return self.settings.gossip.kept_share if self.settings.local_steps and others else 0.0

    def _tolerated(self, rows: int) -> int:
        """Return f, or less if the rule cannot tolerate f among ``rows`` updates. Peers in
        quarantine do not reduce f, because the verdicts of a single peer are no proof."""
        return self.settings.tolerable(self.settings.f, rows)

    def _own_update(self) -> Payload | None:
        """Return the local update. For a peer that injects a fault, return the honest update."""
        own = self._round.own
        if own is None or not own.samples or not own.payloads:
            return None
        return own.own or own.payloads[0]

    # --- end of a round ---------------------------------------------------------------------------

    def _verdicts_of(self, event: Aggregated) -> list[Contribution]:
        """Return the rule's verdicts on the gradients of other peers. Verdicts on parameters are no
        evidence: if almost all replicas are bit-identical, the smallest difference of another
        replica has infinite outlyingness."""
        facts = zip(self._round.rows, event.weights, event.outlyingness, strict=True)
        return [
            Contribution(row.peer, row.samples, weight, far)
            for row, weight, far in facts
            if row.peer != self.local
        ]

    def _apply(self) -> list[Effect]:
        present = self._round
        self.phase = "applying"
        rejected, self._faulty = [*present.measures, *self._faulty.values()], {}
        effects: list[Effect] = [
            each.report()
            for each in self.trust.observe_commit(
                self.round_id, present.verdicts, rejected, roster=self.plans.members()
            )
        ]
        if self.mixes:
            self.mixing.measure(self.round_id, self.trust.quarantined())
        payloads = (present.aggregate,) if present.aggregate is not None else ()
        self._previous = present.aggregate or self._previous
        others = present.others_mixed
        if self.plans.plan(self.round_id, self.plans.members()).metropolis:
            # All peers use the same factor, because otherwise the mean of the replicas would move.
            others = min(1, others)
        scale = self.mixing.scale(others) if present.mix is not None else 0.0
        applied = Apply(
            self.round_id,
            payloads,
            present.mix,
            scale,
            contributors=((self.local,),) * len(payloads),
        )
        return [*effects, applied, self._round_report()]

    def _round_report(self) -> Report:
        alive = sum(
            1
            for peer in self.plans.members()
            if peer == self.local or not self.view.skip_reason(peer)
        )
        fields: dict[str, Any] = {
            "round": self.round_id,
            "loss": self._round.own.loss if self._round.own is not None else None,
            "server": None,
            "attempt": 0,
            "alive": alive,
            "contributors": [row.peer for row in self._round.rows],
            "trust": {peer: round(score, 3) for peer, score in self.trust.scores().items()},
        }
        if self.mixes and self.mixing.consensus is not None:
            fields["consensus_distance"] = self.mixing.consensus.distance
            fields["consensus_ratio"] = self.mixing.consensus.ratio
        return Report("round", fields)

    # --- times ------------------------------------------------------------------------------------

    def _time(self, push: Push, now: float) -> None:
        """Record how long after the local update a push has arrived. The grace period is computed
        from these times.

        Pushes after the end of the grace period are recorded as well, because otherwise the grace
        period could only shrink. Stale pushes are not recorded, because otherwise one slow peer
        would slow down all others. If the pushes of all peers but f are stale, they are recorded,
        so that this peer waits for the others.
        """
        if push.what != "gradient":
            return
        oldest = self.round_id - self.settings.gossip.staleness_max
        if push.round_id >= oldest:
            began = self._contributed_at.get(push.round_id)
            self.deadline.observe(0.0 if began is None else now - began)
        elif self._contributed_at and self._newest() < oldest:
            first = next(iter(self._contributed_at))
            self.deadline.observe(
                now - self._contributed_at.get(push.round_id, self._contributed_at[first])
            )

    def _newest(self) -> int:
        """Return the latest round that more than f other peers have reached; -1 if there are too
        few peers. Up to f Byzantine peers cannot raise this round."""
        others = [peer for peer in self.plans.members() if peer != self.local]
        reached = sorted((self.pushes.latest_round(peer) for peer in others), reverse=True)
        return reached[self.settings.f] if len(reached) > self.settings.f else -1
