"""Strategy for the Trainer of Lightning (``docs/integrations.md``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader, IterableDataset

import gossip
from gossip.errors import ConfigError

from .clock import RunClock, TrainLoader

AVERAGING = {"WeightAveraging", "StochasticWeightAveraging"}
"""Names of callbacks that replace the weights of the model by an average."""
FOREVER = 2**40
"""Number of steps for a Trainer without a limit."""


class GossipStrategy(SingleDeviceStrategy):
    """Strategy that makes a Trainer a peer of a swarm: ``Trainer(strategy=GossipStrategy(),
    devices=1, accelerator="cpu")``.

    ``optimizer.step()`` exchanges gradients, the training loader yields this peer's share of the
    data, and the Trainer counts the steps of the run. Only the main peer writes logs and
    checkpoints of the Trainer.
    """

    strategy_name = "gossip"

    def __init__(
        self,
        device: str | torch.device = "cpu",
        *,
        peer: gossip.Session | None = None,
        save: str | Path | None = None,
        every: int | None = None,
        keep: int = 3,
        **others: Any,
    ) -> None:
        """``others``: arguments of ``SingleDeviceStrategy``.

        Args:
            device: Device of this peer.
            peer: Result of ``gossip.init()``, if the script has called it.
            save, every, keep: Checkpoints of the run, as for ``Session.steps``. ``gossip run
            --resume auto`` resumes from them.
        """
        self.peer = gossip.init() if peer is None else peer
        self._save, self._every, self._keep = save, every, keep
        self._clock = RunClock(self.peer)
        self._train_loader: TrainLoader | None = None
        super().__init__(device=device, **others)
        self._note_rank()

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the main peer, which writes files that exist once per run. If it dies,
        another peer becomes the main peer."""
        return self.peer.is_main

    def setup_optimizers(self, trainer: Any) -> None:
        """Create the optimizers, and connect them to the swarm.

        Raises: ConfigError: The script asks the Trainer to resume from its own checkpoint, or has a
            callback that averages weights.
        """
        for callback in trainer.callbacks:
            if AVERAGING & {kind.__name__ for kind in type(callback).__mro__}:
                raise ConfigError(
                    f"{type(callback).__name__}: its average is not in the state that returning "
                    "peers and checkpoints receive",
                    "update the average in peer.each_step, and pass it to peer.keep "
                    "(peer = trainer.strategy.peer)",
                )
        if trainer.ckpt_path is not None:
            raise ConfigError(
                "ckpt_path: a peer's state is part of the run's checkpoints",
                "GossipStrategy(save='ckpt') and gossip run --resume auto",
            )
        super().setup_optimizers(trainer)
        optimizers = self.optimizers
        self.peer.prepare(self.model, optimizers[0] if len(optimizers) == 1 else optimizers)
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        self.peer.keep(**{f"scheduler{at}": each for at, each in enumerate(schedulers)})

    def process_dataloader(self, dataloader: object) -> object:
        """Return a loader of this peer's share of the training data. Loaders of other data are
        returned unchanged.

        Raises: ConfigError: The data are a stream without a length, of which Lightning requests
            each batch before the step on the previous one.
        """
        trainer = self.lightning_module.trainer
        fits = trainer.state.fn == TrainerFn.FITTING and trainer.training
        if not fits or trainer.sanity_checking or trainer.train_dataloader is not None:
            return dataloader
        accumulate = trainer.accumulate_grad_batches
        loader = self.peer.shard(dataloader, accumulate=accumulate)
        if isinstance(dataloader, DataLoader) and isinstance(dataloader.dataset, IterableDataset):
            if not hasattr(dataloader.dataset, "__len__"):
                raise ConfigError(
                    "a stream without a length: Lightning reads it one batch ahead",
                    "add __len__ to the data set: its number of samples, over all peers",
                )
            return loader
        self._train_loader = TrainLoader(loader, accumulate, self._clock, self._follow)
        return self._train_loader

    def on_train_start(self) -> None:
        """Begin at the step of the run. It is greater than 0 if this peer joined late or resumes
        from a checkpoint."""
        trainer = self.lightning_module.trainer
        total = trainer.estimated_stepping_batches
        steps = int(total) if 0 <= total < FOREVER else FOREVER
        self._clock.begin(steps, self._save, self._every, self._keep)
        self._follow()
        if self._train_loader is not None:
            current = trainer.fit_loop.epoch_progress.current
            epoch = self._clock.step // self._train_loader.steps
            current.ready = current.started = current.processed = current.completed = epoch

    def on_train_end(self) -> None:
        """Confirm the final state with other peers, and save it. All peers end after the same step,
        unless this peer was stopped."""
        self._follow()
        trainer = self.lightning_module.trainer
        if self._train_loader is not None and not trainer.should_stop:
            self._clock.finish()
            self._follow()

    def _follow(self) -> None:
        """Set the Trainer to the step of the run. The run may have made several steps during one
        step of the Trainer, if this peer has missed rounds."""
        trainer, configs = self.lightning_module.trainer, self.lr_scheduler_configs
        each_step = [c.scheduler for c in configs if c.interval == "step" and c.frequency == 1]
        step = self._clock.follow(each_step)
        if self.lightning_module.automatic_optimization:
            progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress
            progress.optimizer.step.total.completed = step
        self._note_rank()

    def _note_rank(self) -> None:
        """Set the rank to 0 on the main peer, because Lightning's loggers write only on rank 0."""
        self.global_rank = 0 if self.peer.is_main else self.peer.id + 1
        rank_zero_only.rank = self.global_rank
