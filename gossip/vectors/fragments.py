"""Choice of the part of a model that a round of local steps exchanges, if the model is cut into
fragments (Streaming DiLoCo, Douillard et al. 2025, arXiv:2501.18512).

Fragments take turns by the number of steps of the parameters. Collective operations take
a round and are not steps, so no fragment loses its turn. That number is part of the committed
history, so no message has to name the fragment of an update.
"""

from __future__ import annotations

from collections.abc import Sequence


def fragment_of(round_id: int, collectives: int, fragments: int) -> int:
    """Return the fragment that a round exchanges.

    Args:
        round_id: Number of the round.
        collectives: Number of earlier rounds that were not steps.
        fragments: Number of fragments.
    """
    return (round_id - collectives) % fragments


def cut_layers(sizes: Sequence[int], fragments: int) -> tuple[tuple[int, ...], ...]:
    """Distribute layers over fragments of about equal size.

    The largest remaining layer goes to the fragment that has the fewest numbers (Graham 1969:
    the largest fragment is at most 4/3 of the smallest possible largest one). Layers of one size go
    to fragments in turn: the strided pattern of the paper.

    Args:
        sizes: Numbers of each layer, in the model's order; at least as many as fragments.
    Returns: The layers of each fragment, ascending; none is empty.
    """
    assert 1 <= fragments <= len(sizes)
    loads, dealt = [0] * fragments, [list[int]() for _ in range(fragments)]
    for layer in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        # Among fragments with equally many numbers, the one with the fewest layers is chosen,
        # because layers may be empty.
        to = min(range(fragments), key=lambda at: (loads[at], len(dealt[at]), at))
        loads[to] += sizes[layer]
        dealt[to].append(layer)
    return tuple(tuple(sorted(each)) for each in dealt)
