"""A slow peer ends its round when the others do, with the local steps that it has taken."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import TensorDataset
from trainer_fakes import FakeNode, FakeNodeSwarm, flat_parameters, small_model, step

from gossip.core.ledger.pace import since_us
from gossip.core.ledger.replicated_state import ReplicatedState
from gossip.core.ledger.round_times import RoundTimes
from gossip.core.settings import MARGIN_US, CoreSettings
from gossip.ipc import messages as control
from gossip.training.local_steps import StepClock

S = 10**6


def test_the_deadline_is_a_little_above_the_median_of_the_last_rounds() -> None:
    times = RoundTimes()
    assert times.deadline_us == 0
    times.observe([3 * S, 3 * S, 12 * S])
    assert times.deadline_us == 3.3 * S
    times.observe([30 * S, 30 * S, 30 * S])  # all were held up, once
    times.observe([3 * S, 4 * S, 0])
    assert times.deadline_us == 3.3 * S
    times.observe([30 * S, 31 * S, 32 * S])
    assert times.deadline_us == 33 * S


def test_rounds_of_which_nobody_says_how_long_they_took_tell_nothing() -> None:
    times = RoundTimes()
    times.observe([0, 0])
    times.observe([])
    assert times.deadline_us == 0


def test_short_rounds_have_a_margin_that_no_peer_needs() -> None:
    times = RoundTimes()
    times.observe([1000, 2000, 3000])
    assert times.deadline_us == 2000 + MARGIN_US


def test_an_update_of_some_steps_tells_how_long_all_would_take() -> None:
    assert since_us(1.0, 3.0) == 2 * S
    assert since_us(1.0, 3.0, (10, 40)) == 8 * S


@pytest.mark.parametrize(
    ("local_steps", "slices", "shortens"),
    [(True, "speed", True), (True, "equal", False), (False, "speed", False)],
)
def test_only_local_steps_are_shortened_and_only_by_speed(
    local_steps: bool, slices: str, shortens: bool
) -> None:
    settings = CoreSettings(
        run=b"r" * 8,
        lineage=b"l" * 8,
        seed=1,
        peers=(0, 1, 2),
        local_steps=local_steps,
        slices=slices,  # type: ignore[arg-type]
    )
    held = ReplicatedState(settings)
    held.round_times.observe([S, S, S])
    assert bool(held.deadline_us) is shortens
    assert held.cursor.paced is (slices == "speed" and not local_steps)


class Hands:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def played(*lasted_s: float, clock: StepClock | None = None, hands: Hands) -> StepClock:
    clock = clock or StepClock(hands)
    clock.begin_round(hands.at)
    for each in lasted_s:
        hands.at += each
        clock.record_step()
    return clock


def test_a_step_that_would_not_be_over_in_time_is_not_begun() -> None:
    hands = Hands()
    clock = played(2.0, 2.0, 2.0, hands=hands)
    assert not clock.is_late(8.0, left=1)
    assert clock.is_late(7.9, left=1)
    assert not clock.is_late(0.0, left=1), "there is no deadline"


def test_who_cannot_take_all_steps_ends_when_most_do_and_not_at_the_deadline() -> None:
    """Others have ended theirs at 0.9 of it, and would wait for one step of one peer."""
    hands = Hands()
    clock = played(2.0, 2.0, 2.0, hands=hands)
    assert clock.is_late(8.5, left=9)
    assert not clock.is_late(8.9, left=9)


def test_one_long_step_of_a_round_is_no_speed() -> None:
    """Beside it the script has evaluated."""
    hands = Hands()
    clock = played(100.0, 2.0, 2.0, hands=hands)
    assert not clock.is_late(8.0, left=1)


def test_one_step_tells_no_speed_unless_there_was_a_round_before() -> None:
    hands = Hands()
    clock = played(5.0, hands=hands)
    assert not clock.is_late(1.0, left=1)
    played(2.0, 2.0, clock=clock, hands=hands)
    played(2.0, clock=clock, hands=hands)
    assert clock.is_late(3.9, left=1)
    assert not clock.is_late(4.0, left=1)


def test_who_began_a_round_late_is_in_time_with_fewer_steps() -> None:
    """All of its time counts, its first step too, and it has a little less than others."""
    hands = Hands()
    clock = StepClock(hands)
    clock.begin_round(hands.at, late_s=3.0)
    hands.at += 2.0
    clock.record_step()
    assert not clock.is_late(1.0, left=4), "it does not know yet how long a step takes"
    hands.at += 1.0
    clock.record_step()
    assert not clock.is_late(8.0, left=1), "3 s late, 3 s of steps, 1 s for the next: 7 of 7.2 s"
    assert clock.is_late(7.7, left=1)
    played(1.0, 1.0, clock=clock, hands=hands)
    assert not clock.is_late(3.0, left=1), "the next round has begun in time"


def test_a_late_peer_sends_the_steps_that_it_has_and_all_go_on_at_the_same_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of six batches of its slice it has used four; the loop goes on with the next round's."""
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    told: list[control.Contribute] = []

    def deal(n: FakeNode, round_id: int, ranges: list[tuple[int, int]]) -> None:
        n.send(
            control.StartRoundCommand(
                round_id, 0, True, 0, tuple(ranges), False, 1, 1, deadline_us=3 * S
            )
        )

    def script(n: FakeNode) -> None:
        n.sharded()
        for round_id, ranges in enumerate(([(0, 12)], [(8, 12), (12, 20)])):
            deal(n, round_id, ranges)
            told.append(n.expect(control.Contribute))
            n.apply(round_id, 0, n.arena.updates[0])  # type: ignore[union-attr]
            n.expect(control.AppliedReply)
        n.end(2, ranges=[(20, 32)], epoch=1)

    with FakeNodeSwarm(script, local_steps=6, outer="mean") as swarm:
        peer = swarm.session
        # Late behind four steps of its first round, never in the second.
        late = iter([False, False, False, True, *[False] * 6])
        monkeypatch.setattr(StepClock, "is_late", lambda self, deadline_s, left: next(late))
        loader = peer.shard(TensorDataset(torch.arange(40)), batch_size=2)
        peer.prepare(model, optimizer)
        seen, steps = [], []
        for at, _ in enumerate(loader):
            seen.append(at)
            steps.append(peer.step)
            step(model, optimizer, at)
            step(twin, twin_optimizer, at)
        assert peer.step == 12
        assert torch.allclose(flat_parameters(model), flat_parameters(twin), atol=1e-6)
    assert steps == [0, 1, 2, 3, *range(6, 12)]
    assert [(each.samples, each.steps) for each in told] == [(8, (4, 6)), (12, (6, 6))]


