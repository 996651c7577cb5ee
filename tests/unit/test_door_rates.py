"""How much each sender may ask."""

from __future__ import annotations

from gossip.launch.registry.sender_rates import SENDERS_MAX, SenderRateLimiter


def test_so_many_at_once_and_then_so_many_a_second() -> None:
    allowance = SenderRateLimiter(2.0, 5.0)
    assert [allowance.consume_units("a", 1.0, 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert [allowance.consume_units("a", 1.0, 1.0) for _ in range(3)] == [True, True, False]
    assert allowance.consume_units("a", 5.0, 100.0), "what is saved up"
    assert not allowance.consume_units("a", 1.0, 100.0), "is never more than so many"


def test_one_that_asks_too_much_costs_no_other_anything() -> None:
    allowance = SenderRateLimiter(1.0, 2.0)
    while allowance.consume_units("loud", 1.0, 0.0):
        pass
    assert allowance.consume_units("quiet", 2.0, 0.0)


def test_however_many_senders_there_are_they_take_no_more_room() -> None:
    allowance = SenderRateLimiter(1.0, 1.0)
    for number in range(2 * SENDERS_MAX):
        allowance.consume_units(str(number), 1.0, 0.0)
    assert len(allowance._left) == SENDERS_MAX
