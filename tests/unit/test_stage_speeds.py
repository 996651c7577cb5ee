"""How long members of a stage take, by commits: who gets how much of the micro-batches, and who is
not as its profile says."""

from __future__ import annotations

import itertools

import pytest

from gossip.core import (
    SPEED_RATIO_MAX,
    Commit,
    Contribution,
    CoreSettings,
    Payload,
    PipelineSettings,
    Report,
)
from gossip.core.ledger import ReplicatedState, StageSpeeds, weights_of

STAGES = ((0,), (1, 2, 3))
MEMBERS = STAGES[1]


def commit(
    round_id: int, *times_us: int, parent: bytes = b"", lineage: bytes = b"lineage!"
) -> Commit:
    """``times_us``: of peers 1, 2 and so on; 0 for one that has had no micro-batch."""
    contributors = tuple(
        Contribution(peer, 4, 0.5, 1.0, 0, (peer,) if took_us else (), took_us)
        for peer, took_us in enumerate(times_us, 1)
    )
    where = (lineage, round_id, 0, 0, 0, 1, parent)
    return Commit(*where, b"d" * 16, contributors, (), MEMBERS, None, "")


def told(f: int, *rounds: tuple[int, ...]) -> StageSpeeds:
    speeds = StageSpeeds(f, {})
    for round_id, times_us in enumerate(rounds):
        speeds.observe_round([commit(round_id, *times_us)])
    return speeds


def test_who_is_three_times_as_fast_gets_three_times_as_much() -> None:
    pass_us = told(0, (98_304, 294_912)).pass_us((1, 2))
    weights = weights_of(dict(zip((1, 2), pass_us, strict=True)))
    assert weights[1] / weights[2] == pytest.approx(3.0)


def test_one_round_in_which_it_was_held_up_changes_nothing() -> None:
    steady, held_up = (100_000, 100_000, 100_000), (100_000, 100_000, 2_000_000)
    speeds = told(0, steady, steady, held_up, steady)
    assert speeds.pass_us(MEMBERS) == told(0, steady).pass_us(MEMBERS)


def test_before_anything_is_measured_the_plan_counts() -> None:
    speeds = StageSpeeds(0, {1: 32_768, 2: 65_536})
    assert speeds.pass_us((1, 2)) == (32_768, 65_536)
    speeds.observe_round([commit(0, 65_536, 65_536)])
    assert speeds.pass_us((1, 2)) == (65_536, 65_536)
    assert StageSpeeds(0, {}).pass_us(MEMBERS) == (1, 1, 1)


def test_a_liar_gets_no_more_than_the_fastest_honest_member() -> None:
    for claims in itertools.permutations((1, 98_304, 196_608)):
        pass_us = told(1, claims).pass_us(MEMBERS)
        assert pass_us[claims.index(1)] == 98_304


def test_nobody_counts_as_more_than_eight_times_as_fast() -> None:
    for claims in ((1, 100_000, 300_000), (100_000, 100_000, 2**40), (1, 1, 2**40)):
        pass_us = told(0, claims).pass_us(MEMBERS)
        weights = weights_of(dict(zip(MEMBERS, pass_us, strict=True)))
        assert max(weights.values()) <= SPEED_RATIO_MAX * min(weights.values())
    wild = weights_of({1: 1, 2: 2**40})  # as a liar of another stage may say it
    assert wild[1] == pytest.approx(SPEED_RATIO_MAX * wild[2])


def test_small_differences_are_none() -> None:
    assert told(0, (100_000, 101_000)).pass_us((1, 2)) == (98_304, 98_304)


def test_a_joiner_takes_the_times_over() -> None:
    speeds, joined = told(0, (50_000, 90_000, 10_000), (60_000, 0, 20_000)), StageSpeeds(0, {})
    joined.unpack(speeds.pack())
    assert joined.pass_us(MEMBERS) == speeds.pass_us(MEMBERS)
    assert joined.pack() == speeds.pack()


@pytest.mark.parametrize(
    "packed",
    [
        7,
        ((1,),),
        ((1, 2, 3, 4, 5, 6, 7),),
        ((1, -5),),
        ((1, "5"),),
        ((1, 2**41),),
        ((1, 5), (1, 6)),
    ],
)
def test_a_table_that_cannot_be_is_refused(packed: object) -> None:
    speeds = told(0, (50_000,))
    with pytest.raises(ValueError, match="speeds"):
        speeds.unpack(packed)
    assert speeds.pack() == ((1, 50_000),)


def state(audit: float = 0.0, **predicted_us: int) -> ReplicatedState:
    pass_us = tuple((int(peer[1:]), took_us) for peer, took_us in predicted_us.items())
    plan = PipelineSettings(STAGES, 4, pass_us=pass_us, audit=audit)
    whole = CoreSettings(b"run", b"lineage!", 1, (0, 1, 2, 3), pipeline=plan)
    return ReplicatedState(whole.of_stage(1))


def append(held: ReplicatedState, *times_us: int) -> list[Report]:
    """What is said of peers and their profiles by another commit."""
    of = {"parent": held.lineage.head, "lineage": held.settings.lineage}
    made = commit(held.lineage.next_round, *times_us, **of)
    effects = held.append([(made, Payload("v", 32, True, b"d" * 16))], [False], 3)
    return [e for e in effects if isinstance(e, Report) and e.event == "unlike_profile"]


def test_who_is_not_as_its_profile_says_is_named_once_after_five_rounds() -> None:
    held = state(p1=100_000, p2=100_000, p3=100_000)
    reports = [append(held, 140_000, 160_000, 60_000) for _ in range(8)]
    assert [len(each) for each in reports] == [0, 0, 0, 0, 2, 0, 0, 0]
    assert [each.fields for each in reports[4]] == [
        {"subject": 2, "measured_us": 160_000, "predicted_us": 100_000, "round": 4},
        {"subject": 3, "measured_us": 60_000, "predicted_us": 100_000, "round": 4},
    ]


def test_what_messages_take_makes_nobody_a_liar() -> None:
    held = state(p1=1_000, p2=100, p3=1)
    assert not any(append(held, 5_900, 5_000, 5_000) for _ in range(8))
    silent = state()
    assert not any(append(silent, 5_900, 5_000, 500_000) for _ in range(8))


def test_a_snapshot_holds_the_times_with_and_without_audits() -> None:
    for ours, theirs in itertools.product((0.0, 0.5), repeat=2):
        held, joined = state(audit=ours), state(audit=theirs)
        append(held, 50_000, 90_000, 10_000)
        held.begin()
        kept = held.snapshot(1)
        joined.adopt(1, *kept)
        assert joined.pass_us(MEMBERS) == held.pass_us(MEMBERS)
