"""Whatever peers say of micro-batches, in whatever order: nothing raises, and what is kept stays
bounded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_rig import LINEAGE, Rig, payload

from gossip.core import (
    Activation,
    ActivationGradient,
    ActivationRefused,
    CollectUpdate,
    Counted,
    Effect,
    MicroBatchesMissing,
    Payload,
    PipelineMessage,
    RunBackward,
    RunForward,
    SetTimer,
    Withdraw,
)

B = 3
rounds = st.integers(0, 3)
stages = st.integers(0, 3)
micro_batches = st.integers(0, B)  # one too many
attempts = st.one_of(st.integers(0, 3), st.just(2**48))
digests = st.sampled_from([payload("x").digest, b"", b"?" * 16])
sets = st.lists(st.integers(0, B), max_size=4).map(tuple)
lineages = st.sampled_from([LINEAGE, LINEAGE, LINEAGE, b"other"])
places = (lineages, rounds, stages, micro_batches)
messages: st.SearchStrategy[PipelineMessage] = st.one_of(
    st.builds(Activation, *places, attempts, digests),
    st.builds(ActivationGradient, *places, attempts, digests),
    st.builds(Withdraw, *places, attempts),
    st.builds(ActivationRefused, *places, attempts, attempts),
    st.builds(Counted, lineages, rounds, stages, st.integers(0, 3), sets, st.booleans()),
    st.builds(MicroBatchesMissing, lineages, rounds, stages, sets),
)
payloads = st.sampled_from([payload("x"), payload("y"), None])
words = st.tuples(st.just("word"), st.integers(0, 9), messages, payloads, st.integers(0, 1))
turns = st.one_of(
    words,
    words,
    st.tuples(st.sampled_from(["answer", "timer", "begin"])),
    st.tuples(st.just("view"), st.sets(st.integers(0, 5))),
)


class World:
    """A member, what its trainer has to do, and its timers."""

    def __init__(self, local: int) -> None:
        self.rig, self.tasks = Rig(local, B), list[RunForward | RunBackward]()
        self.kept: set[int] = set()
        self.round_id = -1
        self.take(self.begin())

    def begin(self) -> list[Effect]:
        self.round_id += 1
        return self.rig.begin(self.round_id)

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, RunForward | RunBackward):
                assert not self.tasks, "one task at a time"
                self.tasks.append(effect)
            elif isinstance(effect, CollectUpdate):
                assert effect.micro_batches == self.rig.flow.counted
        stores = self.rig.flow.stores()
        assert stores["micro-batches"] <= B
        assert stores["micro-batches with attempts"] <= B
        assert stores["messages kept for the next round"] <= 2 * B + 6
        assert stores["members that have counted"] <= 6

    def turn(self, turn: tuple[object, ...]) -> None:
        match turn:
            case ("word", int(sender), message, sent, int(life)):
                assert sent is None or isinstance(sent, Payload)
                self.take(self.rig.hear(sender, message, sent, life))  # type: ignore[arg-type]
            case ("answer",) if self.tasks:
                task = self.tasks.pop()
                forward = isinstance(task, RunForward)
                self.take(self.rig.forward(task) if forward else self.rig.backward(task))  # type: ignore[arg-type]
            case ("timer",):
                set_ = [e for e in self.rig.said if isinstance(e, SetTimer)]
                if set_ and (what := self.rig.timers.fire(set_[-1].token)) is not None:
                    self.rig.now = set_[-1].at
                    self.take(self.rig.flow.on_timer(what, self.rig.now))  # type: ignore[arg-type]
            case ("begin",):
                self.take(self.begin())
            case ("view", set() as skipped):
                self.take(self.rig.view(*skipped))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 5), st.lists(turns, max_size=40))
def test_nothing_that_comes_raises_or_fills_the_memory(
    local: int, story: list[tuple[object, ...]]
) -> None:
    world = World(local)
    for turn in story:
        world.turn(turn)
