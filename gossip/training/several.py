"""Combines several optimizers of one model, so that their states are saved and loaded like the
state of one optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import torch

from gossip.errors import UnsupportedModel


def as_one(optimizers: Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return a single optimizer unchanged. Combine several optimizers into one object with the
    groups and states of all of them; it cannot step."""
    return (
        optimizers[0]
        if len(optimizers) == 1
        else cast(torch.optim.Optimizer, _CombinedOptimizer(optimizers))
    )


def parts_of(optimizer: torch.optim.Optimizer) -> Sequence[torch.optim.Optimizer]:
    """Return the optimizers that ``as_one`` has combined."""
    return optimizer.optimizers if isinstance(optimizer, _CombinedOptimizer) else [optimizer]


class _CombinedOptimizer:
    """Combination of several optimizers. Their parameters are numbered consecutively, in the order
    of the optimizers."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        first = set(optimizers[0].defaults)
        # Defaults that all optimizers have. Each optimizer checks its other defaults itself when it
        # loads a state.
        self.defaults = dict.fromkeys(first.intersection(*[each.defaults for each in optimizers]))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for each in self.optimizers for group in each.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        bounds = accumulate([len(each.param_groups) for each in self.optimizers], initial=0)
        for each, (start, stop) in zip(self.optimizers, pairwise(bounds), strict=True):
            each.param_groups = groups[start:stop]

    @property
    def state(self) -> list[Any]:
        return [each.state for each in self.optimizers]

    @state.setter
    def state(self, states: list[Any]) -> None:
        for each, state in zip(self.optimizers, states, strict=True):
            each.state = state

    def state_dict(self) -> dict[str, Any]:
        """Return the states and groups of all optimizers. A state key that is not a parameter gets
        the number of its optimizer as a prefix.

        Raises: UnsupportedModel: An optimizer saves more than state and groups.
        """
        state: dict[int | str, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for number, each in enumerate(self.optimizers):
            part = each.state_dict()
            if more := part.keys() - {"state", "param_groups"}:
                raise UnsupportedModel(
                    f"{type(each).__name__} saves {', '.join(sorted(more))} beside its state",
                    "with several optimizers, only state and param_groups can be saved",
                )
            count = _count(part["param_groups"])
            state |= {
                first + at if isinstance(at, int) and at < count else f"{number}/{at}": entries
                for at, entries in part["state"].items()
            }
            groups += [
                {**group, "params": [first + at for at in group["params"]]}
                for group in part["param_groups"]
            ]
            first += count
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load each optimizer's part of a combined state. If this raises, the caller must restore
        ``state`` and ``param_groups``."""
        first, groups = 0, list(state["param_groups"])
        for number, each in enumerate(self.optimizers):
            own, groups = groups[: len(each.param_groups)], groups[len(each.param_groups) :]
            count = _count(own)
            entries: dict[int | str, Any] = {}
            for key, entry in state["state"].items():
                if isinstance(key, int) and first <= key < first + count:
                    entries[key - first] = entry
                elif isinstance(key, str) and key.startswith(f"{number}/"):
                    entries[key.partition("/")[2]] = entry
            each.load_state_dict(
                {
                    "state": entries,
                    "param_groups": [
                        {**g, "params": [at - first for at in g["params"]]} for g in own
                    ],
                }
            )
            first += count


def _count(groups: list[dict[str, Any]]) -> int:
    return sum(len(group["params"]) for group in groups)
