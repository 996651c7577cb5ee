"""Peers of a launcher that have the state of the run, as their rows report it."""

from __future__ import annotations

from gossip.observe import events


class StateHolders:
    """Holders of the run's state. ``round``: the latest round that was reported. ``metrics``: the
    values that any peer logged last."""

    def __init__(self) -> None:
        self.round = -1
        self.metrics: dict[str, float] = {}
        self._alive: set[int] = set()
        self._hold: set[int] = set()  # peers that have the state, or finished with it
        self._take: set[int] = set()  # peers that are receiving it
        self._new: set[int] = set()  # first incarnations that have not begun yet

    @property
    def anybody(self) -> bool:
        """Whether a peer has the state of this run, is receiving it, or has yet to begin."""
        return bool(self._hold or self._take or self._new)

    @property
    def in_vain(self) -> bool:
        """Whether a peer is alive while no peer has the state that it needs."""
        return bool(self._alive) and not self.anybody

    def _on_progress(self, event: events.Round | events.Fault | events.Halted) -> None:
        if event.round is not None:
            self.round = max(self.round, event.round)  # rows of rounds are thinned out
            if isinstance(event, events.Round) and event.round > 0:
                self._hold.add(event.peer)
                self._take.discard(event.peer)

    def _on_has_state(self, event: events.Restored | events.Ready | events.StageRebuilt) -> None:
        self._hold.add(event.peer)
        self._take.discard(event.peer)
        self._new.discard(event.peer)

    def _on_recovering(self, event: events.Recovering) -> None:
        self._take.add(event.peer)

    def _on_found_none(self, event: events.NoStateFound) -> None:
        self._take.discard(event.peer)

    def _on_spawned(self, event: events.Spawned) -> None:
        self._gone(event.peer)
        self._alive.add(event.peer)
        if not event.incarnation:
            self._new.add(event.peer)

    def _on_exited(self, event: events.Exited) -> None:
        self._gone(event.peer, finished=event.code == 0)

    def _on_metrics(self, event: events.Metrics) -> None:
        logged = {"accuracy": event.accuracy, "loss": event.loss}
        self.metrics |= {name: n for name, n in logged.items() if n is not None}

    def _gone(self, peer: int, finished: bool = False) -> None:
        for who in (self._take, self._alive, self._new, *([] if finished else [self._hold])):
            who.discard(peer)

    def in_words(self) -> str:
        """Describe the progress of the run."""
        logged = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"round {self.round}" + (f" ({logged})" if logged else "")
