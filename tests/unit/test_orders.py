"""Orders of an epoch by labels: every sample once, and slices that are alike or complementary."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_loader import ScriptedRounds, epoch_of, sharded
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from gossip.core.ledger.data_cursor import DataCursor, Ranges
from gossip.errors import ConfigError, UnknownName
from gossip.training.orders import labels_for, separate, stratify

UNEQUAL = torch.tensor([0] * 500 + [1] * 300 + [2] * 195 + [7] * 5)[
    torch.randperm(1000, generator=torch.Generator().manual_seed(3))
]
LABELS = (UNEQUAL, torch.arange(1000) % 10, torch.zeros(1000, dtype=torch.int64))


def is_permutation(order: Tensor, n: int) -> bool:
    return order.sort().values.tolist() == list(range(n))


def largest_error(labels: Tensor, length: int) -> float:
    """By how many samples of a label a slice of this length is off."""
    worst = 0.0
    for label in sorted(set(labels.tolist())):
        before = torch.cat([torch.zeros(1), (labels == label).cumsum(0)])
        counts = before[length:] - before[:-length]
        worst = max(worst, float((counts - length * before[-1] / len(labels)).abs().max()))
    return worst


def pieces(n: int, each: int) -> list[tuple[int, Ranges]]:
    return [(0, ((at, at + each),)) for at in range(0, n, each)]


# --- the orders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("length", [16, 50, 333])
def test_every_slice_of_a_stratified_order_is_like_the_whole(labels: Tensor, length: int) -> None:
    order = stratify(labels)
    assert is_permutation(order, 1000)
    assert largest_error(labels[order], length) < 2.5


def test_a_random_order_is_far_from_that() -> None:
    assert largest_error(LABELS[1], 50) < 1, "this one is in turns"
    assert largest_error(UNEQUAL, 50) > 5


@pytest.mark.parametrize("labels", LABELS)
def test_blocks_of_a_similar_order_are_like_the_whole(labels: Tensor) -> None:
    order = separate(labels, 100)
    assert is_permutation(order, 1000)
    ordered = labels[order]
    for begin in range(0, 1000, 100):
        block = ordered[begin : begin + 100]
        assert block.tolist() == block.sort().values.tolist()
        for label in sorted(set(labels.tolist())):
            assert abs(int((block == label).sum()) - float((labels == label).sum()) / 10) < 2.5
    if labels is LABELS[1]:
        assert all(len(set(piece.tolist())) <= 2 for piece in ordered.view(-1, 10))


@pytest.mark.parametrize("n", [0, 1, 7])
def test_few_samples_are_ordered_too(n: int) -> None:
    labels = torch.arange(n) % 3
    assert is_permutation(stratify(labels), n)
    assert is_permutation(separate(labels, 4), n)


# --- labels of a data set -------------------------------------------------------------------------


class Folder(Dataset[int]):
    """As torchvision's: targets, and samples by index."""

    def __init__(self, targets: Any) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, at: int) -> int:
        return int(self.targets[at])


def test_labels_are_found_where_data_sets_have_them() -> None:
    pairs = TensorDataset(torch.rand(4, 2), torch.tensor([3, 1, 2, 0]))
    for dataset in (pairs, Folder([3, 1, 2, 0]), Folder(torch.tensor([3, 1, 2, 0]).numpy())):
        assert labels_for("stratified:labels", dataset).tolist() == [3, 1, 2, 0]
        assert labels_for("similar:labels", Subset(dataset, [2, 0])).tolist() == [2, 3]


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.rand(4, 2)),
        TensorDataset(torch.rand(4, 2), torch.rand(4)),
        TensorDataset(torch.rand(4, 2), torch.zeros(4, 2, dtype=torch.int64)),
        Folder(["cat", "dog"]),
        Subset(TensorDataset(torch.rand(4, 2)), [1]),
    ],
)
def test_a_data_set_without_a_label_for_each_sample_is_refused(dataset: Any) -> None:
    with pytest.raises(ConfigError, match="whole number as the label of each"):
        labels_for("stratified:labels", dataset)


@pytest.mark.parametrize("order", ["stratified", "clusters:embedding", "stratified:label"])
def test_other_orders_are_refused(order: str) -> None:
    with pytest.raises(UnknownName, match="unknown order"):
        labels_for(order, TensorDataset(torch.rand(4), torch.arange(4)))


# --- in the loader --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["stratified:labels", "similar:labels"])
def test_each_sample_is_read_once_in_an_ordered_epoch_while_peers_fail(order: str) -> None:
    cursor, rounds = DataCursor(4, 1000, 16), 0
    read: list[tuple[int, Ranges]] = []
    cursor.configure(1000, 16, extended=1)
    while cursor.epoch == 0:
        slices = cursor.assign(range(4))
        failed = rounds % 5 if 3 < rounds < 12 else -1
        used = {
            peer: sum(stop - start for start, stop in ranges)
            for peer, ranges in slices.items()
            if peer != failed
        }
        read += [(0, slices[peer]) for peer in used if used[peer]]
        cursor.commit(range(4), used)
        rounds += 1
    assert rounds > 16, "some samples had to be read in further rounds"
    dataset = TensorDataset(torch.arange(1000.0), UNEQUAL)
    script = ScriptedRounds(read, peers=4)
    loader = sharded(DataLoader(dataset, batch_size=16, shuffle=True), script, order=order)
    batches = epoch_of(script, loader)
    assert sorted(index for batch in batches for index in batch) == list(range(1000))
    off = [abs(int((UNEQUAL[batch] == 0).sum()) - len(batch) / 2) for batch in batches[:16]]
    assert max(off) < 2 if order == "stratified:labels" else max(off) >= 6


def test_the_order_is_another_one_each_epoch_and_for_another_seed() -> None:
    dataset = TensorDataset(torch.arange(1000.0), UNEQUAL)

    def read(epoch: int, seed: int) -> list[int]:
        start = epoch * 1000
        script = ScriptedRounds([(epoch, ((start, start + 1000),))])
        loader = DataLoader(dataset, batch_size=1000, shuffle=True)
        return epoch_of(script, sharded(loader, script, seed, order="stratified:labels"))[0]

    assert read(0, 1) == read(0, 1)
    assert read(0, 1) != read(1, 1) != read(0, 2)


def test_blocks_are_rounds_of_all_peers() -> None:
    dataset = TensorDataset(torch.arange(1000.0), LABELS[1])
    script = ScriptedRounds(pieces(1000, 20), peers=5)
    loader = sharded(DataLoader(dataset, batch_size=20), script, order="similar:labels")
    batches = [LABELS[1][batch] for batch in epoch_of(script, loader)]
    assert all(len(set(batch.tolist())) == 2 for batch in batches)
    assert all(
        len({int(y) for y in torch.cat(batches[at : at + 5])}) == 10 for at in range(0, 50, 5)
    )


def test_the_order_of_a_chosen_part_is_by_its_own_labels() -> None:
    chosen = list(range(0, 1000, 2))
    dataset = TensorDataset(torch.arange(1000.0), UNEQUAL)
    loader = DataLoader(
        dataset, batch_size=50, sampler=torch.utils.data.SubsetRandomSampler(chosen)
    )
    script = ScriptedRounds(pieces(500, 50))
    batches = epoch_of(script, sharded(loader, script, order="stratified:labels"))
    assert sorted(index for batch in batches for index in batch) == chosen
    share = float((UNEQUAL[chosen] == 1).double().mean())
    assert all(math.isclose((UNEQUAL[b] == 1).sum(), 50 * share, abs_tol=2) for b in batches)
