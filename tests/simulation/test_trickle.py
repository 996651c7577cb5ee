"""Payloads of one peer that trickle: it is alive, something moves,
and nobody waits for it for long (L11)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from checked_swarm import assert_sound
from effort import effort

from gossip.faults.world import Trickle
from gossip_lab.simulation.schedules.schedule import Schedule

SMALL = Schedule(3, peers=4, shards=(8, 8), compute_s=(0.1, 0.2), active_s=28.0, duration_s=34.0)
"""A payload has 32 bytes, and takes no time."""


def trickling(bytes_per_s: float, peers: int = 4) -> Schedule:
    return replace(SMALL, peers=peers, faults=(Trickle((1,), bytes_per_s, 5.0, 20.0),))


@pytest.mark.parametrize(
    ("peers", "bytes_per_s"),
    effort([(3, 1.0), (4, 4.0), (4, 20.0)], list(product((3, 4, 8), (1.0, 4.0, 20.0)))),
)
def test_rounds_go_on_beside_a_peer_whose_payloads_trickle(peers: int, bytes_per_s: float) -> None:
    outcome = assert_sound(trickling(bytes_per_s, peers))
    assert outcome.judged["L11"] > 0
    assert outcome.struck["trickle"] == 1


def test_of_two_the_other_one_is_waited_for_once_it_is_slow_as_a_rule() -> None:
    """There is nobody else: three payloads in a row say that the link has become slower."""
    assert_sound(replace(trickling(8.0, peers=2), seed=1))
