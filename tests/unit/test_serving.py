"""When a server may close a round in which some keep to a result that it has refused."""

from __future__ import annotations

import pytest
from test_rolling import RollingTable, vector

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
    shard = rounds._shards[0]
    update = Update(b"lineage!", 0, 0, attempt, b"", 1, None)
    shard.answers = {peer: (update, vector(1.0)) for peer in answers}
    shard.spent, shard.attempt = set(kept), attempt
    view.gone, view.skipped = set(gone), dict.fromkeys([*gone, *skipped], "by hand")
    assert rounds.server._suffices(shard) is may
