"""Successive halving of initial weights (Jamieson and Talwalkar 2016, arXiv:1502.07943) among peers
that may crash or be Byzantine.

In each rung all remaining starts are trained for the same number of steps. The better half enters
the next rung. There twice as many peers try each start, again from its initial weights and on other
data. So the budget of each start doubles, and other peers check the claim of each peer. With f > 0,
each start has at least 2f + 1 trials from the second rung on if there are enough peers, and the f
largest and the f smallest losses are ignored. A peer that does not reply has no trials in the next
rung.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gossip.errors import ConfigError

from .recipe import StartRecipe
from .settings import StartSearch


@dataclass(frozen=True, slots=True)
class Claim:
    """Result of a trial according to the peer that ran it.

    Attributes:
        loss: Loss on the plateau; infinity if it was not finite.
        settled: Whether the trial had reached its plateau.
    """

    loss: float
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Rung:
    """Assignment of trials to peers in a rung.

    Attributes:
        number: Number of the rung, from 0.
        steps: Number of steps of each trial.
        trials: For each peer, pairs of a candidate and an order of batches. The k-th trials of all
            candidates have the same order.
    """

    number: int
    steps: int
    trials: Mapping[int, tuple[tuple[int, int], ...]]


Claims: TypeAlias = Mapping[int, Claim]  # Claims of one peer; the key is the candidate.
RunRung: TypeAlias = Callable[[Rung], Mapping[int, Claims]]


@dataclass(frozen=True, slots=True)
class RungOutcome:
    """Result of a rung.

    Attributes:
        steps: Number of steps of each trial.
        losses: For each candidate, the robust mean of the claimed losses; infinity if there is no
            claim.
        settled: Whether most trials had reached their plateau.
        peers: Peers that have replied, ascending.
    """

    steps: int
    losses: Mapping[int, float]
    settled: bool
    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundStart:
    """Result of a search.

    Attributes:
        recipe: Recipe of the best start.
        candidate: Index of this recipe among the compared starts.
        rungs: Result of each rung; empty on a late peer, which receives only the best start.
    """

    recipe: StartRecipe
    candidate: int
    rungs: tuple[RungOutcome, ...]

    @property
    def settled(self) -> bool:
        """Whether the last rung compared losses on plateaus. Otherwise a search with more ``steps``
        may have another result."""
        return bool(self.rungs) and self.rungs[-1].settled

    def __str__(self) -> str:
        if not self.rungs:
            return str(self.recipe)
        last, first = self.rungs[-1], self.rungs[0]
        where = "on the plateau" if self.settled else "before its plateau"
        return (
            f"{self.recipe} (loss {last.losses[self.candidate]:.4g} {where}, the best of "
            f"{len(first.losses)} starts)"
        )


def halve(
    starts: Sequence[StartRecipe],
    peers: Sequence[int],
    f: int,
    search: StartSearch,
    run_rung: RunRung,
) -> FoundStart:
    """Find the best start. Peers with the same claims find the same start.

    Args:
        starts: The candidates. A candidate's number is its index here.
        peers: Peers that take part.
        f: Number of Byzantine peers that are tolerated.
        search: Settings of the trials.
        run_rung: Runs the trials of a rung. Returns the claims of each peer that has replied.
    Raises: ConfigError: No trial has a finite loss.
    """
    left = list(range(len(starts)))
    here = sorted(peers)
    outcomes = list[RungOutcome]()
    extensions, tried = 0, dict[int, frozenset[int]]()
    while len(left) > 1 or not outcomes:
        least = 2 * f + 1 if outcomes else 1
        tries = min(len(here), max(least, max(len(here), len(starts)) // len(left)))
        rung = Rung(len(outcomes), search.steps << extensions, _placed(left, here, tries, tried))
        claims = run_rung(rung)
        here = sorted(claims) or here
        outcome = _judge(rung, left, claims, f)
        outcomes.append(outcome)
        tried = {peer: frozenset(dict(rung.trials.get(peer, ()))) for peer in claims}
        finite = [each for each in left if math.isfinite(outcome.losses[each])]
        if not finite:
            raise ConfigError(
                f"none of {len(left)} starts has a finite loss after {rung.steps} steps",
                "pass search_start an optimizer with a lower learning rate, or other starts",
            )
        finite.sort(key=lambda each: (outcome.losses[each], each))
        extends = not outcome.settled and extensions < search.extensions
        extensions += extends
        left = sorted(finite if extends else finite[: -(-len(left) // 2)])
    return FoundStart(starts[left[0]], left[0], tuple(outcomes))


def _placed(
    left: Sequence[int], peers: Sequence[int], tries: int, tried: Mapping[int, frozenset[int]]
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Assign each candidate to ``tries`` different peers. Peers with the fewest trials are first;
    among these, peers that did not try the candidate in the previous rung."""
    found: dict[int, list[tuple[int, int]]] = {peer: [] for peer in peers}
    for at in range(tries):
        for candidate in left:
            free = [peer for peer in peers if candidate not in dict(found[peer])]
            chosen = min(
                free,
                key=lambda peer: (
                    len(found[peer]),
                    candidate in tried.get(peer, ()),
                    peer,
                ),
            )
            found[chosen].append((candidate, at))
    return {peer: tuple(trials) for peer, trials in found.items()}


def _judge(rung: Rung, left: Sequence[int], claims: Mapping[int, Claims], f: int) -> RungOutcome:
    """Compute the result of a rung from the claims of all peers. A peer's claim counts only if the
    trial was assigned to that peer."""
    values: dict[int, list[float]] = {each: [] for each in left}
    settled: list[bool] = []
    for peer, of_peer in sorted(claims.items()):
        for candidate, _ in rung.trials.get(peer, ()):
            claim = of_peer.get(candidate)
            if claim is not None:
                values[candidate].append(claim.loss)
                settled.append(claim.settled)
    losses = {each: _robust(found, f) for each, found in values.items()}
    return RungOutcome(rung.steps, losses, 2 * sum(settled) > len(settled), tuple(sorted(claims)))


def _robust(values: Sequence[float], f: int) -> float:
    """Return the mean without the f largest and the f smallest values. If there are fewer than 2f +
    1 values, return the largest value. So a Byzantine peer cannot lower the result below the loss
    in another trial of the start."""
    ordered = sorted(values)
    if not ordered:
        return math.inf
    if len(ordered) <= 2 * f:
        return ordered[-1]
    kept = ordered[f : len(ordered) - f]
    return math.fsum(kept) / len(kept) if all(map(math.isfinite, kept)) else math.inf


def read_claims(given: Any) -> dict[int, Claim]:
    """Parse the claims of another peer, ``[[candidate, loss, settled], ...]``. Invalid rows are
    ignored. A loss that is not finite counts as infinity."""
    found: dict[int, Claim] = {}
    for row in given if isinstance(given, list) else ():
        match row:
            case [int(candidate), int() | float() as loss, bool(settled)]:
                is_loss = type(loss) is not bool and math.isfinite(loss)
                found[candidate] = Claim(float(loss) if is_loss else math.inf, settled)
    return found
