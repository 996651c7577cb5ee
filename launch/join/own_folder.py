"""Run folder of a launcher that shares no folder with other launchers. The addresses of other
peers come from join servers.
"""

from __future__ import annotations

import sys
from hashlib import blake2b
from pathlib import Path

from gossip.config import RunConfig
from gossip.launch.local import Program, feasible, record_command
from gossip.run import environment, write_json

CONFIG = "config.json"


def settings(given: Path, submission: str, folder: Path) -> RunConfig:
    """Return the settings of this submission. The id of the submission is part of the run's id: if
    the same files are submitted again, that is another run.

    Args:
        given: File with the settings, written at submission.
        folder: Run folder of this task.
    """
    config = RunConfig.load(given)
    run = blake2b(f"{config.run}/{submission}".encode(), digest_size=8).hexdigest()
    return config.model_copy(update={"run": run, "run_dir": str(folder)})


def furnish(config: RunConfig, program: Program) -> Path:
    """Make the run folder of this launcher, as ``gossip run`` does. Return its path. Raises:
    RunExists, ConfigError."""
    program.check()
    folder = Path(config.run_dir)
    feasible.make_run_folder(folder)
    config.dump(folder / CONFIG)
    record_command(folder, program)
    write_json(
        folder / "environment.json",
        {**environment(sys.argv, program.folder), "run": config.run},
    )
    return folder
