"""Trackers of a run without a launcher. The first peer starts the processes that forward the run,
and they end after it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from subprocess import Popen

from gossip.run import check_trackers, start_tracker, trackers_asked_for

from .node_start import PeerPlace

_processes: list[Popen[bytes]] = []
"""Processes of trackers, which end when this process ends and their stdin closes."""


def trackers_wanted(track: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the trackers of a script's argument and of ``GOSSIP_TRACK``, each once.

    Raises: ConfigError: There is no such tracker, or it is not installed.
    """
    names = [track] if isinstance(track, str) else list(track)
    check_trackers(names)
    return list(dict.fromkeys([*names, *trackers_asked_for(environment)]))


def hand_on(place: PeerPlace, names: Sequence[str]) -> None:
    """Start the trackers of the run on its first peer. If one cannot be started, print a warning
    and continue."""
    if place.peer != 0:
        return
    for name in names:
        try:
            if place.run_dir is None:
                _print_warning(
                    f"{name}: a script alone writes nothing down; gossip run -n 1 --track does"
                )
            else:
                _processes.append(start_tracker(name, place.run_dir, others=True))
        except OSError as error:
            _print_warning(
                f"{name}: the tracker cannot be started ({error.strerror}); training goes on"
            )


def _print_warning(text: str) -> None:
    print(f"! {text}", file=sys.stderr, flush=True)
