"""L2: for which missing peers a server waits, and how long a round lasts after rejected results."""

from __future__ import annotations

from gossip.core import (
    Ack,
    Commit,
    Hello,
    LinkDown,
    NotServing,
    PartialOverdue,
    PartialStatistics,
    PeerId,
    Received,
    Report,
    StateAttestation,
    Update,
    UpdateRequest,
    quorum_of,
)
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    on_event,
    on_report,
    place_of,
)

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
"""Messages with which a peer reports its round."""


class NoFutileGracePeriods(Checker):
    """L2: no server waits for a whole grace period for a peer that will send no update.

    Such a peer holds a result of this round that the server has rejected. Or its link broke, and it
    has reported no round since: behind a new link there may be a new incarnation. Its node replies
    long before its trainer has a state.
    """

    invariant = "L2"
    needs = "rolling"
    # Peers that have reported no round since their link broke.
    _silent = PerIncarnation(set[PeerId])

    @on_event
    def record_broken_link(self, event: LinkDown) -> None:
        rounds, silent = self.rolling, self._silent
        # In round 0 a new incarnation lacks nothing, because all peers begin with the initial
        # state.
        if rounds.round_id > 0:
            # A stored report of a round that has not begun here becomes valid when that round
            # begins.
            ahead = rounds.seen.get(event.peer, 0) - rounds.round_id
            if ahead > 0 or (ahead == 0 and not rounds.shards):
                silent.discard(event.peer)
            else:
                silent.add(event.peer)

    @on_event
    def record_ack(self, event: Received, ack: Ack) -> None:
        if ack.progress.step > 0:  # the trainer has a state
            self._silent.discard(ack.target)

    @on_event
    def record_round(self, event: Received, message: RoundReport) -> None:
        if isinstance(message, Update) or message.round_id > 0:
            self._silent.discard(event.sender)

    @on_report("recovering")
    def forget(self, report: Report) -> None:
        # After a recovery the peer handles its stored messages again.
        self._silent.clear()

    @on_report("late")
    def judge(self, report: Report) -> None:
        where, waited_s = place_of(report), report.fields["waited_s"]
        # With f = 0 rejected results are not evidence of Byzantine peers.
        refused = self.rejected_senders(where) if self.core.settings.f else ()
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


class RejectedRoundsEnd(Checker):
    """L2: if results of a round are rejected, the round still ends before each server that is not
    skipped has served a second attempt. This is judged if a majority of the roster is present and
    undisturbed after the first attempts. Byzantine peers are part of this majority only if they
    have forwarded a result."""

    invariant = "L2"
    needs = "rolling"
    # (round, shard) -> number of second attempts, and time of the first of them.
    _once_round = PerIncarnation(dict[tuple[int, int], tuple[int, float]])

    @on_report("recovering", "round")
    def forget(self, report: Report) -> None:
        self._once_round.clear()

    @on_report("attempt")
    def judge(self, report: Report) -> None:
        where, attempt = place_of(report), report.fields["attempt"]
        rounds, refused = self.rolling, self.rejected_senders(where)
        if not refused or rounds.round_id != where[0] or not self.core.settings.f:
            return
        order, once_round = rounds.shards[where[1]].order, self._once_round
        if attempt < len(order):
            return
        # A peer that was paused skips many servers while its links return one by one. Attempts of
        # skipped servers are not counted (seed 923456).
        turns, since_s = once_round.get(where, (-1, self.now))
        turns += turns < 0 or "is skipped" not in report.fields["reason"]
        once_round[where] = turns, since_s
        least = sum(server == self.peer or not rounds.skip_reason(server) for server in order)
        there = [p for p in rounds.roster if self._is_present(p, refused, since_s)]
        majority = quorum_of(self.core.settings, len(rounds.roster))
        self.demand(
            turns < least or len(there) < majority or self.peer not in there,
            f"round {where[0]}, shard {where[1]}, is at attempt {attempt}, with results of "
            f"{sorted(refused)} rejected, and peers {there} of {list(rounds.roster)} were present "
            f"and undisturbed for {self.now - since_s:.2f} s",
        )

    def _is_present(self, peer: PeerId, refused: set[PeerId], since_s: float) -> bool:
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
        honest = peer not in self.conditions.equivocating
        return honest and core.phase == "running" and same and theirs.must_stay()
