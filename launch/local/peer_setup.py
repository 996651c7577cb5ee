"""Command and environment that a peer's process is started with."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from gossip.launch.guardian import TOKEN_VARIABLE


def script_command(script: str | PathLike[str], arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a script: unbuffered, so that output arrives as it is
    written."""
    return [sys.executable, "-u", str(script), *arguments]


def peer_environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        # With more threads than cores training is a hundred times slower. The user can override
        # this.
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        **{key: value for key, value in inherited.items() if key != TOKEN_VARIABLE},
        "GOSSIP_RUN_DIR": str(folder),
        "GOSSIP_CONFIG": str(folder / "config.json"),
        "GOSSIP_TRAINER": "",  # This launcher may run in the script of a peer of another run.
    }
