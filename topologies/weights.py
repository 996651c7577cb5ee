"""Weights of servers and of neighbours. Weights of servers are whole numbers in the run's settings.
They determine how often each peer serves. Weights of neighbours depend on the degrees of the
peers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd

from gossip.errors import ConfigError

from .base import Plan

WEIGHT_MAX = 10
"""Maximum weight of a server. The minimum weight is 1, so a peer serves at most this many times as
often as another peer."""

_HINT = (
    "as in 0:4,2:2: peer 0 serves four times as often as other peers, peer 2 twice as often; 1 "
    f"to {WEIGHT_MAX}"
)
_PAIR = re.compile(r"\s*(\d{1,4})\s*:\s*(\d{1,4})\s*", re.ASCII)


@lru_cache(maxsize=64)
def read_weights(text: str) -> Mapping[int, int]:
    """Return peer -> weight, by ascending peer, without peers of weight 1.

    Raises: ConfigError: The text does not have the form ``0:4,2:2``, names a peer twice, or has a
    weight outside 1 to ``WEIGHT_MAX``.
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
    """Return the text that ``read_weights`` reads; "" if all weights are 1."""
    return ",".join(f"{peer}:{weight}" for peer, weight in sorted(weights.items()) if weight > 1)


@lru_cache(maxsize=64)
def lots(text: str, peers: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of lots of each peer in a round. The lowest lot of all peers determines the
    server, so peers serve in proportion to their numbers of lots."""
    given = read_weights(text)
    bounded = within_bounds([given.get(peer, 1) for peer in peers])
    # With equal weights each peer has one lot, so the order is the same as without weights.
    shared = gcd(*bounded) or 1
    return tuple([weight // shared for weight in bounded])


def within_bounds(weights: Sequence[int]) -> list[int]:
    """Return the effective weights. No peer has more weight than all other peers together, so other
    peers serve in at least half of the rounds."""
    most = max(1, sum(weights) - max(weights, default=1))
    return [min(weight, most) for weight in weights]


def pull_of(plan: Plan, receiver: int, sender: int) -> float:
    """Return the factor for the difference between the sender's and the receiver's vectors. If the
    plan has Metropolis weights, the mean of the receiver and its neighbours has them with this
    factor: 1 / (1 + the larger degree of both ends). Otherwise the factor is 1."""
    if not plan.metropolis or plan.pushes is None:
        return 1.0
    degrees = [len(plan.pushes.get(peer, ())) for peer in (receiver, sender)]
    return min(1.0, (1 + degrees[0]) / (1 + degrees[1]))
