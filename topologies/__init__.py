"""Topologies: pure functions of (roster, round, seed) that select the peers that exchange. Every
peer computes the same selection.

``load("random-k:k=3")`` loads a topology by name; ``@topology`` makes a topology from a function.
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
