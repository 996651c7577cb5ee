"""Peers that compute one gradient are noticed, and nobody else."""

from __future__ import annotations

import numpy as np

from gossip.core import Payload, PeerId, Row
from gossip.node.identical import IdenticalUpdates


def rows(*updates: np.ndarray) -> tuple[Row, ...]:
    return tuple([Row(peer, Payload(data, data.nbytes), 8) for peer, data in enumerate(updates)])


def noise(seed: int, elements: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(elements).astype(np.float32)


def looked_at(*updates: np.ndarray) -> tuple[PeerId, ...]:
    return IdenticalUpdates().find_identical(rows(*updates))


def test_those_that_are_the_same_to_the_last_bit_are_named() -> None:
    assert looked_at(noise(1), noise(2), noise(1), noise(3), noise(1)) == (0, 2, 4)


def test_one_bit_makes_another() -> None:
    other = noise(1)
    other[777] = np.nextafter(other[777], np.float32(9))
    assert looked_at(noise(1), other) == ()
    assert looked_at(noise(1)) == ()
    assert looked_at() == ()


def test_zeros_say_nothing() -> None:
    sparse = np.zeros(10_000, np.float32)
    sparse[5] = 1.0
    assert looked_at(sparse, sparse.copy()) == ()


def test_it_is_said_once() -> None:
    look = IdenticalUpdates()
    assert look.find_identical(rows(noise(1), noise(2))) == ()
    assert look.find_identical(rows(noise(1), noise(1))) == (0, 1)
    assert look.find_identical(rows(noise(1), noise(1))) == ()


def test_the_few_numbers_of_a_dead_model_are_not_named() -> None:
    dead = np.zeros(64, np.float32)
    dead[-3:] = 0.25, -0.5, 0.25
    assert looked_at(dead, dead.copy()) == ()
