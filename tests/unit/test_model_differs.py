from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gossip.errors import ModelDiffers, Refused
from gossip.training.differing import compared
from gossip.training.layout import Layout


def layout_of(*widths: int, dtype: torch.dtype = torch.float32) -> Layout:
    pairs = itertools.pairwise(widths)
    model = torch.nn.Sequential(*(torch.nn.Linear(one, other, dtype=dtype) for one, other in pairs))
    return Layout(model, torch.optim.SGD(model.parameters(), lr=0.1))


def refused_by(layout: Layout) -> Callable[[], None]:
    def refuse() -> None:
        raise Refused(
            f"refused by the swarm: the swarm trains a model of layout {layout.digest.hex()}, "
            "this peer another"
        )

    return refuse


def present(
    folder: Path, peer: int, layout: Layout, happens: Callable[[], None] = lambda: None
) -> None:
    with compared(folder, peer, layout):
        happens()


@pytest.mark.parametrize(
    ("own", "swarm_says", "here_says"),
    [
        (layout_of(8, 4, 3), "1.weight (10, 4)", "1.weight (3, 4)"),
        (layout_of(8, 4), "1.weight (10, 4)", "no more than 2 tensors"),
        (layout_of(8, 4, 10, 2), "no more than 4 tensors", "2.weight (2, 10)"),
        (layout_of(8, 4, 10, dtype=torch.bfloat16), "0.weight (4, 8)", "0.weight (4, 8) bfloat16"),
    ],
)
def test_the_first_tensor_that_differs_is_named_with_both_shapes(
    tmp_path: Path, own: Layout, swarm_says: str, here_says: str
) -> None:
    swarm = layout_of(8, 4, 10)
    present(tmp_path, 0, swarm)
    present(tmp_path, 1, swarm)
    with pytest.raises(ModelDiffers) as caught:
        present(tmp_path, 2, own, refused_by(swarm))
    theirs, ours = caught.value.swarm, caught.value.here
    assert theirs.startswith(f"86 parameters  layout {swarm.digest.hex()[:8]}")
    assert ours.startswith(f"{own.trained} parameters  layout {own.digest.hex()[:8]}")
    assert theirs.endswith(swarm_says)
    assert ours.endswith(here_says)
    assert caught.value.exit_code == 6
    assert "same model" in caught.value.hint


def test_a_refusal_stays_where_nobody_left_word_of_that_model(tmp_path: Path) -> None:
    own, swarm = layout_of(8, 4), layout_of(8, 5)
    (tmp_path / "peer-0").mkdir()
    (tmp_path / "peer-0" / "model.json").write_text("{")
    present(tmp_path, 1, layout_of(8, 6))
    with pytest.raises(Refused, match="this peer another") as caught:
        present(tmp_path, 2, own, refused_by(swarm))
    assert type(caught.value) is Refused


def test_a_run_that_leaves_nothing_behind_is_not_written_to() -> None:
    with pytest.raises(Refused), compared(None, 0, layout_of(8, 4)):
        refused_by(layout_of(8, 5))()
