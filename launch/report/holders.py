"""Peers of a launcher that have the state of the run, according to their events."""

from __future__ import annotations

from typing import Literal, TypeAlias

from gossip.observe import events

Holding: TypeAlias = Literal["new", "lacks", "receives", "has"]
"""Whether a peer has the state of the run. ``new``: it is a first incarnation, which may begin with
a state of its own. ``lacks``: a later incarnation needs the state. ``has``: also if the peer has
finished."""


class StateHolders:
    """Peers that have, need or receive the run's state. ``round``: latest reported round.
    ``metrics``: last logged values, of any peer."""

    def __init__(self) -> None:
        self.round = -1
        self.metrics: dict[str, float] = {}
        self._peers: dict[int, Holding] = {}  # peers that run, or have finished

    @property
    def anybody(self) -> bool:
        """Whether a peer has the state of this run, is receiving it, or has yet to begin."""
        return any(each != "lacks" for each in self._peers.values())

    @property
    def in_vain(self) -> bool:
        """Whether a peer is alive while no peer has the state that it needs."""
        return bool(self._peers) and not self.anybody

    def _on_progress(self, event: events.Round | events.Fault | events.Halted) -> None:
        if event.round is not None:
            self.round = max(self.round, event.round)  # not every round has an event
            if isinstance(event, events.Round) and event.round > 0:
                self._peers[event.peer] = "has"

    def _on_has_state(self, event: events.Restored | events.Ready | events.StageRebuilt) -> None:
        self._peers[event.peer] = "has"

    def _on_recovering(self, event: events.Recovering) -> None:
        if self._peers.get(event.peer, "lacks") == "lacks":
            self._peers[event.peer] = "receives"

    def _on_found_none(self, event: events.NoStateFound) -> None:
        if self._peers.get(event.peer) == "receives":
            self._peers[event.peer] = "lacks"

    def _on_spawned(self, event: events.Spawned) -> None:
        self._peers[event.peer] = "lacks" if event.incarnation else "new"

    def _on_exited(self, event: events.Exited) -> None:
        if event.code != 0 or self._peers.get(event.peer) != "has":
            self._peers.pop(event.peer, None)

    def _on_metrics(self, event: events.Metrics) -> None:
        logged = {"accuracy": event.accuracy, "loss": event.loss}
        self.metrics |= {name: n for name, n in logged.items() if n is not None}

    def in_words(self) -> str:
        """Describe the progress of the run: the round and the last metrics."""
        logged = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"round {self.round}" + (f" ({logged})" if logged else "")
