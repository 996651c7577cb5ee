"""Integration with the Trainer of Hugging Face (``docs/integrations.md``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback

import gossip
from gossip.errors import ConfigError

from .clock import RunClock, TrainLoader


class GossipCallback(TrainerCallback):
    """Callback that keeps the Trainer at the step of the run, so that all peers end after the same
    step."""

    def __init__(self, trainer: GossipMixin) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin at the step of the run. It is greater than 0 if this peer joined late or resumes
        from a checkpoint."""
        every = int(args.save_steps) if args.save_strategy == "steps" else None
        self._trainer.clock.begin(
            state.max_steps, self._trainer.gossip_save, every, args.save_total_limit or 3
        )
        self._follow(state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Set the Trainer to the step of the run. The run may have made several steps during one
        step of the Trainer, if this peer has missed rounds."""
        self._follow(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Set the Trainer to the step of the run at the end of an epoch. This peer may have missed
        the last step of the epoch."""
        self._follow(state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Finish the run. All peers end after the same step, unless this peer was stopped."""
        if self._trainer.train_loader is not None and not control.should_training_stop:
            self._trainer.clock.finish()
        self._follow(state, control)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Log the numbers in ``logs`` as metrics of the run, too."""
        numbers = {
            name: value for name, value in (logs or {}).items() if isinstance(value, int | float)
        }
        if numbers and not self._trainer.peer.closed:
            self._trainer.peer.log(**numbers)

    def _follow(self, state: Any, control: Any) -> None:
        trainer, had_all = self._trainer, state.global_step >= state.max_steps
        before, state.global_step = state.global_step, trainer.clock.follow([trainer.lr_scheduler])
        trainer.leave_out(state.global_step - before)
        if trainer.train_loader is not None:
            state.epoch = state.global_step / trainer.train_loader.steps
        if trainer.clock.over or had_all:
            # The Trainer stops by its own count, which includes steps that were too late for their
            # rounds.
            control.should_training_stop = trainer.clock.over


if TYPE_CHECKING:
    _Trained: Any = Trainer
else:
    _Trained = object


class GossipMixin(_Trained):
    """Mixin that makes any Trainer a peer of a swarm. It comes first among the base classes:
    ``class MyTrainer(GossipMixin, Seq2SeqTrainer)``.

    Attributes:
        peer: Session of this peer.
        gossip_save: Folder of the run's checkpoints, or None.
        train_loader: Loader of the training data; None before ``train``, and if the data are a
            stream.
    """

    lr_scheduler: Any
    _globalstep_last_logged: int
    train_loader: TrainLoader | None = None

    def __init__(
        self,
        *args: Any,
        peer: gossip.Session | None = None,
        gossip_save: str | Path | None = None,
        **others: Any,
    ) -> None:
        """Create the Trainer from its own arguments and two more.

        Args:
            peer: Result of ``gossip.init()``, if the script has called it.
            gossip_save: Folder for the run's checkpoints. A checkpoint is saved at the end. If
                ``args.save_strategy`` is "steps", one is also saved every ``args.save_steps``
                steps. ``gossip run --resume auto`` resumes from these checkpoints.
        Raises: ConfigError: The Trainer's arguments have ``load_best_model_at_end``: only one peer
            has that model.
        """
        self.peer = gossip.init() if peer is None else peer
        self.gossip_save, self.clock = gossip_save, RunClock(self.peer)
        super().__init__(*args, **others)
        trainer: Any = self
        if trainer.args.load_best_model_at_end and self.peer.initial_peers > 1:
            raise ConfigError(
                "load_best_model_at_end: only the peer that wrote it has the best model",
                "leave it out, and load the checkpoint after training",
            )
        trainer.add_callback(GossipCallback(self))

    def train(self, resume_from_checkpoint: Any = None, **others: Any) -> Any:
        """Train as ``Trainer.train`` does.

        Raises: ConfigError: The Trainer was asked to resume from its own checkpoint.
        """
        if resume_from_checkpoint:
            raise ConfigError(
                "resume_from_checkpoint: a peer's state is part of the run's checkpoints",
                "GossipTrainer(..., gossip_save='ckpt') and gossip run --resume auto",
            )
        return super().train(**others)

    def get_train_dataloader(self) -> Any:
        """Return a loader of this peer's share of the data. Its length never changes, so the
        Trainer plans the right number of steps."""
        trainer: Any = self
        whole: DataLoader[Any] = super().get_train_dataloader()
        accumulate = trainer.args.gradient_accumulation_steps
        options: dict[str, Any] = {
            "collate_fn": whole.collate_fn,
            "num_workers": whole.num_workers,
            "pin_memory": whole.pin_memory,
        }
        if whole.num_workers:
            options["prefetch_factor"] = whole.prefetch_factor
            options["persistent_workers"] = whole.persistent_workers
            options["multiprocessing_context"] = whole.multiprocessing_context
        size = trainer.args.train_batch_size
        loader = self.peer.shard(whole.dataset, batch_size=size, accumulate=accumulate, **options)
        if isinstance(whole.dataset, IterableDataset):
            return loader
        self.train_loader = TrainLoader(loader, accumulate, self.clock)
        return self.train_loader

    def create_optimizer(self, *args: Any, **others: Any) -> Any:
        """Create the optimizer, and connect it to the swarm: its ``step()`` exchanges gradients."""
        trainer: Any = self
        optimizer = super().create_optimizer(*args, **others)
        self.peer.prepare(trainer.model, optimizer)
        return optimizer

    def create_scheduler(self, *args: Any, **others: Any) -> Any:
        """Create the scheduler, and add it to the state that joining and returning peers
        receive."""
        scheduler = super().create_scheduler(*args, **others)
        self.peer.keep(scheduler=scheduler)
        return scheduler

    def is_world_process_zero(self) -> bool:
        """Whether this is the main peer, which prints, and writes files that exist once per run."""
        return self.peer.is_main

    def is_local_process_zero(self) -> bool:
        """Whether this is the main peer of the run. A machine has no main peer of its own."""
        return self.peer.is_main

    def leave_out(self, steps: int) -> None:
        """Leave out ``steps`` when the Trainer divides the sum of its losses by the number of steps
        since the last log. This peer has no loss of them."""
        self._globalstep_last_logged += steps

    def save_model(self, *args: Any, **others: Any) -> None:
        """Save the model, but only on the main peer."""
        if self.peer.is_main:
            super().save_model(*args, **others)

    def _save_checkpoint(self, *args: Any, **others: Any) -> None:
        if self.peer.is_main:
            super()._save_checkpoint(*args, **others)


class GossipTrainer(GossipMixin, Trainer):
    """``transformers.Trainer`` as a peer of a swarm."""
