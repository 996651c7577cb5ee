"""Splits of the training samples among the honest workers: equal data for all workers, or different
data for each.

    shares = split("dirichlet:0.1", (labels, images), workers=8, batch=32, seed=0)

A split is written as its name, and a number after a colon if it has a parameter. With
``@clusters:10`` at the end, it uses clusters of the features instead of labels:
``sorted@clusters:10``.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from gossip.errors import ConfigError, UnknownName

from .clusters import cluster

IID = "iid"
NUMBERS = {
    "iid": "",
    "sorted": "",
    "dirichlet": "an alpha above 0, as dirichlet:0.1",
    "gamma": "a share from 0 to 1, as gamma:0.5",
    "quantity": "a sigma above 0, as quantity:1",
}
"""Name of a split -> description of its parameter; empty if it has none."""

CLUSTERS = "clusters"
CLUSTERED = ("sorted", "dirichlet", "gamma")
"""Splits that can use clusters instead of labels."""


def read_split(text: str) -> tuple[str, float]:
    """Return the name and the parameter of a split. The parameter is 0 if the split has none.

    Raises: ConfigError: There is no such split, or its parameter is invalid.
    """
    _read_clusters(text)
    text = text.strip().partition("@")[0]
    name, colon, number = text.partition(":")
    if name not in NUMBERS:
        raise UnknownName("split", name, tuple(NUMBERS))
    if not NUMBERS[name]:
        if colon:
            raise ConfigError(f"split {text!r}: {name} takes no number", f"write {name}")
        return name, 0.0
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    fine = 0 <= value <= 1 if name == "gamma" else 0 < value < float("inf")
    if not fine:
        raise ConfigError(f"split {text!r}: {name} takes {NUMBERS[name]}")
    return name, value


def _read_clusters(text: str) -> int:
    """Return the number of clusters of a split, or 0 if it uses labels.

    Raises: ConfigError: The split cannot use clusters, the key is not ``clusters``, or the number
    is invalid.
    """
    name, at, by = text.strip().partition("@")
    if not at:
        return 0
    key, _, number = by.partition(":")
    if key != CLUSTERS:
        raise UnknownName("key of a split", key, (CLUSTERS,))
    if name.partition(":")[0] not in CLUSTERED:
        raise ConfigError(f"split {text} cannot use clusters", f"leave out @{by}")
    if not number.isdigit() or int(number) < 2:
        raise ConfigError(f"split {text}: clusters take a number from 2, as clusters:10")
    return int(number)


def split(
    text: str, samples: tuple[Tensor, Tensor], workers: int, batch: int, seed: int
) -> list[Tensor]:
    """Return, for each worker, the indices of the samples that it draws from. In all splits but
    ``iid`` these are disjoint.

    - ``iid``: every worker draws from all samples.
    - ``sorted``: the samples are sorted by label and cut into equal parts.
    - ``dirichlet:alpha``: for each class, the shares of the workers have a Dirichlet(alpha)
      distribution. With a smaller alpha, a worker has fewer classes. A worker with less than a
      batch gets the missing samples from the worker with the most samples.
    - ``gamma:share``: this share of the samples is divided at random into equal parts. The rest is
      divided as in ``sorted``.
    - ``quantity:sigma``: random parts. Their sizes, beyond one batch for each worker, are
      proportional to log-normal weights.

    With ``@clusters:K`` a split uses K clusters of the features (k-means) instead of labels.

    Args:
        samples: Labels ``(samples,)`` and features ``(samples, d)``.
    Raises: ConfigError: There is no such split, or some worker would have too few samples.
    Source: Yurochkin et al. 2019, "Bayesian Nonparametric Federated Learning of Neural Networks",
        arXiv:1905.12022 (Dirichlet); Karimireddy et al. 2020, "SCAFFOLD", arXiv:1910.06378 (a share
        that is mixed), as in ByzFL.
    """
    (name, value), (labels, features) = read_split(text), samples
    if name == IID:
        return [torch.arange(len(labels))] * workers
    if clusters := _read_clusters(text):
        labels = cluster(features, clusters, seed)
    least = batch if name in ("dirichlet", "quantity") else 1
    if len(labels) < workers * least:
        lack = "a batch" if least > 1 else "one"
        raise ConfigError(
            f"{len(labels)} samples for {workers} honest workers: some would lack {lack}",
            "use fewer workers or more samples",
        )
    if name == "sorted":
        return list(labels.argsort(stable=True).tensor_split(workers))
    chance = np.random.default_rng(
        int.from_bytes(blake2b(f"split/{seed}".encode(), digest_size=8).digest(), "big")
    )
    if name == "gamma":
        return _gamma(labels, workers, value, chance)
    if name == "quantity":
        return _quantity(len(labels), workers, value, batch, chance)
    return _dirichlet(labels, workers, value, batch, chance)


def _quantity(
    samples: int, workers: int, sigma: float, batch: int, chance: np.random.Generator
) -> list[Tensor]:
    weights = np.exp(sigma * chance.standard_normal(workers))
    ends = np.cumsum(weights / weights.sum()) * (samples - workers * batch)
    ends = ends.round().astype(int) + batch * np.arange(1, workers + 1)
    parts = np.split(chance.permutation(samples), ends[:-1])
    return [torch.from_numpy(part) for part in parts]


def _gamma(labels: Tensor, workers: int, share: float, chance: np.random.Generator) -> list[Tensor]:
    order = torch.from_numpy(chance.permutation(len(labels)))
    alike, rest = order[: int(len(order) * share)], order[int(len(order) * share) :]
    rest = rest[labels[rest].argsort(stable=True)]
    halves = zip(alike.tensor_split(workers), rest.tensor_split(workers), strict=True)
    return [torch.cat(both) for both in halves]


def _dirichlet(
    labels: Tensor, workers: int, alpha: float, batch: int, chance: np.random.Generator
) -> list[Tensor]:
    parts: list[list[np.ndarray]] = [[] for _ in range(workers)]
    for label in range(int(labels.max()) + 1):
        members = chance.permutation(np.flatnonzero((labels == label).numpy()))
        ends = np.cumsum(chance.dirichlet(np.full(workers, alpha)))[:-1] * len(members)
        for part, some in zip(parts, np.split(members, ends.round().astype(int)), strict=True):
            part.append(some)
    shares = [chance.permutation(np.concatenate(part)) for part in parts]
    for worker in range(workers):
        while (lacks := batch - len(shares[worker])) > 0:
            richest = max(range(workers), key=lambda other: len(shares[other]))
            given = min(lacks, len(shares[richest]) - batch)
            shares[worker] = np.concatenate([shares[worker], shares[richest][:given]])
            shares[richest] = shares[richest][given:]
    return [torch.from_numpy(share) for share in shares]
