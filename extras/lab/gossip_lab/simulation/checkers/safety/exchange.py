"""S11, of gossip rounds: what a peer was pushed goes into its next round, and nothing else does;
and for whom it waits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from gossip.core import (
    LAST_WORDS_S,
    Aggregate,
    Apply,
    Contributed,
    Effect,
    Event,
    GossipInspection,
    Inspection,
    Payload,
    PeerId,
    Push,
    Received,
    Report,
    Row,
    StartRound,
)
from gossip.topologies import Roster
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm

Kind = Literal["gradient", "parameters"]


def gossip_of(core: Inspection | None) -> GossipInspection | None:
    """The gossip rounds of a core, when it has such."""
    return core.gossip if core is not None else None


def members_of(core: Inspection) -> tuple[PeerId, ...]:
    """Return the peers that a peer plans with: those that are not gone in its view."""
    is_gone = core.membership.is_gone
    return tuple([peer for peer in everybody_of(core) if peer == core.local or not is_gone(peer)])


def everybody_of(core: Inspection) -> tuple[PeerId, ...]:
    """Return the peers that the run began with, and those that have joined since in a peer's
    view."""
    come = [peer for peer, member in core.membership.members.items() if member.met]
    return tuple(sorted({*core.settings.peers, core.local, *come}))


def targets_of(
    core: Inspection, sender: PeerId, round_id: int, members: tuple[PeerId, ...]
) -> tuple[PeerId, ...]:
    """Return the peers that ``sender`` pushes to by the plan of ``members``."""
    plan = core.topology(Roster(members, core.settings.lineage), round_id, core.settings.seed)
    assert plan.pushes is not None
    return plan.pushes.get(sender, ())


def _may_push(core: Inspection, sender: PeerId, round_id: int) -> bool:
    """Whether a plan sends it to this peer. Views differ for a moment when somebody comes or
    goes."""
    tried: set[tuple[PeerId, ...]] = set()
    for view in (everybody_of, members_of, _first_of):
        members = view(core)
        if members not in tried:
            if core.local in targets_of(core, sender, round_id, members):
                return True
            tried.add(members)
    return False


def _first_of(core: Inspection) -> tuple[PeerId, ...]:
    """Return the peers that the run began with."""
    return tuple(sorted(core.settings.peers))


def sources_of(core: Inspection, round_id: int) -> tuple[PeerId, ...]:
    plan = core.topology(
        Roster(members_of(core), core.settings.lineage), round_id, core.settings.seed
    )
    return plan.sources(core.local)


def is_worth_waiting(core: Inspection, rounds: GossipInspection, source: PeerId) -> bool:
    """Whether anything can be expected of it that will be used."""
    if core.membership.skip_reason(source) or source in rounds.finished:
        return False
    return source not in rounds.trust.quarantined()


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A push. ``payload`` is None where there is nothing to use."""

    round_id: int
    samples: int
    payload: Payload | None


@dataclass(slots=True)
class PushInbox:
    """Pushes of one kind from one sender that no round has used."""

    kept: dict[int, _Arrived] = field(default_factory=dict)
    heard: int = -1  # the latest round
    used: int = -1

    def add(self, arrived: _Arrived, most: int) -> None:
        """Store a push. Only the last push of each round is kept, only the latest ``most`` rounds,
        and no push that could be used twice."""
        if arrived.round_id <= self.used:
            return
        self.kept[arrived.round_id] = arrived
        self.heard = max(self.heard, arrived.round_id)
        if len(self.kept) > most:
            del self.kept[min(self.kept)]

    def pop_push(self, round_id: int, staleness_max: int, is_source: bool) -> _Arrived | None:
        """Remove and return the push that ``round_id`` uses: the newest that is due, or, from a
        source that is ahead, the first one after ``round_id``."""
        due = [at for at in self.kept if round_id - staleness_max <= at <= round_id]
        later = [at for at in self.kept if at > round_id] if is_source and not due else []
        chosen = max(due) if due else min(later, default=-1)
        found = self.kept.get(chosen)
        self.kept = {at: each for at, each in self.kept.items() if at > round_id and at != chosen}
        if found is not None:
            self.used = chosen
        return found


