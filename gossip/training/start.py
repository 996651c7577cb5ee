"""``gossip.init()`` reads the identity of this peer, starts its node, and imports torch while the
node starts."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Unpack

from gossip.config import resolve
from gossip.errors import ConfigError, GossipError
from gossip.run import (
    Task,
    check_trackers,
    dump_stacks_on_signal,
    fitting,
    meet,
    start_tracker,
    torchrun_task,
    trackers_asked_for,
)

from .node_start import PeerPlace, connect, from_environment, starter
from .voice import open_voice
from .watch import TerminationHandler

if TYPE_CHECKING:
    from .session import Session
    from .typed import RunOptions

_TRAINER = "GOSSIP_TRAINER"
"""Environment variable with the pid of the peer's process. A child process inherits the variable
and has another pid, so it can detect that it is not the peer."""
_open: Session | None = None
_trackers: list[Popen[bytes]] = []
"""Processes of trackers. They end when this process ends, because their stdin is then closed."""


def init(
    *, reference: Any = None, track: Sequence[str] = (), **overrides: Unpack[RunOptions]
) -> Session:
    """Make this process a peer.

    Under a launcher (``gossip run``) the settings come from the environment. Under torchrun each
    rank is a peer, and the peers meet in a folder named after torchrun's run id
    (``docs/schedulers.md``). Otherwise the swarm has one peer: the script trains as it would
    without gossip, and gossip writes no files unless ``run_dir`` is set.

    The call seeds the generators of torch, numpy and Python with the run's seed, so that models
    built after it have the same initial weights on all peers. If ``OMP_NUM_THREADS`` is set, it
    limits the threads of torch.

    Args:
        reference: A data set, a DataLoader or an iterable of samples. When this peer is a server,
            rules such as ``judged_clipping`` compute losses or gradients on them. The samples
            should resemble the data of the task, and may be few. By default such rules use the data
            of ``peer.shard``.
        track: Trackers that receive the run's metrics (``docs/tracking.md``), if there is no
            launcher. The variable ``GOSSIP_TRACK`` adds further trackers.
        overrides: Options of the run (``gossip run --help``), if there is no launcher.
    Returns: The ``Session``. It is closed at exit, if not before.
    Raises: ConfigError: An option is invalid or was passed under a launcher, the reference cannot
        be read, a session already exists, the process is a child of a peer, or torch.distributed is
        initialised.
    """
    try:
        return _start_session(reference, track, dict(overrides))
    except GossipError as error:
        if error.hint:
            error.add_note(f"hint: {error.hint}")  # shown in the traceback if there is no launcher
        raise


def _start_session(reference: Any, track: Sequence[str], overrides: dict[str, Any]) -> Session:
    global _open
    place = from_environment()
    task = torchrun_task(os.environ) if place is None else None
    if task is not None and task.peers == 1:
        task = None
    _check_process(place is not None, task is not None)
    launched = place is not None or task is not None
    if _open is not None and (launched or not _open.closed):
        raise ConfigError(
            "gossip.init() was called twice",
            "a run trains once: start a run for each training"
            if launched
            else "a process is one peer; call peer.close() first",
        )
    dump_stacks_on_signal("trainer")
    if place is not None and (overrides or track):
        given = ", ".join(sorted([*overrides, *(["track"] if track else [])]))
        raise ConfigError(
            f"gossip.init({given}=...) under a launcher, which sets that",
            "remove it from the script, and pass the launcher an option: gossip run --help",
        )
    if place is None:
        names = _trackers_wanted(track)
        place = _alone(overrides) if task is None else _among(task, overrides)
        _start_trackers(place, names)
    termination = TerminationHandler()
    termination.install(launched=place.status_fd is not None)
    start = starter(place)
    # The node starts first, because importing torch takes a second: node and script import it in
    # parallel.
    connection = connect(start, place.incarnation)
    from .session import Session

    _open = Session(place, start, connection, termination, reference)
    _seed(place.config.seed)
    return _open


def _check_process(launched: bool, has_rank: bool) -> None:
    """Raise ConfigError if this process is a child of the peer, or torch.distributed is
    initialised."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "gossip.init() was called by a worker process, which imports the script",
            'put the training code below `if __name__ == "__main__":`, as multiprocessing requires',
        )
    trainer = os.environ.get(_TRAINER) or str(os.getpid())
    is_worker = launched and multiprocessing.parent_process() is not None
    if (launched or has_rank) and (is_worker or trainer != str(os.getpid())):
        raise ConfigError(
            "gossip.init() was called in a child process of a peer",
            "call it once, in the process that the launcher starts. To run another script from "
            "a peer, remove GOSSIP_CONFIG and RANK from that script's environment",
        )
    if launched or has_rank:
        os.environ[_TRAINER] = trainer
    if "torch" in sys.modules:
        from .checks import check_process_group

        check_process_group()


def _alone(overrides: dict[str, Any]) -> PeerPlace:
    """Return the ``PeerPlace`` of a script that was started alone. Its rule is the mean, because
    every rule returns a single update unchanged."""
    resolved = resolve(overrides, defaults={"peers": 1, "node": "thread"})
    config = resolved.config
    if config.peers != 1:
        raise ConfigError(
            f"{config.peers} peers, but this script was started alone",
            f"gossip run -n {config.peers} {sys.argv[0]}",
        )
    resolved = resolved.with_values(
        "alone",
        run=os.urandom(8).hex(),
        name="alone",
        f=0,
        aggregator="mean",
        topology="rolling",
        audit=0.0,  # no audits: all layers are one stage with one peer
        lost_stage="checkpoint",
    )
    fitting.check(resolved.config)
    return PeerPlace(resolved.config)


def _among(task: Task, overrides: dict[str, Any]) -> PeerPlace:
    """Return the ``PeerPlace`` of a peer that a scheduler has started."""
    # With torch imported, this process can check whether the rule fits the number of peers.
    import torch  # noqa: F401

    meeting = meet(task, resolve(overrides), sys.argv, Path(sys.argv[0]).resolve().parent)
    if task.peer == 0:
        print(
            f"gossip: {task.peers} peers, one for each task of {task.scheduler}, in "
            f"{meeting.folder}",
            file=sys.stderr,
            flush=True,
        )
    if meeting.listen:
        os.environ["GOSSIP_LISTEN"] = meeting.listen  # for the node
    path = str(meeting.config_path)
    return PeerPlace(
        meeting.config, task.peer, meeting.incarnation, meeting.folder, open_voice(task.peer), path
    )


def _trackers_wanted(track: Sequence[str]) -> list[str]:
    """Return the trackers that the script or ``GOSSIP_TRACK`` names, without duplicates.

    Raises: ConfigError: There is no such tracker, or it is not installed.
    """
    names = [track] if isinstance(track, str) else list(track)
    check_trackers(names)
    return list(dict.fromkeys([*names, *trackers_asked_for(os.environ)]))


def _start_trackers(place: PeerPlace, names: Sequence[str]) -> None:
    """Start the trackers of the run on its first peer. If one cannot be started, print a warning
    and continue."""
    for name in names if place.peer == 0 else ():
        why = "a script that was started alone writes no records; use gossip run -n 1 --track"
        if place.run_dir is not None:
            try:
                _trackers.append(start_tracker(name, place.run_dir, others=True))
                continue
            except OSError as error:
                why = f"the tracker cannot be started ({error.strerror}); training goes on"
        print(f"! {name}: {why}", file=sys.stderr, flush=True)


def _seed(seed: int) -> None:
    import torch

    from .seeding import seed_generators

    seed_generators(seed)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))
