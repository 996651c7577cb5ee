"""Whether a run has begun, and whether it is over, as who comes late finds out from what its peers
have left in their folder."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path

from gossip.errors import ConfigError
from gossip.observe import Event, events

from .rendezvous import answers, peers_in, read_seed
from .untrusted import last_events, open_file

BEGUN = "begun"
"""A file in the run's folder: some peer here has had a round. Rows of events may be lost with a
peer that is killed."""
TAIL_BYTES = 16 * 1024  # of a peer's events: its end is the last of them


def over(folder: Path, but: Container[int]) -> tuple[int, ...]:
    """Return the peers that have completed the training of the run in ``folder``, if none of the
    peers that have not ended answers; otherwise none.

    Args:
        but: Peers of the caller, which are left out.
    """
    finished = [peer for peer in _peers(folder) if peer not in but and _has_finished(folder, peer)]
    if not finished:
        # Others have yet to start, or were killed and may return: the folder does not show which.
        return ()
    seeds = folder / "seeds"
    others = [
        seed
        for peer in peers_in(seeds)
        if peer not in but and (seed := read_seed(seeds, peer)) is not None
    ]
    if any(answers(seed) for seed in others if not seed.ended):
        return ()
    return tuple(finished)


class RunProgress:
    """Progress of a run by the records in its folder, with a note when a peer reaches a round.

    Args:
        folder: Folder of the run; None: the run leaves nothing behind.
        tell: Writes an event.
    """

    def __init__(self, folder: Path | None, tell: Callable[..., None]) -> None:
        self._folder, self._tell, self._noted = folder, tell, folder is None

    def had_round(self) -> int:
        """The furthest round that is known of, by what its peers have written down; 0:
        it has had none."""
        return 0 if self._folder is None else had_round(self._folder)

    def reached(self, round_id: int) -> None:
        """A peer here is in this round."""
        if self._noted or round_id < 1 or self._folder is None:
            return
        self._noted = True
        try:
            (self._folder / BEGUN).touch()
        except OSError as error:
            told = (
                f"cannot write {self._folder / BEGUN} ({error.strerror}): peers that are started "
                "again when all are lost"
            )
            self._tell(
                "notice",
                message=f"{told} may begin anew without a word",
                hint="make room on the disk",
            )


def had_round(folder: Path) -> int:
    """The furthest round that peers in ``folder`` are known to have been in; 0:
    none has had one."""
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
    """Whether all peers of whom there is a file are known not to come back: their launchers say so.
    ``but``: who asks."""
    others = [read_seed(seeds, peer) for peer in peers_in(seeds) if peer not in but]
    return bool(others) and all(seed is not None and seed.ended for seed in others)


def _peers(folder: Path) -> list[int]:
    names = [path.parent.name.removeprefix("peer-") for path in folder.glob("peer-*/events.jsonl")]
    return sorted(int(name) for name in names if name.isdecimal())


def _has_finished(folder: Path, peer: int) -> bool:
    """Whether its last node said that its script had had all its rounds, and had had any."""
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
        return []  # it is no file of ours
