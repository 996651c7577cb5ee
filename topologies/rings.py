"""Rings: fixed neighbours, with the least traffic and the slowest mixing."""

from __future__ import annotations

from .base import Plan, Roster, topology


@topology
def ring(roster: Roster, round_id: int, seed: int) -> Plan:
    """Each peer pushes to its two neighbours in the order of the peers' numbers, in every round
    (D-PSGD, Lian et al. 2017)."""
    order = sorted(roster.peers)
    n = len(order)

    def neighbours(at: int) -> tuple[int, ...]:
        return tuple(sorted({order[(at - 1) % n], order[(at + 1) % n]} - {order[at]}))

    return Plan(pushes={peer: neighbours(at) for at, peer in enumerate(order)})
