"""Fixed graphs other than rings."""

from __future__ import annotations

from .base import Plan, Roster, topology


@topology
def full(roster: Roster, round_id: int, seed: int) -> Plan:
    """Each peer pushes to every other: the most robust, and n - 1 payloads a peer and round."""
    order = sorted(roster.peers)
    return Plan(pushes={peer: tuple(other for other in order if other != peer) for peer in order})
