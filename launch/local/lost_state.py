"""Detects that all peers with the state of a run have died.

A restarted peer could then only begin with fresh weights, so the run ends instead. If the launcher
runs all peers of the run, it ends the run at once. Otherwise the peers themselves detect the loss
(``gossip.core.lifecycle.bootstrap``).
"""

from __future__ import annotations

from pathlib import Path

from gossip.errors import ConfigError
from gossip.launch.report import near
from gossip.run import checkpoints, newest_saved, peers_in, read_seed, whole

from .running import OngoingRun
from .shutdown import PeersShutdown

FILES_TOLD = 3


def end_if_lost(run: OngoingRun, shutdown: PeersShutdown) -> bool:
    """End a run with a message if its state is lost. Return whether the state is lost."""
    if not _is_lost(run):
        return False
    was = run.view.holders.in_words()
    shutdown.end(
        "state_lost",
        f"x the state is lost: the run was in {was}, and no peer that had its state is left",
    )
    for line in hints(run.folder):
        run.screen.print_line(line)
    return True


def hints(folder: Path) -> list[str]:
    """Return a line with the files on disk that contain parts of the lost state, and a hint: resume
    from the newest checkpoint, or save checkpoints next time."""
    saved = newest_saved(folder)
    found = [
        *([] if saved is None else [f"the checkpoint of step {saved[0]} in {near(str(saved[1]))}"]),
        *_left_by_peers(folder),
        *map(str, sorted([*folder.glob("*.safetensors"), *folder.glob("peer-*/*.safetensors")])),
    ]
    more = f" and {len(found) - FILES_TOLD} more" if len(found) > FILES_TOLD else ""
    named = ", ".join(found[:FILES_TOLD])
    disk = f"on disk: {named}{more}" if found else "the run's folder has no part of the state"
    advice = (
        "save checkpoints, for example with peer.steps(N, save=FOLDER)"
        if saved is None
        else "--resume auto continues from the checkpoint"
    )
    return [f"  {disk}", f"  hint: {advice}; with more peers (-n, --room) one loss is harmless"]


def _left_by_peers(folder: Path) -> list[str]:
    """Return the last states that peers saved when they ended without a quorum
    (``RunCheckpoints.leave_state``), with their rounds, the latest first."""
    found: list[checkpoints.Checkpoint] = []
    for place in sorted(folder.glob("peer-*/last_state")):
        try:
            newest = checkpoints.listed(place)[-1:]
        except ConfigError:
            continue  # Skip a folder that cannot be read: the loss itself is reported in any case.
        opened = [checkpoints.open_or_none(path) for _, path in newest]
        found += [checkpoint for checkpoint in opened if checkpoint is not None]
    found.sort(key=lambda each: -each.step)
    return [f"{each.path} (round {whole(each.manifest.get('round'))})" for each in found]


def _is_lost(run: OngoingRun) -> bool:
    holders = run.view.holders
    if holders.round < 1 or holders.anybody:
        return False
    if run.is_over or run.outcome.finished:
        return False
    if run.joins or len(run.peers) < run.config.peers:
        return False  # Peers of other launchers may have the state.
    seeds = run.folder / "seeds"
    others = [read_seed(seeds, peer) for peer in peers_in(seeds) if peer not in run.peers]
    return all(seed is None or seed.ended for seed in others)
