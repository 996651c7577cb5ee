"""Reconstruction of the state of a stage from checkpoints of another plan, in which the layers
belonged to other stages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossip.core import DIGEST_BYTES, pack_ledger
from gossip.errors import ConfigError
from gossip.run import SavedStage, checkpoints
from gossip.training import (
    ANSWERS,
    LEDGER_FILE,
    NORMS,
    TRAINING_FILE,
    CheckExtra,
    StateMismatch,
    read_some,
)

from .neighbours import TrainedLayer
from .rebuilding import StageModel, copy_settings, load_layers, under


class Recut(NamedTuple):
    """Initial state of a stage under another plan, in addition to its layers and their moments.

    Attributes:
        round_id: Number of the next round.
        ledger: Ledger of that round. Its chain is a hash of the chains of all stages that saved
            some of the layers. It has no tables, because under the new plan peers have other
            numbers and stages.
        extra: Extra entries, as ``load_document`` returns them.
    """

    round_id: int
    ledger: bytes
    extra: dict[str, Any]


def load_recut(
    stage: StageModel,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[SavedStage],
    check: CheckExtra,
) -> Recut:
    """Load the layers of a stage and their moments from the checkpoints that contain them.

    Args:
        parts: Saved stages of the same step, in the order of their layers.
        check: As in ``load_document``.
    Raises:
        DamagedCheckpoint: A file differs from its checksum.
        ConfigError: The layers or the optimizer differ from the saved ones.
    """
    made: dict[str, TrainedLayer] = {}
    norms: dict[str, Any] = {}
    chains, rounds = blake2b(digest_size=DIGEST_BYTES), set[int]()
    groups: list[dict[str, Any]] = []
    extra: dict[str, Any] = {}
    everybody = True
    for part in parts:
        found = part.open()
        try:
            layers, training = _layers_in(stage, part, found)
            ledger = json.loads(found.read(LEDGER_FILE))
            rounds.add(int(ledger["round"]))
            chains.update(bytes.fromhex(ledger["chain"]))
            everybody = everybody and bool(ledger["whole"])
        except (StateMismatch, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{found.path} does not fit this script: {error}",
                "build the same layers and optimizer, or start from the beginning without --resume",
            ) from error
        made.update(layers)
        groups = groups or training["groups"]
        norms |= training["extra"].get(NORMS, {})
        extra = extra or training["extra"]
    own = {number: norm for number, norm in norms.items() if number in stage.model}
    extra = {**extra, **({NORMS: own} if NORMS in extra else {})}
    (round_id,) = rounds  # All stages end a round together.
    try:
        check(dict(extra))
        load_layers(stage, optimizer, made)
    except StateMismatch as error:
        raise ConfigError(
            f"the checkpoints of step {parts[0].step} do not fit this script: {error}",
            "build the same layers and optimizer, or start from the beginning without --resume",
        ) from error
    copy_settings(optimizer, groups)
    extra.pop(ANSWERS, None)
    return Recut(round_id, pack_ledger(round_id, chains.digest(), (), everybody), extra)


def _layers_in(
    stage: StageModel, part: SavedStage, found: checkpoints.Checkpoint
) -> tuple[dict[str, TrainedLayer], dict[str, Any]]:
    """Return the layers of a saved stage that are in ``stage``, and the contents of its training
    file.

    Raises: StateMismatch: The tensors of a layer have other names or shapes.
    """
    first, last = part.layers
    names = stage.names_in_order(range(first, last + 1))
    own = {at for at, name in enumerate(names) if name.partition(".")[0] in stage.model}
    tensors: dict[str, Any] = {}
    for each in found.model_files:
        with found.open(each) as file:
            tensors |= read_some(file, lambda name: name.partition(".")[0] in stage.model, {})
    with found.open(TRAINING_FILE) as file:
        training = read_some(file, lambda name: _is_wanted(name, own), {"optimizer": own})
    moments = {names[at]: entries for at, entries in training["optimizer"].items()}
    made: dict[str, TrainedLayer] = {}
    for number in map(str, range(first, last + 1)):
        if number in stage.model:
            made[number] = TrainedLayer(under(number, tensors), under(number, moments))
            _check(number, stage.model[number].state_dict(), made[number].tensors)
    return made, training


def _is_wanted(name: str, own: set[int]) -> bool:
    """Whether a tensor of the training file is needed. Moments of other layers are not needed."""
    kind, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return kind != "optimizer" or (number.isdigit() and int(number) in own)


def _check(number: str, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    theirs = {name: tuple(tensor.shape) for name, tensor in found.items()}
    ours = {name: tuple(tensor.shape) for name, tensor in own.items()}
    if theirs != ours:
        raise StateMismatch(f"layer {number} has {ours} here, and {theirs} in the checkpoint")