@dataclass(slots=True)
class _ExchangeRound:
    """The round that a peer is in. ``expected``: kind -> sender -> what goes into its rule, once
    the round is closed."""

    round_id: int
    sources: tuple[PeerId, ...]
    own: Contributed | None = None
    late: bool = False
    expected: dict[Kind, dict[PeerId, _Arrived]] | None = None
    asked: dict[Kind, bool] = field(default_factory=dict)
    released: list[PeerId] = field(default_factory=list)  # whose quarantine ended with this round


@dataclass(slots=True)
class _Desk:
    """Records of one life of a peer."""

    inboxes: dict[PeerId, dict[Kind, PushInbox]] = field(default_factory=dict)
    lives: dict[PeerId, int] = field(default_factory=dict)
    round: _ExchangeRound | None = None

    def has_delivered(self, sender: PeerId, kind: Kind, round_id: int) -> bool:
        """Pushes arrive in order: who is further has nothing more for this round."""
        boxes = self.inboxes.get(sender)
        if boxes is None:
            return False
        return boxes[kind].heard >= round_id or max(box.heard for box in boxes.values()) > round_id


class TakesWhatItWasPushed(Checker):
    """S11, of gossip rounds: what has arrived from a present life that its plan names goes into the
    next aggregate, once, beside the own update; nothing else does. A round is closed when all have
    delivered who can be expected to, or after its grace."""

    invariant = "S11"
    events = (Push, Contributed)
    effects = (StartRound, Aggregate, Apply, Report)

    def make_records(self) -> None:
        self._desks = self.per_life(_Desk)
        # round -> gradient and parameters, of all lives
        self._said: dict[PeerId, dict[int, list[tuple[bytes, bytes]]]] = {}

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.gossip if core is not None else None
        if core is None or rounds is None:
            return
        if isinstance(event, Contributed):
            self._record_contribution(peer, event)
            doing = self._desks[peer].round
            if (
                doing is not None
                and doing.round_id == event.round_id == rounds.round_id
                and rounds.phase == "computing"
            ):
                doing.own = event
        elif (
            isinstance(event, Received)
            and isinstance(event.message, Push)
            and core.phase not in ("unprepared", "halted")
        ):
            self._on_push(swarm, peer, core, event, event.message)

    def _record_contribution(self, peer: PeerId, event: Contributed) -> None:
        said = self._said.setdefault(peer, {})
        gradient, parameters = event.payloads[0] if event.payloads else None, event.parameters
        said.setdefault(event.round_id, []).append((_content(gradient), _content(parameters)))
        if len(said) > 64:
            del said[next(iter(said))]

    def _on_push(
        self, swarm: AnySwarm, peer: PeerId, core: Inspection, event: Received, push: Push
    ) -> None:
        sender, desk = event.sender, self._desks[peer]
        if (
            sender == peer
            or push.lineage != core.settings.lineage
            or not _is_accepted(swarm, peer, core, event)
        ):
            return
        if not _may_push(core, sender, push.round_id):
            return
        life = desk.lives.get(sender, 0)
        if event.incarnation < life:
            return
        if event.incarnation > life or sender not in desk.inboxes:
            desk.lives[sender] = event.incarnation
            desk.inboxes[sender] = {"gradient": PushInbox(), "parameters": PushInbox()}
        staleness = core.settings.gossip.staleness_max
        if push.round_id < core.rounds.round_id - staleness:
            return
        payload = event.payload if event.payload is not None and event.payload.finite else None
        if payload is not None and sender not in self.circumstances.equivocating:
            self._judge_content(swarm, peer, sender, push, payload)
        desk.inboxes[sender][push.what].add(
            _Arrived(push.round_id, push.samples, payload), staleness + 1
        )

    def _judge_content(
        self, swarm: AnySwarm, peer: PeerId, sender: PeerId, push: Push, payload: Payload
    ) -> None:
        said = self._said.get(sender, {}).get(push.round_id)
        if said is None:
            return
        self.judged += 1
        content, which = _content(payload), 0 if push.what == "gradient" else 1
        if all(content != each[which] for each in said):
            text = (
                f"is pushed a {push.what} of round {push.round_id} by peer {sender} whose trainer "
                "has never come with it"
            )
            raise self.violated(swarm, peer, text)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.gossip if core is not None else None
        if core is None or rounds is None:
            return
        if isinstance(effect, StartRound):
            self._on_go(swarm, peer, core, rounds, effect.round_id)
            return
        doing = self._desks[peer].round
        if doing is None:
            return
        if isinstance(effect, Report):
            if effect.event == "late":
                self._on_late(swarm, peer, core, doing, effect.fields["missing"])
            elif effect.event == "parole" and doing.expected is None:
                # with this round: it was locked up while rows were taken
                doing.released.append(effect.fields["subject"])
        elif isinstance(effect, Aggregate | Apply) and effect.round_id == doing.round_id:
            if doing.expected is None:
                doing.expected = self._close(swarm, peer, core, rounds, doing)
            if isinstance(effect, Aggregate):
                self._on_aggregate(swarm, peer, doing, effect)
            else:
                self._on_apply(swarm, peer, doing)

    def _on_go(
        self,
        swarm: AnySwarm,
        peer: PeerId,
        core: Inspection,
        rounds: GossipInspection,
        round_id: int,
    ) -> None:
        desk = self._desks[peer]
        if desk.round is None or desk.round.round_id != round_id:
            self.judged += 1
            named = sources_of(core, round_id)
            if rounds.sources != named:
                text = (
                    f"expects something of peers {list(rounds.sources)} in round {round_id}; its "
                    f"plan names {list(named)}"
                )
                raise self.violated(swarm, peer, text)
        elif desk.round.own is None:
            return  # it is told again, with samples
        desk.round = _ExchangeRound(round_id, rounds.sources)

    def _on_late(
        self,
        swarm: AnySwarm,
        peer: PeerId,
        core: Inspection,
        doing: _ExchangeRound,
        missing: Collection[PeerId],
    ) -> None:
        """The grace is over: it was spent on somebody who can be expected to
        come with something."""
        doing.late = True
        rounds = core.gossip
        assert rounds is not None
        self.judged += 1
        # The round that ends with this may put one in quarantine that it was still
        # worth waiting for.
        fresh = {
            asked.fields["subject"]
            for asked in swarm.asked
            if isinstance(asked, Report) and asked.event == "quarantined"
        }
        worth = {
            source
            for source in doing.sources
            if source in fresh or is_worth_waiting(core, rounds, source)
        }
        vain = [source for source in missing if source not in worth]
        if vain or not missing:
            raise self.violated(
                swarm,
                peer,
                f"has waited in round {doing.round_id} for peers {vain}, of whom nothing is to "
                "come",
            )

    def _close(
        self,
        swarm: AnySwarm,
        peer: PeerId,
        core: Inspection,
        rounds: GossipInspection,
        doing: _ExchangeRound,
    ) -> dict[Kind, dict[PeerId, _Arrived]]:
        settings, desk = core.settings.gossip, self._desks[peer]
        mixes = doing.round_id % settings.mix_every == settings.mix_every - 1
        kinds: tuple[Kind, ...] = ("gradient", "parameters") if mixes else ("gradient",)
        self.judged += 1
        if not doing.late:
            for source in doing.sources:
                delivered = all(desk.has_delivered(source, kind, doing.round_id) for kind in kinds)
                if (
                    not delivered
                    and source not in doing.released
                    and is_worth_waiting(core, rounds, source)
                ):
                    text = (
                        f"goes on in round {doing.round_id} without peer {source}, which it "
                        "hears, before its grace is over"
                    )
                    raise self.violated(swarm, peer, text)
        barred, found = {*rounds.trust.quarantined(), *doing.released}, {}
        for kind in kinds:
            taken = {
                sender: boxes[kind].pop_push(
                    doing.round_id,
                    settings.staleness_max,
                    sender in doing.sources,
                )
                for sender, boxes in sorted(desk.inboxes.items())
            }
            usable = {
                sender: each
                for sender, each in taken.items()
                if each is not None and each.payload is not None
            }
            others = {sender: each for sender, each in usable.items() if sender not in barred}
            own = _own_row(peer, doing.own, kind) is not None
            enough = len(others) + own >= core.settings.updates_needed(core.settings.f)
            found[kind] = others if enough else usable
        return found

    def _on_aggregate(
        self, swarm: AnySwarm, peer: PeerId, doing: _ExchangeRound, ask: Aggregate
    ) -> None:
        kind: Kind = "parameters" if ask.mix else "gradient"
        assert doing.expected is not None
        doing.asked[kind] = True
        expected = [
            Row(sender, each.payload, each.samples if kind == "gradient" else 1)
            for sender, each in doing.expected.get(kind, {}).items()
            if each.payload is not None
        ]
        own = _own_row(peer, doing.own, kind)
        if own is not None:
            expected.append(own)
        expected.sort(key=lambda row: row.peer)
        self.judged += 1
        if not _are_same(expected, ask.rows):
            text = (
                f"round {doing.round_id}: the rows of {kind} are {_names(ask.rows)}; what has "
                "come, and is its own, is"
            )
            raise self.violated(swarm, peer, f"{text} {_names(expected)}")

    def _on_apply(self, swarm: AnySwarm, peer: PeerId, doing: _ExchangeRound) -> None:
        assert doing.expected is not None
        for kind, senders in doing.expected.items():
            needs_own = kind == "parameters" and _own_row(peer, doing.own, kind) is None
            if senders and not doing.asked.get(kind) and not needs_own:
                text = (
                    f"applies round {doing.round_id} without the {kind} of peers {list(senders)}, "
                    "which has come"
                )
                raise self.violated(swarm, peer, text)


