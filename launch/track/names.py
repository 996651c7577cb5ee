"""The tracker that a name means."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from gossip.run import check_trackers

if TYPE_CHECKING:
    from .base import Tracker


def open_tracker(name: str, folder: Path) -> Tracker:
    """The tracker of a run, which is imported now. Raises: ConfigError: There is no such tracker,
    or it is not installed."""
    check_trackers([name])
    module = importlib.import_module(f"{__package__}.to_{name}")
    tracker: Tracker = module.open_tracker(folder)
    return tracker
