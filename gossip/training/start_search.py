"""``peer.search_start``: all peers look for a start together, by collective operations.

What is agreed is the recipe of the winner and not its weights: each peer draws them itself. Every
decision follows from the answers of collective operations, which are the same for all.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import nn

from gossip.errors import ConfigError
from gossip.starts import (
    Claim,
    FoundStart,
    Rung,
    StartRecipe,
    StartSearch,
    TrialTask,
    build,
    halve,
    read_claims,
    run_trial,
)

OPERATION = "search_start"
PATIENCE = 0.5
"""How much longer than its own trials took a peer waits for those of others, as a part of that."""
WAITS_MAX = 16
"""Operations of a rung, each of which waits for whoever lives. Their answers are kept for peers
that come late (``ANSWERS_KEPT``)."""
ORDERS_MAX = 2**16  # of batches, in one rung


@dataclass(frozen=True, slots=True)
class SearchingPeer:
    """What a search needs of the session.

    Attributes:
        id: Of this peer.
        alive: How many peers are alive in its view.
        gather: What each living peer has given, the same for all. What makes its own value is not
            called where the answer is known. Raises PastStart.
        between_steps: Called behind each step of a trial.
    """

    id: int
    alive: Callable[[], int]
    gather: Callable[[Callable[[], object]], dict[int, Any]]
    between_steps: Callable[[], None]


class PastStart(Exception):
    """The run has had steps: its state is taken over, and nothing is searched."""


class Searching:
    """One peer's part of a search."""

    def __init__(
        self, peer: SearchingPeer, task: TrialTask, search: StartSearch, agreed: tuple[int, int]
    ) -> None:
        """``agreed``: the run's seed, and how many peers may lie."""
        seed, f = agreed
        self._peer, self._task, self._search, self._f = peer, task, search, f
        self.starts = search.recipes(seed)

    def find(self, about: Sequence[object]) -> FoundStart:
        """The start that all find.

        Args:
            about: What must be the same on all peers, beside the starts.
        Raises: ConfigError: Most peers search among others, or on another model; no trial came to a
            finite loss.
        """
        words = (*about, self._search.steps, self._search.held_out, *map(str, self.starts))
        own = blake2b("\n".join(map(str, words)).encode(), digest_size=8).hexdigest()
        said = self._peer.gather(lambda: own)
        most = most_common(said)
        if own != most:
            raise ConfigError(
                "search_start was called with other starts, steps or samples than on most peers, "
                "or with another model",
                "call it alike on all peers",
            )
        here = [peer for peer, digest in said.items() if digest == most]
        return halve(self.starts, here, self._f, self._search.steps, self._run_rung)

    def _run_rung(self, rung: Rung) -> Mapping[int, Mapping[int, Claim]]:
        """Runs the own trials, and returns what all claim who live and are not much slower."""
        began, ended = time.monotonic(), float("inf")
        claims: list[list[object]] | None = None

        def own() -> dict[str, object]:
            nonlocal claims, ended
            if claims is None:
                claims = self._run_trials(rung)
                ended = time.monotonic()
            return {
                "claims": claims,
                "took_s": ended - began,
                "waited_s": time.monotonic() - ended,
                "alive": self._peer.alive(),
            }

        found: dict[int, Any] = {}
        for _ in range(WAITS_MAX):
            rows = {
                peer: row for peer, row in self._peer.gather(own).items() if isinstance(row, dict)
            }
            found = {**rows, **found}
            if is_complete(rows.values(), len(found)):
                break
        return {peer: read_claims(row.get("claims")) for peer, row in found.items()}

    def _run_trials(self, rung: Rung) -> list[list[object]]:
        found: list[list[object]] = []
        for candidate, at in rung.trials.get(self._peer.id, ()):
            order = rung.number * ORDERS_MAX + at
            outcome = run_trial(
                self._task, self.starts[candidate], rung.steps, order, self._peer.between_steps
            )
            found.append([candidate, *outcome])
        return found


def is_complete(rows: Iterable[Mapping[str, Any]], answered: int) -> bool:
    """Whether nobody more is waited for: as many have answered as most see alive, or most have
    waited for long enough. Of numbers that one peer alone gives nothing depends."""
    good = [
        row
        for row in rows
        if all(type(row.get(name)) in (int, float) for name in ("took_s", "waited_s", "alive"))
    ]
    if not good:
        return True
    alive = statistics.median_low([row["alive"] for row in good])
    patience = [row["waited_s"] - PATIENCE * row["took_s"] for row in good]
    return bool(answered >= alive) or bool(statistics.median_low(patience) >= 0)


def most_common(said: Mapping[int, object]) -> object:
    """What most peers have given; of equals, what the lowest of them has."""
    values = [repr(value) for _, value in sorted(said.items())]
    most = max(Counter(values).items(), key=lambda item: (item[1], -values.index(item[0])))[0]
    return next(value for _, value in sorted(said.items()) if repr(value) == most)


def rebuilt(task: TrialTask, recipe: StartRecipe, model: nn.Module) -> None:
    """Gives ``model`` the weights and buffers of a start.

    Raises: ConfigError: ``make`` builds another model.
    """
    state = build(task.make, recipe).state_dict()
    check_alike(model, state)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(state[name])


def check_alike(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Raises ConfigError: ``state`` is of another model."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    other = {name: tuple(value.shape) for name, value in state.items()}
    if shapes == other:
        return
    differ = sorted(name for name in {*shapes, *other} if shapes.get(name) != other.get(name))
    name = differ[0]
    raise ConfigError(
        f"make builds another model than prepare was given: {name} is {other.get(name)} in place "
        f"of {shapes.get(name)}",
        "make is what has built the model: peer.prepare(make(), ...)",
    )
