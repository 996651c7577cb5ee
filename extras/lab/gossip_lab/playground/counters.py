"""Counter-based random numbers: a number depends only on a name, a seed and counters such as peer
and round. So both engines of the playground draw equal numbers, in any order and for any subset of
peers."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Counter = NDArray[np.int64] | int
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def hash_counters(name: str, seed: int, *counters: Counter) -> NDArray[np.uint64]:
    """Return 64 random bits for each element of the broadcast counters.

    Source: Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators" (SplitMix64).
    """
    digest = blake2b(f"{name}/{seed}".encode(), digest_size=8).digest()
    state = np.uint64(int.from_bytes(digest, "big"))
    with np.errstate(over="ignore"):
        mixed = _mix(np.asarray(state))
        for counter in counters:
            mixed = _mix(mixed ^ _mix(np.asarray(counter, np.int64).astype(np.uint64) + _GOLDEN))
    return mixed


def draw_uniform(name: str, seed: int, *counters: Counter) -> NDArray[np.float64]:
    """Return numbers that are uniformly distributed in [0, 1)."""
    bits = hash_counters(name, seed, *counters) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def draw_normal(name: str, seed: int, *counters: Counter) -> NDArray[np.float64]:
    """Return normally distributed numbers with mean 0 and variance 1 (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-draw_uniform(f"{name}/radius", seed, *counters)))
    return np.asarray(radius * np.cos(2 * np.pi * draw_uniform(f"{name}/angle", seed, *counters)))


def draw_below(limits: Counter, name: str, seed: int, *counters: Counter) -> NDArray[np.int64]:
    """Return random integers from 0 to ``limits - 1``. The limits are broadcast with the
    counters."""
    drawn = draw_uniform(name, seed, *counters) * np.asarray(limits, np.float64)
    return np.asarray(drawn).astype(np.int64)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return np.asarray(state ^ (state >> np.uint64(31)))
