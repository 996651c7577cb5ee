"""Topologies of published experiments that are not useful in real runs.

A world names them (``dumbbell``, ``pull:k=4``) like those of ``gossip.topologies``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gossip.errors import ConfigError
from gossip.topologies import Plan, Roster, draw, topology


class Histograms(tuple[tuple[int, ...], ...]):
    """Number of samples per label, for each peer. The index is the peer's id."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<of {len(self)} peers>"


SWAPS = 10
"""Number of attempted swaps per clique in ``make_cliques``. The paper makes 1,000 attempts for 100
cliques."""


@topology
def dumbbell(roster: Roster, round_id: int, seed: int, *, metropolis: bool = False) -> Plan:
    """Return a graph of two complete halves that are joined by one edge. It averages slowly, and is
    used to test consensus.

    Args:
        metropolis: Whether the plan has Metropolis weights.
    """
    order = sorted(roster.peers)
    middle = len(order) // 2
    halves = [half for half in (order[:middle], order[middle:]) if half]
    edges = [edge for half in halves for edge in combinations(half, 2)]
    edges += [(halves[0][-1], halves[1][0])] if middle else []
    return _undirected(order, edges, metropolis)


@topology
def pull(roster: Roster, round_id: int, seed: int, *, k: int) -> Plan:
    """Return a plan in which each peer receives from k random peers. Peers draw independently each
    round, so some peers send to many (RPEL, arXiv:2510.08311).

    Args:
        k: Number of peers from which each peer receives, at most n - 1.
    """
    pushes: dict[int, list[int]] = {peer: [] for peer in sorted(roster.peers)}
    for receiver, sources in _draw_others(roster, round_id, seed, "pull", k):
        for source in sources:
            pushes[source].append(receiver)
    return Plan(pushes={peer: tuple(targets) for peer, targets in pushes.items()})


@topology
def push(roster: Roster, round_id: int, seed: int, *, k: int) -> Plan:
    """Return a plan in which each peer sends to k random peers. Peers draw independently each
    round, so some peers receive from many (EL-Local, de Vos et al. 2023, arXiv:2310.01972). In
    ``random_k`` all peers receive equally many pushes (EL-Oracle).

    Args:
        k: Number of peers to which each peer sends, at most n - 1.
    """
    return Plan(
        pushes={
            sender: tuple(sorted(targets))
            for sender, targets in _draw_others(roster, round_id, seed, "push", k)
        }
    )


@topology
def d_cliques(  # noqa: PLR0913 - three arguments are those of every topology
    roster: Roster,
    round_id: int,
    seed: int,
    *,
    size: int = 10,
    between: Literal["ring", "fractal", "full"] = "ring",
    metropolis: bool = False,
    histograms: Histograms | None = None,
) -> Plan:
    """Return a graph of cliques with few edges between them. The label distribution of each clique
    is close to that of all peers. The graph is the same in all rounds.

    Peers are put into cliques at random. Then two random cliques swap a pair of peers if this
    lowers the sum of their skews, and so on. The skew of a clique is the L1 distance between its
    mean label distribution and that of all peers.

    Args:
        size: Maximum number of peers in a clique. The sizes of cliques differ by one peer at most.
        between: Edges between cliques. ``ring``: from each clique to the next. ``fractal``: between
            all pairs in groups of ``size`` cliques, then between all pairs in groups of these
            groups, and so on. ``full``: between all pairs.
        metropolis: Whether the plan has Metropolis weights, as in the paper.
        histograms: Label counts of the peers; ``World`` binds this argument. The histogram of a
            Byzantine peer is only a claim.
    Raises: ConfigError: A peer has no histogram, or an option is invalid.
    Source: Bellet, Kermarrec, Lavoie 2022, "D-Cliques: Compensating for Data Heterogeneity with
        Topology in Decentralized Federated Learning", arXiv:2104.07365, algorithms 1 and 2.
    """
    peers = tuple(sorted(roster.peers))
    if not isinstance(size, int) or size < 2:
        raise ConfigError(f"d_cliques: size must be a whole number of at least 2, not {size!r}")
    if between not in ("ring", "fractal", "full"):
        raise ConfigError(f"d_cliques: between is ring, fractal or full, not {between!r}")
    if not isinstance(histograms, Histograms) or (peers and peers[-1] >= len(histograms)):
        raise ConfigError(
            f"d_cliques: there are no label counts of peer {peers[-1] if peers else 0}",
            "add the label counts of the split: topology.bind(histograms=...)",
        )
    return _d_cliques(
        peers,
        draw(seed, roster.lineage, "d_cliques"),
        size,
        between,
        Histograms([histograms[peer] for peer in peers]),
        metropolis,
    )


