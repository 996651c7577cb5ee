"""Peers of a launcher that have the state of the run, as their rows report it."""

from __future__ import annotations

from gossip.observe import Event, events


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

    def apply(self, event: Event) -> None:
        """Apply one event, in the order in which they come."""
        match event:
            case events.Round() | events.Fault() | events.Halted() if event.round is not None:
                self.round = max(self.round, event.round)  # rows of rounds are thinned out
                if isinstance(event, events.Round) and event.round > 0:
                    self._hold.add(event.peer)
                    self._take.discard(event.peer)
            case events.Restored() | events.Ready() | events.StageRebuilt():
                self._hold.add(event.peer)
                self._take.discard(event.peer)
                self._new.discard(event.peer)
            case events.Recovering():
                self._take.add(event.peer)
            case events.NoStateFound():
                self._take.discard(event.peer)
            case events.Spawned():
                self._spawned(event.peer, new=not event.incarnation)
            case events.Exited():
                self._gone(event.peer, finished=event.code == 0)
            case events.Metrics():
                logged = {"accuracy": event.accuracy, "loss": event.loss}
                self.metrics |= {name: n for name, n in logged.items() if n is not None}

    def _spawned(self, peer: int, new: bool) -> None:
        self._gone(peer)
        self._alive.add(peer)
        if new:
            self._new.add(peer)

    def _gone(self, peer: int, finished: bool = False) -> None:
        for who in (self._take, self._alive, self._new, *([] if finished else [self._hold])):
            who.discard(peer)

    def in_words(self) -> str:
        """How far the run was."""
        logged = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"round {self.round}" + (f" ({logged})" if logged else "")
