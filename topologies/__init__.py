"""Topologies: pure functions (roster, round, seed) -> plan. A plan determines which peers exchange
updates in a round. Every peer computes the same plan.

``load("random-k:k=3")`` returns a topology by its name. ``@topology`` creates a topology from a
function.
"""

from .base import Plan, Roster, Topology, check_plan, draw, topology
from .finding import load, names, with_option
from .weights import (
    lots,
    pull_of,
    read_weights,
    within_bounds,
    write_weights,
)

__all__ = [
    "Plan",
    "Roster",
    "Topology",
    "check_plan",
    "draw",
    "load",
    "names",
    "topology",
    "with_option",
]
