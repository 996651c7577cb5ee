"""The checkers of pipelines say what is wrong, and nothing of what is right."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from checked_swarm import show

from gossip.core import (
    Activation,
    Apply,
    BackwardDone,
    Commit,
    Committed,
    Contributed,
    Contribution,
    Counted,
    Payload,
    Received,
    Report,
    RunForward,
    Send,
    StageDone,
    StartRound,
    Withdraw,
)
from gossip_lab.simulation.checkers import RunConditions, Violation
from gossip_lab.simulation.checkers.safety.micro_batches import (
    ActivationsToStartedPeers,
    AuditSoundness,
    IdenticalGradients,
    IdenticalMicroBatchShares,
    MicroBatchesCountedOnce,
    NoStaleActivations,
    NoWorkOnCountedMicroBatches,
    StageCommitBarrier,
    StageRebuilds,
)
from gossip_lab.simulation.world.toy_payloads import payload_of_values

STAGES = ((0, 1), (2, 3))
LINEAGE = b"lineage!"


def world(**gradients: dict[tuple[int, int], list[float]]) -> Any:
    """A swarm as far as these checkers look at it. ``p2={(round, micro-batch): gradient}``."""
    hosts = {
        peer: SimpleNamespace(trainer=SimpleNamespace(gradients=gradients.get(f"p{peer}", {})))
        for peer in range(4)
    }
    member = SimpleNamespace(incarnation=0)
    membership = SimpleNamespace(members={0: member, 1: member})
    return SimpleNamespace(
        now=1.0, hosts=hosts, inspections={2: SimpleNamespace(membership=membership)}
    )


def committed(*sets: tuple[int, ...]) -> Committed:
    contributors = tuple(Contribution(p, 4, 0.5, 1.0, 0, each) for p, each in enumerate(sets))
    where = (LINEAGE, 0, 0, 0, 0, 0, b"")
    return Committed(Commit(*where, b"d" * 16, contributors, (), (0, 1), None, ""), b"", made=True)


def test_each_micro_batch_once_and_the_mean_over_all() -> None:
    swarm = world(p0={(0, 0): [1.0, 2.0]}, p1={(0, 1): [3.0, 6.0]})
    computed = IdenticalGradients(STAGES)
    checker = MicroBatchesCountedOnce(computed, 2)
    for peer, micro_batch in ((0, 0), (1, 1)):
        show(computed, "on_event", swarm, peer, BackwardDone(0, micro_batch, 0, None, 4))
    show(checker, "on_effect", swarm, 0, committed((0,), (1,)))
    show(checker, "on_effect", swarm, 0, Apply(0, (payload_of_values([2.0, 4.0]),)))
    for sets in (((0,),), ((0, 1), (1,)), ((0,), (1, 2))):
        with pytest.raises(Violation, match="S20"):
            show(checker, "on_effect", swarm, 0, committed(*sets))
    with pytest.raises(Violation, match="from the mean"):
        show(checker, "on_effect", swarm, 0, Apply(0, (payload_of_values([1.0, 2.0]),)))
    with pytest.raises(Violation, match="were ever computed"):
        show(checker, "on_effect", swarm, 0, Apply(1, (payload_of_values([1.0, 2.0]),)))


def test_two_members_who_compute_a_micro_batch_get_the_same() -> None:
    swarm = world(p2={(0, 0): [1.0]}, p3={(0, 0): [1.5]})
    checker = IdenticalGradients(STAGES)
    for _ in range(2):
        show(checker, "on_event", swarm, 2, BackwardDone(0, 0, 0, None, 4))
    with pytest.raises(Violation, match="S21"):
        show(checker, "on_event", swarm, 3, BackwardDone(0, 0, 1, None, 4))


class Old:
    """A member of the second stage and what it was sent."""

    def __init__(self) -> None:
        self.swarm, self.checker = world(), NoStaleActivations(STAGES)
        self.checker.on_start(self.swarm, 2)

    def sent(self, sender: int, attempt: int, round_id: int = 0, life: int = 0) -> Payload:
        payload = payload_of_values([1.0], digest=True)
        message = Activation(LINEAGE, round_id, 1, 0, attempt, payload.digest)
        show(self.checker, "on_event", self.swarm, 2, Received(sender, life, message, payload))
        return payload

    def withdrawn(self, sender: int, attempt: int) -> None:
        message = Withdraw(LINEAGE, 0, 1, 0, attempt)
        show(self.checker, "on_event", self.swarm, 2, Received(sender, 0, message))

    def computes(self, payload: Payload, attempt: int = 0) -> None:
        show(self.checker, "on_effect", self.swarm, 2, RunForward(0, 0, attempt, payload))


def test_the_latest_attempt_of_a_sender_is_computed_on_and_again_later() -> None:
    old = Old()
    old.sent(0, 0)
    latest = old.sent(0, 1)
    old.sent(1, 3)  # another sender's
    old.computes(latest, 1)
    old.withdrawn(0, 2)
    old.computes(latest, 1)  # once more, on what was kept
    show(old.checker, "on_effect", old.swarm, 2, StartRound(1, None))


def test_what_was_sent_again_or_withdrawn_is_not_computed_on() -> None:
    old = Old()
    first = old.sent(0, 0)
    old.sent(0, 1)
    with pytest.raises(Violation, match=r"S22.* attempt 0"):
        old.computes(first)
    old = Old()
    first = old.sent(0, 0)
    old.withdrawn(0, 1)
    with pytest.raises(Violation, match="S22"):
        old.computes(first)


def test_words_of_a_former_life_or_of_another_round_are_not_computed_on() -> None:
    old = Old()
    first = old.sent(0, 0)
    old.swarm.inspections[2].membership.members[0] = SimpleNamespace(incarnation=1)
    with pytest.raises(Violation, match="an old incarnation"):
        old.computes(first)
    old = Old()
    with pytest.raises(Violation, match="was sent as"):
        old.computes(old.sent(0, 0, round_id=1))
    old = Old()
    with pytest.raises(Violation, match="was sent as None"):
        old.computes(payload_of_values([1.0]))


def test_a_stage_applies_nothing_that_another_has_not_committed() -> None:
    swarm, checker = world(), StageCommitBarrier(STAGES)

    def done(stage: int, committed: int) -> Send:
        return Send(9, StageDone(LINEAGE, stage, committed - 1, committed, (0, 1), False))

    show(checker, "on_effect", swarm, 0, done(0, 1))
    with pytest.raises(Violation, match=r"S23.*stages \[1\]"):
        show(checker, "on_effect", swarm, 0, Apply(0, ()))
    show(checker, "on_effect", swarm, 2, done(1, 1))
    show(checker, "on_effect", swarm, 0, Apply(0, ()))
    with pytest.raises(Violation, match="S23"):
        show(checker, "on_effect", swarm, 2, Apply(1, ()))


def told(event: str, subject: int) -> Report:
    return Report(event, {"subject": subject, "round": 0})


def lying(*peers: int, stages: tuple[tuple[int, ...], ...] = STAGES) -> AuditSoundness:
    conditions = RunConditions(stage_attackers=frozenset(peers))
    checker = AuditSoundness(stages, conditions)
    for peer in range(4):
        checker.on_start(world(), peer)
    return checker


@pytest.mark.parametrize("event", ["found_by_audit", "quarantined"])
def test_audits_find_liars_and_nobody_else_while_they_are_as_few_as_is_borne(event: str) -> None:
    show(lying(1), "on_effect", world(), 0, told(event, 1))
    with pytest.raises(Violation, match=r"S25.*peer 0 is honest"):
        show(lying(1), "on_effect", world(), 1, told(event, 0))
    with pytest.raises(Violation, match="S25"):
        show(lying(1, 2), "on_effect", world(), 2, told(event, 3))
    show(
        lying(1, 0), "on_effect", world(), 2, told(event, 3)
    )  # two of one stage are more than it bears


def test_who_is_locked_up_has_no_micro_batch_from_the_next_round_on() -> None:
    swarm, checker = world(), lying(1)
    show(checker, "on_effect", swarm, 0, told("quarantined", 1))
    show(checker, "on_effect", swarm, 0, committed((0,), (1,)))  # by this commit it is locked up
    show(checker, "on_effect", swarm, 0, committed((0, 1), ()))
    with pytest.raises(Violation, match=r"S25.*micro-batches of \[1\]"):
        show(checker, "on_effect", swarm, 0, committed((0,), (1,)))
    checker = lying(1)
    show(checker, "on_effect", swarm, 1, RunForward(0, 0, 0, None))
    show(checker, "on_effect", swarm, 1, told("quarantined", 1))
    show(checker, "on_effect", swarm, 1, committed((0, 1), ()))
    show(checker, "on_effect", swarm, 1, RunForward(1, 0, 0, None, audit=True))
    with pytest.raises(Violation, match="S25"):
        show(checker, "on_effect", swarm, 1, RunForward(1, 0, 0, None))
    show(checker, "on_effect", swarm, 1, told("parole", 1))
    show(checker, "on_effect", swarm, 1, committed((0, 1), ()))
    show(checker, "on_effect", swarm, 1, RunForward(2, 0, 0, None))


def test_where_activations_are_wrong_members_need_not_compute_alike() -> None:
    swarm = world(p2={(0, 0): [1.0]}, p3={(0, 0): [1.5]})
    checker = IdenticalGradients(STAGES, RunConditions(tampering=True))
    for peer in (2, 3):
        show(checker, "on_event", swarm, peer, BackwardDone(0, 0, 0, None, 4))
    with pytest.raises(Violation, match="S20"):
        show(
            MicroBatchesCountedOnce(checker, 2, RunConditions(tampering=True)),
            "on_effect",
            swarm,
            0,
            committed((0,)),
        )


def rebuilt(round_id: int) -> Report:
    return Report("stage_rebuilt", {"round": round_id})


def test_in_the_round_of_a_stage_made_anew_gradients_may_differ_and_updates_still_add_up() -> None:
    swarm = world(p2={(0, 0): [1.0]}, p3={(0, 0): [1.5]})
    computed = IdenticalGradients(STAGES)
    checker = MicroBatchesCountedOnce(computed, 2)
    show(computed, "on_effect", swarm, 0, rebuilt(0))
    for peer in (2, 3):
        show(computed, "on_event", swarm, peer, BackwardDone(0, 0, 0, None, 4))
    for peer, value, named in ((0, 2.0, (0,)), (0, 3.0, (0,)), (1, 6.0, (1,))):
        offer = (payload_of_values([value]),)
        show(computed, "on_event", swarm, peer, Contributed(0, 4, offer, micro_batches=named))
    computed.gradients[0, 0] = {0: [2.0], 1: [6.0]}
    show(checker, "on_effect", swarm, 0, committed((0,), (1,)))
    for mean in (4.0, 4.5):  # of what peer 0 has offered at first, and later
        show(checker, "on_effect", swarm, 0, Apply(0, (payload_of_values([mean]),)))
    with pytest.raises(Violation, match="from the mean of any updates"):
        show(checker, "on_effect", swarm, 0, Apply(0, (payload_of_values([5.0]),)))


def test_what_was_sent_before_a_state_was_taken_is_forgotten() -> None:
    old = Old()
    old.sent(0, 5)
    show(old.checker, "on_effect", old.swarm, 2, rebuilt(0))
    old.computes(old.sent(0, 1))


def test_a_stage_is_made_anew_only_without_a_holder_and_in_the_round_of_the_others() -> None:
    def at(peers: dict[int, tuple[str, int]]) -> Any:
        hosts = {
            peer: SimpleNamespace(
                running=True,
                core=SimpleNamespace(rounds=SimpleNamespace(mode=mode, round_id=round_id)),
            )
            for peer, (mode, round_id) in peers.items()
        }
        return SimpleNamespace(now=1.0, hosts=hosts)

    checker = StageRebuilds(STAGES)
    others = {0: ("active", 6), 1: ("active", 7)}
    show(checker, "on_effect", at({**others, 2: ("off", 0), 3: ("off", 0)}), 2, rebuilt(7))
    with pytest.raises(Violation, match=r"S26.*although its members \[3\] have its state"):
        show(checker, "on_effect", at({**others, 2: ("off", 0), 3: ("active", 7)}), 2, rebuilt(7))
    with pytest.raises(Violation, match="the other stages are in"):
        show(checker, "on_effect", at({**others, 2: ("off", 0)}), 2, rebuilt(5))


def test_members_with_one_history_share_alike_and_within_bounds() -> None:
    checker = IdenticalMicroBatchShares(STAGES)

    def begins(peer: int, chain: bytes, **weights: float) -> None:
        rolling = SimpleNamespace(round_id=4, chain=chain)
        found = {int(name[1:]): weight for name, weight in weights.items()}
        seen = SimpleNamespace(rolling=rolling, weights=found)
        swarm = SimpleNamespace(now=1.0, inspections={peer: seen})
        show(checker, "on_effect", swarm, peer, StartRound(4, None))  # type: ignore[arg-type]

    begins(2, b"one", p2=1.0, p3=8.0)
    begins(3, b"one", p2=1.0, p3=8.0)
    begins(3, b"other", p2=1.0, p3=2.0)
    with pytest.raises(Violation, match=r"S28.*elsewhere"):
        begins(3, b"one", p2=1.0, p3=7.0)
    with pytest.raises(Violation, match="S28"):
        begins(2, b"third", p2=1.0, p3=9.0)


class Leaving:
    """A member of the first stage, and what its mate says."""

    def __init__(self) -> None:
        self.swarm, self.checker = world(), NoWorkOnCountedMicroBatches(STAGES)
        member, reasons = SimpleNamespace(incarnation=0), dict[int, str]()
        self.reasons = reasons
        membership = SimpleNamespace(
            members={1: member}, skip_reason=lambda peer: reasons.get(peer, "")
        )
        seen = SimpleNamespace(membership=membership, weights={0: 1.0, 1: 1.0})
        self.swarm.inspections[0] = seen
        self.checker.on_start(self.swarm, 0)
        show(self.checker, "on_effect", self.swarm, 0, StartRound(4, None))

    def told(self, number: int, *micro_batches: int, round_id: int = 4, life: int = 0) -> None:
        message = Counted(LINEAGE, round_id, 0, number, micro_batches, False)
        show(self.checker, "on_event", self.swarm, 0, Received(1, life, message))

    def begins(self, micro_batch: int) -> None:
        show(self.checker, "on_effect", self.swarm, 0, RunForward(4, micro_batch, 0, None))


def test_nobody_begins_on_what_a_member_within_reach_has_counted() -> None:
    leaving = Leaving()
    leaving.begins(2)
    leaving.told(1, 2)
    leaving.begins(3)
    with pytest.raises(Violation, match=r"S31.* micro-batch 2 of round 4"):
        leaving.begins(2)


def test_what_is_told_no_more_was_its_own_or_is_of_somebody_out_of_reach_is_begun_on() -> None:
    leaving = Leaving()
    leaving.told(2)
    leaving.told(1, 2)  # older
    leaving.told(3, 3, round_id=3)
    leaving.begins(2)
    leaving.begins(3)
    leaving.told(3, 2, 3)
    show(leaving.checker, "on_event", leaving.swarm, 0, BackwardDone(4, 2, 0, None, 4))
    leaving.begins(2)
    leaving.reasons[1] = "disconnected"
    leaving.begins(3)
    del leaving.reasons[1]
    leaving.swarm.inspections[0].membership.members[1].incarnation = 1
    leaving.begins(3)
    leaving.told(1, 3, life=1)
    with pytest.raises(Violation, match="S31"):
        leaving.begins(3)


def test_nothing_is_sent_to_a_life_that_has_begun_no_round() -> None:
    checker, swarm = ActivationsToStartedPeers(STAGES), world()
    swarm.hosts[2].incarnation = 0
    member = SimpleNamespace(incarnation=0)
    swarm.inspections[0] = SimpleNamespace(membership=SimpleNamespace(members={2: member}))
    sent = Send(2, Activation(LINEAGE, 4, 1, 3, 0, b"d" * 16))
    checker.on_start(swarm, 2)
    with pytest.raises(Violation, match=r"S33.* micro-batch 3 of round 4 is sent to peer 2"):
        show(checker, "on_effect", swarm, 0, sent)
    for begins in (StartRound(0, None), Report("restored", {})):
        show(checker, "on_effect", swarm, 2, begins)
        show(checker, "on_effect", swarm, 0, sent)
        checker.on_start(swarm, 2)
        with pytest.raises(Violation, match="S33"):
            show(checker, "on_effect", swarm, 0, sent)
    swarm.hosts[2].incarnation = 1
    show(checker, "on_effect", swarm, 0, sent)  # of which its sender knows nothing
