"""L2, L4: whom the server of a round waits for, when not even those who are missing keep it from
closing the round, and for how long all wait where results are refused; and S14:
whom it names for the next one."""

from __future__ import annotations

from gossip.core import (
    Ack,
    Aggregated,
    Commit,
    Effect,
    Event,
    Hello,
    LinkDown,
    NotServing,
    PartialOverdue,
    PartialStatistics,
    PeerId,
    Received,
    Report,
    RollingInspection,
    Send,
    StateAttestation,
    Update,
    UpdateRequest,
    quorum_of,
)
from gossip_lab.simulation.checkers.base import REFUSALS, Checker
from gossip_lab.simulation.checkers.disturbances import DisturbedChecker
from gossip_lab.simulation.checkers.safety import rolling_of
from gossip_lab.simulation.world import AnySwarm

TELLING = (
    Update,
    UpdateRequest,
    Commit,
    NotServing,
    PartialStatistics,
    PartialOverdue,
    Hello,
    StateAttestation,
)
"""By which a peer says in which round it is."""

HEARD_S = 1.0
"""Seconds since a peer's last message within which the peer is surely there."""


class WaitsForNobodyInVain(Checker):
    """L2: no server waits its grace out for one that will send no update: because it holds a result
    of this round that the server has refused; or because its link broke and it has not said since
    that it is in any round. Behind the next link may be another life of it, whose node answers long
    before its trainer has a state."""

    invariant = "L2"
    events = (LinkDown, Ack, *TELLING)
    effects = (Report,)

    def make_records(self) -> None:
        # whose link broke, and who has told of no round since
        self._silent = self.per_life(set[PeerId])
        # in which round and shard, by whom handed over
        self._refused = self.per_life(dict[tuple[int, int], set[PeerId]])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        silent = self._silent[peer]
        if type(event) is LinkDown:
            rounds = rolling_of(swarm.inspections.get(peer))
            # before, nobody has a state that another life would lack
            if rounds is not None and rounds.round_id > 0:
                # What it has said of a round that has not begun here is kept,
                # and counts when that begins.
                ahead = rounds.seen.get(event.peer, 0) - rounds.round_id
                (silent.discard if ahead > 0 or (ahead == 0 and not rounds.shards) else silent.add)(
                    event.peer
                )
        elif silent and type(event) is Received:
            message = event.message
            if isinstance(message, Ack):
                if message.progress.step > 0:  # its trainer has a state
                    silent.discard(message.target)
            elif isinstance(message, Update) or (
                isinstance(message, TELLING) and message.round_id > 0
            ):
                silent.discard(event.sender)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Report):
            return
        core, refused, fields = swarm.inspections.get(peer), self._refused[peer], effect.fields
        if effect.event == "recovering":
            # Should it come back to its round, it has forgotten, and hears again what it has kept.
            refused.clear()
            self._silent[peer].clear()
        elif effect.event in REFUSALS and core is not None and core.settings.f:
            # else nobody is expected to lie
            where = fields["round"], fields["shard"]
            if where not in refused and any(round_id != where[0] for round_id, _ in refused):
                refused.clear()
            refused.setdefault(where, set()).add(fields["from"])
        elif effect.event == "late" and rolling_of(core) is not None:
            where, missing = (fields["round"], fields["shard"]), fields["missing"]
            what = (
                f"waits {fields['waited_s']} s in round {where[0]}, shard {where[1]}, for the "
                "update of"
            )
            self.judged += 1
            for other in missing:
                if other in refused.get(where, ()):
                    raise self.violated(
                        swarm,
                        peer,
                        f"{what} peer {other}, which holds a result that it has refused",
                    )
                if other in self._silent[peer]:
                    raise self.violated(
                        swarm,
                        peer,
                        f"{what} peer {other}, which has told of no round since its link broke",
                    )


