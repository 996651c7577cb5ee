"""Checkers for each stage of a pipeline: a stage is checked like a swarm."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gossip.core import PeerId
from gossip_lab.simulation.world import AnySwarm, Observer, Watcher

from .event_observer import EventObserver
from .suite import CheckerGroup, CheckerSuite


class StageView:
    """View of a swarm in which only the members of one stage are visible. Everything else is as in
    the whole swarm."""

    def __init__(self, swarm: AnySwarm, members: Collection[PeerId]) -> None:
        self._swarm, self._members = swarm, members

    def __getattr__(self, name: str) -> Any:
        return getattr(self._swarm, name)

    @property
    def hosts(self) -> dict[PeerId, Any]:
        return self._only_members(self._swarm.hosts)

    @property
    def inspections(self) -> dict[PeerId, Any]:
        return self._only_members(self._swarm.inspections)

    @property
    def up(self) -> tuple[PeerId, ...]:
        return tuple([peer for peer, host in self.hosts.items() if host.running])

    def _only_members(self, of_all: Mapping[PeerId, Any]) -> dict[PeerId, Any]:
        return {peer: each for peer, each in of_all.items() if peer in self._members}


class StageSuite(CheckerSuite):
    """Suite for the events of one stage. Another suite calls the observers that its checkers
    read."""

    def __init__(self, members: Collection[PeerId], checkers: Iterable[EventObserver]) -> None:
        super().__init__(checkers, has_recorders=False)
        self.members = frozenset(members)
        for moment in ("on_start", "on_flood", "on_resume", "on_crash"):
            setattr(self, moment, self._for_members(getattr(self, moment)))

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        inner = super().watchers(moment, kind)
        return (self._for_members(*inner),) if inner else ()

    def _for_members(self, *watchers: Watcher) -> Watcher:
        def see(swarm: AnySwarm, peer: PeerId, *what: Any) -> None:
            if peer in self.members:
                view: Any = StageView(swarm, self.members)
                for watcher in watchers:
                    watcher(view, peer, *what)

        return see


class PipelineSuite(CheckerGroup):
    """The suites of a pipeline: a suite for each stage, and a suite for the whole swarm.

    Args:
        stages: Suite of each stage.
        overall: CheckerSuite of the checkers that watch all peers.
    """

    def __init__(self, stages: Sequence[StageSuite], overall: CheckerSuite) -> None:
        self.overall = overall
        # first, because it calls the observers that the stages' checkers read
        self.observers: tuple[Observer, ...] = (overall, *stages)
        self.judges = [judge for suite in (*stages, overall) for judge in suite.judges]
