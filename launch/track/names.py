"""Which trackers there are, and what each needs."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gossip.errors import ConfigError
from gossip.run import shown

if TYPE_CHECKING:
    from .base import Tracker

TRACKERS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}
"""Name, of the extra, too -> packages that it imports."""


def check(names: Iterable[str]) -> None:
    """Imports nothing. Raises: ConfigError: There is no such tracker, or it is not installed."""
    for name in names:
        if name not in TRACKERS:
            near = difflib.get_close_matches(name, TRACKERS, n=1)
            suggestion = f". Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"there is no tracker {shown(name)!r}{suggestion}",
                f"there are {', '.join(TRACKERS)}",
            )
        lacking = [each for each in TRACKERS[name] if importlib.util.find_spec(each) is None]
        if lacking:
            raise ConfigError(
                f"the tracker {name} needs {', '.join(lacking)}, which is not installed",
                f"pip install 'gossip-train[{name}]'",
            )


def open_tracker(name: str, folder: Path) -> Tracker:
    """The tracker of a run, which is imported now. Raises: ConfigError: As ``check``."""
    check([name])
    module = importlib.import_module(f"{__package__}.to_{name}")
    tracker: Tracker = module.open_tracker(folder)
    return tracker
