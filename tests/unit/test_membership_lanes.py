"""A connection leads to an address, and the address to a life of a peer: both change,
and not at the same time.

Found by the simulator (seed 10 of the default campaign, and five more of its first twenty): a peer
that knew only the later address of another connected to it before it heard that this was a later
life; then it waited for a connection that stood.
"""

from __future__ import annotations

from member_bench import NEXT_LIFE, MemberBench, rumor

from gossip.core.events import Connect, Disconnect


def test_a_connection_that_stands_when_a_new_life_at_its_address_is_heard_of_is_used() -> None:
    bench = MemberBench(3)
    bench.speak_again(1)
    bench.gossip(2, rumor(1, "alive", NEXT_LIFE, control="c1"))
    assert bench.core.members[1].incarnation == 1
    assert bench.core.view.skip_reason(1) == ""


def test_one_that_came_up_again_before_the_news_is_used() -> None:
    bench = MemberBench(3)
    bench.link(1, up=False, reason="closed")
    bench.link(1)
    bench.speak_again(1)
    bench.gossip(2, rumor(1, "alive", NEXT_LIFE, control="c1"))
    assert bench.core.view.skip_reason(1) == ""


def test_who_left_was_disconnected_and_returns_to_the_same_address_is_connected_to_anew() -> None:
    bench = MemberBench(3)
    bench.gossip(1, rumor(1, "left", 0))
    bench.advance(bench.settings.gossip_to_dead_s + 1.0)
    assert bench.disconnects == [Disconnect(1)]
    before = len(bench.connects)
    bench.speak_again(1)
    bench.gossip(2, rumor(1, "alive", NEXT_LIFE, control="c1"))
    assert bench.connects[before:] == [Connect(1, "c1", "c1")]
    assert bench.core.view.skip_reason(1) == "connecting"
    bench.link(1)
    assert bench.core.view.skip_reason(1) == ""
