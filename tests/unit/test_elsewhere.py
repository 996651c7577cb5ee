"""What is kept of rounds to come."""

from __future__ import annotations

from gossip.core.events import Received
from gossip.core.messages import UpdateRequest
from gossip.core.rounds.future_buffer import FutureBuffer


def query(sender: int, life: int, round_id: int = 7) -> Received:
    return Received(sender, life, UpdateRequest(b"lineage!", round_id, 0, 0, b"parent"), None)


def test_what_a_former_life_has_said_is_void_as_soon_as_the_next_one_speaks() -> None:
    kept = FutureBuffer()
    for sender, life in ((1, 0), (2, 3)):
        kept.stash(6, 7, query(sender, life), 0)
    kept.begins_anew(1, 1)
    kept.begins_anew(2, 3)
    assert [event.sender for event in kept.pop_round(7)] == [2]