class NoRoundStands(DisturbedChecker):
    """L2: where results of a round are refused, it is over before each server has had its turn
    twice, if a majority is there and undisturbed from the end of the first turns on. Whom a peer
    skips has no turn there. Of the liars only those are counted on who have handed over a result:
    who keeps everything back makes a majority of nobody."""

    invariant = "L2"
    effects = (Report,)

    def make_records(self) -> None:
        # in which round and shard, by whom handed over
        self._refused = self.per_life(dict[tuple[int, int], set[PeerId]])
        # how many have had a second turn, and since when they have
        self._once_round = self.per_life(dict[tuple[int, int], tuple[int, float]])

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Report):
            return
        fields = effect.fields
        if effect.event in ("recovering", "round"):
            self.on_start(swarm, peer)
        elif effect.event in REFUSALS:
            self._refused[peer].setdefault((fields["round"], fields["shard"]), set()).add(
                fields["from"]
            )
        elif effect.event == "attempt":
            where = fields["round"], fields["shard"]
            self._judge(swarm, peer, where, fields["attempt"], fields["reason"])

    def _judge(
        self, swarm: AnySwarm, peer: PeerId, where: tuple[int, int], attempt: int, reason: str
    ) -> None:
        core, refused = swarm.inspections.get(peer), self._refused[peer].get(where)
        rounds = core.rolling if core is not None else None
        if (
            not refused
            or core is None
            or rounds is None
            or rounds.round_id != where[0]
            or not core.settings.f
        ):
            return
        order, once_round = rounds.shards[where[1]].order, self._once_round[peer]
        if attempt < len(order):
            return
        # One who slept leaps over many, also while its links come back one by one: whom it skips
        # has no turn (seed 923456).
        turns, since_s = once_round.get(where, (-1, swarm.now))
        turns += turns < 0 or "is skipped" not in reason
        once_round[where] = turns, since_s
        if turns < sum(server == peer or not rounds.skip_reason(server) for server in order):
            return
        there = [p for p in rounds.roster if self._is_there(swarm, p, rounds, refused, since_s)]
        majority = quorum_of(core.settings, len(rounds.roster))
        text = (
            f"peers {there} of {list(rounds.roster)} were there and undisturbed for "
            f"{swarm.now - since_s:.2f} s"
        )
        which = (
            f"round {where[0]}, shard {where[1]}, is at attempt {attempt}, with results of "
            f"{sorted(refused)} refused"
        )
        self.demand(len(there) < majority or peer not in there, swarm, peer, f"{which}, and {text}")

    def _is_there(
        self,
        swarm: AnySwarm,
        peer: PeerId,
        rounds: RollingInspection,
        refused: set[PeerId],
        since_s: float,
    ) -> bool:
        core = swarm.inspections.get(peer)
        theirs = core.rolling if core is not None else None
        if (
            core is None
            or theirs is None
            or swarm.hosts[peer].state != "up"
            or rounds.skip_reason(peer)
        ):
            return False
        if self.disturbances.undisturbed_s(swarm, peer) < swarm.now - since_s:
            return False
        if peer in refused:
            return True
        same = (theirs.round_id, theirs.chain) == (
            rounds.round_id,
            rounds.chain,
        ) and theirs.must_stay()
        return peer not in self.circumstances.equivocating and core.phase == "running" and same


class LetsInWhoIsReady(Checker):
    """L4: where a quorum has answered and nobody else will, the server closes the round if somebody
    is ready to be let in by it, though the rule can make nothing of so few updates: with the
    newcomer's it may again."""

    invariant = "L4"
    afters = (Hello, Update)

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        if (
            core is None
            or rounds is None
            or not rounds.joining
            or core.phase != "running"
            or rounds.mode != "active"
        ):
            return
        ready = [
            other
            for other in rounds.joining
            if other not in rounds.roster and not rounds.skip_reason(other)
        ]
        if not ready or not isinstance(event, Received):
            return
        quorum, expected = (
            quorum_of(core.settings, len(rounds.roster)),
            rounds.server.quorum.expected(),
        )
        for shard in rounds.shards:
            # Only who was just heard is sure to have been counted: that one is skipped no more may
            # be noticed a little later.
            heard = event.sender in (
                ready if isinstance(event.message, Hello) else shard.served.answers
            )
            serves = shard.commit is None and shard.served.attempt == shard.attempt
            if (
                heard
                and serves
                and len(shard.served.answers) >= quorum
                and all(other in shard.served.answers for other in expected)
            ):
                where = (
                    f"round {rounds.round_id}, shard {shard.index}, with the updates of "
                    f"{sorted(shard.served.answers)}"
                )
                text = (
                    f"does not close {where}, of which {quorum} are a quorum, to let in peers "
                    f"{sorted(ready)}"
                )
                self.demand(shard.served.ticket is not None, swarm, peer, text)


class KeepsWhoSpeaks(Checker):
    """S14: a server leaves out of the next roster nobody who is said to have left, is heard over a
    link that stands, and has not said so itself: others see that peer, so a farewell that is forged
    for one server alone would have them refuse its result. Without whom the run has begun, as it
    does without those who are said to have left, comes in like a newcomer: BELIEVED_GONE in
    tests/simulation/test_lies.py."""

    invariant = "S14"
    events = (Hello,)
    effects = (Commit,)

    def make_records(self) -> None:
        # who has said that it goes on no more, in whatever life
        self._leaving = self.per_life(set[PeerId])
        self._judged: dict[PeerId, tuple[int, int, int]] = self.per_life()

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if (
            type(event) is Received
            and isinstance(event.message, Hello)
            and event.message.stage != "ready"
        ):
            self._leaving[peer].add(event.sender)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        if core is None or not isinstance(effect, Send) or not isinstance(effect.message, Commit):
            return
        commit, made = effect.message, type(swarm.handling) is Aggregated
        which = commit.round_id, commit.shard, commit.made_at
        if not made or commit.server != peer or self._judged.get(peer) == which:
            return
        self._judged[peer] = which
        now_s = swarm.hosts[peer].machine.clock_s(swarm.now_ns)
        rounds = core.rolling if core is not None else None
        excused = self._leaving[peer] | (rounds.absent_at_start if rounds is not None else set())
        for other in core.rounds.roster:
            member = core.membership.members.get(other)
            if other == peer or member is None or member.status != "left" or other in excused:
                continue
            there = member.linked and now_s - member.heard_at < HEARD_S
            text = (
                f"leaves peer {other} out of the roster after round {commit.round_id}, which has "
                "not said that it leaves"
            )
            self.demand(
                not there or other in commit.roster,
                swarm,
                peer,
                f"{text}; it heard it {now_s - member.heard_at:.2f} s ago",
            )


__all__ = ["KeepsWhoSpeaks", "LetsInWhoIsReady", "NoRoundStands", "WaitsForNobodyInVain"]
