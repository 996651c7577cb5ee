"""What a stage goes on from that has lost all its peers: its checkpoint, the layers beside it, or
fresh weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pipeline_models import char_batch, char_layers
from torch import Tensor, nn
from trainer_fakes import pack_state

from gossip.config import LostStage, PipelineConfig, RunConfig
from gossip.core import events
from gossip.run import checkpoints
from gossip.training import NORMS, GradientNorms
from gossip.training.state import plan_checkpoint
from gossip_pipelines.planning import model_of, walk_without_data
from gossip_pipelines.stages import TrainedLayer, between, counterparts
from gossip_pipelines.stages.place import place_stage
from gossip_pipelines.stages.rebuilding import StageRebuilder

CUTS = ((0, 1), (2, 3), (4, 5))  # the embedding and a block; two blocks; a block and the head


# --- a layer of its neighbours --------------------------------------------------------------------


def test_the_layer_that_stands_in_is_the_one_with_the_same_signature_and_turn() -> None:
    assert counterparts(["b", "b"], ["e", "b", "b"]) == [1, 2]
    assert counterparts(["b", "b", "b"], ["b", "b"]) == [0, 1, 1]
    assert counterparts(["e", "b"], ["b"]) == [None, 0]


def layer(value: float, norm: float, steps: int = 0) -> TrainedLayer:
    moments = {"weight": {"exp_avg": torch.full((2,), 10 * value), "count": steps}}
    return TrainedLayer({"weight": torch.full((2,), value)}, moments, norm)


def test_the_mean_of_two_layers_is_weighted_by_the_norms_of_their_gradients() -> None:
    found = between(layer(1.0, 3.0, 7), layer(5.0, 1.0, 9))
    torch.testing.assert_close(found.tensors["weight"], torch.full((2,), 2.0))
    torch.testing.assert_close(found.moments["weight"]["exp_avg"], torch.full((2,), 20.0))
    assert found.moments["weight"]["count"] == 7, "a count is that of the larger part"
    assert found.norm == 2.5


def test_where_no_norm_is_known_both_count_alike_and_one_alone_is_copied() -> None:
    found = between(layer(1.0, 0.0), layer(5.0, 0.0))
    torch.testing.assert_close(found.tensors["weight"], torch.full((2,), 3.0))
    one = layer(4.0, 1.0)
    assert between(one, None) is one
    assert between(None, one) is one
    assert between(None, None) is None


def test_norms_are_of_the_gradients_of_each_layer() -> None:
    model = nn.ModuleDict({"3": nn.Linear(1, 2, bias=False), "4": nn.Linear(1, 1, bias=False)})
    norms = GradientNorms(model)
    model["3"].weight.grad = torch.tensor([[3.0], [4.0]])
    norms.measure()
    assert norms.state() == {"3": 5.0, "4": 0.0}
    norms.adopt({"3": 2.0, "4": float("nan"), "5": 1.0, "x": -1.0})
    assert norms.state() == {"3": 2.0}
    norms.adopt("no norms")
    assert norms.state() == {}


# --- a state for a stage --------------------------------------------------------------------------


def adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """In two groups, the last parameters first."""
    vectors: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    for each in parameters:
        (vectors if each.ndim < 2 else matrices).append(each)
    groups = [{"params": matrices}, {"params": vectors, "lr": 2e-3}]
    return torch.optim.Adam(groups, lr=1e-3)


class Peer:
    """One of a stage, trained for a step on gradients that are all ``gradient``."""

    def __init__(self, stage: int, gradient: float | None = None, seed: int = 0) -> None:
        layers = char_layers()
        walked = walk_without_data(layers, char_batch(0, 1)[0])
        self.plan = PipelineConfig(
            model=model_of([each.signature for each in walked]),
            micro_batches=2,
            samples=1,
            names=("a", "b", "c"),
            stages=[{"layers": cut, "peers": (at,)} for at, cut in enumerate(CUTS)],  # type: ignore[arg-type]
        )
        torch.manual_seed(seed)
        config = RunConfig(peers=3, pipeline=self.plan)
        self.known, _ = place_stage(config, stage, layers, char_batch(0, 1)[0], adam)
        self.model = self.known.model
        for parameter in self.model.parameters() if seed else ():
            nn.init.normal_(parameter)
        self.optimizer = adam(self.model.parameters())
        self.norms = GradientNorms(self.model)
        self.moved = list(self.model.parameters())[1:]  # the first one is of the base
        self.said: list[str] = []
        if gradient is not None:
            for parameter in self.model.parameters():
                parameter.grad = torch.full_like(parameter, gradient)
            self.norms.measure()
            self.optimizer.step()

    @property
    def packed(self) -> memoryview:
        extra = {NORMS: self.norms.state(), "kept": 5}
        return memoryview(pack_state(self.model, self.optimizer, extra, self.moved))

    def copy(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def make(
        self,
        first: LostStage,
        run_dir: Path | None = None,
        beside: dict[int, memoryview] | None = None,
        is_last: bool = False,
    ) -> events.StateRebuilt:
        run: Any = SimpleNamespace(
            config=RunConfig(peers=3, pipeline=self.plan, lost_stage=first),
            run_dir=run_dir,
            model=SimpleNamespace(extra=SimpleNamespace(check=lambda extra: None)),
            notify=self.said.append,
        )
        rebuilder = StageRebuilder(self.known, self.optimizer, run)
        made, self.extra = rebuilder.make(8, beside or {}, is_last)
        return made

    def save(self, folder: Path, step: int) -> None:
        place = checkpoints.stage_folder(folder, self.known.stage)
        files = plan_checkpoint(self.model, self.optimizer, {"kept": step}, self.moved)
        data: dict[str, Any] = {}
        for name, file in files.items():
            data[name] = memoryview(bytearray(file.nbytes))
            file.write(data[name])
            data[name] = data[name][: file.length]
        checkpoints.write(place, step, data, {"run": "it"}, keep=9)
        checkpoints.note_folder(folder, folder)


def test_it_goes_on_from_its_newest_checkpoint_not_ahead_of_others(tmp_path: Path) -> None:
    saved = {}
    for step in (4, 8, 12):
        peer = Peer(1, 0.5, seed=step)
        peer.save(tmp_path, step)
        saved[step] = peer
    fresh = Peer(1)
    made = fresh.make("checkpoint", tmp_path)
    assert (made.source, made.step, made.fresh) == ("checkpoint", 8, 0)
    assert fresh.extra == {"kept": 8}
    for name, value in saved[8].model.state_dict().items():
        torch.testing.assert_close(fresh.model.state_dict()[name], value)
    assert fresh.optimizer.state_dict()["state"], "the optimizer goes on, too"
    # the newest is damaged: it is said, and the one before is taken
    (tmp_path / "stage-1/step-000000008/model.safetensors").write_bytes(b"no")
    assert fresh.make("checkpoint", tmp_path).step == 4
    assert "damaged" in fresh.said[0]


def test_without_a_checkpoint_it_asks_for_the_stages_with_like_layers() -> None:
    middle = Peer(1)
    made = middle.make("checkpoint")
    assert made.source == ""
    assert [stage for stage, _ in made.needs] == [0, 2]
    below = Peer(0)
    nbytes = sum(each.numel() * 4 for each in below.model.state_dict().values())
    assert made.needs[0][1] == nbytes
    assert [stage for stage, _ in Peer(2).make("neighbours").needs] == [1]
    assert Peer(1).make("fresh").needs == ()


def test_its_layers_and_moments_are_the_mean_of_those_beside_by_their_norms() -> None:
    below, above, lost = Peer(0, 3.0, seed=1), Peer(2, 1.0, seed=2), Peer(1)
    fresh = lost.copy()
    made = lost.make("neighbours", beside={0: below.packed, 2: above.packed}, is_last=True)
    assert (made.source, made.step, made.fresh) == ("neighbours", 0, 0)
    one, other = below.model["1"], above.model["4"]  # the block of each
    for number in ("2", "3"):
        for name, value in lost.model[number].state_dict().items():
            mean = 0.75 * one.state_dict()[name] + 0.25 * other.state_dict()[name]
            torch.testing.assert_close(value, mean)
            assert not torch.equal(value, fresh[f"{number}.{name}"])
    for name, parameter in lost.model["3"].named_parameters():
        state = lost.optimizer.state[parameter]
        first, second = dict(one.named_parameters())[name], dict(other.named_parameters())[name]
        mean = (
            0.75 * below.optimizer.state[first]["exp_avg"]
            + 0.25 * above.optimizer.state[second]["exp_avg"]
        )
        torch.testing.assert_close(state["exp_avg"], mean)
        assert state["step"] == 1
    assert lost.extra["kept"] == 5
    assert set(lost.extra[NORMS]) == {"2", "3"}


def test_an_end_stage_copies_and_what_has_no_like_is_fresh() -> None:
    beside, lost = Peer(1, 1.0, seed=3), Peer(2)
    head = {name: value.clone() for name, value in lost.model["5"].state_dict().items()}
    made = lost.make("neighbours", beside={1: beside.packed}, is_last=True)
    assert (made.source, made.fresh) == ("neighbours", 1)
    for name, value in lost.model["4"].state_dict().items():
        torch.testing.assert_close(value, beside.model["2"].state_dict()[name])
    for name, value in lost.model["5"].state_dict().items():
        torch.testing.assert_close(value, head[name])


def test_a_layer_of_another_shape_is_passed_over() -> None:
    below, above, lost = Peer(0, seed=1), Peer(2, 1.0, seed=2), Peer(1)
    below.model["1"].out = nn.Linear(16, 8)  # a lie: the plan has other layers there
    made = lost.make("neighbours", beside={0: below.packed, 2: above.packed}, is_last=True)
    assert (made.source, made.fresh) == ("neighbours", 0)
    for name, value in lost.model["2"].state_dict().items():
        torch.testing.assert_close(value, above.model["4"].state_dict()[name])


@pytest.mark.parametrize("packed", [b"", b"x" * 100])
def test_a_state_that_cannot_be_read_is_told_of_and_the_weights_stay_fresh(packed: bytes) -> None:
    lost = Peer(1)
    before = lost.copy()
    made = lost.make("neighbours", beside={0: memoryview(packed)}, is_last=True)
    assert (made.source, made.fresh) == ("fresh", 2)
    assert "stage 0 cannot be used" in lost.said[0]
    for name, value in lost.model.state_dict().items():
        torch.testing.assert_close(value, before[name])
