"""Search for a start by all peers (``peer.search_start``), with collective operations.

Peers agree on the recipe of the best start, and each peer computes the weights itself. All
decisions depend only on the results of collective operations. In rolling rounds all peers have the
same results. In gossip rounds the results differ if a peer is Byzantine or crashes during an
operation. So in gossip rounds the most common result counts.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import torch
from torch import nn

from gossip.errors import ConfigError
from gossip.training import SearchingPeer, ShardedLoader, TrainedModel, digest_tensors

from .halving import Claim, FoundStart, Rung, halve, read_claims
from .recipe import Make, StartRecipe, build
from .settings import StartSearch
from .trial import Loss, MakeOptimizer, TrialTask, run_trial

PATIENCE = 0.5
"""Time limit for the trials of other peers, as a fraction of the time of the local trials."""
START_S = 20.0
"""Assumed duration of the parts of a search without trials. ``PATIENCE`` applies to it, too."""
WAITS_MAX = 16
"""Largest number of collective operations in one part of a search. Each operation waits for all
live peers. For late peers, at most ``ANSWERS_KEPT`` results are stored."""
LISTEN_S, LISTEN_EVERY_S = 600.0, 0.2
"""Time that a late peer waits for the result in gossip rounds, and the interval between its
requests."""
# Names of the parts of a search that are not rungs.
HERE = "here"
OUTCOME = "outcome"
DRAWN = "drawn"
ORDERS_MAX = 2**16  # Largest number of orders of batches in one rung.


class PastStart(Exception):
    """The run has completed steps, so this peer receives its state and does not search."""


class Searching:
    """Search for a start, from the point of view of one peer."""

    def __init__(self, peer: SearchingPeer, task: TrialTask, search: StartSearch) -> None:
        self._peer, self._task, self._search = peer, task, search
        config, self._id = peer.run.config, peer.run.peer
        self._f, self.starts = config.f or 0, search.recipes(config.seed)
        self._began = time.monotonic()
        self._elsewhere: dict[int, str] = {}  # Peers in another part of the search, and that part.

    def find(self, about: Sequence[object]) -> FoundStart:
        """Return the start on which all peers agree.

        Args:
            about: Values that must be equal on all peers, in addition to the starts.
        Raises:
            ConfigError: Most peers compare other starts or have another model, or no trial has a
                finite loss.
            PastStart: The run has begun without this peer.
        """
        search = self._search
        lengths = search.steps, search.held_out, search.extensions
        parts = (*about, *lengths, *map(str, self.starts))
        own = blake2b("\n".join(map(str, parts)).encode(), digest_size=8).hexdigest()
        digests = self._ask(HERE, lambda: own, lambda: START_S)
        if digests.keys() == {self._id} and len(self._elsewhere) > self._f:
            return self._listen()  # The other peers are already searching.
        most = most_common(digests)
        if own != most:
            raise ConfigError(
                "search_start was called with other starts, steps or samples than on most peers, "
                "or with another model",
                "call it with the same arguments on all peers",
            )
        here = [peer for peer, digest in digests.items() if digest == most]
        found = halve(self.starts, here, self._f, self._search, self._run_rung)
        return self._agreed(found)

    def is_common(self, value: str) -> bool:
        """Whether most peers have the same value as this peer."""
        values = self._ask(DRAWN, lambda: value, lambda: START_S)
        return bool(most_common(values) == value)

    def _agreed(self, found: FoundStart) -> FoundStart:
        """Replace the candidate by that of most peers. In gossip rounds the results of this peer
        may differ from those of most peers."""
        votes = self._votes(found.candidate)
        agreed = most_common(votes) if votes else found.candidate
        return replace(found, candidate=agreed, recipe=self.starts[agreed])

    def _listen(self) -> FoundStart:
        """Wait for the results of more than ``f`` other peers, and return the most common one."""
        until = time.monotonic() + LISTEN_S
        while time.monotonic() < until:
            votes = self._votes(None)
            if len(votes) > self._f:
                agreed = most_common(votes)
                return FoundStart(self.starts[agreed], agreed, ())
            self._peer.pause(LISTEN_EVERY_S)
        raise PastStart

    def _votes(self, own: int | None) -> dict[int, int]:
        votes = self._ask(OUTCOME, lambda: own, lambda: time.monotonic() - self._began)
        return {
            peer: vote
            for peer, vote in votes.items()
            if type(vote) is int and 0 <= vote < len(self.starts)
        }

    def _run_rung(self, rung: Rung) -> Mapping[int, Mapping[int, Claim]]:
        """Run the local trials. Return the claims of all live peers that reply in time."""
        began = time.monotonic()
        took_s = 0.0

        def own() -> list[list[object]]:
            nonlocal took_s
            claims = self._run_trials(rung)
            took_s = time.monotonic() - began
            return claims

        claims = self._ask(f"rung {rung.number}", own, lambda: took_s)
        return {peer: read_claims(value) for peer, value in claims.items()}

    def _ask(
        self, what: str, make: Callable[[], Any], took_s: Callable[[], float]
    ) -> dict[int, Any]:
        """Return the value of each peer for this part of the search. The time limit for live peers
        depends on the working time of most peers (``PATIENCE``).

        Args:
            make: Computes the value of this peer. It is called at most once.
            took_s: Returns the time for which this peer has worked.
        """
        own: list[Any] = []
        ready_at = 0.0

        def row() -> dict[str, object]:
            nonlocal ready_at
            if not own:
                own.append(make())
                ready_at = time.monotonic()
            waited_s = time.monotonic() - ready_at
            return {
                "what": what,
                "value": own[0],
                "took_s": took_s(),
                "waited_s": waited_s,
                "alive": self._peer.run.view.alive,
            }

        found: dict[int, Any] = {}
        for _ in range(WAITS_MAX):
            given = self._peer.gather(row)
            if given is None:
                raise PastStart
            rows = {peer: each for peer, each in given.items() if _is_row(each)}
            here = {peer: each for peer, each in rows.items() if each["what"] == what}
            self._elsewhere = {
                peer: each["what"] for peer, each in rows.items() if peer not in here
            }
            found = {**{peer: each.get("value") for peer, each in here.items()}, **found}
            late = here.keys() <= {self._id} and len(self._elsewhere) > self._f
            if is_complete(here.values(), len(found)) or (late and what in (HERE, OUTCOME)):
                break
        return found

    def _run_trials(self, rung: Rung) -> list[list[object]]:
        found: list[list[object]] = []
        for candidate, at in rung.trials.get(self._id, ()):
            order = rung.number * ORDERS_MAX + at
            outcome = run_trial(
                self._task, self.starts[candidate], rung.steps, order, self._peer.between_steps
            )
            found.append([candidate, *outcome])
        return found


def _is_row(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("what"), str):
        return False
    return all(type(row.get(name)) in (int, float) for name in ("took_s", "waited_s", "alive"))


def is_complete(rows: Collection[Mapping[str, Any]], answered: int) -> bool:
    """Whether the wait is over. It ends when as many peers have replied as are alive according to
    most peers, or when most peers have waited long enough. Because these are medians, no single
    peer can change the result."""
    if not rows:
        return True
    alive = statistics.median_low([row["alive"] for row in rows])
    patience = [row["waited_s"] - PATIENCE * row["took_s"] for row in rows]
    enough: bool = answered >= alive or statistics.median_low(patience) >= 0
    return enough


def most_common(said: Mapping[int, Any]) -> Any:
    """Return the most common value. If several are equally common, return that of the peer with the
    lowest number."""
    values = [repr(value) for _, value in sorted(said.items())]
    most = max(Counter(values).items(), key=lambda item: (item[1], -values.index(item[0])))[0]
    return next(value for _, value in sorted(said.items()) if repr(value) == most)


def rebuilt(task: TrialTask, recipe: StartRecipe, model: nn.Module) -> None:
    """Load the weights and buffers of a start into ``model``.

    Raises: ConfigError: ``make`` builds a model with other parameters or buffers.
    """
    state = build(task.make, recipe).state_dict()
    check_alike(model, state)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(state[name])


def check_alike(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Check that a state fits a model.

    Raises: ConfigError: Their parameters or buffers have different names or shapes.
    """
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    other = {name: tuple(value.shape) for name, value in state.items()}
    if shapes == other:
        return
    differ = sorted(name for name in {*shapes, *other} if shapes.get(name) != other.get(name))
    name = differ[0]
    raise ConfigError(
        f"make does not build the model that prepare received: {name} has shape {other.get(name)}, "
        f"not {shapes.get(name)}",
        "build the prepared model with the same function: peer.prepare(make(), ...)",
    )


