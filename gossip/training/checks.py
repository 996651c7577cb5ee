"""Checks of the arguments of ``prepare``, so that an unsupported model is rejected before the first
round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import distributed

from gossip.aggregators import BoundRule
from gossip.config import RunConfig
from gossip.errors import ConfigError, UnsupportedModel
from gossip.ipc import SHAPES_BYTES_MAX
from gossip.vectors import WireFormat

from .unprepared import parameters_of

_WRAPPERS = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
_SPARSE = (torch.nn.Embedding, torch.nn.EmbeddingBag)


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the original module of a compiled model. Its submodules have the same names as on a
    peer that does not compile the model."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, torch.nn.Module) else model


def check_process_group() -> None:
    """Raise ConfigError if the script has initialised torch.distributed with several processes."""
    if not distributed.is_available() or not distributed.is_initialized():
        return
    if (size := distributed.get_world_size()) > 1:
        raise ConfigError(
            f"torch.distributed was initialised with {size} processes before gossip.init()",
            "remove init_process_group and all divisions by its world size (docs/from_ddp.md), "
            "or start the script with gossip run, which sets no RANK",
        )


def check_model(model: object, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise UnsupportedModel if the model exchanges gradients itself, or has sparse gradients."""
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"prepare takes a torch.nn.Module, got {type(model).__name__}",
            "combine several models in one nn.ModuleList",
        )
    if isinstance(model, _WRAPPERS):
        raise UnsupportedModel(
            f"the model is wrapped in {type(model).__name__}, which exchanges gradients itself",
            "pass the model inside it (.module) to prepare, and train that model: gossip replaces "
            "the wrapper",
        )
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise UnsupportedModel(
                "SparseAdam needs sparse gradients, but only dense gradients are exchanged",
                "use Adam, and make the embedding with sparse=False",
            )
    trained = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise UnsupportedModel(
                f"{name or 'the model'} is a SyncBatchNorm, which needs torch.distributed",
                "use BatchNorm, which normalises by each peer's own batch, or GroupNorm",
            )
        if (
            isinstance(module, _SPARSE)
            and module.sparse
            and id(module.weight) in trained
            and module.weight.requires_grad
        ):
            raise UnsupportedModel(
                f"the gradient of {name + '.' if name else ''}weight is sparse, but only dense "
                "gradients are exchanged",
                "make the embedding with sparse=False",
            )


def check_clip_norm(clip_norm: object, config: RunConfig) -> None:
    """Raise ConfigError if ``clip_norm`` is not a positive number, or the run has local steps."""
    if (
        isinstance(clip_norm, bool)
        or not isinstance(clip_norm, int | float)
        or not 0 < clip_norm < math.inf
    ):
        raise ConfigError(
            f"prepare received clip_norm={clip_norm!r}",
            "pass a positive number, as to torch.nn.utils.clip_grad_norm_",
        )
    if config.has_local_steps:
        raise ConfigError(
            "clip_norm with local_steps: rounds aggregate model differences, not gradients",
            "call torch.nn.utils.clip_grad_norm_(model.parameters(), ...) before each "
            "optimizer.step()",
        )


def check_shapes(wire: WireFormat) -> None:
    """Raise UnsupportedModel if the encoding needs tensor shapes, and the model has more tensors
    than a node accepts."""
    if len(wire.packed_shapes) > SHAPES_BYTES_MAX:
        raise UnsupportedModel(
            f"{len(wire.shapes)} parameters: this encoding supports models of at most "
            f"{SHAPES_BYTES_MAX * len(wire.shapes) // len(wire.packed_shapes)}",
            "use --encoding int4, which needs no shapes",
        )


def check_rule(rule: BoundRule, config: RunConfig, has_judge: bool) -> None:
    """Raise ConfigError if the rule needs a judge and has none, or does not fit the run's
    settings."""
    if rule.needs_trainer and not has_judge:
        raise ConfigError(
            f"the rule {rule.name} needs the loss of the model on samples that it can trust",
            "write peer.prepare(model, optimizer, "
            "judge=lambda batch: loss_fn(model(batch[0]), batch[1])), "
            "or use a rule without a judge: --aggregator suspicion",
        )
    if rule.needs_trainer and config.overlap:
        raise ConfigError(
            f"overlap = 1, and the rule {rule.name} needs the trainer in every round",
            "leave one of them out",
        )
    if config.has_local_steps:
        rule.check_model_differences()
