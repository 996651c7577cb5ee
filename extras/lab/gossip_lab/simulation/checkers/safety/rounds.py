"""S8-S10: what is applied, and that everybody applies the same."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from gossip.core import (
    Aggregate,
    Apply,
    Commit,
    Committed,
    Effect,
    Event,
    Hello,
    Inspection,
    Payload,
    PeerId,
    Push,
    Received,
    Report,
    Restore,
    Restored,
    RollingInspection,
    Send,
    StartRound,
    Update,
    chain_hash,
)
from gossip_lab.simulation.checkers.base import (
    REFUSALS,
    Checker,
    Life,
    TaintedStates,
    life_of,
    lose_start,
    updates_needed,
)
from gossip_lab.simulation.checkers.disturbances import DisturbedChecker
from gossip_lab.simulation.world import AnySwarm, ToyTrainer

RECENT_PUSHES = 512
FORKS_AFTER_S = 6.5
"""Two round timeouts and the messages between: later than that after the network was uneven no
second commit of a round comes. Who slept through it goes from attempt to attempt until a server
gives it the commit again (seed 1980: 6.02 s)."""


def rule_has_enough(core: Inspection, here: Collection[PeerId]) -> bool:
    """Whether the rule can make something of the updates of those who are ``here``; if not, a
    quorum of ``majority`` waits."""
    rounds = core.rolling
    if rounds is None or core.settings.rounds.quorum == "available":
        return True
    proven = rounds.replicated.trust.proven()
    return sum(peer not in proven for peer in here) >= updates_needed(
        core.settings, rounds.roster, proven
    )


def rolling_of(core: Inspection | None) -> RollingInspection | None:
    """The rolling rounds of a core, when it has such."""
    return core.rolling if core is not None else None


@dataclass(slots=True)
class _Place:
    """Position of a life in its history. ``restored`` is the next round of a state that was loaded
    and is not adopted yet."""

    next_round: int
    head: bytes
    restored: int | None = None


class AppliedOnce(Checker):
    """S8: a life applies every round of its lineage once and in order, each chained to the one
    before, and is told to compute each round once.

    In gossip rounds, which may be passed over, the rounds that a life applies ascend.
    """

    invariant = "S8"
    events = (Restored,)
    effects = (Committed, Apply, StartRound, Restore, Report)
    afters = (Restored,)

    def make_records(self) -> None:
        self._places: dict[PeerId, _Place] = {}
        self._pending = self.per_life(list[Committed])
        self._chains: dict[bytes, tuple[Commit, ...]] = {}
        self._told: dict[PeerId, StartRound] = self.per_life()

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._places[peer] = _Place(0, b"")

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Restored) and not event.error:
            self._places[peer].restored = event.round_id

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Restored):
            self._places[peer].restored = None

    def _settle(self, swarm: AnySwarm, peer: PeerId) -> None:
        """The state that was loaded is adopted. What was kept for its next rounds may be applied
        with the same event."""
        place, core = self._places[peer], swarm.inspections.get(peer)
        if place.restored is None or core is None:
            return
        place.next_round, place.restored = place.restored, None
        if isinstance(core.rounds, RollingInspection):
            place.head = core.rounds.replicated.lineage.at(place.next_round - 1) or b""

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Committed):
            self._pending[peer].append(effect)
        elif isinstance(effect, Restore):
            self._told.pop(peer, None)  # from another state the same round is another one
        elif isinstance(effect, StartRound):
            self._on_start_round(swarm, peer, effect)
        elif isinstance(effect, Report):
            if effect.event == "restored":
                self._settle(swarm, peer)
            elif effect.event == "stage_rebuilt":
                self._places[peer].restored = effect.fields["round"]
                self._settle(swarm, peer)
            elif (
                effect.event == "ready"
                and (rounds := rolling_of(swarm.inspections.get(peer))) is not None
            ):
                self._places[peer].head = rounds.chain
        elif isinstance(effect, Apply):
            self._on_apply(swarm, peer, effect.round_id)

    def _on_start_round(self, swarm: AnySwarm, peer: PeerId, told: StartRound) -> None:
        before, self._told[peer] = self._told.get(peer), told
        # It may be told again when it becomes known which samples the round has.
        self.judged += 1
        if not (
            before is None
            or told.round_id > before.round_id
            or (before.samples is None) > (told.samples is None)
        ):
            raise self.violated(
                swarm, peer, f"tells its trainer to compute round {told.round_id} again"
            )

    def _on_apply(self, swarm: AnySwarm, peer: PeerId, round_id: int) -> None:
        place = self._places[peer]
        rolling = rolling_of(swarm.inspections.get(peer)) is not None
        self.judged += 1
        if round_id < place.next_round or (rolling and round_id > place.next_round):
            raise self.violated(
                swarm, peer, f"applies round {round_id}, and {place.next_round} is next"
            )
        if rolling:
            place.head = self._follow(swarm, peer, round_id, place.head)
        place.next_round = round_id + 1

    def _follow(self, swarm: AnySwarm, peer: PeerId, round_id: int, head: bytes) -> bytes:
        done, self._pending[peer] = self._pending[peer], []
        if not done:
            raise self.violated(swarm, peer, f"applies round {round_id} without a commit")
        for shard, committed in enumerate(done):
            commit = committed.commit
            if (commit.round_id, commit.shard, commit.parent) != (round_id, shard, head):
                where = f"round {commit.round_id}, shard {commit.shard} upon {commit.parent.hex()}"
                raise self.violated(
                    swarm,
                    peer,
                    f"commits {where}; next is round {round_id}, shard {shard} upon {head.hex()}",
                )
        chain, commits = done[0].chain, tuple(committed.commit for committed in done)
        known = self._chains.get(chain)
        if known is None:
            self.demand(
                chain_hash(head, commits) == chain,
                swarm,
                peer,
                f"round {round_id} does not hash to {chain.hex()}",
            )
            self._chains[chain] = commits
        elif len(known) != len(commits) or any(
            not _is_same(a, b) for a, b in zip(known, commits, strict=True)
        ):
            raise self.violated(
                swarm,
                peer,
                f"holds other commits of round {round_id} than others under one hash, "
                f"{chain.hex()}",
            )
        return chain


def _is_same(a: Commit, b: Commit) -> bool:
    """Whether they differ in nothing but the attempt that they were sent under."""
    return a is b or replace(a, attempt=b.attempt) == b


class UsedOnce(Checker):
    """S8, of gossip rounds: no push goes into two aggregates of one life,
    however often it arrives."""

    invariant = "S8"
    events = (Push,)
    effects = (Aggregate,)

    def make_records(self) -> None:
        self._came = self.per_life(dict[int, tuple[Payload, tuple[PeerId, int, str, int]]])
        self._used = self.per_life(dict[tuple[PeerId, int, str, int], int])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if (
            isinstance(event, Received)
            and isinstance(event.message, Push)
            and event.payload is not None
        ):
            came, push = self._came[peer], event.message
            # The payload is kept too, or another one could get its id.
            came[id(event.payload)] = (
                event.payload,
                (event.sender, event.incarnation, push.what, push.round_id),
            )
            if len(came) > RECENT_PUSHES:
                del came[next(iter(came))]

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if (
            not isinstance(effect, Aggregate)
            or swarm.inspections.get(peer) is None
            or rolling_of(swarm.inspections.get(peer)) is not None
        ):
            return
        used = self._used[peer]
        for row in effect.rows:
            _, push = self._came[peer].get(id(row.payload), (None, None))
            if push is None:
                continue  # its own
            self.judged += 1
            if push in used:
                sender, _, what, round_id = push
                text = (
                    f"peer {sender}'s {what} of round {round_id} goes into round "
                    f"{effect.round_id} and went into {used[push]}"
                )
                raise self.violated(swarm, peer, text)
            used[push] = effect.round_id
            if len(used) > RECENT_PUSHES:
                del used[next(iter(used))]


PARAMETERS, AGREED = "parameters", "roster, trust or data cursor"


class IdenticalReplicas(Checker):
    """S9: whoever holds the same round with the same history holds the same parameters, roster,
    trust and data cursor, to the last bit."""

    invariant = "S9"
    effects = (Apply, Restore)
    afters = (Restored,)

    def make_records(self) -> None:
        self._misled = TaintedStates(self.circumstances)
        # what it is -> round and history -> it, and who held it first
        self._known: dict[str, dict[tuple[int, bytes], tuple[Any, PeerId]]] = {
            PARAMETERS: {},
            AGREED: {},
        }

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._misled.forget(peer)

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        lose_start(self._known[PARAMETERS], swarm, peer)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Apply):
            self._compare(swarm, peer)  # before it is applied: what the rounds before have made
        elif isinstance(effect, Restore):
            self._misled.restores(swarm, peer)

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Restored):
            self._compare(swarm, peer)

    def finish(self, swarm: AnySwarm) -> None:
        """Compares what every running peer holds at the end."""
        for peer in swarm.up:
            self._compare(swarm, peer)

    def _compare(self, swarm: AnySwarm, peer: PeerId) -> None:
        core, trainer = swarm.inspections.get(peer), swarm.hosts[peer].trainer
        rounds = core.rolling if core is not None else None
        if (
            core is None
            or rounds is None
            or core.phase not in ("running", "draining")
            or not isinstance(trainer, ToyTrainer)
        ):
            return
        if peer in self._misled:
            return
        lineage = rounds.replicated.lineage
        if (chain := lineage.at(trainer.next_round - 1)) is not None:
            self._same(swarm, peer, PARAMETERS, (trainer.next_round, chain), trainer.digest)
        if (kept := rounds.snapshot(rounds.round_id)) is not None:
            self._same(swarm, peer, AGREED, (rounds.round_id, kept[0]), kept[1])

    def _same(
        self, swarm: AnySwarm, peer: PeerId, what: str, key: tuple[int, bytes], value: Any
    ) -> None:
        first, holder = self._known[what].setdefault(key, (value, peer))
        if holder != peer or first is not value:
            self.judged += 1
            if first != value:
                text = (
                    f"before round {key[0]} upon {key[1].hex()} its {what} differ from peer "
                    f"{holder}'s"
                )
                raise self.violated(swarm, peer, f"{text}: {_short(value)}, there {_short(first)}")


def _short(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)[:400]


@dataclass(frozen=True, slots=True)
class _Promise:
    """Attempt of a peer at a shard when a commit arrives, and the attempt of this commit
    (``offered``)."""

    round_id: int
    shard: int
    attempt: int
    offered: int
    may_reissue: bool  # it serves that attempt


def _with_newcomers(swarm: AnySwarm, core: Inspection, rounds: RollingInspection, need: int) -> int:
    """How many must answer where newcomers stand in for those of the roster who have ended:
    all who have not."""
    left = [
        p
        for p in rounds.roster
        if not (core.membership.has_ended(p) and not swarm.hosts[p].running)
    ]
    newcomers = [
        p
        for p in rounds.joining
        if p not in rounds.roster and p in swarm.hosts and swarm.hosts[p].running
    ]
    return max(1, len(left)) if len(left) < need <= len(left) + len(newcomers) else need


class OneHistory(DisturbedChecker):
    """S10: at most one digest of a round is committed.

    Wherever commits can get lost between the living, two may come to be and be healed. What then
    still holds, always: a server makes one commit an attempt, in its turn, with the answers of a
    quorum and of as many as the rule needs, unless it lets somebody in or out, or some of a quorum
    keep to a result that it has refused, and nobody else can come; and nobody who has promised a
    later attempt takes a commit of an earlier one, be it its own. Of those who have said that they
    leave no majority is needed: so none of them has answered in a round from that one on.
    """

    invariant = "S10"
    events = (Commit,)
    effects = (Update, Aggregate, Committed, StartRound, Hello, Report)
    afters = (Commit,)

    def make_records(self) -> None:
        self._calm_at: float | None = None
        self._promised: dict[PeerId, _Promise] = self.per_life()
        self._offered = self.per_life(dict[tuple[int, int, bytes], int])
        self._leaves: dict[PeerId, int] = self.per_life()  # before which round each said it did
        # in which round and shard, by whom handed over
        self._refused = self.per_life(dict[tuple[int, int], set[PeerId]])
        self._made: dict[tuple[bytes, int, int, int], tuple[Life, bytes]] = {}
        self._applied: dict[
            tuple[bytes, int, int], dict[bytes, PeerId]
        ] = {}  # parent, round, shard -> digest -> who had it first
        self._orders: dict[tuple[int, bytes], tuple[tuple[PeerId, ...], ...]] = {}
        self._began_at: dict[tuple[int, bytes], float] = {}  # with the first who was in it

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if not isinstance(event, Received) or not isinstance(event.message, Commit):
            return
        rounds, commit = rolling_of(swarm.inspections.get(peer)), event.message
        self._promised.pop(peer, None)
        if (
            rounds is None
            or commit.round_id != rounds.round_id
            or commit.shard >= len(rounds.shards)
        ):
            return
        shard = rounds.shards[commit.shard]
        if shard.commit is None:
            may_reissue = shard.server_of(shard.attempt) == peer
            self._promised[peer] = _Promise(
                commit.round_id, commit.shard, shard.attempt, commit.attempt, may_reissue
            )

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        promise = self._promised.pop(peer, None)
        rounds = rolling_of(swarm.inspections.get(peer)) if promise is not None else None
        if promise is None or rounds is None or not rounds.shards:
            return
        if rounds.round_id > promise.round_id or rounds.shards[promise.shard].commit is not None:
            self.judged += 1
            if promise.offered < promise.attempt and not promise.may_reissue:
                text = (
                    f"takes a commit of attempt {promise.offered} in round {promise.round_id}, "
                    f"shard {promise.shard}"
                )
                raise self.violated(
                    swarm, peer, f"{text}, although it has moved on to attempt {promise.attempt}"
                )

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        match effect:
            case Send(_, Update() as update):
                self._on_offer(swarm, peer, update)
            case Send(_, Hello(stage="leaving") as hello):
                self._leaves[peer] = hello.round_id
                self._judge_leave(swarm, peer)
            case Aggregate():
                self._on_aggregate(swarm, peer, effect)
            case Committed():
                self._on_committed(swarm, peer, effect)
            case StartRound():
                self._on_go(swarm, peer, effect)
            case Report():
                self._on_report(peer, effect)
            case _:
                return

    def _on_report(self, peer: PeerId, report: Report) -> None:
        refused, promise = self._refused[peer], self._promised.get(peer)
        if report.event == "attempt" and promise is not None:
            # It moved on before it looked at the commit, having stood still: as the server of that
            # attempt it may re-issue it.
            moved = report.fields["round"], report.fields["shard"]
            if moved == (promise.round_id, promise.shard) and report.fields["server"] == peer:
                self._promised[peer] = replace(promise, may_reissue=True)
        if report.event == "recovering":
            refused.clear()  # should it come back to its round, it has forgotten
        elif report.event in REFUSALS:
            where = report.fields["round"], report.fields["shard"]
            if any(round_id < where[0] for round_id, _ in refused):
                refused.clear()
            refused.setdefault(where, set()).add(report.fields["from"])

    def _on_offer(self, swarm: AnySwarm, peer: PeerId, update: Update) -> None:
        key, offered = (update.round_id, update.shard, update.parent), self._offered[peer]
        before = offered.get(key, 0)
        if key not in offered and len(offered) > RECENT_PUSHES:
            del offered[next(iter(offered))]
        offered[key] = update.attempt
        if update.attempt < before:
            text = (
                f"goes back to attempt {update.attempt} of round {update.round_id}, shard "
                f"{update.shard}, after {before}"
            )
            raise self.violated(swarm, peer, text)

    def _judge_leave(self, swarm: AnySwarm, peer: PeerId) -> None:
        answered = max((round_id for round_id, _, _ in self._offered[peer]), default=-1)
        self.judged += 1
        if answered >= self._leaves[peer]:
            text = (
                f"says that it leaves before round {self._leaves[peer]}, and has answered in "
                f"round {answered}"
            )
            raise self.violated(swarm, peer, text)

    def _on_aggregate(self, swarm: AnySwarm, peer: PeerId, ask: Aggregate) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        if (
            core is None
            or rounds is None
            or ask.round_id != rounds.round_id
            or ask.shard >= len(rounds.shards)
        ):
            return
        shard = rounds.shards[ask.shard]
        if shard.commit is not None or shard.served.ticket != ask.ticket:
            return  # answered within the same event
        where = f"round {ask.round_id}, shard {ask.shard}, attempt {shard.served.attempt}"
        gone = [
            p
            for p in rounds.roster
            if rounds.departures.leaves(p) and self._leaves.get(p, ask.round_id + 1) <= ask.round_id
        ]
        n = len(rounds.roster) - len(gone)
        need = 1 if n < 3 or core.settings.rounds.quorum == "available" else n // 2 + 1
        need = _with_newcomers(swarm, core, rounds, need)
        self.judged += 1
        refused = (
            self._refused[peer].get((ask.round_id, ask.shard), set()) if core.settings.f else set()
        )
        here = [p for p in rounds.roster if p in shard.served.answers or p in refused]
        away = [p for p in rounds.roster if p not in here and not core.membership.is_gone(p)]
        alone = len(here) > len(shard.served.answers) and (
            not away or shard.attempt >= len(shard.order)
        )
        if (present := len(here) if alone else len(shard.served.answers)) < need:
            raise self.violated(swarm, peer, f"closes {where} with {present} answers of {need}")
        if (
            not alone
            and rounds.joining <= set(rounds.roster)
            and not gone
            and core.settings.rounds.quorum == "majority"
        ):
            useful = sum(
                1 for sender in shard.served.answers if sender not in rounds.server.present.proven
            )
            need = updates_needed(core.settings, rounds.roster, rounds.server.present.proven)
            if useful < need:
                raise self.violated(
                    swarm,
                    peer,
                    f"closes {where} with {useful} answers, of which the rule makes nothing: it "
                    f"needs {need}",
                )
        for sender, (update, _) in shard.served.answers.items():
            fits = (update.round_id, update.shard, update.attempt, update.parent)
            if sender not in rounds.roster or fits != (
                ask.round_id,
                ask.shard,
                shard.served.attempt,
                rounds.chain,
            ):
                raise self.violated(
                    swarm,
                    peer,
                    f"closes {where} with an answer of peer {sender} that is not for it: {update}",
                )

    def _on_committed(self, swarm: AnySwarm, peer: PeerId, committed: Committed) -> None:
        commit = committed.commit
        promised = self._offered[peer].get((commit.round_id, commit.shard, commit.parent), 0)
        if commit.attempt < promised:
            whose = "its own commit" if committed.made else f"the commit of peer {commit.server}"
            text = (
                f"{_which(commit)}: holds {whose} of attempt {commit.attempt}, although it has "
                f"moved on to attempt {promised}"
            )
            raise self.violated(swarm, peer, text)
        if committed.made:
            life = life_of(swarm, peer)
            turn = (commit.parent, commit.round_id, commit.shard, commit.made_at)
            maker, digest = self._made.setdefault(turn, (life, commit.digest))
            if maker == life and digest != commit.digest:
                raise self.violated(
                    swarm,
                    peer,
                    f"makes two commits of {_which(commit)} in one attempt, {commit.made_at}",
                )
        orders = self._orders.get((commit.round_id, commit.parent))
        if orders is not None:
            order = orders[commit.shard]
            turn_of = order[commit.made_at % len(order)]
            if turn_of != commit.server:
                text = (
                    f"{_which(commit)} was made by peer {commit.server} in the turn of peer "
                    f"{turn_of}"
                )
                raise self.violated(swarm, peer, text)
        if peer in self.circumstances.equivocating or self._slept_through(swarm, peer, commit):
            return
        known = self._applied.setdefault((commit.parent, commit.round_id, commit.shard), {})
        self.judged += 1
        # a second one that was excused when it came out may be taken by others later
        if commit.digest not in known:
            if known and not self._may_fork(swarm):
                digest, holder = next(iter(known.items()))
                text = (
                    f"{_which(commit)}: digest {commit.digest.hex() or 'none'} here, "
                    f"{digest.hex() or 'none'} at peer {holder}"
                )
                raise self.violated(swarm, peer, text)
            known[commit.digest] = peer

    def _may_fork(self, swarm: AnySwarm) -> bool:
        """Whether commits could get lost between the living just now, or so little ago that one of
        them may come out yet."""
        circumstances = self.circumstances
        if not circumstances.forks:
            return False
        if circumstances.forking_lies and (
            self._calm_at is None or swarm.now - self._calm_at <= FORKS_AFTER_S
        ):
            # a lie may come out long after it was told,
            # but not after all have compared what they hold
            return True
        return swarm.now - self.disturbances.uneven_until <= FORKS_AFTER_S

    def _slept_through(self, swarm: AnySwarm, peer: PeerId, commit: Commit) -> bool:
        """Whether ``peer`` stood still while the others refused this result of a liar, which shows
        it as it is to whoever comes back into that round (seed 20340163)."""
        circumstances = self.circumstances
        if commit.server not in circumstances.equivocating or not circumstances.splitting_lies:
            return False
        if self._calm_at is not None and swarm.now - self._calm_at > FORKS_AFTER_S:
            return False
        woke_at, _ = self.disturbances.slept(swarm, peer)
        return woke_at > self._began_at.get((commit.round_id, commit.parent), swarm.now)

    def begin_calm(self, swarm: AnySwarm) -> None:
        self._calm_at = swarm.now

    def _on_go(self, swarm: AnySwarm, peer: PeerId, go: StartRound) -> None:
        rounds = rolling_of(swarm.inspections.get(peer))
        if rounds is None or rounds.round_id != go.round_id or not rounds.shards:
            return
        orders = tuple(shard.order for shard in rounds.shards)
        known = self._orders.setdefault((go.round_id, rounds.chain), orders)
        self._began_at.setdefault((go.round_id, rounds.chain), swarm.now)
        self.judged += 1
        if known != orders:
            raise self.violated(
                swarm,
                peer,
                f"has another order of servers in round {go.round_id}: {orders}, others {known}",
            )


def _which(commit: Commit) -> str:
    return f"round {commit.round_id}, shard {commit.shard} upon {commit.parent.hex()}"
