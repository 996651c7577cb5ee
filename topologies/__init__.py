"""Who exchanges with whom: pure functions of (roster, round, seed), the same on every peer.

``load("random-k:k=3")`` finds one by name; ``@topology`` makes one of a function.
"""

from .base import Plan, Roster, Topology, check_plan, draw, topology
from .finding import load, names, with_option
from .weights import (
    WEIGHT_MAX as WEIGHT_MAX,
    lots as lots,
    read_weights as read_weights,
    within_bounds as within_bounds,
    write_weights as write_weights,
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
