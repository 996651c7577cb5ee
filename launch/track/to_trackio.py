"""Trackio: its database in ``RUN/trackio``, unless ``TRACKIO_DIR`` names another place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .base import Point, RunDescription, Told

PROJECT = "gossip"


class Trackio:
    """Values over the round; what happened as text beside them."""

    def __init__(self, module: Any) -> None:
        self._trackio = module

    def begin(self, about: RunDescription) -> None:
        config = {**about.settings, **about.tags}
        off = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}  # of this process
        self._trackio.init(project=PROJECT, name=about.name, config=config, **off)

    def points(self, points: Sequence[Point]) -> None:
        rows: dict[int, dict[str, float]] = {}
        for point in points:
            rows.setdefault(point.step, {})[point.name] = point.value
        for step, values in rows.items():
            self._trackio.log(values, step=step)

    def log_event(self, told: Told) -> None:
        self._trackio.log({"event": told.text}, step=told.step)

    def close(self) -> None:
        self._trackio.finish()


def open_tracker(folder: Path) -> Trackio:
    """Open the tracker of the run in ``folder``."""
    os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))
    import trackio  # here: it reads the variable when it is imported

    return Trackio(trackio)
