from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from gossip.core.events import EpochReport
from gossip.errors import ConfigError
from gossip.inject.faulty_trainer import LabelFlip
from gossip.ipc.messages import StartRoundCommand
from gossip.training.batches import LoaderPass
from gossip.training.loader import ShardedLoader, loader_of


class ScriptedRounds:
    """Hands out the slices of a script, as a session does."""

    least = 1
    batches = run = rounds = steps = property(lambda self: self)
    peer, epoch = 0, -1

    def __init__(
        self,
        slices: list[tuple[int, tuple[tuple[int, int], ...]]],
        peers: int = 1,
        last: dict[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.slices, self.planned_peers, self.last = slices, peers, last or {}
        self.passed: list[int] = []
        self.stepped: list[int] = []
        self.over: list[int] = []
        self.at = self.batch = 0
        self.handed: int | None = None

    def next_round(self, epoch_steps: int = 0) -> StartRoundCommand | None:
        if self.at >= len(self.slices):
            return None
        epoch, ranges = self.slices[self.at]
        planned = self.planned_peers, self.planned_peers, 0, (), self.last.get(self.at, ())
        return StartRoundCommand(self.at, 0, True, epoch, ranges, False, *planned)

    def resume_pass(self, resumed: LoaderPass | None) -> LoaderPass:
        return resumed or LoaderPass()

    def end_pass(self, epoch: int | None = None) -> None:
        assert epoch is not None
        self.over.append(epoch)

    def pass_round(self, skipped: bool = False) -> None:
        self.passed.append(self.at)
        self.at, self.handed = self.at + 1, None

    def hand_out(self, samples: int, batch: int = 0, content: object = None) -> None:
        self.handed, self.batch = samples, batch

    @property
    def next_batch(self) -> int | None:
        return None if self.handed is None else self.batch + 1

    @property
    def unused(self) -> bool:
        return self.handed is not None

    def step(self) -> None:
        assert self.handed is not None
        self.stepped.append(self.handed)
        self.at, self.handed = self.at + 1, None


def numbers(n: int = 10) -> TensorDataset:
    return TensorDataset(torch.arange(float(n)), torch.arange(n) % 3)


def sharded(
    loader: Any,
    script: ScriptedRounds,
    seed: int = 7,
    flip: bool = False,
    classes: int | None = None,
    order: str = "",
) -> ShardedLoader:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alter = LabelFlip(loader.dataset, classes) if flip else lambda batch: batch
        made = ShardedLoader(loader, script, seed, alter)
        if order:
            made.order_by(order)
        return made


def epoch_of(script: ScriptedRounds, loader: ShardedLoader) -> list[list[int]]:
    seen = []
    for x, _ in loader:
        seen.append(x.int().tolist())
        script.step()
    return seen


def test_a_loop_ends_with_its_own_epoch_wherever_the_run_has_come_to():
    """What a script does behind it, such as a mean over all peers, is of that epoch."""
    script = ScriptedRounds([(1, ((0, 3),)), (4, ((3, 6),))])
    loader = sharded(DataLoader(numbers(), batch_size=5, shuffle=True), script)
    epoch_of(script, loader)
    assert script.over == [1]
    epoch_of(script, loader)
    assert script.over == [1, 4]


def test_an_epoch_reads_each_sample_once_whoever_gets_which_slice():
    first, second = (
        ScriptedRounds([(0, ((0, 3),)), (0, ((6, 8),))]),
        ScriptedRounds([(0, ((3, 6),)), (0, ((8, 10),))]),
    )
    seen = [
        epoch_of(script, sharded(DataLoader(numbers(), batch_size=3), script))
        for script in (first, second)
    ]
    assert sorted(index for part in seen for batch in part for index in batch) == list(range(10))
    assert first.stepped == [3, 2]


def test_other_samples_than_were_shared_out_are_refused():
    grown, chosen = numbers(), SubsetRandomSampler(list(range(5)))
    fewer, others = SubsetRandomSampler(list(range(5))), SubsetRandomSampler(list(range(5)))
    loaders = [
        (DataLoader(grown, batch_size=5), lambda: setattr(grown, "tensors", numbers(20).tensors)),
        (DataLoader(numbers(), 5, sampler=fewer), lambda: fewer.indices.pop()),
        (
            DataLoader(numbers(), 5, sampler=others),
            lambda: setattr(others, "indices", [7, 1, 2, 3, 4]),
        ),
    ]
    for given, change in loaders:
        loader = sharded(given, ScriptedRounds([(0, ((0, 5),)), (1, ((10, 15),))]))
        next(iter(loader))
        change()
        with pytest.raises(ConfigError, match="were divided among the peers"):
            next(iter(loader))
    for same in (chosen, SubsetRandomSampler(torch.arange(5))):  # type: ignore[arg-type]
        loader = sharded(DataLoader(numbers(), 5, sampler=same), ScriptedRounds([(0, ((0, 5),))]))
        assert len(list(loader)) == 1


def test_tensors_of_a_data_set_may_be_replaced_by_as_many():
    data = numbers()
    loader = sharded(DataLoader(data, batch_size=10), ScriptedRounds([(0, ((0, 10),))]))
    data.tensors = (data.tensors[0] + 100, data.tensors[1])
    assert min(x.min() for x, _ in loader) == 100


def test_the_order_is_new_each_epoch_and_the_same_on_every_peer():
    slices = [(0, ((0, 10),)), (1, ((10, 20),))]
    orders = []
    for _ in range(2):
        script = ScriptedRounds(slices)
        loader = sharded(DataLoader(numbers(), batch_size=10, shuffle=True), script)
        torch.randn(5)  # whatever the user draws meanwhile
        orders.append((epoch_of(script, loader), epoch_of(script, loader)))
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    other = ScriptedRounds(slices)
    assert (
        epoch_of(other, sharded(DataLoader(numbers(), batch_size=10), other, seed=8))
        != orders[0][0]
    )


def test_what_earlier_epochs_have_left_is_read_in_their_orders():
    def read(*slices: tuple[int, tuple[tuple[int, int], ...]]) -> list[list[int]]:
        script = ScriptedRounds(list(slices))
        return epoch_of(script, sharded(DataLoader(numbers(), batch_size=10), script))

    (first,), (second,) = read((0, ((0, 10),))), read((1, ((10, 20),)))
    assert read((1, ((7, 13),)), (1, ((5, 6), (18, 20)))) == [
        first[7:] + second[:3],
        [first[5], *second[8:]],
    ]
    backlog = read(*[(9, ((10 * epoch, 10 * epoch + 10),)) for epoch in range(9)], (9, ((0, 10),)))
    assert backlog[0] == backlog[9] == first
    assert backlog[1] == second


def test_reading_leaves_the_users_random_numbers_alone():
    script = ScriptedRounds([(0, ((0, 10),))])
    loader = sharded(DataLoader(numbers(), batch_size=10), script)
    before = torch.get_rng_state()
    epoch_of(script, loader)
    assert torch.equal(before, torch.get_rng_state())


def test_one_iteration_is_one_epoch_and_the_next_goes_on():
    script = ScriptedRounds([(3, ((0, 5),)), (3, ((5, 10),)), (4, ((0, 5),)), (6, ((0, 5),))])
    loader = sharded(DataLoader(numbers(), batch_size=5), script)
    assert [len(epoch_of(script, loader)) for _ in range(4)] == [2, 1, 1, 0]


def test_the_report_of_the_last_epoch_is_there_when_its_loop_has_ended():
    script = ScriptedRounds(
        [(0, ((0, 5),)), (0, ((5, 10),)), (1, ((0, 5),))], last={2: (0, 9, 0, 1, 2)}
    )
    loader = sharded(DataLoader(numbers(), batch_size=5), script)
    for _ in loader:
        assert loader.report is None
        script.step()
    assert loader.report == EpochReport(0, once=9, twice=0, left=1, rounds=2)


def test_several_ranges_make_one_batch_in_order():
    script = ScriptedRounds([(0, ((0, 2), (5, 6))), (0, ((2, 5), (6, 10)))])
    loader = sharded(DataLoader(numbers(), batch_size=3), script)
    parts = epoch_of(script, loader)
    assert [len(part) for part in parts] == [3, 7]
    whole = ScriptedRounds([(0, ((0, 10),))])
    (order,) = epoch_of(whole, sharded(DataLoader(numbers(), batch_size=3), whole))
    assert parts[0] == order[0:2] + order[5:6]


def test_a_round_without_samples_for_this_peer_has_a_batch_that_counts_for_nothing():
    """A quarantined peer's script goes on as the others' do."""
    script = ScriptedRounds([(2, ()), (2, ((20, 24),)), (2, ((24, 24),)), (2, ())])
    seen = epoch_of(script, sharded(DataLoader(numbers(), batch_size=4), script))
    assert [len(batch) for batch in seen] == [4] * 4
    assert script.stepped == [0, 4, 0, 0]
    assert script.passed == []
    again = ScriptedRounds([(2, ()), (2, ()), (2, ()), (2, ())])
    batches = epoch_of(again, sharded(DataLoader(numbers(), batch_size=4), again))
    assert [batches[0], batches[2]] == [seen[0], seen[2]]
    assert len({tuple(batch) for batch in batches}) > 1
    few = ScriptedRounds([(0, ())])
    assert len(epoch_of(few, sharded(DataLoader(numbers(), batch_size=40), few))[0]) == 10


def test_a_batch_without_a_step_is_passed_when_the_next_is_asked_for():
    script = ScriptedRounds([(0, ((0, 5),)), (0, ((5, 10),))])
    for at, _ in enumerate(sharded(DataLoader(numbers(), batch_size=5), script)):
        if at == 1:
            script.step()
    assert script.passed == [0]
    assert script.stepped == [5]


def test_peeking_at_the_first_batch_loses_nothing():
    script = ScriptedRounds([(0, ((0, 5),)), (0, ((5, 10),))])
    loader = sharded(DataLoader(numbers(), batch_size=5), script)
    peeked = next(iter(loader))[0].tolist()
    seen = epoch_of(script, loader)
    assert seen[0] == peeked
    assert script.passed == []
    assert len(seen) == 2


class Pairs(Dataset):
    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int):
        self.asked.append(index)
        return {"x": torch.tensor([float(index)]), "y": index}


class ManyPairs(Pairs):
    def __getitems__(self, indices):
        self.asked += indices
        return [{"x": torch.tensor([float(i)]), "y": i} for i in indices]


@pytest.mark.parametrize("kind", [Pairs, ManyPairs])
def test_any_map_style_data_set_is_collated_by_the_loaders_own_function(kind):
    script = ScriptedRounds([(0, ((0, 4),))])
    dataset = kind()
    (batch,) = list(sharded(DataLoader(dataset, batch_size=4), script))
    assert batch["y"].tolist() == dataset.asked
    assert batch["x"].shape == (4, 1)
    script = ScriptedRounds([(0, ((0, 4),))])
    (batch,) = list(sharded(DataLoader(dataset, batch_size=4, collate_fn=len), script))
    assert batch == 4


def test_tensors_are_collated_as_torch_would():
    script = ScriptedRounds([(0, ((0, 10),))])
    (fast,) = list(sharded(DataLoader(numbers(), batch_size=10), script))
    script = ScriptedRounds([(0, ((0, 10),))])
    (slow,) = list(sharded(DataLoader(Subset(numbers(), range(10)), batch_size=10), script))
    assert type(fast) is type(slow) is list
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(fast, slow, strict=True))


