"""How honest workers come to share the samples of a trial."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gossip.errors import ConfigError, UnknownName
from gossip_lab.splits import read_split, split

LABELS = torch.arange(1000).remainder(10)[torch.randperm(1000, generator=torch.Generator())]

FEATURES = torch.rand(1000, 2, generator=torch.Generator().manual_seed(1))


def shares(text: str, workers: int = 8, batch: int = 32, seed: int = 0) -> list[Tensor]:
    return split(text, (LABELS, FEATURES), workers, batch, seed)


def largest_class(share: Tensor) -> float:
    """How much of a worker's samples is of one class."""
    return float(LABELS[share].bincount().max()) / len(share)


@pytest.mark.parametrize(
    "text",
    [
        *("sorted", "gamma:0", "gamma:0.5", "gamma:1", "dirichlet:0.1", "dirichlet:50"),
        *("quantity:1", "quantity:0.01", "dirichlet:0.1@clusters:4"),
    ],
)
def test_every_sample_is_somebodys_and_nobody_elses(text: str) -> None:
    found = shares(text)
    assert len(found) == 8
    assert torch.cat(found).sort().values.tolist() == list(range(1000))


def test_iid_workers_all_draw_from_all_samples() -> None:
    assert all(share.tolist() == list(range(1000)) for share in shares("iid"))


def test_the_smaller_alpha_the_fewer_classes_has_a_worker() -> None:
    apart, alike = (
        sum(map(largest_class, shares(f"dirichlet:{alpha}"))) / 8 for alpha in (0.1, 1000)
    )
    assert alike < 0.15
    assert apart > 0.4


@pytest.mark.parametrize("workers", [8, 16, 31])
@pytest.mark.parametrize("text", ["dirichlet:0.01", "quantity:5"])
def test_nobody_has_less_than_a_batch_however_unequal_the_shares(text: str, workers: int) -> None:
    for seed in range(5):
        found = shares(text, workers, seed=seed)
        assert min(map(len, found)) == 32, "somebody would have had nearly nothing"
        assert torch.cat(found).sort().values.tolist() == list(range(1000))


def test_a_split_follows_from_its_seed() -> None:
    for text in ("dirichlet:0.1", "gamma:0.5", "quantity:1", "dirichlet:1@clusters:4"):
        first, again, other = (shares(text, seed=seed) for seed in (4, 4, 5))
        assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
        assert not all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_gamma_is_the_share_of_a_workers_samples_that_is_mixed() -> None:
    assert [sorted(share.tolist()) for share in shares("gamma:0", 10)] == [
        LABELS.eq(label).nonzero().flatten().tolist() for label in range(10)
    ]
    for share in shares("gamma:0.6", 10):
        assert len(share) == 100
        found = LABELS[share].bincount(minlength=10).sort(descending=True).values
        # 40 are of one class or of two that are neighbours, and a tenth of the others of each.
        assert 45 <= int(found[:2].sum()) <= 65
        assert int(found[2:].max()) < 16
        assert int((found > 0).sum()) >= 9
    assert max(map(largest_class, shares("gamma:1", 10))) < 0.25


def test_a_split_that_makes_no_sense_is_refused_with_what_it_takes() -> None:
    assert read_split("dirichlet:0.1") == ("dirichlet", 0.1)
    assert read_split("sorted") == ("sorted", 0.0)
    with pytest.raises(UnknownName, match="Did you mean 'dirichlet'"):
        read_split("dirichlett:1")
    for text, says in (
        ("dirichlet", "takes an alpha above 0"),
        ("dirichlet:0", "takes an alpha above 0"),
        ("dirichlet:inf", "takes an alpha above 0"),
        ("gamma:1.1", "takes a share from 0 to 1"),
        ("gamma:much", "takes a share from 0 to 1"),
        ("sorted:1", "sorted takes no number"),
        ("quantity:0", "takes a sigma above 0"),
        ("sorted@cluster:3", "Did you mean 'clusters'"),
        ("sorted@clusters", "clusters take a number from 2"),
        ("gamma:0.5@clusters:1", "clusters take a number from 2"),
        ("iid@clusters:3", "iid@clusters:3 cannot use clusters"),
        ("quantity:1@clusters:3", "cannot use clusters"),
    ):
        with pytest.raises(ConfigError, match=says):
            read_split(text)


def test_too_few_samples_are_told() -> None:
    with pytest.raises(ConfigError, match=r"1000 samples for 40 honest workers: .* lack a batch"):
        shares("dirichlet:1", 40)
    with pytest.raises(ConfigError, match=r"1000 samples for 1001 honest workers"):
        shares("gamma:0.5", 1001)


def test_sizes_of_a_quantity_split_are_log_normal_and_their_labels_those_of_all() -> None:
    labels = torch.arange(200_000) // 20_000
    found = split("quantity:1", (labels, labels[:, None]), workers=200, batch=10, seed=0)
    beyond = torch.tensor([float(len(share) - 10) for share in found])
    assert float(beyond.log().std()) == pytest.approx(1, rel=0.15)
    largest = max(found, key=len)
    assert float(labels[largest].bincount().max()) / len(largest) < 0.13
    alike = split("quantity:0.001", (labels, labels[:, None]), workers=200, batch=10, seed=0)
    assert {len(share) for share in alike} <= set(range(990, 1011))


def test_clusters_of_features_are_split_as_classes_are() -> None:
    which = torch.arange(1000) % 4
    features = torch.stack([50.0 * which, -20.0 * which], dim=1) + FEATURES
    found = split("sorted@clusters:4", (LABELS, features), 4, batch=1, seed=0)
    assert sorted(sorted(set(which[share].tolist())) for share in found) == [[0], [1], [2], [3]]
