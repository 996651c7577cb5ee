"""A server can lie: what a receiver checks of a result before it takes it,
and when it takes it all the same.

Refused is what at most f peers have handed it. Once there are more, one of them is honest, and has
taken or made that result itself: then this peer's update is the odd one.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from gossip.core.events import Contributed, Effect, Payload, Received, Report, ResultSimilarity
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
from gossip.core.view import View

from .cross_shard import Advance
from .lag import LagDetector
from .result_checks import Objection, ResultChecks
from .server import Server
from .shard import ShardRound

LENGTHS_KEPT = 16
"""Kinds of steps, of which lengths of results are known in each shard."""
ROUNDS_KEPT = 256
"""Rounds whose lengths say how long a result may be. Once a model fits its data nearly all are
short, and now and then one is a hundred times as long: that is no lie,
but such a one was seen not long before."""

REFUSALS_KEPT = 64
ORDERS_KEPT = 8  # rounds: what a server has made is heard soon, or was never taken

Lengths: TypeAlias = "OrderedDict[int, tuple[PeerId, float, int]]"
"""Round -> who made its result, how long that was, and of how many samples."""


class ResultValidator:
    """Checks of results against what this peer has seen of former ones. ``advance`` hands a shard
    on to its next server."""

    def __init__(
        self,
        replicated: ReplicatedState,
        lag_detector: LagDetector,
        server: Server,
        view: View,
        advance: Advance,
    ) -> None:
        self.local, self.server, self.quorum = server.local, server, server.quorum
        self.advance, self.trust = advance, replicated.trust
        self.f, self.settings, self.replicated = (
            replicated.settings.f,
            replicated.settings.results,
            replicated,
        )
        self.result_checks = ResultChecks(replicated, lag_detector, self.quorum, view)
        self._lengths: dict[tuple[int, int], Lengths] = {}
        # whose results of which rounds
        self._refused: OrderedDict[tuple[PeerId, int], None] = OrderedDict()
        self.omissions, self.witness = (
            replicated.omissions,
            EquivocationWitness(server.local, replicated.equivocations, replicated.lineage.header),
        )
        self._present: Sequence[ShardRound] = ()
        # round -> who serves each shard, one after the other
        self._orders: dict[int, tuple[tuple[PeerId, ...], ...]] = {}
        # likewise, for what did not come
        self._waited: OrderedDict[tuple[PeerId, int], None] = OrderedDict()
        # likewise, of answers for micro-batches
        self._audited: OrderedDict[AuditVote, None] = OrderedDict()

    def accusations(self) -> tuple[Accusation, ...]:
        """Return the accusations of a commit that is made here. Each is repeated until it is in the
        history."""
        here = self.quorum.present.round_id
        told = [
            (*accusation, True)
            for accusation in self._waited
            if self.omissions.lacks(self.local, *accusation, here)
        ]
        told += [
            (*accusation, False)
            for accusation in self._refused
            if self.trust.lacks(self.local, *accusation, here)
        ]
        stated = self.witness.statements(here, self.result_checks.lag_detector.forked)
        accusations = [*stated, *[Accusation(*accusation) for accusation in told]][
            -ACCUSATIONS_MAX:
        ]
        return tuple(
            sorted(accusations, key=lambda c: (c.peer, c.round_id, c.silent, c.turn, c.content))
        )

    def note_audit(self, vote: AuditVote) -> None:
        """This peer has computed another's micro-batch again, and got something else."""
        self._audited[vote] = None
        while len(self._audited) > REFUSALS_KEPT:
            self._audited.popitem(last=False)

    def audit_votes(self) -> tuple[AuditVote, ...]:
        """Return the audit votes of a commit that is made here, the latest. Each is repeated until
        it is in the history."""
        audits = self.replicated.audits
        if audits is None:
            return ()
        told = [vote for vote in self._audited if audits.wants(self.local, vote)]
        return tuple(
            sorted(
                told[-AUDIT_VOTES_MAX:],
                key=lambda vote: (vote.peer, vote.round_id, vote.micro_batch),
            )
        )

    def saw(self, event: Received) -> None:
        """A message has come, whether it is of use or not."""
        commit = event.message
        if not self.f or not isinstance(commit, Commit):
            return
        if (present := self.result_checks.lag_detector.shards) is not self._present:
            self._present = present
            self._orders[self.quorum.present.round_id] = tuple([shard.order for shard in present])
            while len(self._orders) > ORDERS_KEPT:
                del self._orders[min(self._orders)]
        # What is no turn of that server nobody need remember: so it can make up few.
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
        """The server of the present attempt has had its time, and is there:
        else it would have been skipped before."""
        server = shard.server_of(shard.attempt)
        # Without a majority within its reach, and f more who may keep their updates to themselves,
        # it could not make anything.
        if (
            self.f
            and server != self.local
            and len(self.quorum.expected()) - self.f >= self.quorum.required()
        ):
            _keep(self._waited, (server, self.quorum.present.round_id))
        return self.advance(shard, f"no commit from {server} in time", now)

    def compared_with(
        self, message: Message, round_id: int, own: Contributed | None
    ) -> tuple[Payload, ...] | None:
        """Return the same as ``RollingRounds.compared_with``, while ``round_id`` is the present
        round, to which this peer has contributed ``own``."""
        # Among too few, an honest server may find no more than f to vouch for its result.
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
        """Whether a sound commit, which came as ``handed``, is taken: then None;
        else why it is refused."""
        if not self.f:
            return None  # nobody is expected to lie, and nothing was compared
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
        """Reports it, and goes to the next server when it is the present one that has
        handed this over."""
        event, why = objection.event, objection.why
        self.result_checks.lag_detector.on_refusal()
        effects: list[Effect] = [Report(event, {**provenance(sender, commit), "reason": why})]
        if not self.f:
            # nobody is expected to lie, so it was damaged on its way: it may come again
            return effects
        shard.rejected_from.add(sender)
        # what others say that it has made is their word
        if objection.is_evidence and sender == commit.server:
            _keep(self._refused, (sender, commit.round_id))
        server = shard.server_of(shard.attempt)
        # Others have gone on to it, from whom this server has updates: what it made of them would
        # be a second result. What is no result of its sender's turn is no sign of that.
        later = (
            event == "refused_result" and sender == commit.server and commit.made_at > shard.attempt
        )
        overtaken = server == self.local and later
        if server == self.local and not overtaken:
            return effects + self.server.maybe_close(shard, now)
        # Once round the order at the speed of the network; after that only time can help. In whose
        # name others hand it over says nothing:
        # else a liar could have every honest server passed over.
        if (overtaken or server == sender) and shard.attempt < len(shard.order):
            effects += self.advance(shard, f"a result of {commit.server} is refused: {why}", now)
        return effects

    def learn(self, commit: Commit, similarity: ResultSimilarity) -> None:
        """A result is taken."""
        lengths = self._lengths.setdefault((commit.shard, commit.kind), OrderedDict())
        shards = len(self.result_checks.lag_detector.shards)
        if len(self._lengths) > LENGTHS_KEPT * max(1, shards):
            del self._lengths[next(iter(self._lengths))]
        lengths[commit.round_id] = (commit.server, similarity.length, _samples(commit))
        while len(lengths) > ROUNDS_KEPT:
            lengths.popitem(last=False)

    def _why(self, commit: Commit, similarity: ResultSimilarity, own: Contributed | None) -> str:
        longer = self.settings.longer
        # Most often the own update is long enough, and no former result need be looked at.
        if not similarity.length <= longer * similarity.own:
            usual = self._usual(commit, similarity, own)
            if usual and not similarity.length <= longer * usual:
                return (
                    f"it is {similarity.length / usual:.3g} times as long as results and own "
                    "updates are"
                )
        cosine, opposed = similarity.cosine, self.settings.opposed
        if not cosine < opposed:
            return ""
        if similarity.own < self.settings.faint * similarity.even:
            # What the own batch says here is mostly noise. But nothing goes further against it than
            # what is just not opposed, and as long as may be.
            usual = self._usual(commit, similarity, own)
            if similarity.length * cosine >= opposed * longer * usual:
                return ""
        return f"it opposes the own update, with a cosine of {cosine:.2f}"

    def _usual(
        self, commit: Commit, similarity: ResultSimilarity, own: Contributed | None
    ) -> float:
        """How long results of so many samples are at most, as more than f servers have made them,
        or the own update is: so liars cannot raise it step by step. The fewer samples, the longer:
        at the end of an epoch a round may have a single one left. While too few servers are known,
        a shard may be as long as one with next to no gradient is at most."""
        # A server that says that there were few cannot leave out the own ones.
        samples = max(1, _samples(commit), own.samples if own is not None else 0)
        longest = defaultdict[PeerId, float](float)
        for server, length, of in self._lengths.get((commit.shard, commit.kind), {}).values():
            longest[server] = max(longest[server], length * max(1.0, of / samples) ** 0.5)
        known = sorted(longest.values(), reverse=True)[self.f :]
        return max(similarity.own, known[0] if known else self.settings.faint * similarity.even)


def _keep(known: OrderedDict[tuple[PeerId, int], None], one: tuple[PeerId, int]) -> None:
    known[one] = None
    while len(known) > REFUSALS_KEPT:
        known.popitem(last=False)


def _samples(commit: Commit) -> int:
    """Return the number of samples of which the result is the mean, as its server claims."""
    return sum([contribution.samples for contribution in commit.contributors])
