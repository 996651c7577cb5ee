"""S11: a committed or applied result is the rule's result for its rows, a rule with enough updates
has a result, and a peer moves by the right fraction towards other peers."""

from __future__ import annotations

from dataclasses import dataclass

from gossip.core import Aggregate, Aggregated, Apply, Committed, Contributed, Payload
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    keep_latest,
    on_effect,
    on_event,
)

KEPT = 64  # number of requests that are stored per peer


@dataclass(slots=True)
class _RuleRequest:
    ask: Aggregate
    attempt: int | None  # attempt of the request, in rolling rounds
    answer: Aggregated | None = None


class CommitsMatchRuleResults(Checker):
    """S11: a server commits the rule's result for the rows of its attempt. The commit names exactly
    the peers of these rows, with the rule's weights. Each row is what the trainer of its peer has
    contributed to this round."""

    invariant = "S11"
    needs = "rolling"
    # (round, shard) -> last request for a result.
    _rule_requests = PerIncarnation(dict[tuple[int, int], _RuleRequest])

    @on_event
    def record_answer(self, event: Aggregated) -> None:
        for question in self._rule_requests.values():
            if question.ask.ticket == event.ticket:
                question.answer = event

    @on_effect
    def judge_rows(self, ask: Aggregate) -> None:
        if ask.step != "measure":
            attempts = [
                shard.served.attempt
                for shard in self.rolling.shards
                if shard.index == ask.shard and shard.served.ticket == ask.ticket
            ]
            question = _RuleRequest(ask, attempts[0] if attempts else None)
            self._rule_requests[ask.round_id, ask.shard] = question
            keep_latest(self._rule_requests, KEPT)
        for row in ask.rows:
            if row.peer in self.conditions.equivocating and row.peer != self.peer:
                continue
            parts = [
                payload.data.tobytes()
                for each in self.contributions.of(row.peer, ask.round_id)
                for payload in each.payloads[ask.shard : ask.shard + 1]
            ]
            self.demand(
                row.payload.data.tobytes() in parts,
                f"round {ask.round_id}, shard {ask.shard}: peer {row.peer}'s row is not what its "
                "trainer has contributed",
            )

    @on_effect
    def judge_commit(self, committed: Committed) -> None:
        commit = committed.commit
        if not committed.made:
            return
        commits = f"commits round {commit.round_id}, shard {commit.shard}, attempt {commit.made_at}"
        question = self._rule_requests.get((commit.round_id, commit.shard))
        if question is None:
            self.demand(not commit.contributors, f"{commits} without a request to its rule")
            return
        ask, answer = question.ask, question.answer
        if ask.step != "combine":  # see ``CrossShardDecision`` for "combine"
            rows = [row for row in ask.rows if ask.step == "whole" or row.peer in ask.peers]
            averaged = [(row.peer, row.samples) for row in rows if commit.digest]
            named = [(c.peer, c.samples) for c in commit.contributors]
            self.demand(named == averaged, f"{commits}, names {named} and averaged {averaged}")
        if question.attempt != commit.made_at:
            # The request was made and finished in one event, so its attempt is not known.
            return
        if answer is None:
            raise self.violated(f"{commits} before its rule has finished")
        digest = answer.payload.digest if answer.payload is not None else b""
        self.demand(
            commit.digest == digest,
            f"{commits} with the digest {commit.digest.hex() or 'none'}; its rule has made "
            f"{digest.hex() or 'none'}",
        )
        if commit.length != (length := answer.length if digest else 0.0):
            raise self.violated(
                f"{commits} with the length {commit.length:g}; its rule has returned {length:g}"
            )
        if ask.step == "combine":
            return
        judged = tuple([(c.peer, c.weight, c.outlyingness) for c in commit.contributors])
        peers = ask.peers if ask.step == "decide" else [row.peer for row in ask.rows]
        output = (
            tuple(zip(peers, answer.weights, answer.outlyingness, strict=True)) if digest else ()
        )
        if judged != output:
            raise self.violated(
                f"{commits} with the verdicts {judged}; its rule has returned {output}"
            )
        outside = [(row.peer, far) for row, far in zip(ask.outside, answer.outside, strict=False)]
        measured = [(r.peer, r.outlyingness) for r in commit.rejected if r.reason == "quarantined"]
        if measured != (outside if digest else []):
            raise self.violated(
                f"{commits} with {measured} of peers in quarantine; its rule has returned {outside}"
            )


@dataclass(slots=True)
class _GossipRuleRequest:
    """Request to the rule in a gossip round, and the rule's output."""

    ask: Aggregate
    output: Payload | None = None


