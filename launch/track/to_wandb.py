"""Export to Weights & Biases. Unless ``WANDB_MODE`` is set, the export is offline, in
``RUN/wandb``, for a later ``wandb sync``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb

from .base import Point, RunDescription


class WandB:
    """Exports values by round, and events to the console log of the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told = 0

    def begin(self, about: RunDescription) -> None:
        # wandb itself raises an error for an unknown mode.
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "gossip"),
            name=about.name,
            dir=str(self._folder),
            mode=mode,
            config={**about.settings, **about.tags},
            settings=wandb.Settings(silent=True, disable_git=True, save_code=False),
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def points(self, points: Sequence[Point]) -> None:
        rows: dict[int, dict[str, float]] = {}
        for point in points:
            rows.setdefault(point.step, {})[point.name] = point.value
        for step, values in rows.items():
            self._run.log({"round": step, **values})

    def log_event(self, step: int, at: float, text: str) -> None:
        self._told += 1
        self._run.log({"round": step, "events": self._told})
        self._run.write_logs(f"round {step}: {text}\n")

    def close(self) -> None:
        self._run.finish()


def open_tracker(folder: Path) -> WandB:
    """Open the tracker of the run in ``folder``."""
    return WandB(folder)
