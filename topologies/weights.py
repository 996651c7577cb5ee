"""Weights of servers and of neighbours. Weights of servers are whole numbers in the run's settings
that determine how often each peer serves. Weights of neighbours depend on degrees."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd

from gossip.errors import ConfigError

from .base import Plan

WEIGHT_MAX = 10
"""Maximum weight of a server. With it, a peer serves this many times as often as a peer of the
minimum weight, 1."""

_HINT = (
    "for example 0:4,2:2: peer 0 serves four times as often as a peer that is not listed, peer 2 "
    f"twice as often; weights are 1 to {WEIGHT_MAX}"
)
_PAIR = re.compile(r"\s*(\d{1,4})\s*:\s*(\d{1,4})\s*", re.ASCII)


@lru_cache(maxsize=64)
def read_weights(text: str) -> Mapping[int, int]:
    """Return the weights above 1; the key is the peer, ascending.

    Raises: ConfigError: The text does not have the form ``0:4,2:2``, names a peer twice, or has a
        weight that is not in 1 to ``WEIGHT_MAX``.
    """
    found: dict[int, int] = {}
    for word in text.split(",") if text.strip() else ():
        match = _PAIR.fullmatch(word)
        if match is None:
            raise ConfigError(f"weights of servers: {word!r} is not peer:weight", _HINT)
        peer, weight = int(match[1]), int(match[2])
        if peer in found:
            raise ConfigError(f"weights of servers: peer {peer} is listed twice", _HINT)
        if not 1 <= weight <= WEIGHT_MAX:
            raise ConfigError(
                f"weights of servers: {word.strip()!r}: a weight must be 1 to {WEIGHT_MAX}", _HINT
            )
        found[peer] = weight
    return {peer: found[peer] for peer in sorted(found) if found[peer] > 1}


def write_weights(weights: Mapping[int, int]) -> str:
    """Return the weights as the text that ``read_weights`` reads; "" if all weights are 1."""
    return ",".join(f"{peer}:{weight}" for peer, weight in sorted(weights.items()) if weight > 1)


@lru_cache(maxsize=64)
def lots(text: str, peers: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of lots that each peer has in a round. A peer's best lot counts, so peers
    serve in proportion to their numbers of lots."""
    given = read_weights(text)
    bounded = within_bounds([given.get(peer, 1) for peer in peers])
    # With equal weights each peer has one lot, so the order is that of a run without weights.
    shared = gcd(*bounded) or 1
    return tuple([weight // shared for weight in bounded])


def within_bounds(weights: Sequence[int]) -> list[int]:
    """Return the effective weights. No peer has more weight than all other peers together, so other
    peers serve in at least half of the rounds."""
    most = max(1, sum(weights) - max(weights, default=1))
    return [min(weight, most) for weight in weights]


def pull_of(plan: Plan, receiver: int, sender: int) -> float:
    """Return the factor for the difference between the sender's and the receiver's vector, 1 if the
    plan has no Metropolis weights. After this factor, the mean of the receiver and its neighbours
    has the weights 1 / (1 + the larger degree of the two peers)."""
    if not plan.metropolis or plan.pushes is None:
        return 1.0
    degrees = [len(plan.pushes.get(peer, ())) for peer in (receiver, sender)]
    return min(1.0, (1 + degrees[0]) / (1 + degrees[1]))