@lru_cache(maxsize=8)
def _d_cliques(  # noqa: PLR0913
    peers: tuple[int, ...],
    seed: int,
    size: int,
    between: str,
    histograms: Histograms,
    metropolis: bool,
) -> Plan:
    cliques = [[peers[at] for at in clique] for clique in make_cliques(histograms, size, seed)]
    edges = [edge for clique in cliques for edge in combinations(clique, 2)]
    links = dict.fromkeys(peers, 0)
    for left, right in _pairs(cliques, between, size):
        edge = min(left, key=links.__getitem__), min(right, key=links.__getitem__)
        edges.append(edge)
        for peer in edge:
            links[peer] += 1
    return _undirected(peers, edges, metropolis)


def make_cliques(histograms: Sequence[Sequence[int]], size: int, seed: int) -> list[list[int]]:
    """Return the rows of ``histograms`` that form each clique, found by greedy swaps."""
    counts = np.asarray(histograms, float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares -= shares.mean(axis=0)  # then the skew of a clique is the L1 norm of its mean
    random, n = Random(seed), len(shares)
    number = -(-n // size)
    order = random.sample(range(n), n)
    cliques = [order[at::number] for at in range(number)]
    for _ in range(SWAPS * number if number > 1 else 0):
        one, other = random.sample(cliques, 2)
        ours, theirs = shares[one], shares[other]
        moved = theirs[None, :, :] - ours[:, None, :]
        skews = _skew((ours.sum(axis=0) + moved) / len(one))
        skews += _skew((theirs.sum(axis=0) - moved) / len(other))
        now = float(_skew(ours.mean(axis=0)) + _skew(theirs.mean(axis=0)))
        better = np.argwhere(skews < now - 1e-12).tolist()
        if better:
            i, j = random.choice(better)
            one[i], other[j] = other[j], one[i]
    return cliques


def _skew(means: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.abs(means).sum(axis=-1))


def _pairs(
    cliques: Sequence[list[int]], between: str, size: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the pairs of groups of peers between which an edge is added."""
    if between == "ring":
        following = [*cliques[1:], cliques[0]] if len(cliques) > 2 else cliques[1:]
        yield from zip(cliques, following, strict=False)
        return
    units, width = list(cliques), size if between == "fractal" else max(2, len(cliques))
    while len(units) > 1:
        groups = [units[at : at + width] for at in range(0, len(units), width)]
        for group in groups:
            yield from combinations(group, 2)
        units = [[peer for unit in group for peer in unit] for group in groups]


def count_labels(labels: Tensor, shares: Sequence[NDArray[np.int64]], classes: int) -> Histograms:
    """Return the label histogram of each peer's share of the samples.

    Args:
        labels: ``(samples,)`` int64, below ``classes``.
        shares: Indices of the samples, for each peer.
    """
    counts = [np.bincount(labels.numpy()[share], minlength=classes) for share in shares]
    return Histograms([tuple(count.tolist()) for count in counts])


def _undirected(peers: Iterable[int], edges: Iterable[tuple[int, int]], metropolis: bool) -> Plan:
    targets: Mapping[int, set[int]] = {peer: set() for peer in peers}
    for a, b in edges:
        targets[a].add(b)
        targets[b].add(a)
    pushes = {peer: tuple(sorted(found)) for peer, found in targets.items()}
    return Plan(pushes=pushes, metropolis=metropolis)


def _draw_others(
    roster: Roster, round_id: int, seed: int, name: str, k: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield each peer with k random other peers. The draws of the peers are independent."""
    if not isinstance(k, int) or k < 1:
        raise ConfigError(f"{name}: k must be a whole number of at least 1, not {k!r}")
    order = sorted(roster.peers)
    random = Random(draw(seed, roster.lineage, round_id, name))
    fan = min(k, len(order) - 1)
    for at, peer in enumerate(order):
        # Drawn indices from ``at`` on are shifted by one, so that no peer draws itself.
        drawn = random.sample(range(len(order) - 1), fan)
        yield peer, [order[place + (place >= at)] for place in drawn]
