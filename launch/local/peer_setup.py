"""Command and environment that a peer's process is started with."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from gossip.launch.guardian import TOKEN_VARIABLE


def script_command(script: str | PathLike[str], arguments: Sequence[str]) -> list[str]:
    """How a peer runs a script: unbuffered, so that its lines come when it writes them."""
    return [sys.executable, "-u", str(script), *arguments]


def peer_environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        # More threads than cores are a hundred times slower than one each:
        # only the user may say otherwise.
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        **{key: value for key, value in inherited.items() if key != TOKEN_VARIABLE},
        "GOSSIP_RUN_DIR": str(folder),
        "GOSSIP_CONFIG": str(folder / "config.json"),
        "GOSSIP_TRAINER": "",  # this launcher may run in a script that is a peer of another run
    }
