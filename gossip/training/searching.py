"""Access to the session for ``peer.search_start``, which comes with gossip-pipelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SearchingPeer:
    """Functions of the session that a search needs.

    Attributes:
        id: This peer's id.
        seed: Seed of the run.
        f: Byzantine peers to tolerate.
        alive: Number of peers that are alive in its view.
        gather: Returns the value of each living peer, the same at all peers. The argument, which
            makes the own value, is not called where the answer is known. None: the run has had
            steps, and nothing is searched.
        between_steps: Called behind each step of a trial.
        pause: Waits for a number of seconds.
    """

    id: int
    seed: int
    f: int
    alive: Callable[[], int]
    gather: Callable[[Callable[[], object]], dict[int, Any] | None]
    between_steps: Callable[[], None]
    pause: Callable[[float], None]