def test_a_subset_sampler_is_honoured():
    script = ScriptedRounds([(0, ((0, 4),))])
    loader = sharded(
        DataLoader(numbers(), batch_size=4, sampler=SubsetRandomSampler([1, 3, 5, 7])), script
    )
    assert loader.samples_total == 4
    assert sorted(epoch_of(script, loader)[0]) == [1, 3, 5, 7]


def test_a_data_set_is_asked_for_plain_numbers():
    """Not for tensors, which nobody's dictionary finds."""
    script, dataset = ScriptedRounds([(0, ((0, 2), (3, 4)))]), Pairs()
    list(
        sharded(
            DataLoader(dataset, batch_size=4, sampler=SubsetRandomSampler([9, 8, 7, 6])), script
        )
    )
    assert len(dataset.asked) == 3
    assert all(type(index) is int and index >= 6 for index in dataset.asked)


def test_the_length_is_rounds_an_epoch_with_the_peers_that_the_run_begins_with():
    script = ScriptedRounds([], peers=4)
    loader = sharded(DataLoader(numbers(100), batch_size=8), script)
    assert len(loader) == 4


class Unmeasured(Dataset):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (
            lambda: DataLoader(Unmeasured(), batch_size=2, sampler=SubsetRandomSampler([0])),
            "Unmeasured has no length",
        ),
        (lambda: DataLoader(numbers(), batch_size=None), "its own batch sampler"),
        (
            lambda: DataLoader(numbers(), sampler=WeightedRandomSampler([1.0] * 10, 10)),
            "WeightedRandomSampler",
        ),
        (lambda: DataLoader(numbers(0), batch_size=2), "empty"),
    ],
)
def test_what_cannot_be_split_is_refused_with_what_to_do(loader, says):
    with pytest.raises(ConfigError, match=says):
        sharded(loader(), ScriptedRounds([]))


