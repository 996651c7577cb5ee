"""Determines whether a run has begun and whether it is over, from the records in its folder.
Launchers that start later use this."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path

from gossip.errors import ConfigError
from gossip.observe import Event, events

from .rendezvous import answers, peers_in, read_seed, seeds_in
from .untrusted import last_events, open_file

BEGUN = "begun"
"""Name of a file in the run's folder. The file exists if a peer of this host has been in a round.
The event lines of a killed peer may not show this."""
TAIL_BYTES = 16 * 1024  # bytes at the end of a file of events, enough for the last event


def over(folder: Path, but: Container[int]) -> tuple[int, ...]:
    """Return the peers that have completed the training of the run in ``folder``. Return () as long
    as another peer can be reached, because the run is not over then.

    Args:
        but: Peers of the calling launcher, which are ignored.
    """
    finished = [peer for peer in _peers(folder) if peer not in but and _has_finished(folder, peer)]
    if not finished:
        # Other peers may not have started yet, or may restart after they were killed.
        return ()
    if any(answers(seed) for seed in seeds_in(folder / "seeds", but) if not seed.ended):
        return ()
    return tuple(finished)


class RunProgress:
    """Progress of a run, read from the records in its folder. Also records that a local peer has
    reached a round.

    Args:
        folder: Folder of the run; None if the run writes no files.
        tell: Function that writes an event.
    """

    def __init__(self, folder: Path | None, tell: Callable[..., None]) -> None:
        self._folder, self._tell, self._noted = folder, tell, folder is None

    def had_round(self) -> int:
        """Return the latest round that the peers have recorded; 0 means none."""
        return 0 if self._folder is None else had_round(self._folder)

    def reached(self, round_id: int) -> None:
        """Record that a local peer is in this round."""
        if self._noted or round_id < 1 or self._folder is None:
            return
        self._noted = True
        try:
            (self._folder / BEGUN).touch()
        except OSError as error:
            effect = (
                f"cannot write {self._folder / BEGUN} ({error.strerror}): if all peers are lost "
                "and started again, they"
            )
            self._tell(
                "notice",
                message=f"{effect} may begin anew without a notice",
                hint="make room on the disk",
            )


def had_round(folder: Path) -> int:
    """Return the latest round that a peer in ``folder`` has recorded; 0 means none."""
    if not (folder / BEGUN).exists():
        return 0
    rounds = [
        event.round
        for peer in _peers(folder)
        for event in _last_events(folder / f"peer-{peer}" / "events.jsonl")
        if isinstance(event, events.Round | events.Halted) and event.round is not None
    ]
    return max([1, *rounds])


def nobody_left(seeds: Path, but: Container[int]) -> bool:
    """Whether the launchers of all peers with a seed file have recorded that these peers have ended
    permanently. ``but``: peers of the calling launcher, which are ignored."""
    others = [read_seed(seeds, peer) for peer in peers_in(seeds) if peer not in but]
    return bool(others) and all(seed is not None and seed.ended for seed in others)


def _peers(folder: Path) -> list[int]:
    names = [path.parent.name.removeprefix("peer-") for path in folder.glob("peer-*/events.jsonl")]
    return sorted(int(name) for name in names if name.isdecimal())


def _has_finished(folder: Path, peer: int) -> bool:
    """Whether the last node of a peer has recorded that its script completed all its rounds, and at
    least one round."""
    for event in reversed(_last_events(folder / f"peer-{peer}" / "events.jsonl")):
        match event:
            case events.Halted():
                return event.reason == "finished" and event.round is not None and event.round >= 0
            case events.Started():
                break
    return False


def _last_events(path: Path) -> list[Event]:
    try:
        with open_file(path) as file:
            return last_events(file, TAIL_BYTES)
    except (FileNotFoundError, ConfigError):
        return []  # not a file of gossip
