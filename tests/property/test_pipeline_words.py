"""Whatever peers say of micro-batches, in whatever order: nothing raises, and what is kept stays
bounded."""

from __future__ import annotations

from random import Random

import pytest
from pipeline_rig import LINEAGE, Rig, payload

from gossip.core import (
    Activation,
    ActivationGradient,
    ActivationRefused,
    CollectUpdate,
    Counted,
    Effect,
    MicroBatchesMissing,
    PipelineMessage,
    RunBackward,
    RunForward,
    SetTimer,
    Withdraw,
)

B = 3
TURNS = 400
KINDS = (
    Activation,
    Activation,
    ActivationGradient,
    Withdraw,
    ActivationRefused,
    Counted,
    MicroBatchesMissing,
)


class World:
    """A member, what its trainer has to do, and its timers; and a source of words."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.rig, self.tasks = Rig(seed % 6, B), list[RunForward | RunBackward]()
        self.round_id, self.computed = -1, 0
        self.begin()

    def begin(self) -> None:
        self.round_id += 1
        self.take(self.rig.begin(self.round_id))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, RunForward | RunBackward):
                assert not self.tasks, "one task at a time"
                assert effect.micro_batch < B
                self.tasks.append(effect)
            elif isinstance(effect, CollectUpdate):
                assert effect.micro_batches == self.rig.flow.counted
        stores = self.rig.flow.stores()
        assert stores["micro-batches"] <= B
        assert stores["micro-batches with attempts"] <= B
        assert stores["messages kept for the next round"] <= 2 * B + 6
        assert stores["members that have counted"] <= 6

    def message(self) -> PipelineMessage:
        """Mostly one that can be."""
        draw, kind = self.draw, self.draw.choice(KINDS)
        lineage = draw.choice([LINEAGE] * 9 + [b"other"])
        round_id = self.round_id + draw.choice([0] * 8 + [1, 1, 2])
        where = lineage, round_id, self.rig.stage + draw.choice([0] * 9 + [1])
        if kind is Counted or kind is MicroBatchesMissing:
            named = tuple(b for b in range(B + 1) if draw.random() < 0.4)
            named = named[::-1] if draw.random() < 0.1 else named
            if kind is MicroBatchesMissing:
                return MicroBatchesMissing(*where, named)
            return Counted(*where, draw.randrange(9), named, draw.random() < 0.5)
        micro_batch = draw.choice([*range(B), *range(B + 1), 2**40])
        attempt = draw.choice([0, 0, 1, 2, 2**48])
        if kind is ActivationRefused:
            return kind(*where, micro_batch, attempt, draw.choice([0, 3, 2**48]))
        if kind is Withdraw:
            return kind(*where, micro_batch, attempt)
        digest = draw.choice([payload("x").digest] * 5 + [b"", b"?" * 16])
        return kind(*where, micro_batch, attempt, digest)  # type: ignore[no-any-return, operator]

    def turn(self) -> None:
        draw, rig = self.draw, self.rig
        if self.tasks and draw.random() < 0.3:
            task = self.tasks.pop()
            self.computed += 1
            self.take(rig.forward(task) if isinstance(task, RunForward) else rig.backward(task))
        elif (what := draw.random()) < 0.02:
            self.begin()
        elif what < 0.08:
            self.take(rig.view(*[peer for peer in range(6) if draw.random() < 0.2]))
        elif what < 0.14:
            self.fire()
        else:
            sent = draw.choice([payload("x")] * 5 + [payload("y"), None])
            life = draw.choice([0, 0, 0, 1])
            self.take(rig.hear(draw.randrange(7), self.message(), sent, life))

    def fire(self) -> None:
        set_ = [effect for effect in self.rig.said if isinstance(effect, SetTimer)]
        what = self.rig.timers.fire(self.draw.choice(set_).token)
        if what is not None:
            self.take(self.rig.flow.on_timer(what, self.rig.now))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(24))
def test_nothing_that_comes_raises_or_fills_the_memory(seed: int) -> None:
    world = World(seed)
    for _ in range(TURNS):
        world.turn()
    assert world.computed > 2
