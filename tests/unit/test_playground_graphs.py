"""Topologies of the playground, and how well they mix."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gossip.errors import ConfigError
from gossip.testing.topologies import check_topology
from gossip.topologies import Plan, Roster, Topology, load, pull_of
from gossip_lab.playground import World, graphs
from gossip_lab.playground.graphs import Histograms, count_labels, make_cliques

ONE_LABEL = Histograms(
    [tuple([50 * (label == peer % 10) for label in range(10)]) for peer in range(1001)]
)
"""Peers with samples of one label each, as in the hardest split."""


def roster(n: int) -> Roster:
    return Roster(tuple(range(n)), b"lineage1")


def averaging_matrix(plan: Plan, peers: Sequence[int]) -> NDArray[np.float64]:
    """Return the ``(n, n)`` matrix with which a round of a gossip plan averages: each peer takes
    the mean of its own vector and those that it receives, or their mean with the weights of the
    plan. Row i is that of ``peers[i]``."""
    at = {peer: row for row, peer in enumerate(peers)}
    matrix = np.zeros((len(peers), len(peers)))
    for sender, targets in (plan.pushes or {}).items():
        for target in targets:
            matrix[at[target], at[sender]] = pull_of(plan, target, sender)
    matrix /= 1 + (matrix > 0).sum(axis=1, keepdims=True)
    return np.asarray(matrix + np.diag(1 - matrix.sum(axis=1)))


def spectral_gap(matrix: NDArray[np.float64]) -> float:
    """Return one minus the second largest modulus of the eigenvalues: 1 for a matrix that averages
    at once, near 0 for one that mixes slowly, 0 for a disconnected graph."""
    moduli = np.sort(np.abs(np.linalg.eigvals(matrix)))
    return float(1 - moduli[-2]) if len(moduli) > 1 else 1.0


def gap(spec: str, n: int) -> float:
    return spectral_gap(averaging_matrix(load(spec)(roster(n), 0, 1), range(n)))


@pytest.mark.parametrize(
    "kind",
    [
        graphs.dumbbell,
        graphs.dumbbell.bind(metropolis=True),
        graphs.pull.bind(k=5),
        graphs.push.bind(k=5),
        graphs.d_cliques.bind(histograms=ONE_LABEL),
        graphs.d_cliques.bind(histograms=ONE_LABEL, size=5, between="fractal"),
        graphs.d_cliques.bind(histograms=ONE_LABEL, size=4, between="full"),
    ],
    ids=repr,
)
def test_each_keeps_the_promises_of_topologies(kind: Topology) -> None:
    check_topology(kind)


def test_each_is_declared_under_its_name() -> None:
    project = Path(graphs.__file__).parents[2] / "pyproject.toml"
    declared = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"]
    found = {
        name: f"{graphs.__name__}:{name}"
        for name, value in vars(graphs).items()
        if isinstance(value, Topology)
    }
    assert declared["gossip.topologies"] == found


# --- how well they mix ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [6, 16, 30, 64])
def test_the_static_exponential_graph_has_the_published_spectral_gap(n: int) -> None:
    """Ying et al. 2021, proposition 1: 2 / (1 + ceil(log2 n)) for an even n."""
    assert gap("exponential:static=true", n) == pytest.approx(2 / (1 + (n - 1).bit_length()))


def test_a_ring_has_the_gap_of_its_circulant() -> None:
    assert gap("ring", 20) == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / 20)))


@pytest.mark.parametrize("k", [4, 7])
def test_a_static_regular_graph_mixes_as_well_as_random_regular_graphs_do(k: int) -> None:
    """Friedman 2008: the second eigenvalue of the adjacency matrix is near 2 sqrt(k - 1)."""
    for seed in range(3):
        plan = load(f"static_regular:k={k}")(roster(96), 0, seed)
        second = (1 - spectral_gap(averaging_matrix(plan, range(96)))) * (k + 1) - 1
        assert second < 1.08 * 2 * np.sqrt(k - 1)


def test_log2_n_rounds_of_the_one_peer_exponential_graph_average_exactly() -> None:
    product = np.eye(16)
    for round_id in range(8, 12):
        plan = load("exponential")(roster(16), round_id, 3)
        product = averaging_matrix(plan, range(16)) @ product
    assert np.allclose(product, 1 / 16)


def test_a_dumbbell_mixes_far_worse_than_a_ring_and_full_at_once() -> None:
    dumbbell = spectral_gap(averaging_matrix(graphs.dumbbell(roster(40), 0, 0), range(40)))
    assert 0 < dumbbell < gap("ring", 40) < gap("full", 40) == pytest.approx(1)


@pytest.mark.parametrize(
    "kind", [graphs.dumbbell, graphs.d_cliques.bind(histograms=ONE_LABEL, size=5)], ids=repr
)
def test_with_metropolis_weights_each_peer_counts_alike(kind: Topology) -> None:
    """Xiao, Boyd, Kim 2007: the matrix is symmetric, so its columns add up to 1."""
    plain, weighted = (
        averaging_matrix(kind(roster(18), 0, 1, metropolis=chosen), range(18))
        for chosen in (False, True)
    )
    degrees = (plain > 0).sum(axis=1) - 1
    expected = (plain > 0) / (1 + np.maximum(degrees[:, None], degrees))
    assert np.allclose(weighted - np.diag(np.diag(weighted)), expected * (1 - np.eye(18)))
    assert np.allclose(weighted.sum(axis=0), 1)
    assert not np.allclose(plain.sum(axis=0), 1)


def test_a_graph_in_parts_has_no_gap() -> None:
    plan = Plan(pushes={0: (1,), 1: (0,), 2: (3,), 3: (2,)})
    assert spectral_gap(averaging_matrix(plan, range(4))) == pytest.approx(0)


# --- pull and push --------------------------------------------------------------------------------


def test_a_pull_gives_each_peer_k_senders_and_a_push_k_receivers() -> None:
    pulled, pushed = (kind(roster(50), 3, 1, k=6) for kind in (graphs.pull, graphs.push))
    assert {len(pulled.sources(peer)) for peer in range(50)} == {6}
    assert {len(targets) for targets in (pushed.pushes or {}).values()} == {6}
    sent = [len(targets) for targets in (pulled.pushes or {}).values()]
    received = [len(pushed.sources(peer)) for peer in range(50)]
    # binomial, of variance 6 * 43 / 49, if the draws are independent
    assert 2 < np.var(sent) < 10
    assert 2 < np.var(received) < 10


@pytest.mark.parametrize("kind", [graphs.pull, graphs.push])
def test_a_draw_of_less_than_one_peer_is_refused(kind: Topology) -> None:
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        kind(roster(5), 0, 1, k=0)


# --- cliques --------------------------------------------------------------------------------------


def test_cliques_of_single_label_peers_have_all_labels() -> None:
    cliques = make_cliques(ONE_LABEL[:100], 10, seed=1)
    assert sorted(row for clique in cliques for row in clique) == list(range(100))
    labels = [len({row % 10 for row in clique}) for clique in cliques]
    assert min(labels) >= 9, labels
    drawn = make_cliques([(1,)] * 100, 10, seed=1)  # all alike: nothing to swap
    assert np.mean([len({row % 10 for row in clique}) for clique in drawn]) < 8


def test_cliques_differ_by_one_peer_at_most() -> None:
    assert sorted(map(len, make_cliques(ONE_LABEL[:13], 10, seed=1))) == [6, 7]


@pytest.mark.parametrize(("between", "edges"), [("ring", 10), ("fractal", 45), ("full", 45)])
def test_cliques_are_joined_by_few_edges_spread_over_their_peers(between: str, edges: int) -> None:
    plan = graphs.d_cliques(roster(100), 0, 1, between=between, histograms=ONE_LABEL)
    degrees = [len(targets) for targets in (plan.pushes or {}).values()]
    assert sum(degrees) == 2 * (10 * 45 + edges)
    assert max(degrees) <= 10


def test_a_fractal_of_1000_peers_has_98_percent_fewer_edges_than_the_full_graph() -> None:
    plan = graphs.d_cliques(roster(1000), 0, 1, between="fractal", histograms=ONE_LABEL)
    edges = sum(len(targets) for targets in (plan.pushes or {}).values()) / 2
    assert edges == 100 * 45 + 10 * 45 + 45
    assert edges < 0.02 * 1000 * 999 / 2


def test_cliques_without_label_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="no label counts of peer 4"):
        load("gossip_lab.playground.graphs:d_cliques")(roster(5), 0, 1)
    with pytest.raises(ConfigError, match="no label counts of peer 4"):
        graphs.d_cliques(roster(5), 0, 1, histograms=Histograms(ONE_LABEL[:4]))
    with pytest.raises(ConfigError, match="ring, fractal or full, not 'rings'"):
        graphs.d_cliques(roster(5), 0, 1, histograms=ONE_LABEL, between="rings")
    with pytest.raises(ConfigError, match="at least 2, not 1"):
        graphs.d_cliques(roster(5), 0, 1, histograms=ONE_LABEL, size=1)


def test_a_world_binds_the_label_counts_of_its_split() -> None:
    world = World(peers=8, split="sorted", topology="gossip_lab.playground.graphs:d_cliques:size=4")
    parts = world.build()
    bound = parts.topology.bound["histograms"]
    assert bound == count_labels(parts.task.data.labels, parts.task.shares, 10)
    assert [sum(row) for row in bound] == [len(share) for share in parts.task.shares]
    assert max(bound[0]) > sum(bound[0]) / 2, "the first peer has few labels"
    parts.topology(Roster(tuple(range(8))), 0, 0)


def test_labels_are_counted_by_share() -> None:
    labels = torch.tensor([0, 2, 2, 1])
    shares = [np.array([0, 1, 2]), np.array([3])]
    assert count_labels(labels, shares, 4) == ((1, 0, 2, 0), (0, 1, 0, 0))
