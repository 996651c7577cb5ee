"""A custom aggregation rule:

gossip run -n 4 --aggregator examples/my_rules.py:midpoint examples/train.py
"""

from torch import Tensor

from gossip.aggregators import rule


@rule
def midpoint(updates: Tensor, *, f: int) -> Tensor:
    """Halfway between the extremes of each coordinate, the f largest and the f smallest left
    out: (n, d) -> (d,)."""
    kept = updates.sort(dim=0).values[f : len(updates) - f]
    return (kept[0] + kept[-1]) / 2
