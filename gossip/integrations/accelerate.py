"""Integration with Accelerate (``docs/integrations.md``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import send_to_device
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

import gossip
from gossip.errors import ConfigError
from gossip.training import counts_steps

from .process_steps import ProcessSteps


class DeviceLoader:
    """Loader of this peer's share of the data, with batches on the accelerator's device.

    Attributes:
        dataset: Data set of the sharded loader.
    """

    def __init__(self, loader: Any, peer: gossip.Session, device: torch.device) -> None:
        self.dataset = loader.dataset
        self._loader, self._peer, self._device = loader, peer, device

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            _note_rank(self._peer)
            yield send_to_device(batch, self._device)
        _note_rank(self._peer)


def prepare(peer: gossip.Session, accelerator: Accelerator, *objects: Any) -> tuple[Any, ...]:
    """Prepare objects with ``accelerator.prepare``, and connect them to the swarm. The optimizers
    then exchange gradients, the first DataLoader yields this peer's share of the data, and a
    returning peer receives the state of schedulers.

    ``accelerator.is_main_process`` is then True on one live peer. As in Accelerate, each optimizer
    step advances a scheduler in ``objects`` by one step per planned peer, because the scheduler was
    created for the batches of a single process. A scheduler that depends on the length of the
    returned loader must be created after this call, and passed to ``peer.keep``.

    Args:
        peer: Result of ``gossip.init()``.
        accelerator: Accelerator of this process alone, without ``torch.distributed``.
        objects: A model, its optimizers, loaders (the training loader first), and schedulers.
    Returns: The prepared objects, in the same order.
    Raises: ConfigError: The accelerator has several processes, or ``objects`` has not exactly one
        model with its optimizers.
    """
    if accelerator.num_processes > 1:
        raise ConfigError(
            f"the accelerator has {accelerator.num_processes} processes of torch.distributed",
            "start the script with gossip run, not with accelerate launch",
        )
    models = [each for each in objects if isinstance(each, torch.nn.Module)]
    optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
    if len(models) != 1 or not optimizers:
        raise ConfigError(
            f"prepare received {len(models)} models and {len(optimizers)} optimizers",
            "pass one model with its optimizers; nn.ModuleList combines several models",
        )
    objects = tuple(_with_processes(peer, accelerator, each) for each in objects)
    train = next((each for each in objects if isinstance(each, DataLoader)), None)
    others = iter(accelerator.prepare(*[each for each in objects if each is not train], None))
    peer.prepare(models[0], optimizers[0] if len(optimizers) == 1 else optimizers)
    schedulers = [each for each in objects if isinstance(each, LRScheduler)]
    peer.keep(**{f"scheduler{at}": each for at, each in enumerate(schedulers)})
    _note_rank(peer)
    share: DeviceLoader | None = None
    if train is not None:
        sharded = peer.shard(train, accumulate=accelerator.gradient_accumulation_steps)
        share = DeviceLoader(sharded, peer, accelerator.device)
    return tuple(share if each is train else next(others) for each in objects)


def _with_processes(peer: gossip.Session, accelerator: Accelerator, given: Any) -> Any:
    """Wrap a scheduler so that it advances by one step per planned peer, as Accelerate does for
    each process. Schedulers that follow a metric, and objects that are not schedulers, are returned
    unchanged."""
    steps_with_optimizer = accelerator.step_scheduler_with_optimizer
    if not counts_steps(given) or accelerator.split_batches or not steps_with_optimizer:
        return given
    return ProcessSteps(given, lambda: peer.planned_peers)


def _note_rank(peer: gossip.Session) -> None:
    """Set the process index of Accelerate. It is 0 on the main peer, which prints and saves. If the
    main peer dies, another peer becomes the main peer."""
    state = PartialState()
    state.process_index = state.local_process_index = 0 if peer.is_main else peer.id + 1