def search_start(
    peer: SearchingPeer,
    trained: TrainedModel,
    loader: object,
    calls: tuple[Make, Loss, MakeOptimizer],
    search: StartSearch | None,
) -> FoundStart | None:
    """Find the best start with all peers, and load it into the model (``Session.search_start``).

    Args:
        trained: The prepared model.
        loader: Loader of the session, which provides the batches of the trials.
        calls: ``make``, ``loss`` and ``optimizer`` of the script.
        search: Settings; None for the default ``StartSearch()``.
    Returns: The start, or None if the run has completed steps; in that case the model is unchanged.
    Raises: ConfigError: As ``Session.search_start``.
    """
    make, loss, optimizer = calls
    search = StartSearch() if search is None else search
    if not isinstance(loader, ShardedLoader):
        raise ConfigError(
            "search_start needs samples, and the session has none",
            "call loader = peer.shard(loader) with a data set that has an index first",
        )
    held_out, batch = loader.set_apart(search.held_out)
    device = next(trained.model.parameters()).device
    task = TrialTask(make, loss, optimizer, batch, held_out, device)
    searching = Searching(peer, task, search)
    check_alike(trained.model, build(make, searching.starts[0]).state_dict())
    try:
        found = searching.find((trained.layout.digest.hex(), loader.samples_total))
        rebuilt(task, found.recipe, trained.model)
        own = digest_tensors(trained.layout.parameters).hex()
        if searching.is_common(f"{found.recipe}: {own}"):
            return found
    except PastStart:
        return None
    raise ConfigError(
        f"this peer computes other weights for the start ({found.recipe}) than most peers",
        "run the same torch on processors of the same kind, or leave orthogonal starts out; "
        "after a restart this peer receives the weights of the other peers",
    )
