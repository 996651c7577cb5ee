"""Checkers for each stage of a pipeline: a stage is checked like a swarm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gossip.core import PeerId
from gossip_lab.simulation.world import AnySwarm, Observer, Watcher

from .event_observer import EventObserver
from .suite import CheckerSuite, settle


class _StageMapping(Mapping[PeerId, Any]):
    """View of a mapping from peers, with only the members of one stage."""

    def __init__(self, of_all: Mapping[PeerId, Any], members: Collection[PeerId]) -> None:
        self._of_all, self._members = of_all, members

    def __getitem__(self, peer: PeerId) -> Any:
        if peer not in self._members:
            raise KeyError(peer)
        return self._of_all[peer]

    def __iter__(self) -> Iterator[PeerId]:
        return (peer for peer in self._of_all if peer in self._members)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class StageView:
    """View of a swarm in which only the members of one stage are visible. Everything else is as in
    the whole swarm."""

    def __init__(self, swarm: AnySwarm, members: Collection[PeerId]) -> None:
        self._swarm, self._members = swarm, frozenset(members)
        self.hosts = _StageMapping(swarm.hosts, self._members)
        self.inspections = _StageMapping(swarm.inspections, self._members)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._swarm, name)

    @property
    def up(self) -> tuple[PeerId, ...]:
        return tuple([peer for peer, host in self.hosts.items() if host.running])


class StageSuite(CheckerSuite):
    """Suite for the events of one stage. Another suite calls the observers that its checkers
    read."""

    def __init__(self, members: Collection[PeerId], checkers: Iterable[EventObserver]) -> None:
        super().__init__(checkers, has_recorders=False)
        self.members = frozenset(members)
        self._seen: tuple[AnySwarm, Any] | None = None
        for moment in ("on_start", "on_flood", "on_resume", "on_crash"):
            setattr(self, moment, self._for_members(getattr(self, moment)))

    def world(self, swarm: AnySwarm) -> Any:
        """Return the view of the swarm that the stage's checkers receive."""
        if self._seen is None or self._seen[0] is not swarm:
            self._seen = swarm, StageView(swarm, self.members)
        return self._seen[1]

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        inner = super().watchers(moment, kind)
        return (self._for_members(*inner),) if inner else ()

    def _for_members(self, *watchers: Watcher) -> Watcher:
        def see(swarm: AnySwarm, peer: PeerId, *what: Any) -> None:
            if peer in self.members:
                world = self.world(swarm)
                for watcher in watchers:
                    watcher(world, peer, *what)

        return see


class PipelineSuite:
    """The suites of a pipeline: a suite for each stage, and a suite for the whole swarm.

    Args:
        stages: Suite of each stage.
        overall: CheckerSuite of the checkers that watch all peers.
    """

    def __init__(self, stages: Sequence[StageSuite], overall: CheckerSuite) -> None:
        self.overall = overall
        # first, because it calls the observers that the stages' checkers read
        self.observers: tuple[Observer, ...] = (overall, *stages)
        self._suites: tuple[CheckerSuite, ...] = (*stages, overall)

    def settle(self, swarm: AnySwarm) -> float:
        """Run a common calm phase of all stages, see ``settle``."""
        return settle(self._suites, swarm)

    def close(self) -> None:
        """Let the checkers of all suites judge once more, see ``CheckerSuite.close``."""
        for suite in self._suites:
            suite.close()

    def judged(self) -> Counter[str]:
        return _added(suite.judged() for suite in self._suites)

    def judged_by(self) -> Counter[str]:
        return _added(suite.judged_by() for suite in self._suites)


def _added(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)  # unlike ``+``, ``update`` does not drop zero counts
    return total
