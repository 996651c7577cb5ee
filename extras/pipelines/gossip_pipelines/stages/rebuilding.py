"""Reconstruction of the state of a stage that has lost all its peers. The first restarted peer of
the stage reconstructs the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gossip.core import events
from gossip.errors import ConfigError
from gossip.run import Cut, checkpoints
from gossip.training import (
    ANSWERS,
    NORMS,
    TRAINING_FILE,
    PeerRun,
    StateMismatch,
    is_norm,
    load_document,
    load_optimizer,
    read_checkpoint,
    read_state_file,
    split_state,
)

from .neighbours import TrainedLayer, between, counterparts

MakeOptimizer: TypeAlias = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class StageModel:
    """The stages as one peer stores them: the layers of the peer's own stage, and outlines of the
    layers of other stages.

    Attributes:
        cut: First and last layer of each stage.
        model: The layers of the peer's own stage as the script has built them, by number.
        layers: All layers. Those of other stages are on the meta device.
        signatures: Signatures of all layers.
        make_optimizer: The function that the script passed to ``peer.pipeline``.
    """

    cut: Cut
    stage: int
    model: nn.ModuleDict
    layers: Sequence[nn.Module]
    signatures: Sequence[str]
    make_optimizer: MakeOptimizer

    @property
    def is_last(self) -> bool:
        return self.stage == len(self.cut) - 1

    def numbers(self, stage: int) -> range:
        """Return the numbers of the layers in a stage."""
        first, last = self.cut[stage]
        return range(first, last + 1)

    def counterparts(self, stage: int) -> list[int | None]:
        """Return the number of the counterpart of each own layer in another stage. It is None if
        there is no such stage or no such layer."""
        own = [self.signatures[at] for at in self.numbers(self.stage)]
        if not 0 <= stage < len(self.cut):
            return [None] * len(own)
        theirs = self.numbers(stage)
        found = counterparts(own, [self.signatures[at] for at in theirs])
        return [None if place is None else theirs[place] for place in found]

    def nbytes(self, stage: int) -> int:
        """Return the size of the parameters and buffers of a stage, in bytes."""
        each = [t for at in self.numbers(stage) for t in self.layers[at].state_dict().values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in each)

    def names_in_order(self, numbers: Iterable[int]) -> list[str]:
        """Return the names of the parameters of these layers in the order in which an optimizer
        numbers them."""
        model = nn.ModuleDict({str(at): self.layers[at] for at in numbers})
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = self.make_optimizer(model.parameters()).param_groups
        return [names[id(each)] for group in groups for each in group["params"]]


Made: TypeAlias = tuple[events.StateRebuilt, Mapping[str, Any] | None]
"""Result of a reconstruction: the event without the digest of the state, and extra entries of the
checkpoint or of the neighbour's state, if any."""


