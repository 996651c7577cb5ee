"""Rounds of a large swarm, of which the benchmark ``many_peers.py`` is told, in small."""

from __future__ import annotations

import pytest

from gossip.transport.codec import HEADER_BYTES_MAX
from gossip_lab.simulation.campaign.many_peers import ManyPeers, many_peers, measure_speed

PEERS_MOST = 1000


def test_who_joins_and_who_comes_back_hold_what_all_hold_and_messages_grow_with_the_peers() -> None:
    few, more = (many_peers(ManyPeers(n, rounds=14)) for n in (6, 12))
    for found in (few, more):
        assert found.together
        assert found.rounds >= 14
        # each sends an update to the server, and the server a commit to each
        assert found.sent["Commit"] >= 14 * (found.n - 1) - 3
        assert found.sent["StateOffer"] >= 2, "a newcomer and one that came back took a state"
        assert found.most_sent_bytes > found.largest["Commit"] * (found.n - 2)
    for kind, nbytes in more.largest.items():
        each = max(0, nbytes - few.largest[kind]) / (more.n - few.n)
        assert nbytes + each * (PEERS_MOST - more.n) < HEADER_BYTES_MAX, kind


def test_peers_of_gossip_rounds_stay_close_whoever_joins_and_comes_back() -> None:
    found = many_peers(ManyPeers(8, rounds=14, topology="random-k"))
    assert found.together
    assert found.sent["Push"] >= 14 * found.n
    assert found.sent["StateOffer"] >= 2
    assert "Commit" not in found.sent


def test_nobody_greets_whom_it_knows_from_the_start() -> None:
    """Else a thousand greetings by each of a thousand peers are what is measured."""
    found = many_peers(ManyPeers(10, rounds=14))
    for_two_who_come = 20 * found.n
    assert found.sent["Hello"] < for_two_who_come
    assert found.sent["PushPull"] < 8 * found.n


@pytest.mark.parametrize("topology", ["rolling", "random-k"])
def test_the_speed_is_that_of_the_rounds_that_were_played(topology: str) -> None:
    found = measure_speed(ManyPeers(8, rounds=4, topology=topology))
    assert (found.n, found.rounds, found.topology) == (8, 4, topology)
    assert 10 < found.events_per_peer_round < 30
    assert found.peer_rounds_per_s > 0
