"""Who was refused is told once, and whoever knocks with many keys or from many places keeps nobody
else from being told."""

from __future__ import annotations

from collections import Counter

from gossip.transport.strangers import (
    FORGET_S,
    NOTICE_S,
    OF_AN_ADDRESS_MAX,
    STRANGERS_MAX,
    TOLD_MAX,
    RefusedKeys,
)


def by_address(strangers: RefusedKeys) -> Counter[str]:
    """Return how many keys of each address are kept."""
    return Counter(address for _, address in strangers._since.values())


def nobody(key: str) -> bool:
    return False


def told(strangers: RefusedKeys, now: float) -> list[tuple[str, str]]:
    """What is told at that time of those who were looked at once before."""
    list(strangers.keys_to_report(now - NOTICE_S, nobody))
    return list(strangers.keys_to_report(now, nobody))


def test_a_stranger_is_told_of_once_and_again_when_it_comes_back_later() -> None:
    strangers = RefusedKeys()
    strangers.refuse("key", "10.0.0.1")
    assert not list(strangers.keys_to_report(100.0, nobody))
    assert not list(strangers.keys_to_report(100.0 + NOTICE_S / 2, nobody)), (
        "its key may be on its way"
    )
    assert list(strangers.keys_to_report(100.0 + NOTICE_S, nobody)) == [("key", "10.0.0.1")]
    strangers.refuse("key", "10.0.0.1")
    assert not list(strangers.keys_to_report(110.0, nobody))
    assert strangers.settled(110.0) == []
    assert strangers.settled(102.0 + FORGET_S) == ["10.0.0.1"]
    assert not list(strangers.keys_to_report(103.0 + FORGET_S, nobody)), "it has gone"
    strangers.refuse("key", "10.0.0.1")
    assert told(strangers, 300.0) == [("key", "10.0.0.1")]


def test_one_whose_key_has_come_is_told_of_never() -> None:
    strangers = RefusedKeys()
    strangers.refuse("key", "10.0.0.1")
    assert not list(strangers.keys_to_report(0.1, nobody))
    assert not list(strangers.keys_to_report(50.0, lambda key: key == "key"))
    assert not by_address(strangers)


def test_a_host_with_many_keys_is_told_of_once_and_leaves_room_for_others() -> None:
    strangers = RefusedKeys()
    for number in range(10 * STRANGERS_MAX):
        strangers.refuse(f"key-{number}", "10.6.6.6")
    assert by_address(strangers) == {"10.6.6.6": OF_AN_ADDRESS_MAX}
    strangers.refuse("key", "10.0.0.1")
    assert told(strangers, 100.0) == [("key-0", "10.6.6.6"), ("key", "10.0.0.1")]


def test_many_hosts_fill_no_more_than_there_is_and_who_comes_last_is_still_taken() -> None:
    strangers = RefusedKeys()
    for number in range(10 * STRANGERS_MAX):
        strangers.refuse(f"key-{number}", f"10.6.{number // 250}.{number % 250}")
    strangers.refuse("key", "10.0.0.1")
    assert by_address(strangers).total() == STRANGERS_MAX
    assert by_address(strangers)["10.0.0.1"] == 1
    assert len(told(strangers, 100.0)) == TOLD_MAX
    assert not told(strangers, 120.0)
    assert len(strangers.settled(100.0 + FORGET_S)) == TOLD_MAX
