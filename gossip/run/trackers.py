"""Trackers, the packages that each needs, and the process beside a run that forwards it to one.

The process is ``python -m gossip.launch.track NAME FOLDER``. It reads the run's folder, so the
process that starts it waits for nothing. It ends when its stdin does, once it has forwarded what
is there.
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
"""Trackers for runs whose command line is somebody else's, with commas between them."""
TRACKERS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "prometheus": (),
}
"""Name, of the extra, too -> packages that it imports."""


OTHERS = "others"


def check_trackers(names: Iterable[str]) -> None:
    """Imports nothing. Raises: ConfigError: There is no such tracker, or it is not installed."""
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
    """Those that ``GOSSIP_TRACK`` names. Raises: ConfigError: As ``check_trackers``."""
    words = environment.get(VARIABLE, "").split(",")
    names = [word.strip() for word in words if word.strip()]
    check_trackers(names)
    return names


def tracker_log(name: str, folder: Path) -> Path:
    """Return the log of the process. Its last line has the outcome."""
    return folder / f"tracker-{name}.log"


def start_tracker(name: str, folder: Path, others: bool = False) -> subprocess.Popen[bytes]:
    """Starts the process, in a session of its own: Ctrl-C is for the run.

    Args:
        others: When this process ends, others of the run may go on for a moment: what they write
            is handed on, too.
    Raises: OSError: It cannot be started, or its log cannot be written.
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
