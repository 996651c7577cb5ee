"""Trackers, their packages, and the process that forwards a run to a tracker.

The process is ``python -m gossip.launch.track NAME FOLDER``. This process reads the run's folder,
so the run never waits for the tracker. When its stdin is closed, it forwards the remaining rows and
ends.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from gossip.errors import ConfigError, UnknownName
from gossip.interpreter import python_command

from .untrusted import shown

VARIABLE = "GOSSIP_TRACK"
"""Environment variable with the names of trackers, separated by commas, for runs that another
program starts."""
TRACKERS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "prometheus": (),
}
"""Packages that each tracker imports. The key is the name of the tracker, and of the extra that
installs these packages."""


OTHERS = "others"


def check_trackers(names: Iterable[str]) -> None:
    """Check that trackers are installed, without importing them. Raises: ConfigError: A name is
    unknown, or a tracker is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownName("tracker", shown(name), TRACKERS)
        lacking = [each for each in TRACKERS[name] if importlib.util.find_spec(each) is None]
        if lacking:
            raise ConfigError(
                f"the tracker {name} needs {', '.join(lacking)}, which is not installed",
                f"pip install 'gossip-train[{name}]'",
            )


def trackers_asked_for(environment: Mapping[str, str]) -> list[str]:
    """Return the trackers in ``GOSSIP_TRACK``. Raises: ConfigError: As ``check_trackers``."""
    words = environment.get(VARIABLE, "").split(",")
    names = [word.strip() for word in words if word.strip()]
    check_trackers(names)
    return names


def tracker_log(name: str, folder: Path) -> Path:
    """Return the path of the log of a tracker's process. The last line of the log reports the
    outcome."""
    return folder / f"tracker-{name}.log"


def start_tracker(name: str, folder: Path, others: bool = False) -> subprocess.Popen[bytes]:
    """Start the process of a tracker in its own session, so that Ctrl-C does not reach it.

    Args:
        others: Whether other processes of the run may still write rows shortly after this process
            has ended. If so, the tracker waits for these rows.
    Raises: OSError: The process cannot be started, or its log cannot be written.
    """
    words = [name, str(folder), *([OTHERS] if others else [])]
    command = python_command("-m", "gossip.launch.track", *words)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tracker_log(name, folder).open("wb") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
        )
