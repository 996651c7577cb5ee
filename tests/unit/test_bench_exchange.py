"""``gossip bench exchange``: what its peers exchange."""

from __future__ import annotations

import pytest

from gossip.core.settings import ResultSettings
from gossip_lab.bench.side_by_side import BenchTask, Side


@pytest.mark.parametrize("peers", [2, 8, 64])
def test_no_peer_takes_the_mean_of_all_updates_for_a_lie(peers: int) -> None:
    """It did with eight, whose updates were 1 to 8 times as long: the one with the shortest refused
    every result, and the benchmark never ended."""
    task = BenchTask("vector", "cpu", 1000, 0, 1, 1, peers, "")
    updates = [Side(task, rank).gradient for rank in range(peers)]
    length = (sum(updates[1:], start=updates[0]) / peers).norm()
    longer = ResultSettings().longer
    assert all(length < longer / 2 * update.norm() for update in updates)
    assert len({float(update.norm()) for update in updates}) == peers
