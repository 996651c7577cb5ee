"""What a peer judges by: drawn for each round, the same again for the same round, and asked for
where it is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler
from trainer_fakes import FakeNode, FakeNodeSwarm, backward, small_model

from gossip.aggregators import load
from gossip.core import events
from gossip.errors import ConfigError
from gossip.ipc import messages as control
from gossip.ipc.arena import allocate, map_rows
from gossip.training.judging import LossJudge
from gossip.training.layout import Layout
from gossip.training.loader import ShardedLoader
from gossip.training.reference import STREAM_MAX, ReferenceData, needs_batch, reference_of


class Numbers(Dataset[Tensor]):
    def __init__(self, count: int = 1000) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((5,), float(index))


class Stream(IterableDataset[Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.full((5,), float(at)) for at in range(self.count))


def drawn(reference: ReferenceData, round_id: int) -> list[int]:
    return [int(value) for value in reference.batch(round_id)[:, 0]]


def test_a_batch_follows_from_seed_peer_and_round_and_nothing_else() -> None:
    one, again = (reference_of(Numbers(), 32, (7, 2)) for _ in range(2))
    of_rounds = [drawn(one, round_id) for round_id in range(20)]
    assert [drawn(again, round_id) for round_id in reversed(range(20))] == of_rounds[::-1]
    assert len({tuple(batch) for batch in of_rounds}) == 20
    assert drawn(reference_of(Numbers(), 32, (7, 3)), 0) != of_rounds[0]
    assert drawn(reference_of(Numbers(), 32, (8, 2)), 0) != of_rounds[0]
    assert all(len(set(batch)) == 32 for batch in of_rounds)
    assert len({sample for batch in of_rounds for sample in batch}) > 400  # of all, not of a few


@pytest.mark.parametrize(
    "data",
    [
        Numbers(10),
        Stream(10),
        [Numbers(10)[at] for at in range(10)],
        (Numbers(10)[at] for at in range(10)),
        DataLoader(Numbers(10), batch_size=3, shuffle=True),
        DataLoader(Stream(10), batch_size=3),
    ],
    ids=["data set", "stream", "list", "generator", "loader", "loader of a stream"],
)
def test_whatever_holds_samples_is_a_reference_and_a_small_one_is_read_whole(data: object) -> None:
    assert sorted(drawn(reference_of(data, 32, ()), 0)) == list(range(10))


def test_a_loader_brings_its_collating() -> None:
    loader = DataLoader(Numbers(), batch_size=3, collate_fn=lambda samples: len(samples))
    assert reference_of(loader, 32, ()).batch(0) == 32


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (Numbers(0), "no samples"),
        (iter(()), "no samples"),
        (256, "not int"),
        (Stream(STREAM_MAX + 1), "more than 65536 samples and no index"),
    ],
)
def test_what_is_no_reference_is_named(data: object, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        reference_of(data, 32, ())


def test_a_judge_says_by_its_argument_whether_it_wants_a_batch() -> None:
    assert needs_batch(lambda batch: batch)
    assert not any([needs_batch(lambda: 0.0), needs_batch(lambda batch=None: batch)])
    for judge, what in ((lambda x, y: x, "has 2 arguments"), (Numbers(9), "not a function")):
        with pytest.raises(ConfigError, match=what):
            needs_batch(judge)  # type: ignore[arg-type]


def test_the_batch_is_read_once_for_all_updates_of_a_question() -> None:
    model, optimizer = small_model()
    layout = Layout(model, optimizer)
    read: list[int] = []
    seen: list[float] = []

    def batch(round_id: int) -> Tensor:
        read.append(round_id)
        return torch.full((4, 5), float(torch.rand(())))

    def judge(x: Tensor) -> Tensor:
        seen.append(float(x[0, 0]))
        return model(x).square().sum()

    bench = LossJudge(model, layout, judge, b"seed", batch)
    for round_id in (3, 4):
        rows = torch.randn(5, layout.elements).numpy()
        question = control.JudgeCommand(1, round_id, 4, 0, 1, -1, False)
        bench.explain(load("zeno"), question, rows, 0.1)
    assert read == [3, 4]
    assert len(seen) == 10
    assert len(set(seen)) == 2


# --- in a session ---------------------------------------------------------------------------------


def test_with_sharded_data_nothing_more_has_to_be_said() -> None:
    model, optimizer = small_model()
    judged_by: list[list[int]] = []

    def node(n: FakeNode) -> None:
        elements = n.prepared().elements
        fd = allocate(4 * 4 * elements)
        map_rows(fd, 4, elements)[:3] = 1.0
        n.go(0)
        n.expect(events.DataConfigured)
        n.offered(0, ranges=[(0, 4)])
        for round_id, capacity in ((0, 4), (5, 0), (0, 0)):
            n.send(
                control.JudgeCommand(1, round_id, 3, capacity, 1, -1, False),
                fds=[fd] if capacity else [],
            )
            assert n.expect(control.JudgeReply).reason == ""
        n.lost(0)
        n.end(1)

    def judge(x: Tensor) -> Tensor:
        judged_by.append([int(value) for value in x[:, 0]])
        return model(x / 1000).square().sum()

    rule = "judged_clipping"
    with FakeNodeSwarm(node, aggregator=rule, peers=4, reference_samples=17) as swarm:
        session = swarm.session
        session.prepare(model, optimizer, judge=judge)
        chosen = SubsetRandomSampler(range(500, 600))
        loader = session.shard(DataLoader(Numbers(), batch_size=4, sampler=chosen))
        model(next(iter(loader))).sum().backward()
        optimizer.step()
        assert isinstance(loader, ShardedLoader)
        expected = [drawn(loader.reference(17), round_id) for round_id in (0, 5, 0)]
    assert judged_by == expected
    assert all(len(batch) == 17 and 500 <= min(batch) < 600 for batch in judged_by)


def test_a_reference_that_was_given_comes_before_the_sharded_data() -> None:
    model, optimizer = small_model()

    def node(n: FakeNode) -> None:
        n.sharded()
        n.halt()

    with FakeNodeSwarm(node, aggregator="judged_clipping", peers=4, reference=Numbers(3)) as swarm:
        swarm.session.prepare(model, optimizer, judge=lambda batch: model(batch).sum())
        swarm.session.shard(Numbers(100), batch_size=4)
        assert sorted(drawn(swarm.session._reference.find(), 0)) == [0, 1, 2]


def test_a_rule_with_a_judge_and_nothing_to_judge_by_says_what_to_write() -> None:
    model, optimizer = small_model()
    with FakeNodeSwarm(
        lambda n: (n.prepared(), n.go(0), n.halt()), aggregator="fltrust", peers=4
    ) as swarm:
        swarm.session.prepare(model, optimizer, judge=lambda batch: model(batch).sum())
        backward(model, 0)
        with pytest.raises(ConfigError, match="but there are none") as raised:
            optimizer.step()
    assert "gossip.init(reference=dataset)" in (raised.value.hint or "")


def test_a_rule_with_a_judge_and_no_judge_says_what_to_write() -> None:
    model, optimizer = small_model()
    with (
        FakeNodeSwarm(lambda n: n.halt(), aggregator="judged_clipping", peers=4) as swarm,
        pytest.raises(ConfigError, match="needs the loss of the model on samples") as raised,
    ):
        swarm.session.prepare(model, optimizer)
    assert "judge=lambda batch:" in (raised.value.hint or "")


# --- for a search of a start ----------------------------------------------------------------------


def test_what_is_set_apart_is_never_drawn_and_all_peers_draw_the_same() -> None:
    one = ReferenceData(Numbers(50), torch.stack, 8, ("seed", "search"))
    other = ReferenceData(Numbers(50), torch.stack, 8, ("seed", "search"))
    (held, drawn), (held_there, drawn_there) = one.set_apart(10), other.set_apart(10)
    assert sorted(held[:, 0].tolist()) == sorted(held_there[:, 0].tolist())
    assert len(set(held[:, 0].tolist())) == 10
    batches = [drawn(order, step) for order in range(2) for step in range(20)]
    assert torch.equal(batches[25], drawn_there(1, 5))
    assert not torch.equal(batches[5], batches[25])
    seen = {float(value) for batch in batches for value in batch[:, 0]}
    assert seen.isdisjoint(held[:, 0].tolist())
    assert len(seen) == 40


def test_no_more_than_half_of_the_samples_can_be_set_apart() -> None:
    data = ReferenceData(Numbers(50), torch.stack, 8, ("seed",))
    data.set_apart(25)
    for samples in (0, 26):
        with pytest.raises(ConfigError, match=f"{samples} samples cannot be held out of 50"):
            data.set_apart(samples)
