"""The table of members: who is counted, and who is drawn from a large swarm."""

from __future__ import annotations

from random import Random

import pytest

from gossip.core.membership.table import Member, MemberTable
from gossip.core.settings import SCANNED_MEMBERS


def view_of(n: int, linked: range) -> MemberTable:
    view = MemberTable(Member(0, 0, met=True))
    for peer in range(1, n):
        view.add(Member(peer, 0, linked=peer in linked))
    return view


def test_those_present_are_counted_as_they_come_and_go() -> None:
    view = view_of(4, range(0))
    assert len(view) == 1
    for peer in (1, 2, 3):
        view.place(view.members[peer], "alive", met=True)
    view.place(view.members[1], "suspect", met=True)
    assert len(view) == 4
    view.place(view.members[1], "dead", met=True)
    view.place(view.members[2], "left", met=True)
    view.place(view.members[2], "dead", met=True)
    assert len(view) == 2 == sum(1 for _ in view.present())
    view.place(view.members[1], "alive", met=True)
    assert len(view) == 3


@pytest.mark.parametrize("n", [SCANNED_MEMBERS // 2, 4 * SCANNED_MEMBERS])
@pytest.mark.parametrize("able", [0, 1, 2, 20])
def test_a_sample_holds_each_once_and_only_those_that_fit(n: int, able: int) -> None:
    view = view_of(n, range(5, 5 + able))
    for seed in range(20):
        found = [
            member.peer for member in view.sample(Random(seed), 3, lambda member: member.linked)
        ]
        assert len(found) == len(set(found)) == min(3, able)
        assert set(found) <= set(range(5, 5 + able))


@pytest.mark.parametrize("n", [SCANNED_MEMBERS // 2, 4 * SCANNED_MEMBERS])
def test_everybody_that_fits_is_drawn_about_as_often(n: int) -> None:
    view, rng = view_of(n, range(1, n)), Random(1)
    draws = 200 * n // 3
    counts = dict.fromkeys(range(1, n), 0)
    for _ in range(draws):
        for member in view.sample(rng, 3, lambda member: member.linked):
            counts[member.peer] += 1
    assert min(counts.values()) > 120
    assert max(counts.values()) < 300
