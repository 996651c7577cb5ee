"""Peers of a launcher that have the state of the run, as their rows report it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class StateHolders:
    """``round``: the furthest that was told of. ``metrics``: what was logged last, by anybody."""

    def __init__(self) -> None:
        self.round = -1
        self.metrics: dict[str, float] = {}
        self._alive: set[int] = set()
        self._hold: set[int] = set()  # or ended with it, in order
        self._take: set[int] = set()  # who is about to take it over
        self._new: set[int] = set()  # first lives that have yet to begin

    @property
    def anybody(self) -> bool:
        """Whether somebody has a state of this run, or may have in a moment; or is there from the
        start: nobody knows."""
        return bool(self._hold or self._take or self._new)

    @property
    def in_vain(self) -> bool:
        """Whether somebody is there, and nobody has what it wants."""
        return bool(self._alive) and not self.anybody

    def begin_anew(self) -> None:
        """Clear the round, the metrics and the holders: the former state is lost."""
        self.round, self.metrics = -1, {}
        self._hold.clear()

    def feed(self, event: Mapping[str, Any]) -> None:
        """Takes in a row, in the order in which they come."""
        peer, number = event.get("peer"), event.get("round")
        if not isinstance(peer, int):
            return
        match event.get("event"):
            case "round" | "fault" | "halted" as name if isinstance(number, int):
                self.round = max(self.round, number)  # rows of rounds are thinned out
                if name == "round" and number > 0:
                    self._hold.add(peer)
                    self._take.discard(peer)
            case "restored" | "ready" | "stage_rebuilt":
                self._hold.add(peer)
                self._take.discard(peer)
                self._new.discard(peer)
            case "recovering":
                self._take.add(peer)
            case "no_state_found":
                self._take.discard(peer)
            case "spawned":
                self._spawned(peer, new=not event.get("incarnation"))
            case "exited":
                self._gone(peer, finished=event.get("code") == 0)
            case "metrics":
                self._logged(event)

    def _spawned(self, peer: int, new: bool) -> None:
        self._gone(peer)
        self._alive.add(peer)
        if new:
            self._new.add(peer)

    def _gone(self, peer: int, finished: bool = False) -> None:
        for who in (self._take, self._alive, self._new, *([] if finished else [self._hold])):
            who.discard(peer)

    def _logged(self, event: Mapping[str, Any]) -> None:
        told = {name: event.get(name) for name in ("accuracy", "loss")}
        self.metrics.update(
            {name: float(value) for name, value in told.items() if isinstance(value, int | float)}
        )

    def in_words(self) -> str:
        """How far the run was."""
        logged = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"round {self.round}" + (f" ({logged})" if logged else "")
