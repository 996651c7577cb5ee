"""Aggregation of a real node, for rules other than the simulator's own mean. It needs torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from gossip.aggregators import BoundRule
from gossip.core import Aggregate, Aggregated, events
from gossip.node import Reducer, Worker

NO_INPUTS: Mapping[str, Any] = MappingProxyType({})


class RuleRunner:
    """Aggregation of a node, computed synchronously. Rules like the mean have a shortcut that adds
    up separate rows. The shortcut is disabled, because it rounds differently from the rule itself.

    Args:
        centered: Whether the rule may receive the local update as its center, as in gossip rounds.
    """

    def __init__(self, rule: BoundRule, *, centered: bool) -> None:
        plain = copy.copy(rule.rule)
        plain.from_rows = None
        self.rule, self.centered = replace(rule, rule=plain), centered
        self._answers: list[Aggregated] = []
        self._reducer = self._reducer_of(self.rule)

    def run(self, work: Aggregate, inputs: Mapping[str, Any] = NO_INPUTS) -> Aggregated:
        """Return the result of an aggregation that the core requested.

        Args:
            inputs: Inputs of the trainer for this aggregation, which few rules need.
        """
        if not work.rows:
            return Aggregated(work.ticket, None, reason=events.NO_ROWS)
        reducer = self._reducer
        if inputs:
            rule = self.rule
            reducer = self._reducer_of(replace(rule, options={**inputs, **rule.options}))
        reducer.reduce(work)
        return self._answers.pop()

    def _reducer_of(self, rule: BoundRule) -> Reducer:
        return Reducer(rule, _AtOnce(), self._answers.append, centered=self.centered)


class _AtOnce(Worker):
    """Worker that runs all jobs synchronously, because no virtual time passes while a job runs."""

    def __init__(self) -> None:
        pass

    def submit(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        then(job())
