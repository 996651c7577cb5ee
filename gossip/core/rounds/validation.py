"""Validation of results by their receivers, because a server may be Byzantine.

A doubtful result is rejected while at most f peers have sent it. If more than f peers have sent the
result, at least one of them is honest and has accepted or made the result. The receiver then also
accepts the result, because its own update is the outlier.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from gossip.core.events import Contributed, Effect, Payload, Received, Report, ResultSimilarity
from gossip.core.latest import Latest
from gossip.core.ledger import EquivocationWitness, ReplicatedState, provenance
from gossip.core.messages import (
    ACCUSATIONS_MAX,
    AUDIT_VOTES_MAX,
    Accusation,
    AuditVote,
    Commit,
    Message,
    PeerId,
)
from gossip.core.settings import LENGTH_KINDS, LENGTH_ROUNDS, ORDERS_KEPT, REFUSALS_KEPT
from gossip.core.view import MembersView

from .cross_shard import Advance
from .lag import LagDetector
from .result_checks import Objection, ResultChecks
from .server import Server
from .shard import ShardRound

Lengths: TypeAlias = "OrderedDict[int, tuple[PeerId, float, int]]"
"""Server, length and number of samples of the result of each round."""


class ResultValidator:
    """Validator that compares results with the local update and with earlier results.

    Args:
        advance: Function that moves a shard to its next attempt.
    """

    def __init__(
        self,
        replicated: ReplicatedState,
        lag_detector: LagDetector,
        server: Server,
        view: MembersView,
        advance: Advance,
    ) -> None:
        self.local, self.server, self.quorum = server.local, server, server.quorum
        self.advance = advance
        self.f, self.settings, self.replicated = (
            replicated.settings.f,
            replicated.settings.results,
            replicated,
        )
        self.result_checks = ResultChecks(replicated, lag_detector, self.quorum, view)
        self._lengths: dict[tuple[int, int], Lengths] = {}
        # rejected results, by server and round
        self._refused: Latest[tuple[PeerId, int], None] = Latest(REFUSALS_KEPT)
        self.witness = EquivocationWitness(server.local, replicated.lineage.header)
        self._present: Sequence[ShardRound] = ()
        # order of the servers of each shard, by round
        self._orders: dict[int, tuple[tuple[PeerId, ...], ...]] = {}
        # results that did not arrive in time, by server and round
        self._waited: Latest[tuple[PeerId, int], None] = Latest(REFUSALS_KEPT)
        # audit votes of this peer: micro-batches that it has recomputed with another result
        self._audited: Latest[AuditVote, None] = Latest(REFUSALS_KEPT)

    def accusations(self) -> tuple[Accusation, ...]:
        """Return the accusations for a commit by this peer. Each accusation is repeated in later
        commits until the history contains it."""
        here, history = self.quorum.present.round_id, self.replicated
        found = [
            (*accusation, True)
            for accusation in self._waited
            if history.omissions.lacks(self.local, *accusation, here)
        ]
        found += [
            (*accusation, False)
            for accusation in self._refused
            if history.trust.lacks(self.local, *accusation, here)
        ]
        forked = self.result_checks.lag_detector.forked
        stated = self.witness.statements(history.equivocations, here, forked)
        accusations = [*stated, *[Accusation(*accusation) for accusation in found]][
            -ACCUSATIONS_MAX:
        ]
        return tuple(
            sorted(accusations, key=lambda c: (c.peer, c.round_id, c.silent, c.turn, c.content))
        )

    def note_audit(self, vote: AuditVote) -> None:
        """Record an audit vote of this peer, which has recomputed a micro-batch of another peer
        with another result."""
        self._audited[vote] = None

    def audit_votes(self) -> tuple[AuditVote, ...]:
        """Return the latest audit votes for a commit by this peer. Each vote is repeated in later
        commits until the history contains it."""
        audits = self.replicated.audits
        if audits is None:
            return ()
        votes = [vote for vote in self._audited if audits.wants(self.local, vote)]
        return tuple(
            sorted(
                votes[-AUDIT_VOTES_MAX:],
                key=lambda vote: (vote.peer, vote.round_id, vote.micro_batch),
            )
        )

    def saw(self, event: Received) -> None:
        """Record a received commit as evidence, whether or not it is accepted later."""
        commit = event.message
        if not self.f or not isinstance(commit, Commit):
            return
        present = self.quorum.present
        if present.entered is not self._present:
            self._present = present.entered
            self._orders[present.round_id] = tuple([shard.order for shard in present.entered])
            while len(self._orders) > ORDERS_KEPT:
                del self._orders[min(self._orders)]
        # A commit is evidence only if the order of the servers assigns its attempt to its server.
        # This limits the number of commits that a Byzantine peer can forge.
        orders = self._orders.get(commit.round_id, ())
        order = orders[commit.shard] if commit.shard < len(orders) else ()
        true = (
            commit.made_at < 2 * len(order) and order[commit.made_at % len(order)] == commit.server
        )
        if (
            true
            and commit.parent
            and commit.parent == self.replicated.lineage.before(commit.round_id)
        ):
            self.witness.saw(event.sender, event.incarnation, commit)

    def on_server_timeout(self, shard: ShardRound, now: float) -> list[Effect]:
        """Handle the timeout of the present server. This server is still connected, because a
        disconnected server is skipped without a timeout."""
        server = shard.server_of(shard.attempt)
        # The server is at fault only if it could have reached a quorum without the updates of f
        # peers.
        if (
            self.f
            and server != self.local
            and len(self.quorum.expected()) - self.f >= self.quorum.required()
        ):
            self._waited[server, self.quorum.present.round_id] = None
        return self.advance(shard, f"no commit from {server} in time", now)

    def compared_with(
        self, message: Message, round_id: int, own: Contributed | None
    ) -> tuple[Payload, ...] | None:
        """Return the vectors with which the payload of ``message`` is compared, for
        ``RollingRounds.compared_with``. ``own`` is the contribution of this peer to ``round_id``,
        the present round."""
        # Compare nothing in a small roster, where an honest but doubtful result may never be
        # confirmed by more than f peers.
        if (
            not isinstance(message, Commit)
            or not message.digest
            or not self.f
            or len(self.quorum.present.roster) < 2 * self.f + 2
        ):
            return None
        if own is None or not own.samples or message.round_id != round_id:
            return ()
        if own.kind != message.kind:
            return ()
        if own.own is not None and len(own.payloads) == 1:
            return (own.own,)
        at, parts = message.shard, own.payloads
        return (*parts[at : at + 1], *parts[:at], *parts[at + 1 :]) if at < len(parts) else ()

    def judge(
        self, handed: Received, shard: ShardRound, commit: Commit, own: Contributed | None
    ) -> Objection | None:
        """Return the objection to a sound commit, which the message ``handed`` contains; None if
        the commit is accepted."""
        if not self.f:
            return None  # no Byzantine peer is expected, and nothing was compared
        objection = self.result_checks.objection(commit, own)
        if not objection.why and handed.similarity is not None:
            objection = Objection(self._why(commit, handed.similarity, own))
        if objection.why:
            shard.doubted.add(handed.sender)
            if len(shard.doubted) <= self.f:
                return objection
        if handed.similarity is not None:
            self.learn(commit, handed.similarity)
        return None

    def refuse(
        self,
        sender: PeerId,
        shard: ShardRound,
        commit: Commit,
        objection: Objection,
        now: float,
    ) -> list[Effect]:
        """Report a rejected result. If the present server has sent this result, move to the next
        attempt."""
        event, why = objection.event, objection.why
        self.result_checks.lag_detector.on_refusal()
        effects: list[Effect] = [Report(event, {**provenance(sender, commit), "reason": why})]
        if not self.f:
            # No Byzantine peer is expected, so the result was damaged in transit and may arrive
            # again.
            return effects
        shard.rejected_from.add(sender)
        # A result is evidence against its server only if the server itself has sent the result.
        if objection.is_evidence and sender == commit.server:
            self._refused[sender, commit.round_id] = None
        server = shard.server_of(shard.attempt)
        # Other peers are already in a later attempt, but this server still has their updates. If
        # this server aggregated them, the round would have a second result. An unsound commit does
        # not prove a later attempt.
        later = (
            event == "refused_result" and sender == commit.server and commit.made_at > shard.attempt
        )
        overtaken = server == self.local and later
        if server == self.local and not overtaken:
            return effects + self.server.maybe_close(shard, now)
        # In the first pass through the order the shard moves to the next attempt at once. In later
        # passes it moves only after timeouts. If another peer has forwarded the result, the present
        # server is not blamed. Otherwise a Byzantine peer could make other peers skip every honest
        # server.
        if (overtaken or server == sender) and shard.attempt < len(shard.order):
            effects += self.advance(shard, f"a result of {commit.server} is refused: {why}", now)
        return effects

    def learn(self, commit: Commit, similarity: ResultSimilarity) -> None:
        """Record the length of an accepted result."""
        lengths = self._lengths.setdefault((commit.shard, commit.kind), OrderedDict())
        shards = len(self.quorum.present.entered)
        if len(self._lengths) > LENGTH_KINDS * max(1, shards):
            del self._lengths[next(iter(self._lengths))]
        lengths[commit.round_id] = (commit.server, similarity.length, _samples(commit))
        if len(lengths) > LENGTH_ROUNDS:
            lengths.popitem(last=False)

    def _why(self, commit: Commit, similarity: ResultSimilarity, own: Contributed | None) -> str:
        longer = self.settings.longer
        # Usually the result is not much longer than the local update, so the lengths of earlier
        # results are not needed.
        if not similarity.length <= longer * similarity.own:
            usual = self._usual(commit, similarity, own)
            if usual and not similarity.length <= longer * usual:
                return (
                    f"it is {similarity.length / usual:.3g} times as long as results and local "
                    "updates are"
                )
        cosine, opposed = similarity.cosine, self.settings.opposed
        if not cosine < opposed:
            return ""
        if similarity.own < self.settings.faint * similarity.even:
            # The local update is mostly noise here. So reject a result only if its component
            # opposite to the local update is longer than in any result that is neither opposed nor
            # too long.
            usual = self._usual(commit, similarity, own)
            if similarity.length * cosine >= opposed * longer * usual:
                return ""
        return f"it opposes this peer's update, with a cosine of {cosine:.2f}"

    def _usual(
        self, commit: Commit, similarity: ResultSimilarity, own: Contributed | None
    ) -> float:
        """Return the usual length of a result: the largest length that the results of more than f
        servers have reached, or that the local update has. So up to f Byzantine servers cannot
        raise this length step by step.

        Lengths are scaled to the number of samples, because the mean of fewer samples is longer,
        and the last round of an epoch may have a single sample. While the results of too few
        servers are known, the length is at least the limit below which a local update counts as
        noise.
        """
        # Count at least the samples of this peer, because a Byzantine server may claim too few
        # samples.
        samples = max(1, _samples(commit), own.samples if own is not None else 0)
        longest = defaultdict[PeerId, float](float)
        for server, length, of in self._lengths.get((commit.shard, commit.kind), {}).values():
            longest[server] = max(longest[server], length * max(1.0, of / samples) ** 0.5)
        known = sorted(longest.values(), reverse=True)[self.f :]
        return max(similarity.own, known[0] if known else self.settings.faint * similarity.even)


def _samples(commit: Commit) -> int:
    """Return the number of samples in the result, as its server claims it."""
    return sum([contribution.samples for contribution in commit.contributors])