def test_the_deadline_of_a_round_is_what_the_node_says() -> None:
    found: list[float] = []

    def script(n: FakeNode) -> None:
        n.prepared()
        n.send(control.StartRoundCommand(0, 0, False, 0, (), False, 1, 1, deadline_us=1500))
        n.expect(control.Contribute)
        n.lost(0)
        n.end(1)

    with FakeNodeSwarm(script, local_steps=2, outer="mean") as swarm:
        peer = swarm.session
        model, optimizer = swarm.prepare()
        found.append(peer._run.exchange.deadline_s)
        step(model, optimizer, 0)
        step(model, optimizer, 1)
        found.append(peer._run.exchange.deadline_s)
    assert found == [0.0015, 0.0]


def test_a_peer_is_late_for_a_round_that_began_before_it_was_done_with_an_earlier_one() -> None:
    late: list[bool] = []

    def deal(n: FakeNode, round_id: int, began_at: float) -> None:
        slot = round_id % 4
        go = control.StartRoundCommand(round_id, slot, False, 0, (), False, 1, 1, began_at=began_at)
        n.send(go)

    def script(n: FakeNode) -> None:
        n.prepared()
        began_at = time.monotonic() - 9.0
        deal(n, 0, began_at)
        for round_id in range(2):
            n.expect(control.Contribute)
            n.lost(round_id)
            # round 1 begins behind round 0, and round 2 with round 1: before that was offered
            began_at = began_at if round_id else time.monotonic()
            deal(n, round_id + 1, began_at)
        n.halt()

    with FakeNodeSwarm(script, local_steps=2, outer="mean") as swarm:
        peer = swarm.session
        model, optimizer = swarm.prepare()
        for round_id in range(3):
            late.append(peer._run.exchange.late_s(time.monotonic()) > 0.0)
            for at in range(2 if round_id < 2 else 0):
                step(model, optimizer, at)
    assert late == [True, False, True], "the first has just begun with what it trains"
