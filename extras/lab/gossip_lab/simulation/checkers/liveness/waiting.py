"""L2, L4, S14: waits of a server, and the next roster.

These checkers judge the missing peers for which a server waits, the time that peers wait after
rejected results, and the peers named for the next round.
"""

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
from gossip_lab.simulation.checkers.base import Checker, PerLife, place_of
from gossip_lab.simulation.checkers.watching import after_event, on_effect, on_event, on_report

RoundReport = (
    Update
    | UpdateRequest
    | Commit
    | NotServing
    | PartialStatistics
    | PartialOverdue
    | Hello
    | StateAttestation
)
"""Messages by which a peer reports its round."""

HEARD_S = 1.0
"""Seconds after a peer's last message in which the peer is certainly present."""


class WaitsForNobodyInVain(Checker):
    """L2: no server uses up its grace period for a peer that will send no update.

    Such a peer holds a result of this round that the server has rejected; or its link broke and it
    has reported no round since. A new link may lead to another incarnation, whose node
    replies long before its trainer has a state.
    """

    invariant = "L2"
    needs = "rolling"
    # peers with a broken link that have reported no round since
    _silent = PerLife(set[PeerId])

    @on_event
    def record_broken_link(self, event: LinkDown) -> None:
        rounds, silent = self.rolling, self._silent
        # Before the first round no peer has a state that a new incarnation would lack.
        if rounds.round_id > 0:
            # A report of a round that has not begun here is kept, and counts when that round
            # begins.
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
    def record_round(self, event: Received, message: RoundReport) -> None:
        if isinstance(message, Update) or message.round_id > 0:
            self._silent.discard(event.sender)

    @on_report("recovering")
    def forget(self, report: Report) -> None:
        # A peer that returns to its round handles its kept messages again.
        self._silent.clear()

    @on_report("late")
    def judge(self, report: Report) -> None:
        where, waited_s = place_of(report), report.fields["waited_s"]
        # With f = 0 no Byzantine peer is expected.
        refused = self.refusals.senders(self.peer, where) if self.core.settings.f else ()
        what = f"waits {waited_s} s in round {where[0]}, shard {where[1]}, for the update of"
        for other in report.fields["missing"]:
            self.demand(
                other not in refused,
                f"{what} peer {other}, which holds a result that it has rejected",
            )
            if other in self._silent:
                raise self.violated(
                    f"{what} peer {other}, which has reported no round since its link broke"
                )


class NoRoundStands(Checker):
    """L2: if results of a round are rejected, the round is over before each server has had its turn
    twice. This holds if a majority is present and undisturbed after the first turns. A
    skipped peer has no turn. Byzantine peers count only if they have forwarded a result: one that
    withholds everything does not count towards a majority."""

    invariant = "L2"
    needs = "rolling"
    # number of second turns, and since when
    _once_round = PerLife(dict[tuple[int, int], tuple[int, float]])

    @on_report("recovering", "round")
    def forget(self, report: Report) -> None:
        self._once_round.clear()

    @on_report("attempt")
    def judge(self, report: Report) -> None:
        where, attempt = place_of(report), report.fields["attempt"]
        rounds, refused = self.rolling, self.refusals.senders(self.peer, where)
        if not refused or rounds.round_id != where[0] or not self.core.settings.f:
            return
        order, once_round = rounds.shards[where[1]].order, self._once_round
        if attempt < len(order):
            return
        # A peer that was paused skips many servers, also while its links return one by one: a
        # skipped server has no turn (seed 923456).
        turns, since_s = once_round.get(where, (-1, self.now))
        turns += turns < 0 or "is skipped" not in report.fields["reason"]
        once_round[where] = turns, since_s
        least = sum(server == self.peer or not rounds.skip_reason(server) for server in order)
        there = [p for p in rounds.roster if self._is_there(p, refused, since_s)]
        majority = quorum_of(self.core.settings, len(rounds.roster))
        self.demand(
            turns < least or len(there) < majority or self.peer not in there,
            f"round {where[0]}, shard {where[1]}, is at attempt {attempt}, with results of "
            f"{sorted(refused)} rejected, and peers {there} of {list(rounds.roster)} were present "
            f"and undisturbed for {self.now - since_s:.2f} s",
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
    """L4: if a quorum has answered and no other peer will, the server closes the round to admit a
    ready newcomer, although the rule has no result with this few updates. With the newcomer's
    update it may succeed again."""

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
            # Only the sender of this message has certainly been counted: the end of another peer's
            # skip may be noticed a little later.
            is_counted = event.sender in (ready if isinstance(message, Hello) else answers)
            serves = shard.commit is None and shard.served.attempt == shard.attempt
            complete = len(answers) >= quorum and all(other in answers for other in expected)
            if is_counted and serves and complete:
                self.demand(
                    shard.served.ticket is not None,
                    f"does not close round {rounds.round_id}, shard {shard.index}, with the "
                    f"updates of {sorted(answers)}, of which {quorum} are a quorum, to admit "
                    f"peers {sorted(ready)}",
                )


class KeepsWhoSpeaks(Checker):
    """S14: a server keeps in the next roster a peer that is reported as left, if the peer still
    sends over a live link and has not announced its departure itself. Others have a live link to
    that peer, so they would reject the server's result after a farewell forged for one
    server alone. A peer that the run has begun without, because it was reported as left, joins like
    a newcomer: BELIEVED_GONE in tests/simulation/test_lies.py."""

    invariant = "S14"
    # peers that have announced their end, in any incarnation
    _leaving = PerLife(set[PeerId])
    _judged = PerLife[tuple[int, int, int] | None]()

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
                f"not announced its departure; its last message came {heard_s:.2f} s ago",
            )
