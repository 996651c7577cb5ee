"""Draws the plan of the next round while there is nothing else to do."""

from __future__ import annotations

from typing import Any

from gossip.topologies import Plan, Roster, Topology


class PlanCache(Topology):
    """A topology that knows the plan of the next round already if, as nearly always,
    the roster has stayed.

    A plan is a pure function, so nothing depends on whether it was foreseen. It is drawn at the one
    point of a round where everybody waits: the commit is there and the trainer has not heard of it.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology.function, topology.name, topology.rolling, topology.bound)
        # last, and nobody has looked ahead since
        self._asked: tuple[Roster, int, int, dict[str, Any]] | None = None
        self._cached_plan: tuple[tuple[Roster, int, int, dict[str, Any]], Plan] | None = None

    def __call__(self, roster: Roster, round_id: int, seed: int, **options: Any) -> Plan:
        asked = self._asked = (roster, round_id, seed, options)
        if self._cached_plan is not None and self._cached_plan[0] == asked:
            return self._cached_plan[1]
        return super().__call__(roster, round_id, seed, **options)

    def precompute_plan(self) -> None:
        """To be called when there is time."""
        if self._asked is not None:
            roster, round_id, seed, options = self._asked
            self._asked = None
            self._cached_plan = (
                (roster, round_id + 1, seed, options),
                super().__call__(roster, round_id + 1, seed, **options),
            )
