"""Choice of the fragment of a model that a round with local steps exchanges (Streaming DiLoCo,
Douillard et al. 2025, arXiv:2501.18512).

The fragments are exchanged in rotation: the number of steps of the parameters determines the
    fragment. A collective operation uses a round but is not a step, so no fragment is skipped. The
    number of steps is part of the committed history, so no message needs to name the fragment of an
    update.
"""

from __future__ import annotations

from collections.abc import Sequence


def fragment_of(round_id: int, collectives: int, fragments: int) -> int:
    """Return the fragment that a round exchanges.

    Args:
        round_id: Number of the round.
        collectives: Number of earlier rounds that made no step.
        fragments: Number of fragments.
    """
    return (round_id - collectives) % fragments


def cut_layers(sizes: Sequence[int], fragments: int) -> tuple[tuple[int, ...], ...]:
    """Distribute layers over fragments of about equal size.

    The largest remaining layer is added to the fragment with the fewest elements. The largest
    fragment is then at most 4/3 as large as in the best distribution (Graham 1969). Layers of equal
    size are added to the fragments in rotation, which is the strided pattern of the paper.

    Args:
        sizes: Number of elements of each layer, in the order of the model. There must be at least
            as many layers as fragments.
    Returns: The indices of the layers of each fragment, ascending. No fragment is empty.
    """
    assert 1 <= fragments <= len(sizes)
    loads, dealt = [0] * fragments, [list[int]() for _ in range(fragments)]
    for layer in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        # If fragments have equally many elements, choose the fragment with the fewest layers.
        # Layers may be empty, so otherwise a fragment could have no layer.
        to = min(range(fragments), key=lambda at: (loads[at], len(dealt[at]), at))
        loads[to] += sizes[layer]
        dealt[to].append(layer)
    return tuple(tuple(sorted(each)) for each in dealt)
