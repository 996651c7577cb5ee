"""How long a suspect has, and what kills it: formulas of docs/design_notes.md N3."""

from __future__ import annotations

from math import log, log10

import pytest

from gossip.core.membership.awareness import Awareness
from gossip.core.membership.suspicion import (
    Suspicion,
    confirmations_wanted,
    longest_s,
    shortest_s,
    timeout_s,
)
from gossip.core.settings import MembershipSettings

SETTINGS = MembershipSettings()


def test_the_shortest_time_is_flat_up_to_ten_peers_and_grows_with_log_n() -> None:
    assert shortest_s(1, SETTINGS) == shortest_s(10, SETTINGS) == pytest.approx(0.8)
    assert shortest_s(64, SETTINGS) == pytest.approx(4 * log10(64) * 0.2)
    assert longest_s(64, SETTINGS) == pytest.approx(6 * shortest_s(64, SETTINGS))


def test_a_lone_accuser_waits_the_longest_time_and_two_confirmers_bring_the_shortest() -> None:
    assert timeout_s(0, 8, SETTINGS) == pytest.approx(4.8)
    assert timeout_s(1, 8, SETTINGS) == pytest.approx(4.8 - 4.0 * log(2) / log(3))
    assert timeout_s(2, 8, SETTINGS) == timeout_s(5, 8, SETTINGS) == pytest.approx(0.8)


@pytest.mark.parametrize(("n", "wanted"), [(1, 0), (2, 0), (3, 0), (4, 2), (8, 2)])
def test_confirmations_are_not_waited_for_where_nobody_can_give_them(n: int, wanted: int) -> None:
    assert confirmations_wanted(n, SETTINGS) == wanted
    assert (timeout_s(0, n, SETTINGS) == shortest_s(n, SETTINGS)) == (wanted == 0)


def test_more_confirmers_never_give_more_time() -> None:
    for n in range(1, 65):
        times = [timeout_s(confirmers, n, SETTINGS) for confirmers in range(n)]
        assert times == sorted(times, reverse=True)
        assert min(times) >= shortest_s(n, SETTINGS)


def test_a_death_needs_an_own_failed_probe_or_two_accusers_and_no_answer() -> None:
    assert not Suspicion(0.0, {1: None}).proven
    assert Suspicion(0.0, {1: None}, own=True).proven
    assert Suspicion(0.0, {1: None, 2: None}).proven
    assert not Suspicion(0.0, {1: None, 2: None}, answered_since=True).proven


def test_a_hurried_suspicion_gets_the_shortest_time_whoever_confirms() -> None:
    assert Suspicion(1.0, {1: None}, hurried=True).deadline(8, SETTINGS) == pytest.approx(1.8)
    assert Suspicion(1.0, {1: None}).deadline(8, SETTINGS) == pytest.approx(5.8)


def test_awareness_stays_between_healthy_and_its_maximum() -> None:
    awareness = Awareness(8)
    awareness.improve()
    assert awareness.scale(0.2) == 0.2
    awareness.worsen(100)
    assert awareness.scale(0.2) == pytest.approx(8 * 0.2)
    awareness.improve()
    assert awareness.scale(0.2) == pytest.approx(7 * 0.2)