def test_a_batch_sampler_of_the_users_own_is_refused():
    class Mine(BatchSampler):
        pass

    mine = Mine(torch.utils.data.SequentialSampler(numbers()), 2, False)
    with pytest.raises(ConfigError):
        sharded(DataLoader(numbers(), batch_sampler=mine), ScriptedRounds([]))


def test_what_has_no_effect_is_said_once():
    with pytest.warns(UserWarning, match="ignores drop_last, shuffle=False") as seen:
        ShardedLoader(DataLoader(numbers(), batch_size=2, drop_last=True), ScriptedRounds([]), 0)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ShardedLoader(
            DataLoader(numbers(), batch_size=2, shuffle=True, num_workers=2), ScriptedRounds([]), 0
        )


def test_a_data_set_may_be_given_without_a_loader():
    dataset = numbers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = ShardedLoader(
            loader_of(dataset, 4, {"collate_fn": len}), ScriptedRounds([(0, ((0, 3),))]), 0
        )
        assert (made.dataset, made.batch_size, list(made)) == (dataset, 4, [3])
        loader = DataLoader(dataset, batch_size=2)
        assert loader_of(loader, None, {}) is loader
        assert len(loader_of([5, 6, 7], 2, {}).dataset) == 3


@pytest.mark.parametrize(
    ("data", "batch_size", "options", "says"),
    [
        (
            DataLoader(numbers()),
            4,
            {"num_workers": 2},
            "DataLoader and, in addition, batch_size, num_workers",
        ),
        (numbers(), None, {}, "batch size"),
        (numbers(), 4, {"workers": 2}, "workers"),
        (iter([1, 2]), 4, {}, "got list_iterator"),
    ],
)
def test_what_shard_cannot_make_a_loader_of_is_named(data, batch_size, options, says):
    with pytest.raises(ConfigError, match=says):
        loader_of(data, batch_size, options)


