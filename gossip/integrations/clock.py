"""Keeps a training loop of another library, which counts its own steps, at the step of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

import gossip
from gossip.errors import ConfigError
from gossip.training import counts_steps, steps_of


class RunClock:
    """Step of the run, for a loop that must follow it.

    Attributes:
        step: Number of completed steps of the run, at most ``total``.
        over: Whether no step is left.
    """

    def __init__(self, peer: gossip.Session) -> None:
        self._peer, self._planned = peer, peer.planned_peers
        self._steps: Iterator[int] = iter(())
        self.step, self.total, self.over = 0, 0, False
        self._seen = -1  # The step of the run at the last ``follow``.
        self._before: dict[LRScheduler, dict[str, Any]] = {}  # States at that ``follow``.

    def begin(self, total: int, save: str | Path | None, every: int | None, keep: int) -> None:
        """Begin training for ``total`` steps, at the present step of the run. The other arguments
        are those of ``Session.steps``."""
        self.total, steps = total, self._peer.steps
        saves = save is not None
        self._steps = steps(total, save=save, every=every, keep=keep) if saves else steps(total)

    def follow(self, schedulers: Iterable[Any] = ()) -> int:
        """Return the step of the run, and align schedulers with it. ``schedulers``: schedulers that
        the loop steps once per step. During one step of the loop, the run may have made several
        steps, if this peer has missed rounds, or none, if this peer was too late for the round.

        Raises: ConfigError: The checkpoint has epochs for another number of peers, but the library
            has planned its steps already.
        """
        if self._peer.step != self._seen or self._peer.finished:
            self.over = next(self._steps, None) is None
            self._seen = self._peer.step
        if (planned := self._peer.planned_peers) != self._planned:
            raise ConfigError(
                f"the checkpoint has epochs for {planned} peers, and the steps of this Trainer are "
                f"planned for {self._planned}",
                f"resume with -n {planned}; with --min-peers fewer of them may start",
            )
        self.step = min(self._peer.step, self.total)
        for scheduler in schedulers:
            if counts_steps(scheduler):
                self._align(scheduler)
        return self.step

    def _align(self, scheduler: LRScheduler) -> None:
        if steps_of(scheduler) > self.step and scheduler in self._before:
            scheduler.load_state_dict(self._before[scheduler])
            rates = scheduler.get_last_lr()
            for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        while steps_of(scheduler) < self.step:
            scheduler.step()
        self._before[scheduler] = scheduler.state_dict()

    def finish(self) -> None:
        """Take part in the remaining steps of the run without updates. Steps may remain after the
        loop, because the loop also counts steps that were too late for their rounds."""
        for _ in self._steps:
            pass
        self.over, self.step = True, min(self._peer.step, self.total)


class TrainLoader:
    """Sharded loader for a loop that may request batches after the end of the training.

    Attributes:
        dataset: Data set of the sharded loader.
        steps: Number of optimizer steps in an epoch.
    """

    def __init__(
        self,
        loader: Any,
        accumulate: int,
        clock: RunClock,
        after_batch: Callable[[], object] = lambda: None,
    ) -> None:
        """``after_batch``: function to call before each further batch of an epoch."""
        self.dataset, self.steps = loader.dataset, len(loader) // accumulate
        self._loader, self._clock, self._after_batch = loader, clock, after_batch

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._clock.over:
            return
        for batch in self._loader:
            yield batch
            self._after_batch()
            if self._clock.over:
                return
