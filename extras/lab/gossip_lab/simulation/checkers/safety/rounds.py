"""S8-S10: every peer applies each round once, and all peers apply the same rounds."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from gossip.core import (
    Aggregate,
    Apply,
    Commit,
    Committed,
    Hello,
    PeerId,
    Received,
    Report,
    Restore,
    Restored,
    Send,
    StartRound,
    Update,
    chain_hash,
)
from gossip_lab.inspection import Inspection, RollingInspection
from gossip_lab.simulation.checkers.base import (
    Checker,
    IncarnationId,
    PerIncarnation,
    after_event,
    around_event,
    keep_latest,
    on_effect,
    on_event,
    on_report,
    updates_needed,
)
from gossip_lab.simulation.world import AnySwarm, ToyTrainer

OFFERS_KEPT = 512
FORKS_AFTER_S = 6.5
"""Time after which no second commit of a round appears, counted from the last time at which the
network treated messages unequally: two round timeouts and some messages. A peer that was paused
goes through the attempts until a server sends it the commit again (seed 1980: 6.02 s)."""


def rule_has_enough(core: Inspection, here: Collection[PeerId]) -> bool:
    """Whether the updates of the peers in ``here`` are enough for the rule. If not, rounds with the
    quorum ``majority`` wait."""
    rounds = core.rolling
    if rounds is None or core.settings.rounds.quorum == "available":
        return True
    proven = rounds.replicated.trust.proven()
    return sum(peer not in proven for peer in here) >= updates_needed(
        core.settings, rounds.roster, proven
    )


class RoundsAppliedOnce(Checker):
    """S8: an incarnation applies every round of its lineage once and in order. Each round is
    chained to the previous round by its hash. The trainer is requested to compute each round once.

    In gossip rounds an incarnation may skip rounds, so the applied rounds only have to ascend.
    """

    invariant = "S8"
    _next_round = PerIncarnation(int)
    _head = PerIncarnation(bytes)
    # Next round of a state that was loaded but not adopted yet.
    _restored = PerIncarnation[int | None]()
    _started = PerIncarnation[StartRound | None]()

    def make_records(self) -> None:
        self._chains: dict[bytes, tuple[Commit, ...]] = {}

    @on_event
    def record_restored(self, event: Restored) -> None:
        if not event.error:
            self._restored = event.round_id

    @after_event
    def drop_restored(self, event: Restored) -> None:
        self._restored = None

    @on_report("restored")
    def settle(self, report: Report) -> None:
        """Record that the peer adopted a loaded state. Stored commits of the next rounds may be
        applied within the same event."""
        if self._restored is None:
            return
        self._next_round, self._restored = self._restored, None
        if (rounds := self.core.rolling) is not None:
            self._head = rounds.replicated.lineage.at(self._next_round - 1) or b""

    @on_report("stage_rebuilt")
    def settle_rebuilt(self, report: Report) -> None:
        self._restored = report.fields["round"]
        self.settle(report)

    @on_report("ready")
    def record_beginning(self, report: Report) -> None:
        if (rounds := self.core.rolling) is not None:
            self._head = rounds.chain

    @on_effect
    def forget_round(self, effect: Restore) -> None:
        self._started = None  # after a restore, the same round is computed from another state

    @on_effect
    def judge_start(self, start: StartRound) -> None:
        before, self._started = self._started, start
        # A round that was started without samples may be started again with samples.
        self.demand(
            before is None
            or start.round_id > before.round_id
            or (before.samples is None) > (start.samples is None),
            f"has its trainer compute round {start.round_id} again",
        )

    @on_effect
    def judge_apply(self, apply: Apply) -> None:
        round_id, due = apply.round_id, self._next_round
        rolling = self.core.rolling is not None
        self.demand(
            round_id == due or (not rolling and round_id > due),
            f"applies round {round_id}, but {due} is next",
        )
        if rolling:
            self._head = self._follow(round_id, self._head)
        self._next_round = round_id + 1

    def _follow(self, round_id: int, head: bytes) -> bytes:
        done = self.commits
        if not done:
            raise self.violated(f"applies round {round_id} without a commit")
        for shard, committed in enumerate(done):
            commit = committed.commit
            if (commit.round_id, commit.shard, commit.parent) != (round_id, shard, head):
                raise self.violated(
                    f"commits {_label(commit)}; next is round {round_id}, shard {shard} upon "
                    f"{head.hex()}"
                )
        chain = done[0].chain
        commits = tuple(committed.commit for committed in done)
        known = self._chains.get(chain)
        if known is None:
            self.demand(
                chain_hash(head, commits) == chain,
                f"round {round_id} does not hash to {chain.hex()}",
            )
            self._chains[chain] = commits
        elif len(known) != len(commits) or not all(map(_is_same, known, commits)):
            raise self.violated(
                f"holds commits of round {round_id} that differ under one hash, {chain.hex()}"
            )
        return chain


def _is_same(a: Commit, b: Commit) -> bool:
    """Whether the commits differ only in the attempt under which they were sent."""
    return a is b or replace(a, attempt=b.attempt) == b


PARAMETERS, AGREED = "parameters", "roster, trust or data cursor"


class IdenticalReplicas(Checker):
    """S9: peers in the same round with the same history have bitwise equal parameters, rosters,
    trust and data cursors."""

    invariant = "S9"
    needs = "rolling"

    def make_records(self) -> None:
        # Kind -> (round, hash of the history) -> (value, first peer with it).
        self._known: dict[str, dict[tuple[int, bytes], tuple[Any, PeerId]]] = {
            PARAMETERS: {},
            AGREED: {},
        }

    def end_incarnation(self) -> None:
        """Drop recorded initial states that no running peer has. The only holder of the initial
        state may die before the first round ends; the remaining peers then begin with another
        initial state."""
        others = [other for other in self.swarm.up if other != self.peer]
        cores = [self.swarm.inspections[p] for p in others if p in self.swarm.inspections]
        if any(core.rounds.round_id > 0 for core in cores):
            return
        held = [getattr(self.swarm.hosts[other].trainer, "digest", None) for other in others]
        known = self._known[PARAMETERS]
        for key in [key for key, (value, _) in known.items() if key[0] == 0 and value not in held]:
            del known[key]

    @on_effect
    def compare_before(self, effect: Apply) -> None:
        self._compare()  # state before the round is applied

    @after_event
    def compare_restored(self, event: Restored) -> None:
        self._compare()

    def finish(self) -> None:
        """Compare the states of all running peers at the end."""
        for peer in self.swarm.up:
            core = self.swarm.inspections.get(peer)
            if core is not None and core.rolling is not None:
                self.select_peer(self.swarm, peer)
                self._compare()

    def _compare(self) -> None:
        trainer, rounds = self.trainer, self.rolling
        if self.core.phase not in ("running", "draining") or not isinstance(trainer, ToyTrainer):
            return
        if self.peer in self.tainted:
            return
        lineage = rounds.replicated.lineage
        if (chain := lineage.at(trainer.next_round - 1)) is not None:
            self._same(PARAMETERS, (trainer.next_round, chain), trainer.digest)
        if (kept := rounds.snapshot(rounds.round_id)) is not None:
            self._same(AGREED, (rounds.round_id, kept[0]), kept[1])

    def _same(self, what: str, key: tuple[int, bytes], value: Any) -> None:
        first, holder = self._known[what].setdefault(key, (value, self.peer))
        if holder != self.peer or first is not value:
            self.judged += 1
            if first != value:
                text = (
                    f"before round {key[0]} upon {key[1].hex()} its {what} differ from peer "
                    f"{holder}'s"
                )
                raise self.violated(f"{text}: {_short(value)}, there {_short(first)}")


def _short(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)[:400]


def _with_newcomers(swarm: AnySwarm, core: Inspection, rounds: RollingInspection, need: int) -> int:
    """Return the number of replies that a server must wait for: ``need``, or fewer if running
    newcomers can replace ended members of the roster. In this case the replies of all members that
    have not ended are enough."""
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


class SingleCommitPerRound(Checker):
    """S10: for each round, at most one digest is committed.

    If commits can be lost between running peers, two digests may be committed, and the fork is
    healed later. The following always holds:

    - A server makes one commit per attempt, in its turn, with the replies of a quorum and of as
      many peers as the rule needs. There are two exceptions. A round that lets a peer join or leave
      may have fewer replies than the rule needs. Peers that hold a result that the server has
      rejected count towards its quorum if no other peer can reply.
    - A peer that has moved on to a later attempt accepts no commit of an earlier attempt, not even
      its own.
    - Peers that have announced to leave before a round do not count towards its majority. So they
      have not replied in this or a later round.
    """

    invariant = "S10"
    needs = "rolling"
    _offered = PerIncarnation(dict[tuple[int, int, bytes], int])

    def make_records(self) -> None:
        # Peer -> round before which it has announced to leave.
        self._announced_leaves: dict[PeerId, int] = self.per_incarnation({})
        self._made: dict[tuple[bytes, int, int, int], tuple[IncarnationId, bytes]] = {}
        self._applied: dict[
            tuple[bytes, int, int], dict[bytes, PeerId]
        ] = {}  # (parent, round, shard) -> digest -> first peer with it
        self._orders: dict[tuple[int, bytes], tuple[tuple[PeerId, ...], ...]] = {}
        self._began_at: dict[tuple[int, bytes], float] = {}  # time at which the first peer began it

    @around_event
    def judge_acceptance(self, event: Received, commit: Commit) -> Iterator[None]:
        rounds = self.rolling
        if commit.round_id != rounds.round_id or commit.shard >= len(rounds.shards):
            return
        shard = rounds.shards[commit.shard]
        if shard.commit is not None:
            return
        attempt = shard.attempt
        may_reissue = shard.server_of(attempt) == self.peer
        yield
        rounds = self.rolling
        if not rounds.shards or (
            rounds.round_id <= commit.round_id and rounds.shards[commit.shard].commit is None
        ):
            return
        # A peer that was paused moves on to a later attempt before it handles the commit. If the
        # peer is the server of the later attempt, it may send the commit again in this attempt.
        moved = {"round": commit.round_id, "shard": commit.shard, "server": self.peer}
        self.demand(
            commit.attempt >= attempt
            or may_reissue
            or any(
                isinstance(effect, Report)
                and effect.event == "attempt"
                and moved.items() <= effect.fields.items()
                for effect in self.swarm.dispatcher.effects
            ),
            f"accepts a commit of attempt {commit.attempt} in round {commit.round_id}, shard "
            f"{commit.shard}, although it has moved on to attempt {attempt}",
        )

    @on_effect
    def judge_offer(self, send: Send, update: Update) -> None:
        key = (update.round_id, update.shard, update.parent)
        offered = self._offered
        before, offered[key] = offered.get(key, 0), update.attempt
        keep_latest(offered, OFFERS_KEPT)
        if update.attempt < before:
            raise self.violated(
                f"goes back to attempt {update.attempt} of round {update.round_id}, shard "
                f"{update.shard}, after {before}"
            )

    @on_effect
    def judge_leave(self, send: Send, hello: Hello) -> None:
        if hello.stage == "leaving":
            self._announced_leaves[self.peer] = hello.round_id
            answered = max((round_id for round_id, _, _ in self._offered), default=-1)
            self.demand(
                answered < hello.round_id,
                f"announces to leave before round {hello.round_id}, but has replied in round "
                f"{answered}",
            )

    @on_effect
    def judge_close(self, ask: Aggregate) -> None:
        core, rounds = self.core, self.rolling
        if ask.round_id != rounds.round_id or ask.shard >= len(rounds.shards):
            return
        shard = rounds.shards[ask.shard]
        if shard.commit is not None or shard.served.ticket != ask.ticket:
            return  # already finished in this event
        answers = shard.served.answers
        closes = f"closes round {ask.round_id}, shard {ask.shard}, attempt {shard.served.attempt}"
        gone = [
            p
            for p in rounds.roster
            if rounds.departures.leaves(p)
            and self._announced_leaves.get(p, ask.round_id + 1) <= ask.round_id
        ]
        n = len(rounds.roster) - len(gone)
        need = 1 if n < 3 or core.settings.rounds.quorum == "available" else n // 2 + 1
        need = _with_newcomers(self.swarm, core, rounds, need)
        refused = self.rejected_senders((ask.round_id, ask.shard))
        here = [p for p in rounds.roster if p in answers or (core.settings.f and p in refused)]
        away = [p for p in rounds.roster if p not in here and not core.membership.is_gone(p)]
        alone = len(here) > len(answers) and (not away or shard.attempt >= len(shard.order))
        present = len(here) if alone else len(answers)
        self.demand(present >= need, f"{closes} with {present} replies, but needs {need}")
        is_plain = not alone and not gone and rounds.joining <= set(rounds.roster)
        if is_plain and core.settings.rounds.quorum == "majority":
            useful = sum(sender not in rounds.server.present.proven for sender in answers)
            need = updates_needed(core.settings, rounds.roster, rounds.server.present.proven)
            if useful < need:
                raise self.violated(
                    f"{closes} with {useful} replies that the rule can use, but it needs {need}"
                )
        right = ask.round_id, ask.shard, shard.served.attempt, rounds.chain
        for sender, (update, _) in answers.items():
            fits = (update.round_id, update.shard, update.attempt, update.parent)
            if sender not in rounds.roster or fits != right:
                raise self.violated(
                    f"{closes} with a reply of peer {sender} that is not meant for it: {update}"
                )

    @on_effect
    def judge_commit(self, committed: Committed) -> None:
        commit = committed.commit
        place = commit.round_id, commit.shard, commit.parent
        promised = self._offered.get(place, 0)
        if commit.attempt < promised:
            whose = "its own commit" if committed.made else f"the commit of peer {commit.server}"
            raise self.violated(
                f"{_label(commit)}: holds {whose} of attempt {commit.attempt}, although it has "
                f"moved on to attempt {promised}"
            )
        if committed.made:
            turn = (commit.parent, commit.round_id, commit.shard, commit.made_at)
            maker, digest = self._made.setdefault(turn, (self.incarnation_id, commit.digest))
            if maker == self.incarnation_id and digest != commit.digest:
                raise self.violated(
                    f"makes two commits of {_label(commit)} in one attempt, {commit.made_at}"
                )
        orders = self._orders.get((commit.round_id, commit.parent))
        if orders is not None:
            order = orders[commit.shard]
            turn_of = order[commit.made_at % len(order)]
            if turn_of != commit.server:
                raise self.violated(
                    f"{_label(commit)} was made by peer {commit.server} in the turn of peer "
                    f"{turn_of}"
                )
        if self.peer not in self.conditions.equivocating and not self._missed_rejections(commit):
            self._compare(commit)

    def _compare(self, commit: Commit) -> None:
        known = self._applied.setdefault((commit.parent, commit.round_id, commit.shard), {})
        self.judged += 1
        # A second digest is judged only when it first appears. Other peers may accept it later.
        if commit.digest not in known:
            if known and not self._may_fork():
                digest, holder = next(iter(known.items()))
                raise self.violated(
                    f"{_label(commit)}: digest {commit.digest.hex() or 'none'} here, "
                    f"{digest.hex() or 'none'} at peer {holder}"
                )
            known[commit.digest] = self.peer

    def _may_fork(self) -> bool:
        """Whether commits may be lost between running peers, or were lost so recently that a lost
        commit may still appear."""
        if not (self.conditions.forks or self.conditions.may_fork_by_attack):
            return False
        if self.conditions.may_fork_by_attack and not self._is_calm():
            # An attack may have effects long afterwards, but not in the calm phase, in which all
            # peers have compared their results.
            return True
        return self.now - self.disturbances.uneven_until <= FORKS_AFTER_S

    def _is_calm(self) -> bool:
        return self.calm_at is not None and self.now - self.calm_at > FORKS_AFTER_S

    def _missed_rejections(self, commit: Commit) -> bool:
        """Whether the peer was paused while other peers rejected this result of a Byzantine server.
        The server may send its result again to peers that return to this round (seed 20340163)."""
        lies = commit.server in self.conditions.equivocating
        if not lies or not self.conditions.may_split_by_attack or self._is_calm():
            return False
        woke_at, _ = self.disturbances.last_pause(self.peer)
        return woke_at > self._began_at.get((commit.round_id, commit.parent), self.now)

    @on_effect
    def judge_order(self, go: StartRound) -> None:
        rounds = self.rolling
        if rounds.round_id != go.round_id or not rounds.shards:
            return
        orders = tuple(shard.order for shard in rounds.shards)
        known = self._orders.setdefault((go.round_id, rounds.chain), orders)
        self._began_at.setdefault((go.round_id, rounds.chain), self.now)
        self.demand(
            known == orders,
            f"has an order of servers in round {go.round_id} other than {known}: {orders}",
        )


def _label(commit: Commit) -> str:
    return f"round {commit.round_id}, shard {commit.shard} upon {commit.parent.hex()}"
