"""Environment with which the process of a peer is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gossip.launch.guardian import TOKEN_VARIABLE


def peer_environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        # With more threads than cores, training is a hundred times slower. The user's environment
        # has priority.
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        **{key: value for key, value in inherited.items() if key != TOKEN_VARIABLE},
        "GOSSIP_RUN_DIR": str(folder),
        "GOSSIP_CONFIG": str(folder / "config.json"),
        # reset, because this launcher may run in the script of a peer of another run
        "GOSSIP_TRAINER": "",
    }