class GossipStepsMatchRuleResults(Checker):
    """S11, in gossip rounds: a peer applies the rule's result for the gradients, or its own
    gradient if it is alone or the rule failed. It moves its parameters towards the rule's result
    for the parameters, by a fraction of at most k/(k+1) with k other peers."""

    invariant = "S11"
    needs = "gossip"
    _asked = PerIncarnation(dict[int, _GossipRuleRequest])  # ticket -> request of the present round
    _own = PerIncarnation[Contributed | None]()

    @on_event
    def record_contribution(self, event: Contributed) -> None:
        rounds = self.gossip
        if rounds.phase == "computing" and rounds.round_id == event.round_id:
            self._own, self._asked = event, {}

    @on_event
    def record_answer(self, event: Aggregated) -> None:
        asked = self._asked.get(event.ticket)
        if asked is not None:
            asked.output = event.payload

    @on_effect
    def record_question(self, ask: Aggregate) -> None:
        self._asked[ask.ticket] = _GossipRuleRequest(ask)

    @on_effect
    def judge(self, apply: Apply) -> None:
        asked, self._asked = self._asked, {}
        own = self._own
        if own is None or own.round_id != apply.round_id:
            raise self.violated(
                f"applies round {apply.round_id}, to which its trainer has contributed nothing"
            )
        gradients = [each for each in asked.values() if not each.ask.mix]
        self._judge_gradient(apply, own, gradients)
        if gradients:
            self._judge_own_share(gradients[-1].ask)
        self._judge_mix(apply, [each for each in asked.values() if each.ask.mix])

    def _judge_gradient(
        self, apply: Apply, own: Contributed, asked: list[_GossipRuleRequest]
    ) -> None:
        mine = (own.own or own.payloads[0]) if own.samples and own.payloads else None
        output = asked[-1].output if asked else None
        expected = (output,) if output is not None else (mine,) if mine is not None else ()
        whose = "the result of its rule" if output is not None else "its own update"
        self.demand(
            len(apply.payloads) == len(expected)
            and all(a is b for a, b in zip(apply.payloads, expected, strict=True)),
            f"applies in round {apply.round_id} a vector other than {whose}",
        )

    def _judge_own_share(self, ask: Aggregate) -> None:
        others = 0 if ask.own is None else len(ask.rows) - 1
        settings, mixing = self.core.settings, self.core.settings.gossip.mixing
        right = 0.5 if settings.local_steps and others else 0.0
        if settings.gossip.mix_every == 1:
            right = min(right, 1 - mixing)
        self.demand(
            ask.own_share == right,
            f"weights its own update of round {ask.round_id} by {ask.own_share:.3f}, with the "
            f"rule's result of {others} others; {right:.3f} is right",
        )

    def _judge_mix(self, apply: Apply, asked: list[_GossipRuleRequest]) -> None:
        output = asked[-1].output if asked else None
        moves = f"moves in round {apply.round_id}"
        if output is None:
            if apply.mix is not None and apply.mix_scale:
                raise self.violated(f"{moves} without a result of a rule")
            return
        others = len(asked[-1].ask.rows) - 1
        most = others / (others + 1)
        least = min(self.core.settings.gossip.mixing, most)
        self.demand(apply.mix is output, f"{moves} not towards its rule's result")
        if not least <= apply.mix_scale <= most:
            raise self.violated(
                f"{moves} by {apply.mix_scale:.3f} of the way towards {others} others; "
                f"{least:.3f} to {most:.3f} is right"
            )


class RuleAvailability(Checker):
    """S11: a rule returns a finite aggregate if it receives enough finite updates to tolerate f
    Byzantine peers.

    Differences of parameters are excepted, because those of Byzantine peers may overflow float32.
    """

    invariant = "S11"
    _asked = PerIncarnation(dict[int, Aggregate])

    @on_effect
    def record_question(self, ask: Aggregate) -> None:
        by_word = ask.step in ("decide", "combine") and self.conditions.equivocating
        if ask.mix or by_word:
            return
        count = len(ask.peers if ask.step == "decide" else ask.rows)
        if count >= self.core.settings.updates_min and any(row.samples for row in ask.rows):
            self._asked[ask.ticket] = ask

    @on_event
    def judge(self, event: Aggregated) -> None:
        ask = self._asked.pop(event.ticket, None)
        if ask is not None and all(row.payload.finite for row in ask.rows):
            self.demand(
                event.payload is not None or not event.reason,
                f"round {ask.round_id}: of {len(ask.rows)} finite updates, although it needs only "
                f"{self.core.settings.updates_min}, the rule has no result: {event.reason}",
            )
