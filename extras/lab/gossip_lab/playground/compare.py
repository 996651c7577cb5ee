"""Bitwise comparison of the two engines on one world, round by round."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .moments import Moment
from .parts import Parts
from .played import measure

PEERS_MAX = 16
"""Maximum number of peers for a comparison: the exact engine plays this many peers within
seconds."""


class EngineState(NamedTuple):
    """State of a world in one engine, after the last compared round.

    Attributes:
        accuracy: Mean accuracy of the present honest replicas, 0 to 1.
        virtual_s: Virtual time in seconds.
        bytes_sent: Total bytes of all payloads sent so far.
    """

    accuracy: float
    virtual_s: float
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison.

    Attributes:
        rounds: Number of rounds that both engines have played.
        first_difference: First round (the rounds count from 0) after which the parameters of the
            present peers differ in any bit; None if they are equal after all rounds.
        exact, fast: State of the world in this engine after the last round.
    """

    rounds: int
    first_difference: int | None
    exact: EngineState
    fast: EngineState

    def __str__(self) -> str:
        same = f"all parameters are equal in {self.rounds} rounds"
        differ = f"parameters differ from round {self.first_difference} on"
        ends = ", ".join(
            [
                f"{name}: accuracy {each.accuracy:.4f} after {each.virtual_s:.3f} s and "
                f"{each.bytes_sent} bytes"
                for name, each in (("exact", self.exact), ("fast", self.fast))
            ]
        )
        return f"{same if self.first_difference is None else differ}; {ends}"


def compare(
    exact: Iterator[Moment], fast: Iterator[Moment], parts: Parts, rounds: int
) -> Comparison:
    """Play a world in both engines, and compare the parameters after each round.

    Args:
        parts: Parts of the world, needed to measure the accuracy.
        rounds: Number of rounds, at least 1.
    """
    pairs = zip(exact, fast, strict=False)  # both iterators are infinite
    first_difference = None
    for one, other in itertools.islice(pairs, rounds):
        if first_difference is None and one.digest() != other.digest():
            first_difference = one.rounds - 1
    return Comparison(rounds, first_difference, _state(one, parts), _state(other, parts))


def _state(moment: Moment, parts: Parts) -> EngineState:
    rows = measure(moment, parts)
    accuracy = next(row.value for row in rows if row.metric == "mean")
    return EngineState(accuracy, moment.virtual_s, moment.bytes_sent)