def _is_accepted(swarm: AnySwarm, peer: PeerId, core: Inspection, event: Received) -> bool:
    """Whether the message is not a stranger's, nor of a life after which another one has spoken or
    is known to have begun."""
    member = core.membership.members.get(event.sender)
    if not core.settings.may_be(event.sender):
        return False
    if member is None or event.incarnation >= member.incarnation:
        return True
    known_s = swarm.hosts[peer].machine.clock_s(swarm.now_ns) - member.known_since
    return not member.spoken and known_s >= LAST_WORDS_S


def _own_row(peer: PeerId, own: Contributed | None, kind: Kind) -> Row | None:
    if own is None:
        return None
    if kind == "parameters":
        parameters = own.own_parameters or own.parameters
        return Row(peer, parameters, 1) if parameters is not None else None
    return (
        Row(peer, own.own or own.payloads[0], own.samples) if own.samples and own.payloads else None
    )


def _are_same(expected: Collection[Row], rows: Collection[Row]) -> bool:
    if len(expected) != len(rows):
        return False
    return all(
        a.peer == b.peer and a.samples == b.samples and a.payload is b.payload
        for a, b in zip(expected, rows, strict=True)
    )


def _names(rows: Collection[Row]) -> list[tuple[PeerId, int]]:
    return [(row.peer, row.samples) for row in rows]


def _content(payload: Payload | None) -> bytes:
    return payload.data.tobytes() if payload is not None else b""


__all__ = [
    "PushInbox",
    "TakesWhatItWasPushed",
    "gossip_of",
    "is_worth_waiting",
    "members_of",
    "sources_of",
    "targets_of",
]
