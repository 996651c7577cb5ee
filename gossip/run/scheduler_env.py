"""Support for schedulers that start one process for each peer. Determines the run and the peer of
this process, and finds the other tasks of the run.

The tasks of a run share a folder: ``runs/NAME`` below their working directory, or ``run_dir``. The
first task creates the folder atomically, with the settings. The other tasks read the settings
there. In all other respects the tasks are equal.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gossip.config import Resolved, RunConfig
from gossip.errors import ConfigError, RunExists
from gossip.transport import is_loopback, new_pair, source_towards

from . import fitting
from .completion import over
from .keys import SWARM_KEY, write_pair
from .rendezvous import claim_life, is_answered
from .resuming import settled_resume
from .telemetry import environment, write_json

RUNS = "runs"
SEEN_S = 10.0  # Some shared file systems show a new file to other hosts only after a while.
# Settings that may differ between tasks: they are random, derived, or specific to a host.
# ``resume`` becomes an absolute path.
OWN = {"run", "name", "run_dir", "f", "host", "resume"}


@dataclass(frozen=True, slots=True)
class Task:
    """Task of a scheduler, read from the environment of the task's process.

    Attributes:
        run: Name of the run. It is the same for all tasks of the run, and differs from other runs.
        one_host: Whether all tasks of the run are on this machine.
        towards: Address or name of a machine of the job. Other tasks reach this machine at the
            source address of its traffic to that machine.
        comes_back: Whether the scheduler may restart this task while the others run. The restarted
            task is another incarnation of the same peer.
        another: Advice on how to start a run with another name, for error messages.
    """

    scheduler: str
    run: str
    peer: int
    peers: int
    one_host: bool
    towards: str = ""
    comes_back: bool = False
    another: str = "give another --run-dir"


@dataclass(frozen=True, slots=True)
class TaskRendezvous:
    """Settings and folder of a task's run, and the incarnation of the task's peer."""

    config: RunConfig
    folder: Path
    incarnation: int
    listen: str  # "" means the address in the settings

    @property
    def config_path(self) -> Path:
        return self.folder / "config.json"


def torchrun_task(given: Mapping[str, str]) -> Task | None:
    """Return the task that the variables of torchrun describe; None if they are not set. Other
    launchers of scripts for torch.distributed (``env://``) set the same variables."""
    if not all(given.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return None
    rank, size = number(given, "RANK"), number(given, "WORLD_SIZE")
    if not 0 <= rank < size:
        raise ConfigError(
            f"RANK={rank} and WORLD_SIZE={size} contradict each other", "unset both to run alone"
        )
    name = given.get("TORCHELASTIC_RUN_ID", "none")
    if name == "none":  # the default of torchrun
        name = f"{given['MASTER_ADDR']}-{given['MASTER_PORT']}"
    restarts = given.get("TORCHELASTIC_RESTART_COUNT", "0")
    # When torchrun restarts all tasks, a new run begins.
    again = f"-{restarts}" if restarts != "0" else ""
    return Task(
        "torchrun",
        re.sub(r"[^\w.-]+", "_", f"torchrun-{name}{again}"),
        rank,
        size,
        one_host=given.get("LOCAL_WORLD_SIZE") == given["WORLD_SIZE"],
        towards=given["MASTER_ADDR"],
        another="give another torchrun --rdzv-id, or set GOSSIP_RUN_DIR",
    )


def slurm_task(given: Mapping[str, str]) -> Task | None:
    """Return the task that the variables of srun describe. Return None if srun has not started
    several tasks: a step with a single task may be an interactive shell."""
    if not all(
        given.get(name)
        for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    ):
        return None  # a batch script has no step, because srun has not started it
    tasks = number(given, "SLURM_STEP_NUM_TASKS")
    if tasks < 2:
        return None
    restarts = given.get("SLURM_RESTART_COUNT", "0")
    # When Slurm restarts the whole job, a new run begins.
    again = f"-r{restarts}" if restarts != "0" else ""
    return Task(
        "srun",
        f"slurm-{given['SLURM_JOB_ID']}.{given['SLURM_STEP_ID']}{again}",
        number(given, "SLURM_PROCID"),
        tasks,
        one_host=given.get("SLURM_STEP_NUM_NODES") == "1",
        # SLURM_LAUNCH_NODE_IPADDR is not used: it is the address of the host that submitted the
        # job, which may be in another network.
        towards=given.get("SLURM_SRUN_COMM_HOST", ""),
    )


def number(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"{name} = {text!r} is not a number",
            "a launcher sets it: unset it to run alone",
        )
    return int(text)


def meet(
    task: Task, resolved: Resolved, argv: Sequence[str], code: Path | None = None
) -> TaskRendezvous:
    """Find or create the run of a task, and claim its peer.

    Args:
        argv: Command line, as typed.
        code: Folder of the script. The task that creates the run records the git version of this
            folder.
    Raises: ConfigError: The settings are invalid or differ from those of the run, the run is over,
        or there is a folder of this name without a run.
    """
    asked = resolved.config
    if resolved.sources.get("peers", "default") != "default" and asked.peers != task.peers:
        raise ConfigError(
            f"{asked.peers} peers ({resolved.sources['peers']}), but {task.scheduler} has started "
            f"{task.peers} tasks",
            "each task is one peer: leave the number out"
            if asked.pipeline is None
            else f"a task for each peer of the plan: {', '.join(asked.pipeline.names)}",
        )
    resolved = resolved.with_values(task.scheduler, peers=task.peers)
    listen = own_address(task, asked)
    if listen and not asked.insecure:
        resolved = resolved.with_values(f"{task.scheduler}, on several machines", keys=True)
    folder = Path(asked.run_dir or Path(RUNS) / (asked.name or task.run)).resolve()
    if not (folder / "config.json").is_file():
        found = settled_resume(resolved, lambda line: print(f"! {line}", file=sys.stderr))
        make(folder, settled(found, folder), argv, code)
    config = _agreed(folder, resolved, task)
    incarnation = claim_life(folder / "seeds", task.peer)
    if incarnation is None:
        raise ConfigError(
            f"peer {task.peer} of the run in {folder} has ended, and a newcomer has its id",
            f"gossip join {folder} adds another",
        )
    if incarnation > 0 and not task.comes_back:
        raise ConfigError(
            f"peer {task.peer} of the run in {folder} was started before", task.another
        )
    if finished := over(folder, (task.peer,)):
        who = ", ".join(map(str, finished))
        raise ConfigError(
            f"the run in {folder} is over: {who} of its {config.peers} peers have completed it",
            task.another,
        )
    if incarnation > 0 and not is_answered(folder / "seeds", task.peer):
        raise ConfigError(
            f"the run in {folder} is over, or all of its peers were killed: no peer answers",
            task.another,
        )
    return TaskRendezvous(config, folder, incarnation, listen)


def own_address(task: Task, config: RunConfig) -> str:
    """Return the address that the task's peer listens on; "" for the address in the settings.

    Raises: ConfigError: The address cannot be found, or the tasks are on several machines and have
        no keys.
    """
    if task.one_host or task.peers == 1:
        return ""
    given = os.environ.get("GOSSIP_LISTEN", "")
    found = given or source_towards(task.towards)
    if not found or (is_loopback(found) and not given):
        seen = (
            f"traffic to {task.towards} leaves from {found}"
            if found
            else f"{task.towards or 'no host'} cannot be reached"
        )
        raise ConfigError(
            f"the address at which the others reach this machine is unknown: {seen}",
            "set GOSSIP_LISTEN=ADDRESS in the environment of each task",
        )
    if not config.insecure and config.keys is False:
        raise ConfigError(
            f"the {task.peers} tasks are on several machines: without keys, any process that "
            "reaches them could join",
            "leave out --no-keys, or add --insecure",
        )
    return found


def settled(resolved: Resolved, folder: Path) -> Resolved:
    """Return the settings of a new run: checked, and with its random id, its name and its
    folder."""
    config = resolved.config
    fitting.check(config)
    _ = config.plan  # raises if a fault does not fit this run
    resolved = fitting.check_rule(resolved)
    return resolved.with_values(
        "drawn", run=secrets.token_hex(8), name=config.name or folder.name[:80], run_dir=str(folder)
    )


def make(folder: Path, resolved: Resolved, argv: Sequence[str], code: Path | None) -> None:
    """Create the run's folder atomically, with all files that the other tasks need. Do nothing if
    another task has already created it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Only the owner may read the folder, because it will contain the run's key.
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {folder}: {error.strerror}") from error
    try:
        write_settings(scratch, resolved, argv, code)
        (scratch / "seeds").mkdir()
        if resolved.config.keyed:
            write_pair(scratch / SWARM_KEY, new_pair())
        scratch.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # needed if another task was faster


def write_settings(
    folder: Path, resolved: Resolved, argv: Sequence[str], code: Path | None
) -> None:
    """Write the settings with which a run starts. Peers read ``config.json``; the other files are
    for users."""
    resolved.config.dump(folder / "config.json")
    (folder / "config.toml").write_text(resolved.to_toml(), "utf-8")
    write_json(folder / "environment.json", {**environment(argv, code), "run": resolved.config.run})


def _agreed(folder: Path, resolved: Resolved, task: Task) -> RunConfig:
    """Return the run's settings. Raises: ConfigError: The settings of this task differ from those
    of the run."""
    until = time.monotonic() + SEEN_S
    while not (folder / "config.json").is_file():
        if time.monotonic() > until:
            raise RunExists(str(folder))
        time.sleep(0.1)
    config = RunConfig.load(folder / "config.json")
    for key, source in resolved.sources.items():
        mine, theirs = getattr(resolved.config, key), getattr(config, key)
        if source != "default" and key not in OWN and mine != theirs:
            raise ConfigError(
                f"peer {task.peer} was started with {key} = {mine} ({source}), the run in "
                f"{folder} has {theirs}",
                f"use the same options for all tasks; if that run is an older one, {task.another}",
            )
    return config
