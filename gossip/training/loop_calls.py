"""Methods of a session for loops over the steps or epochs of the run, with checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gossip.errors import ConfigError

from .checkpointing import RunCheckpoints
from .loader import ShardedLoader
from .loops import TrainingLoop
from .peer_status import PeerStatus
from .resuming import load_newest
from .streaming import ShardedStream


class LoopCalls(PeerStatus):
    """Loops of a ``Session``."""

    _checkpoints: RunCheckpoints
    _loop: TrainingLoop
    _loader: ShardedLoader | ShardedStream | None

    def save_every(self, folder: str | Path, every: int | None = None, keep: int = 3) -> None:
        """Save checkpoints of the run every ``every`` steps, at the end, at Ctrl-C and at SIGTERM.
        Call it after ``prepare`` and ``keep``, before the first step.

        A checkpoint has the model, the optimizer, the objects of ``keep``, the position in the data
        and the history of the run. One of the live peers writes it, while training continues.
        Trained parameters are in ``model.safetensors``, all others in ``base.safetensors``. With
        ``gossip run --resume auto`` the run resumes from the newest checkpoint in ``folder``
        (``docs/checkpoints.md``).

        Args:
            folder: Folder of the checkpoints, relative to the working directory.
            every: Number of steps between two checkpoints. None saves only at the end.
            keep: Number of checkpoints to keep. Older checkpoints are deleted.
        Raises:
            ConfigError: ``prepare`` was not called, ``every`` or ``keep`` is invalid, this method
                was called twice, or the checkpoint to resume from does not fit the model.
        """
        self._run.check_open()
        is_prepared = self._run.is_prepared
        if not is_prepared or self._checkpoints.saver is not None:
            when = "twice" if is_prepared else "before prepare"
            raise ConfigError(
                f"save_every was called {when}",
                "call it once, after peer.prepare and peer.keep",
            )
        place = Path(folder).absolute()
        self._checkpoints.open(place, every, keep)
        self._loop.report_plan()
        if not self._run.node.is_prepared:
            load_newest(self._run, place)
            self._steps.join()

    def steps(
        self,
        total: int,
        *,
        save: str | Path | None = None,
        every: int | None = None,
        keep: int = 3,
    ) -> Iterator[int]:
        """Yield the numbers of the run's remaining steps, up to ``total`` - 1. They are the same on
        every peer.

        A peer that joined late, returned, or resumed from a checkpoint begins at the present step
        of the run. All peers leave the loop after the same step. If the loop's body does not call
        ``optimizer.step()``, this peer takes part in the round without an update.

        Args:
            total: Steps of the whole run, a multiple of the steps of a round (``local_steps /
                fragments``).
            save, every, keep: As for ``save_every``; without ``save`` nothing is saved.
        Raises: ConfigError: As ``save_every``, or ``total`` is not a number of steps.
        """
        self._check_total("steps", total)
        of_round = self._run.config.steps_per_round
        if total % of_round:
            below = total - total % of_round
            raise ConfigError(
                f"steps({total}) is not a multiple of {of_round}, the steps of a round "
                "(local_steps / fragments): the last round would be incomplete",
                f"use {below or of_round} or {below + of_round}",
            )
        self._save_in_loop(save, every, keep)
        return self._loop.run_steps(total)

    @staticmethod
    def _check_total(what: str, total: object) -> None:
        if not isinstance(total, int) or total < 0:
            raise ConfigError(f"{what}({total!r}) is not a number of {what}")

    def _save_in_loop(self, save: str | Path | None, every: int | None, keep: int) -> None:
        if save is not None:
            self.save_every(save, every, keep)
        elif every is not None:
            raise ConfigError(
                "every without save", "name a folder: peer.steps(N, save='checkpoints')"
            )

    def epochs(
        self,
        total: int,
        *,
        remainder: Literal["leave", "extend"] = "leave",
        save: str | Path | None = None,
        every: int | None = None,
        keep: int = 3,
    ) -> Iterator[int]:
        """Yield the numbers of the run's remaining epochs, up to ``total`` - 1. They are the same
        on every peer.

        An epoch has ``len(loader)`` batches of the sharded loader, even if peers fail. A peer that
        joined late, returned, or resumed from a checkpoint begins at the present epoch of the run,
        also in the middle of an epoch. All peers leave the loop after the same step. If this peer
        leaves an epoch early, other peers read the rest. With a stream, or without a loader, each
        peer counts its own epochs.

        Args:
            total: Epochs of the whole run.
            remainder: What happens to samples that failures have left unread at the end of the last
                epoch. ``leave``: they stay unread, and the run's summary has their number.
                ``extend``: further steps of the last epoch read them. Samples that no step can use
                are discarded after a bounded number of rounds (``loader.given_up``).
            save, every, keep: As for ``save_every``; ``every`` counts steps. Without ``save``
                nothing is saved.
        Raises: ConfigError: As ``save_every``, ``total`` is not a number of epochs, or ``extend``
            is impossible with this data or topology.
        """
        self._check_total("epochs", total)
        if remainder not in ("leave", "extend"):
            raise ConfigError(f"remainder is {remainder!r}", "'leave' or 'extend'")
        if remainder == "extend":
            self._extend(total)
        self._save_in_loop(save, every, keep)
        loader = self._loader
        if isinstance(loader, ShardedLoader):
            return self._loop.run_epochs(total, loader.steps, lambda: loader.given_up)
        return self._loop.run_own_epochs(total, loader is not None)

    def _extend(self, epochs: int) -> None:
        """Request further rounds at the end of the last of ``epochs`` epochs, to read the unread
        samples."""
        sharded = self._loader
        if not isinstance(sharded, ShardedLoader) or not self._run.config.is_rolling:
            raise ConfigError(
                "remainder='extend' needs rolling rounds, and a data set with an index that "
                "was passed to peer.shard before",
                "with a stream, or in gossip rounds, it is unknown which samples are unread",
            )
        if epochs:
            self._run.node.shard(*sharded.plan, extended=epochs)
