"""When a server may close a round in which some keep to a result that it has refused."""

from __future__ import annotations

import pytest
from test_rolling import RollingTable, vector

from gossip.core.events import Arriving, Received
from gossip.core.messages import Update


@pytest.mark.parametrize(
    ("answers", "kept", "gone", "skipped", "attempt", "may"),
    [
        ((0, 1), (2,), (3, 4), (), 1, True),
        ((0, 1), (), (2, 3, 4), (), 9, False),  # too few
        ((0,), (1,), (2, 3, 4), (), 9, False),  # likewise
        ((0, 1), (2,), (2, 3, 4), (2,), 9, False),  # it was here
        ((0, 1), (9,), (2, 3, 4), (), 9, False),  # of no roster
        ((0, 1), (1,), (2, 3, 4), (), 9, False),  # it has answered all the same
        ((0, 1), (2,), (3,), (4,), 4, False),  # peer 4 may come back
        ((0, 1), (2,), (3,), (4,), 5, True),  # and has not, in its turn either
        ((0, 1, 3), (), (), (), 0, True),
    ],
)
def test_who_keeps_to_a_refused_result_counts_where_nobody_else_can_come(
    answers: tuple[int, ...],
    kept: tuple[int, ...],
    gone: tuple[int, ...],
    skipped: tuple[int, ...],
    attempt: int,
    may: bool,
) -> None:
    table = RollingTable(5, f=1)
    rounds, view = table.peers[0], table.views[0]
    shard = rounds.shards[0]
    update = Update(b"lineage!", 0, 0, attempt, b"", 1, None)
    shard.served.answers = {peer: (update, vector(1.0)) for peer in answers}
    shard.rejected_from, shard.attempt = set(kept), attempt
    view.gone, view.skipped = set(gone), dict.fromkeys([*gone, *skipped], "by hand")
    assert rounds.server.quorum.suffices(shard) is may


@pytest.mark.parametrize(("payload_s", "waits"), [(0.1, False), (9.0, True)])
def test_over_slow_links_an_update_of_which_nothing_is_here_is_waited_for(
    payload_s: float, waits: bool
) -> None:
    """As it was: after 0.7 round timeouts it was late, though the links carried nothing but what
    others send for that long."""
    table = RollingTable(3)
    server = next(peer for peer in table.peers if peer.shards[0].server_of(0) == peer.local)
    shard, tracker = server.shards[0], server.patience.transfer_tracker
    server.deadline.observe_round(4.0 * payload_s)
    message = Update(b"lineage!", 0, 0, 0, b"", 1, None)
    for at in range(4):
        tracker.grew(Arriving(1, 0, message, 1, 100), float(at))
        tracker.came(Received(1, 0, message, vector(1.0)), at + payload_s)
    others = [peer.local for peer in table.peers if peer is not server]
    update = Update(b"lineage!", 0, 0, 0, server.chain, 1, None)
    shard.served.answers = {peer: (update, vector(1.0)) for peer in (server.local, others[0])}
    shard.served.attempt, shard.served.first_at = 0, 100.0
    late_at = 100.0 + server.deadline.round_timeout_s()
    tracker.record_progress(others[0], 2**20, 0.0, late_at)
    assert bool(server.server.maybe_close(shard, late_at))
    assert (shard.served.ticket is None) is waits


def test_an_update_whose_micro_batches_others_have_is_left_out_and_not_in_quarantine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was measured, and the commit named it as quarantined."""
    table = RollingTable(4)
    server = next(peer for peer in table.peers if peer.shards[0].server_of(0) == peer.local)
    shard, surplus = server.shards[0], (server.local + 1) % 4
    update = Update(b"lineage!", 0, 0, 0, server.chain, 1, None)
    shard.serve(0)
    shard.served.answers = {peer: (update, vector(1.0)) for peer in range(4)}
    chosen = [peer for peer in range(4) if peer != surplus]
    monkeypatch.setattr(server.server, "chosen", lambda shard: chosen)
    server.server._close(shard, table.now)
    assert [row.peer for row in shard.served.rows] == chosen
    assert shard.served.outside == ()
