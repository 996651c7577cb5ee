"""Rules that leave out the f updates farthest from a point, and average the rest."""

from __future__ import annotations

from .gram import Decision, Gram, ascending
from .gram_rules import gram_rule


@gram_rule(at_least_centered=lambda f: f + 1, points=("center",))
def monna(gram: Gram, *, f: int) -> Decision:
    """The mean of the n - f updates nearest to the local update.

    For gossip: needs a ``center``, so f + 1 updates are enough to stay near the local update. The
    proof is for f < n/5.

    Args:
        gram: Inner products of the updates; the local update may be among them.
        f: Byzantine peers to tolerate.
    Returns: among equally near updates, the earlier ones are kept.
    Raises: TooFewUpdates: Fewer than f + 1 updates.
    Source: Farhadkhani, Guerraoui, Gupta, Hoang, Pinot, Stephan 2023, "Robust Collaborative
        Learning with Linear Gradient Overhead", arXiv:2209.10931.
    """
    return Decision(gram.even(gram.nearest_to("center")[: gram.n - f]))


@gram_rule
def faba(gram: Gram, *, f: int) -> Decision:
    """Repeat f times: remove the update that is farthest from the mean of the remaining updates.

    Tolerates f < n/2, but is weak for large f, because the first means include the attackers'
    updates. Needs distances.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Returns: among equally far updates, the later update is removed.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Xia, Tao, Hao, Li 2019, "FABA: An Algorithm for Fast Aggregation against Byzantine
        Attacks", IJCAI.
    """
    left = list(range(gram.n))
    for _ in range(f):
        squares, rounding = gram.squares_to(gram.even(left))
        left.pop(ascending(squares[left], rounding[left])[-1])
    return Decision(gram.even(left))


@gram_rule(points=("origin",), translation=False, robust="bounded")
def cge(gram: Gram, *, f: int) -> Decision:
    """The mean of the n - f updates with the smallest norm.

    Tolerates f < n/2 attackers with long updates. An update that is no longer than the honest
    updates is averaged, whatever its direction. So attackers move the aggregate by at most the
    length of honest updates. Needs norms. Meant for gradients, not for parameters.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Returns: among equal norms, the earlier updates are kept.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Gupta, Liu, Vaidya 2021, "Byzantine fault-tolerant distributed machine learning using
        stochastic gradient descent and norm-based comparative gradient elimination",
        arXiv:2008.04699.
    """
    return Decision(gram.even(gram.nearest_to("origin")[: gram.n - f]))
