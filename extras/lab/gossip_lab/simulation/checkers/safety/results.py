"""S11: what is committed or applied is what the rule made of those rows;
and how far a peer moves towards others."""

from __future__ import annotations

from dataclasses import dataclass

from gossip.core import (
    Aggregate,
    Aggregated,
    Apply,
    Commit,
    Committed,
    Contributed,
    Effect,
    Event,
    Payload,
    PeerId,
)
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm

from .exchange import gossip_of
from .rounds import rolling_of

KEPT = 64  # questions of a peer, and rounds of which its updates are known


@dataclass(slots=True)
class _Question:
    ask: Aggregate
    attempt: int | None  # that it was asked for, in rolling rounds
    answer: Aggregated | None = None


class CommitsWhatTheRuleSaid(Checker):
    """S11: a server commits what the rule made of the rows that it was given for that attempt, with
    the weights that it gave; and those rows are what their peers' trainers have come
    with for this round."""

    invariant = "S11"
    events = (Aggregated, Contributed)
    effects = (Aggregate, Committed)

    def make_records(self) -> None:
        self._questions = self.per_life(dict[int, _Question])
        # round -> shards, of all lives
        self._said: dict[PeerId, dict[int, list[tuple[bytes, ...]]]] = {}

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Aggregated):
            question = self._questions[peer].get(event.ticket)
            if question is not None:
                question.answer = event
        elif isinstance(event, Contributed):
            said = self._said.setdefault(peer, {})
            said.setdefault(event.round_id, []).append(
                tuple([payload.data.tobytes() for payload in event.payloads])
            )
            if len(said) > KEPT:
                del said[next(iter(said))]

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Aggregate):
            rounds = rolling_of(swarm.inspections.get(peer))
            if rounds is not None and effect.shard < len(rounds.shards):
                shard = rounds.shards[effect.shard]
                questions = self._questions[peer]
                questions[effect.ticket] = _Question(
                    effect, shard.served.attempt if shard.served.ticket == effect.ticket else None
                )
                if len(questions) > KEPT:
                    del questions[next(iter(questions))]
                self._judge_rows(swarm, peer, effect)
        elif isinstance(effect, Committed) and effect.made:
            self._judge_commit(swarm, peer, effect.commit)

    def _judge_rows(self, swarm: AnySwarm, peer: PeerId, ask: Aggregate) -> None:
        for row in ask.rows:
            said = self._said.get(row.peer, {}).get(ask.round_id)
            if row.peer in self.circumstances.equivocating and row.peer != peer:
                continue
            self.judged += 1
            content = row.payload.data.tobytes()
            if said is None or all(
                ask.shard >= len(each) or each[ask.shard] != content for each in said
            ):
                text = (
                    f"round {ask.round_id}, shard {ask.shard}: peer {row.peer}'s row is not what "
                    "its trainer has come with"
                )
                raise self.violated(swarm, peer, text)

    def _judge_commit(self, swarm: AnySwarm, peer: PeerId, commit: Commit) -> None:
        where = f"round {commit.round_id}, shard {commit.shard}, attempt {commit.made_at}"
        for question in reversed(self._questions[peer].values()):
            ask, answer = question.ask, question.answer
            asked = (ask.round_id, ask.shard, question.attempt) == (
                commit.round_id,
                commit.shard,
                commit.made_at,
            )
            if asked and ask.step != "measure":
                break
        else:
            return  # asked and answered in one event: what was asked is not told any more
        if answer is None:
            raise self.violated(swarm, peer, f"commits {where} before its rule has answered")
        self.judged += 1
        digest = answer.payload.digest if answer.payload is not None else b""
        if commit.digest != digest:
            text = (
                f"commits {where} with the digest {commit.digest.hex() or 'none'}; its rule has "
                f"made {digest.hex() or 'none'}"
            )
            raise self.violated(swarm, peer, text)
        judged = tuple([(c.peer, c.weight, c.outlyingness) for c in commit.contributors])
        if commit.length != (length := answer.length if digest else 0.0):
            text = f"the length {commit.length:g}; its rule has said {length:g}"
            raise self.violated(swarm, peer, f"commits {where} with {text}")
        if ask.step == "combine":
            return  # it tells what was decided: ``DecidesTogether``
        peers = ask.peers if ask.step == "decide" else [row.peer for row in ask.rows]
        said = tuple(zip(peers, answer.weights, answer.outlyingness, strict=True)) if digest else ()
        if judged != said:
            raise self.violated(
                swarm, peer, f"commits {where} with the verdicts {judged}; its rule has said {said}"
            )
        outside = [(row.peer, far) for row, far in zip(ask.outside, answer.outside, strict=False)]
        measured = [(r.peer, r.outlyingness) for r in commit.rejected if r.reason == "quarantined"]
        if measured != (outside if digest else []):
            text = f"of those in quarantine {measured}; its rule has said {outside}"
            raise self.violated(swarm, peer, f"commits {where} with {text}")