def test_a_label_flipper_reads_wrong_targets_and_spoils_nobody_elses():
    dataset = numbers()
    script = ScriptedRounds([(0, ((0, 10),))])
    (batch,) = list(sharded(DataLoader(dataset, batch_size=10), script, flip=True))
    assert torch.equal(batch[1], 2 - batch[0].long() % 3)
    assert torch.equal(dataset.tensors[1], torch.arange(10) % 3)


def test_a_label_flipper_takes_pairs_of_any_kind():
    script = ScriptedRounds([(0, ((0, 4),))])
    loader = DataLoader(
        numbers(),
        batch_size=4,
        collate_fn=lambda items: tuple(map(torch.stack, zip(*items, strict=True))),
    )
    (batch,) = list(sharded(loader, script, flip=True))
    assert type(batch) is tuple
    assert torch.equal(batch[1], 2 - batch[0].long() % 3)


def test_a_label_flipper_takes_the_number_of_classes_it_is_given():
    script = ScriptedRounds([(0, ((0, 10),))])
    (batch,) = list(sharded(DataLoader(numbers(), batch_size=10), script, flip=True, classes=10))
    assert torch.equal(batch[1], 9 - batch[0].long() % 3)


def test_a_label_flipper_learns_the_classes_of_a_data_set_that_does_not_tell():
    script = ScriptedRounds([(0, ((0, 10),))])
    (batch,) = list(
        sharded(DataLoader(Subset(numbers(), range(10)), batch_size=10), script, flip=True)
    )
    assert torch.equal(batch[1], 2 - batch[0].long() % 3)


def test_a_label_flipper_without_labels_says_so():
    script = ScriptedRounds([(0, ((0, 4),))])
    with pytest.raises(ConfigError, match="integer targets"):
        list(sharded(DataLoader(Pairs(), batch_size=4), script, flip=True))
