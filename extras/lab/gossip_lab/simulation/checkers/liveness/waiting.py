"""L2, L4: whom the server of a round waits for, when not even those who are missing keep it from
closing the round, and for how long all wait where results are refused; and S14:
whom it names for the next one."""

from __future__ import annotations

from gossip.core import (
    Ack,
    Aggregated,
    Commit,
    Hello,
    LinkDown,
    NotServing,
    PartialOverdue,
    PartialStatistics,
    PeerId,
    Received,
    Report,
    Send,
    StateAttestation,
    Update,
    UpdateRequest,
    quorum_of,
)
from gossip_lab.simulation.checkers.base import REFUSALS, Checker, PerLife
from gossip_lab.simulation.checkers.watching import after_event, on_effect, on_event, on_report

Telling = (
    Update
    | UpdateRequest
    | Commit
    | NotServing
    | PartialStatistics
    | PartialOverdue
    | Hello
    | StateAttestation
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
    needs = "rolling"
    # whose link broke, and who has told of no round since
    _silent = PerLife(set[PeerId])
    # in which round and shard, by whom handed over
    _refused = PerLife(dict[tuple[int, int], set[PeerId]])

    @on_event
    def record_broken_link(self, event: LinkDown) -> None:
        rounds, silent = self.rolling, self._silent
        # before, nobody has a state that another life would lack
        if rounds.round_id > 0:
            # What it has said of a round that has not begun here is kept,
            # and counts when that begins.
            ahead = rounds.seen.get(event.peer, 0) - rounds.round_id
            if ahead > 0 or (ahead == 0 and not rounds.shards):
                silent.discard(event.peer)
            else:
                silent.add(event.peer)

    @on_event
    def record_ack(self, event: Received, ack: Ack) -> None:
        if ack.progress.step > 0:  # its trainer has a state
            self._silent.discard(ack.target)

    @on_event
    def record_round(self, event: Received, message: Telling) -> None:
        if isinstance(message, Update) or message.round_id > 0:
            self._silent.discard(event.sender)

    @on_report("recovering")
    def forget(self, report: Report) -> None:
        """Should it come back to its round, it has forgotten, and hears again what it has kept."""
        self._refused.clear()
        self._silent.clear()

    @on_report(*REFUSALS)
    def record_refusal(self, report: Report) -> None:
        refused, where = self._refused, _place(report)
        if self.core.settings.f:  # else nobody is expected to lie
            if where not in refused and any(round_id != where[0] for round_id, _ in refused):
                refused.clear()
            refused.setdefault(where, set()).add(report.fields["from"])

    @on_report("late")
    def judge(self, report: Report) -> None:
        where, waited_s = _place(report), report.fields["waited_s"]
        what = f"waits {waited_s} s in round {where[0]}, shard {where[1]}, for the update of"
        for other in report.fields["missing"]:
            self.demand(
                other not in self._refused.get(where, ()),
                f"{what} peer {other}, which holds a result that it has refused",
            )
            if other in self._silent:
                raise self.violated(
                    f"{what} peer {other}, which has told of no round since its link broke"
                )


def _place(report: Report) -> tuple[int, int]:
    return report.fields["round"], report.fields["shard"]


class NoRoundStands(Checker):
    """L2: where results of a round are refused, it is over before each server has had its turn
    twice, if a majority is there and undisturbed from the end of the first turns on. Whom a peer
    skips has no turn there. Of the liars only those are counted on who have handed over a result:
    who keeps everything back makes a majority of nobody."""

    invariant = "L2"
    needs = "rolling"
    # in which round and shard, by whom handed over
    _refused = PerLife(dict[tuple[int, int], set[PeerId]])
    # how many have had a second turn, and since when they have
    _once_round = PerLife(dict[tuple[int, int], tuple[int, float]])

    @on_report("recovering", "round")
    def forget(self, report: Report) -> None:
        self.begin_life()

    @on_report(*REFUSALS)
    def record_refusal(self, report: Report) -> None:
        refused = self._refused.setdefault(_place(report), set())
        refused.add(report.fields["from"])

    @on_report("attempt")
    def judge(self, report: Report) -> None:
        where, attempt = _place(report), report.fields["attempt"]
        rounds, refused = self.rolling, self._refused.get(where)
        if not refused or rounds.round_id != where[0] or not self.core.settings.f:
            return
        order, once_round = rounds.shards[where[1]].order, self._once_round
        if attempt < len(order):
            return
        # One who slept leaps over many, also while its links come back one by one: whom it skips
        # has no turn (seed 923456).
        turns, since_s = once_round.get(where, (-1, self.now))
        turns += turns < 0 or "is skipped" not in report.fields["reason"]
        once_round[where] = turns, since_s
        if turns < sum(server == self.peer or not rounds.skip_reason(server) for server in order):
            return
        there = [p for p in rounds.roster if self._is_there(p, refused, since_s)]
        majority = quorum_of(self.core.settings, len(rounds.roster))
        self.demand(
            len(there) < majority or self.peer not in there,
            f"round {where[0]}, shard {where[1]}, is at attempt {attempt}, with results of "
            f"{sorted(refused)} refused, and peers {there} of {list(rounds.roster)} were there and "
            f"undisturbed for {self.now - since_s:.2f} s",
        )

    def _is_there(self, peer: PeerId, refused: set[PeerId], since_s: float) -> bool:
        core, rounds = self.swarm.inspections.get(peer), self.rolling
        theirs = core.rolling if core is not None else None
        if core is None or theirs is None or self.swarm.hosts[peer].state != "up":
            return False
        if rounds.skip_reason(peer):
            return False
        if self.disturbances.undisturbed_s(self.swarm, peer) < self.now - since_s:
            return False
        if peer in refused:
            return True
        same = (theirs.round_id, theirs.chain) == (rounds.round_id, rounds.chain)
        honest = peer not in self.circumstances.equivocating
        return honest and core.phase == "running" and same and theirs.must_stay()


class LetsInWhoIsReady(Checker):
    """L4: where a quorum has answered and nobody else will, the server closes the round if somebody
    is ready to be let in by it, though the rule can make nothing of so few updates: with the
    newcomer's it may again."""

    invariant = "L4"
    needs = "rolling"

    @after_event
    def judge(self, event: Received, message: Hello | Update) -> None:
        core, rounds = self.core, self.rolling
        if core.phase != "running" or rounds.mode != "active":
            return
        ready = [
            other
            for other in rounds.joining
            if other not in rounds.roster and not rounds.skip_reason(other)
        ]
        if not ready:
            return
        quorum, expected = (
            quorum_of(core.settings, len(rounds.roster)),
            rounds.server.quorum.expected(),
        )
        for shard in rounds.shards:
            answers = shard.served.answers
            # Only who was just heard is sure to have been counted: that one is skipped no more may
            # be noticed a little later.
            heard = event.sender in (ready if isinstance(message, Hello) else answers)
            serves = shard.commit is None and shard.served.attempt == shard.attempt
            complete = len(answers) >= quorum and all(other in answers for other in expected)
            if heard and serves and complete:
                self.demand(
                    shard.served.ticket is not None,
                    f"does not close round {rounds.round_id}, shard {shard.index}, with the "
                    f"updates of {sorted(answers)}, of which {quorum} are a quorum, to let in "
                    f"peers {sorted(ready)}",
                )


class KeepsWhoSpeaks(Checker):
    """S14: a server leaves out of the next roster nobody who is said to have left, is heard over a
    link that stands, and has not said so itself: others see that peer, so a farewell that is forged
    for one server alone would have them refuse its result. Without whom the run has begun, as it
    does without those who are said to have left, comes in like a newcomer: BELIEVED_GONE in
    tests/simulation/test_lies.py."""

    invariant = "S14"
    # who has said that it goes on no more, in whatever life
    _leaving = PerLife(set[PeerId])
    _judged = PerLife[tuple[int, int, int] | None](lambda: None)

    @on_event
    def record_leaving(self, event: Received, hello: Hello) -> None:
        if hello.stage != "ready":
            self._leaving.add(event.sender)

    @on_effect
    def judge(self, send: Send, commit: Commit) -> None:
        core, made = self.core, type(self.swarm.handling) is Aggregated
        which = commit.round_id, commit.shard, commit.made_at
        if not made or commit.server != self.peer or self._judged == which:
            return
        self._judged = which
        rounds = core.rolling
        excused = self._leaving | (rounds.absent_at_start if rounds is not None else set())
        for other in core.rounds.roster:
            member = core.membership.members.get(other)
            if other == self.peer or other in excused or member is None or member.status != "left":
                continue
            heard_s = self.clock_s - member.heard_at
            self.demand(
                not member.linked or heard_s >= HEARD_S or other in commit.roster,
                f"leaves peer {other} out of the roster after round {commit.round_id}, which has "
                f"not said that it leaves; it heard it {heard_s:.2f} s ago",
            )
