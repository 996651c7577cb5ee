"""S11, in gossip rounds: a peer aggregates exactly the pushes that it has received, and waits only
for peers that can still push."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from gossip.core import (
    LAST_WORDS_S,
    STASH_ROUNDS,
    Aggregate,
    Apply,
    Contributed,
    Payload,
    PeerId,
    Push,
    Received,
    Report,
    Row,
    StartRound,
)
from gossip.topologies import Roster
from gossip_lab.inspection import GossipInspection, Inspection
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    on_effect,
    on_event,
    on_report,
)

Kind = Literal["gradient", "parameters"]


def members_of(core: Inspection) -> tuple[PeerId, ...]:
    """Return the members for the plans of a peer: itself, and all peers that are not dead or left
    in its view."""
    is_gone = core.membership.is_gone
    return tuple([peer for peer in known_peers_of(core) if peer == core.local or not is_gone(peer)])


def known_peers_of(core: Inspection) -> tuple[PeerId, ...]:
    """Return the initial peers of the run, and the peers that have joined since in a peer's
    view."""
    come = [peer for peer, member in core.membership.members.items() if member.met]
    return tuple(sorted({*core.settings.peers, core.local, *come}))


def targets_of(
    core: Inspection, sender: PeerId, round_id: int, members: tuple[PeerId, ...]
) -> tuple[PeerId, ...]:
    """Return the peers to which ``sender`` pushes in the plan for ``members``."""
    plan = core.topology(Roster(members, core.settings.lineage), round_id, core.settings.seed)
    assert plan.pushes is not None
    return plan.pushes.get(sender, ())


def _may_push(core: Inspection, sender: PeerId, round_id: int) -> bool:
    """Whether ``sender`` pushes to this peer in a possible plan: for all peers, for the members in
    this peer's view, or for the initial peers. Views differ for a moment when a peer joins or
    leaves."""
    views = {known_peers_of(core), members_of(core), tuple(sorted(core.settings.peers))}
    return any(core.local in targets_of(core, sender, round_id, view) for view in views)


def sources_of(core: Inspection, round_id: int) -> tuple[PeerId, ...]:
    plan = core.topology(
        Roster(members_of(core), core.settings.lineage), round_id, core.settings.seed
    )
    return plan.sources(core.local)


def may_still_push(core: Inspection, rounds: GossipInspection, source: PeerId) -> bool:
    """Whether a usable push of ``source`` can be expected."""
    if core.membership.skip_reason(source) or source in rounds.finished:
        return False
    return source not in rounds.trust.quarantined()


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A received push. ``payload`` is None if it is not finite or missing."""

    round_id: int
    samples: int
    payload: Payload | None


@dataclass(slots=True)
class PushInbox:
    """Unused pushes of one kind from one sender."""

    kept: dict[int, _Arrived] = field(default_factory=dict)
    latest: int = -1  # latest round of a push; ``used``: that of a used push
    used: int = -1

    def add(self, arrived: _Arrived, most: int) -> None:
        """Store a push, unless it is of a used round or older. For each round only the last push is
        stored, and only the latest ``most`` rounds are stored."""
        if arrived.round_id <= self.used:
            return
        self.kept[arrived.round_id] = arrived
        self.latest = max(self.latest, arrived.round_id)
        if len(self.kept) > most:
            del self.kept[min(self.kept)]

    def pop_push(self, round_id: int, staleness_max: int, is_source: bool) -> _Arrived | None:
        """Remove and return the push for the round ``round_id``: the newest push that is not too
        old. If there is none and the sender is a source, return its first push of a later round."""
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
    """The present round of a peer. ``expected`` is kind -> sender -> push that the rule has to
    receive, and is set when the round is closed."""

    round_id: int
    sources: tuple[PeerId, ...]
    own: Contributed | None = None
    late: bool = False
    expected: dict[Kind, dict[PeerId, _Arrived]] | None = None
    asked: dict[Kind, bool] = field(default_factory=dict)
    # Peers that were released from quarantine at the end of this round.
    released: list[PeerId] = field(default_factory=list)