@dataclass(slots=True)
class _RuleAsked:
    """Request to the rule in a gossip round, and its reply."""

    ask: Aggregate
    said: Payload | None = None


class AppliesWhatTheRuleSaid(Checker):
    """S11, of gossip rounds: a peer applies what the rule made of the gradients, or its own when it
    is alone or the rule could not; and moves towards the others as the rule says, by a part that
    leaves something of it: at most k/(k+1) beside k others."""

    invariant = "S11"
    events = (Aggregated, Contributed)
    effects = (Aggregate, Apply)

    def make_records(self) -> None:
        self._asked = self.per_life(dict[int, _RuleAsked])  # of the present round, by ticket
        self._own: dict[PeerId, Contributed] = self.per_life()

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Contributed):
            rounds = gossip_of(swarm.inspections.get(peer))
            if (
                rounds is not None
                and rounds.phase == "computing"
                and rounds.round_id == event.round_id
            ):
                self._own[peer], self._asked[peer] = event, {}
        elif isinstance(event, Aggregated):
            asked = self._asked[peer].get(event.ticket)
            if asked is not None:
                asked.said = event.payload

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.gossip if core is not None else None
        if core is None or rounds is None:
            return
        if isinstance(effect, Aggregate):
            self._asked[peer][effect.ticket] = _RuleAsked(effect)
        elif isinstance(effect, Apply):
            asked, self._asked[peer] = self._asked[peer], {}
            own = self._own.get(peer)
            if own is None or own.round_id != effect.round_id:
                raise self.violated(
                    swarm,
                    peer,
                    f"applies round {effect.round_id}, of which its trainer has come with nothing",
                )
            gradients = [each for each in asked.values() if not each.ask.mix]
            self._judge_gradient(swarm, peer, effect, own, gradients)
            if gradients:
                self._judge_own_share(swarm, peer, gradients[-1].ask, core.settings.local_steps)
            self._judge_mix(
                swarm,
                peer,
                effect,
                [each for each in asked.values() if each.ask.mix],
                core.settings.gossip.mixing,
            )

    def _judge_gradient(
        self,
        swarm: AnySwarm,
        peer: PeerId,
        apply: Apply,
        own: Contributed,
        asked: list[_RuleAsked],
    ) -> None:
        mine = (own.own or own.payloads[0]) if own.samples and own.payloads else None
        said = asked[-1].said if asked else None
        expected = (said,) if said is not None else (mine,) if mine is not None else ()
        self.judged += 1
        if len(apply.payloads) != len(expected) or any(
            a is not b for a, b in zip(apply.payloads, expected, strict=True)
        ):
            whose = "what its rule has made" if said is not None else "its own update"
            raise self.violated(
                swarm, peer, f"applies in round {apply.round_id} something else than {whose}"
            )

    def _judge_own_share(
        self, swarm: AnySwarm, peer: PeerId, ask: Aggregate, has_local_steps: bool
    ) -> None:
        others = 0 if ask.own is None else len(ask.rows) - 1
        right = 0.5 if has_local_steps and others else 0.0
        self.judged += 1
        if ask.own_share != right:
            raise self.violated(
                swarm,
                peer,
                f"gives its own update of round {ask.round_id} {ask.own_share:.3f} beside the "
                f"rule's word on {others} others; {right:.3f} is right",
            )

    def _judge_mix(
        self, swarm: AnySwarm, peer: PeerId, apply: Apply, asked: list[_RuleAsked], mixing: float
    ) -> None:
        said = asked[-1].said if asked else None
        if said is None:
            if apply.mix is not None and apply.mix_scale:
                raise self.violated(
                    swarm, peer, f"moves in round {apply.round_id} where no rule has said so"
                )
            return
        others = len(asked[-1].ask.rows) - 1
        most = others / (others + 1)
        self.judged += 1
        if apply.mix is not said:
            raise self.violated(
                swarm, peer, f"moves in round {apply.round_id} elsewhere than its rule has said"
            )
        if not min(mixing, most) <= apply.mix_scale <= most:
            text = (
                f"moves in round {apply.round_id} by {apply.mix_scale:.3f} of the way towards "
                f"{others} others"
            )
            raise self.violated(
                swarm, peer, f"{text}; {min(mixing, most):.3f} to {most:.3f} is right"
            )


__all__ = ["AppliesWhatTheRuleSaid", "CommitsWhatTheRuleSaid"]
