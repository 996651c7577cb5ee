"""Writes the stacks of all threads of a process on request, to debug a run that hangs.

The variable ``GOSSIP_STACKS`` names a folder. If it is set, the launcher and every trainer and node
open a file in this folder. A process that receives ``STACKS_SIGNAL`` writes the Python stacks of
all its threads to its file. This works without the interpreter lock, so it also shows threads that
wait for a lock or in a library.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path
from typing import Literal

from gossip.errors import ConfigError

STACKS_VARIABLE = "GOSSIP_STACKS"
STACKS_SIGNAL = signal.SIGUSR2


def dump_stacks_on_signal(role: Literal["launcher", "trainer", "node"]) -> None:
    """Make this process write its stacks whenever it receives ``STACKS_SIGNAL``. Do nothing if
    ``GOSSIP_STACKS`` is not set. Raises: ConfigError: The process cannot write to the folder."""
    named = os.environ.get(STACKS_VARIABLE)
    if not named:
        return
    path = Path(named) / f"{role}-{os.getpid()}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # faulthandler needs the file to stay open
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{STACKS_VARIABLE}={named}: cannot write there ({error.strerror})",
            "name a folder that can be written to, or leave it out",
        ) from error
    faulthandler.register(STACKS_SIGNAL, file, all_threads=True)