class AggregatesMatchPushes(Checker):
    """S11, in gossip rounds: the next aggregate is computed from the local update and the received
    pushes that the plan allows, each used once, and from nothing else. A round is closed when all
    expected pushes have arrived, or after its grace period."""

    invariant = "S11"
    needs = "gossip"
    _inboxes = PerIncarnation(dict[PeerId, dict[Kind, PushInbox]])
    _lives = PerIncarnation(dict[PeerId, int])  # sender -> latest incarnation that has pushed
    _round = PerIncarnation[_ExchangeRound | None]()

    @on_event
    def record_contribution(self, event: Contributed) -> None:
        doing, rounds = self._round, self.gossip
        if (
            doing is not None
            and doing.round_id == event.round_id == rounds.round_id
            and rounds.phase == "computing"
        ):
            doing.own = event

    @on_event
    def record_push(self, event: Received, push: Push) -> None:
        core = self.core
        sender = event.sender
        inboxes, lives = self._inboxes, self._lives
        if core.phase in ("unprepared", "halted") or push.lineage != core.settings.lineage:
            return
        if sender == self.peer or not self._is_accepted(event):
            return
        life = lives.get(sender, 0)
        if event.incarnation < life or not _may_push(core, sender, push.round_id):
            return
        if event.incarnation > life or sender not in inboxes:
            lives[sender] = event.incarnation
            inboxes[sender] = {"gradient": PushInbox(), "parameters": PushInbox()}
        staleness = core.settings.gossip.staleness_max
        if push.round_id < core.rounds.round_id - staleness:
            return
        payload = event.payload if event.payload is not None and event.payload.finite else None
        if payload is not None and sender not in self.conditions.equivocating:
            self._judge_content(sender, push, payload)
        arrived = _Arrived(push.round_id, push.samples, payload)
        inboxes[sender][push.what].add(arrived, staleness + 1)

    def _is_accepted(self, event: Received) -> bool:
        """Whether the sender may be a peer of this run, and no later incarnation of the sender has
        sent a message or has been known for some time."""
        member = self.core.membership.members.get(event.sender)
        if not self.core.settings.may_be(event.sender):
            return False
        if member is None or event.incarnation >= member.incarnation:
            return True
        return not member.spoken and self.clock_s - member.known_since >= LAST_WORDS_S

    def _judge_content(self, sender: PeerId, push: Push, payload: Payload) -> None:
        contributed = self.contributions.of(sender, push.round_id)
        if contributed:
            content = payload.data.tobytes()
            self.demand(
                any(content == _pushed(each, push.what) for each in contributed),
                f"receives from peer {sender} a {push.what} of round {push.round_id} that its "
                "trainer has never contributed",
            )

    @on_effect
    def judge_start(self, start: StartRound) -> None:
        doing, rounds = self._round, self.gossip
        round_id = start.round_id
        if doing is None or doing.round_id != round_id:
            named = sources_of(self.core, round_id)
            self.demand(
                rounds.sources == named,
                f"expects pushes of peers {list(rounds.sources)} in round {round_id}, but its "
                f"plan names {list(named)}",
            )
        elif doing.own is None:
            return  # the same round is started again, with samples
        self._round = _ExchangeRound(round_id, rounds.sources)

    @on_report("parole")
    def record_release(self, report: Report) -> None:
        doing = self._round
        if doing is not None and doing.expected is None:
            # The released peer was still in quarantine while pushes for this round were collected.
            doing.released.append(report.fields["subject"])

    @on_report("late")
    def judge_grace(self, report: Report) -> None:
        """Judge a round that was closed after its grace period: each missing peer could be expected
        to push."""
        doing, missing = self._round, report.fields["missing"]
        if doing is None:
            return
        doing.late = True
        # This event may also have put a peer into quarantine. The wait for this peer was right.
        fresh = {
            asked.fields["subject"]
            for asked in self.swarm.dispatcher.effects
            if isinstance(asked, Report) and asked.event == "quarantined"
        }
        worth = {
            source
            for source in doing.sources
            if source in fresh or may_still_push(self.core, self.gossip, source)
        }
        vain = [source for source in missing if source not in worth]
        self.demand(
            bool(missing) and not vain,
            f"has waited in round {doing.round_id} for peers {vain}, which have nothing to push",
        )

    def _closed(self, round_id: int) -> _ExchangeRound | None:
        """Return the present round of the peer, and close it if it is open. Return None if
        ``round_id`` is another round."""
        doing = self._round
        if doing is None or doing.round_id != round_id:
            return None
        if doing.expected is None:
            doing.expected = self._close(doing)
        return doing

    def _close(self, doing: _ExchangeRound) -> dict[Kind, dict[PeerId, _Arrived]]:
        core = self.core
        rounds = self.gossip
        settings = core.settings.gossip
        mixes = doing.round_id % settings.mix_every == settings.mix_every - 1
        kinds: tuple[Kind, ...] = ("gradient", "parameters") if mixes else ("gradient",)
        doing.late |= self._is_far_behind(doing.round_id)
        for source in doing.sources:
            delivered = all(self._has_delivered(source, kind, doing.round_id) for kind in kinds)
            excused = doing.late or delivered or source in doing.released
            self.demand(
                excused or not may_still_push(core, rounds, source),
                f"continues in round {doing.round_id} without peer {source}, which is reachable, "
                "before its grace period is over",
            )
        barred, found = {*rounds.trust.quarantined(), *doing.released}, {}
        for kind in kinds:
            taken = {
                sender: boxes[kind].pop_push(
                    doing.round_id, settings.staleness_max, sender in doing.sources
                )
                for sender, boxes in sorted(self._inboxes.items())
            }
            usable = {
                sender: each
                for sender, each in taken.items()
                if each is not None and each.payload is not None
            }
            others = {sender: each for sender, each in usable.items() if sender not in barred}
            own = self._own_row(doing, kind) is not None
            needed = core.settings.updates_needed(core.settings.f) - own
            needs_all = (others or own) and len(others) < needed <= len(usable)
            found[kind] = usable if needs_all else others
        return found

    def _has_delivered(self, sender: PeerId, kind: Kind, round_id: int) -> bool:
        """Whether ``sender`` will send no further push for this round: its push has arrived, or a
        push of a later round has, and pushes arrive in order."""
        boxes = self._inboxes.get(sender)
        if boxes is None:
            return False
        return (
            boxes[kind].latest >= round_id or max(box.latest for box in boxes.values()) > round_id
        )

    def _own_row(self, doing: _ExchangeRound, kind: Kind) -> Row | None:
        """Return the local row of the rule, or None if the trainer has contributed none."""
        own = doing.own
        if own is None:
            return None
        if kind == "parameters":
            parameters = own.own_parameters or own.parameters
            return None if parameters is None else Row(self.peer, parameters, 1)
        if not own.samples or not own.payloads:
            return None
        return Row(self.peer, own.own or own.payloads[0], own.samples)

    def _is_far_behind(self, round_id: int) -> bool:
        """Whether more than f other peers are so far ahead that this peer skips rounds."""
        members = set(members_of(self.core)) - {self.peer}
        reached = [
            max(box.latest for box in boxes.values())
            for sender, boxes in self._inboxes.items()
            if sender in members
        ]
        return sum(at > round_id + 1 + STASH_ROUNDS for at in reached) > self.core.settings.f

    @on_effect
    def judge_rows(self, ask: Aggregate) -> None:
        kind: Kind = "parameters" if ask.mix else "gradient"
        if (doing := self._closed(ask.round_id)) is None or doing.expected is None:
            return
        doing.asked[kind] = True
        expected = [
            Row(sender, each.payload, each.samples if kind == "gradient" else 1)
            for sender, each in doing.expected.get(kind, {}).items()
            if each.payload is not None
        ]
        own = self._own_row(doing, kind)
        if own is not None:
            expected.append(own)
        expected.sort(key=lambda row: row.peer)
        self.demand(
            [*map(_identity, expected)] == [*map(_identity, ask.rows)],
            f"round {doing.round_id}: the rows of {kind} are {_row_names(ask.rows)}; arrived or "
            f"own are {_row_names(expected)}",
        )

    @on_effect
    def judge_apply(self, apply: Apply) -> None:
        if (doing := self._closed(apply.round_id)) is None or doing.expected is None:
            return
        for kind, senders in doing.expected.items():
            needs_own = kind == "parameters" and self._own_row(doing, kind) is None
            if senders and not doing.asked.get(kind) and not needs_own:
                raise self.violated(
                    f"applies round {doing.round_id} without the {kind} of peers {list(senders)}, "
                    "which has arrived"
                )


def _identity(row: Row) -> tuple[PeerId, int, int]:
    """Return values that are equal for equal rows; payloads are compared by identity."""
    return row.peer, row.samples, id(row.payload)


def _row_names(rows: Collection[Row]) -> list[tuple[PeerId, int]]:
    return [(row.peer, row.samples) for row in rows]


def _pushed(event: Contributed, kind: Kind) -> bytes:
    """Return the content of the update or of the parameters that a trainer has contributed."""
    payloads = (event.parameters,) if kind == "parameters" else event.payloads[:1]
    return b"".join([payload.data.tobytes() for payload in payloads if payload is not None])