@dataclass(frozen=True)
class StageRebuilder:
    """Creates the state of a stage from the best available source.

    Attributes:
        optimizer: Optimizer of the parameters of the stage.
    """

    stage: StageModel
    optimizer: torch.optim.Optimizer
    run: PeerRun

    def make(self, round_id: int, beside: Mapping[int, memoryview], is_last: bool) -> Made:
        """Load a state for round ``round_id`` into the model and the optimizer. If states of other
        stages are needed first, return a request for them.

        Args:
            beside: Packed states of neighbouring stages that have arrived after a request.
            is_last: Whether no other request is possible.
        """
        first = self.run.config.lost_stage
        if first == "checkpoint" and not is_last:
            made = self._from_checkpoint(round_id)
            if made is not None:
                return made
        if first in ("checkpoint", "neighbours"):
            near = (self.stage.stage - 1, self.stage.stage + 1)
            useful = [at for at in near if any(n is not None for n in self.stage.counterparts(at))]
            if useful and not is_last:
                needs = tuple([(at, self.stage.nbytes(at)) for at in useful])
                return events.StateRebuilt(round_id, "", needs=needs), None
            made = self._from_neighbours(round_id, beside)
            if made is not None:
                return made
        return events.StateRebuilt(round_id, "fresh", fresh=len(self.stage.model)), None

    # --- from its checkpoint ----------------------------------------------------------------------

    def _from_checkpoint(self, round_id: int) -> Made | None:
        """Load the newest intact checkpoint that is not ahead of the other stages. Return None if
        there is no such checkpoint."""
        try:
            run_dir = self.run.run_dir
            given = None if run_dir is None else checkpoints.folder_of(run_dir)
            if given is None:
                return None
            folder = checkpoints.stage_folder(given, self.stage.stage)
            found, damaged = checkpoints.newest_good(folder, most=round_id)
            for line in damaged:
                self.run.notify(f"skipped: {line}")
            if found is None:
                return None
            files = {name: found.read(name) for name in (*found.model_files, TRAINING_FILE)}
            extra = load_document(
                read_checkpoint(files), self.stage.model, self.optimizer, self.run.model.extra.check
            )
            extra.pop(ANSWERS, None)
        except ConfigError as error:
            self.run.notify(f"no checkpoint of the stage can be used: {error}")
            return None
        return events.StateRebuilt(round_id, "checkpoint", found.step), extra

    # --- from its neighbours ----------------------------------------------------------------------

    def _from_neighbours(self, round_id: int, beside: Mapping[int, memoryview]) -> Made | None:
        """Load the means of the counterparts in other stages. Return None if no layer has a
        counterpart."""
        known: dict[int, TrainedLayer] = {}
        extra: dict[str, Any] = {}
        groups: list[dict[str, Any]] = []
        for stage, packed in beside.items():
            try:
                layers, extra, groups = self._read(stage, bytes(packed))
            except (StateMismatch, KeyError, TypeError, ValueError) as error:
                self.run.notify(f"the state of stage {stage} cannot be used: {error}")
                continue
            known.update(layers)
        sides = [self.stage.counterparts(self.stage.stage + side) for side in (-1, 1)]
        made: dict[str, TrainedLayer] = {}
        for number, below, above in zip(self.stage.model, *sides, strict=True):
            pair = [None if at is None else known.get(at) for at in (below, above)]
            found = between(*[p if p is not None and self._fits(number, p) else None for p in pair])
            if found is not None:
                made[number] = found
        if not made:
            return None
        try:
            load_layers(self.stage, self.optimizer, made)
        except StateMismatch as error:
            self.run.notify(f"the optimizer starts without its state: {error}")
        copy_settings(self.optimizer, groups)
        norms = {number: layer.norm for number, layer in made.items()}
        fresh = len(self.stage.model) - len(made)
        return events.StateRebuilt(round_id, "neighbours", fresh=fresh), {**extra, NORMS: norms}

    def _read(
        self, stage: int, packed: bytes
    ) -> tuple[dict[int, TrainedLayer], dict[str, Any], list[dict[str, Any]]]:
        """Unpack the state of another stage. Return its layers, its extra entries, and the
        parameter groups of its optimizer.

        Raises: StateMismatch, KeyError, TypeError, ValueError: ``packed`` is not a state of that
            stage.
        """
        base, state, rest, own = [read_state_file(file) for file in split_state(packed)]
        tensors: dict[str, Tensor] = {**own["model"], **base["model"], **state["model"]}
        extra = dict(rest["extra"])
        extra.pop(ANSWERS, None)
        norms = extra.pop(NORMS, {})
        names = self.stage.names_in_order(self.stage.numbers(stage))
        moments = {names[at]: entries for at, entries in state["optimizer"].items()}
        found = {}
        for number in self.stage.numbers(stage):
            norm = norms.get(str(number), 0.0)
            found[number] = TrainedLayer(
                under(str(number), tensors),
                under(str(number), moments),
                norm if is_norm(norm) else 0.0,
            )
        return found, extra, list(rest["groups"])

    def _fits(self, number: str, found: TrainedLayer) -> bool:
        own = self.stage.model[number].state_dict()
        return own.keys() == found.tensors.keys() and all(
            isinstance(tensor, Tensor) and tensor.shape == own[name].shape
            for name, tensor in found.tensors.items()
        )


def load_layers(
    stage: StageModel, optimizer: torch.optim.Optimizer, made: Mapping[str, TrainedLayer]
) -> None:
    """Load layers into a stage, and their moments into its optimizer. ``made``: the layers, by
    number.

    Raises: StateMismatch: The moments do not fit the optimizer, which is unchanged.
    """
    for number, found in made.items():
        stage.model[number].load_state_dict(dict(found.tensors))
    names = {id(each): name for name, each in stage.model.named_parameters()}
    moments = {
        f"{number}.{name}": entries
        for number, found in made.items()
        for name, entries in found.moments.items()
    }
    own = optimizer.state_dict()
    flat = [each for group in optimizer.param_groups for each in group["params"]]
    own["state"] = {
        at: dict(moments[names[id(each)]])
        for at, each in enumerate(flat)
        if names[id(each)] in moments
    }
    load_optimizer(own, optimizer)


def copy_settings(optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]) -> None:
    """Copy the settings of ``groups``, such as the learning rate, to the optimizer, if it has as
    many parameter groups."""
    own = optimizer.param_groups
    for group, theirs in zip(own, groups, strict=False) if len(own) == len(groups) else ():
        group.update({key: value for key, value in theirs.items() if key != "params"})


def under(number: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of one layer without the number of the layer in their names."""
    prefix = f"{number}."
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }
