"""Links that a network fault affects. Used by the simulator and by the nodes of real runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from .world import Break, Partition, Ring, Trickle, Unreadable, Weather

Link: TypeAlias = tuple[int, int]
"""Directed link: the sender and the receiver."""


def severed(fault: Break) -> Iterator[Link]:
    """Yield the links that carry no messages while the fault is active. With ``Flap`` the yielded
    links are broken only part of that time."""
    match fault:
        case Partition():
            yield from _across(fault)
        case Ring():
            yield from _beyond(fault)
        case _:
            yield fault.peers[0], fault.peers[1]
            yield fault.peers[1], fault.peers[0]


def _across(fault: Partition) -> Iterator[Link]:
    for i, left in enumerate(fault.sides):
        for right in fault.sides[i + 1 :]:
            for a in left:
                for b in right:
                    yield a, b
                    if not fault.one_way:
                        yield b, a


def _beyond(fault: Ring) -> Iterator[Link]:
    """Yield the links between peers that are not neighbours in the ring."""
    order, n = fault.peers, len(fault.peers)
    for i, a in enumerate(order):
        for j, b in enumerate(order):
            if (j - i) % n not in (0, 1, n - 1):
                yield a, b


def near(fault: Weather, peers: Iterable[int]) -> list[Link]:
    """Return the links that a network fault affects: all links from and to its peers, or all links
    if it names no peers. Trickle and Unreadable affect only the links from their peers, because
    they concern sent payloads."""
    everybody = tuple(peers)
    links = [(a, b) for a in everybody for b in everybody if a != b]
    if isinstance(fault, Trickle | Unreadable):
        return [link for link in links if link[0] in fault.peers]
    return [
        link
        for link in links
        if not fault.peers or link[0] in fault.peers or link[1] in fault.peers
    ]
