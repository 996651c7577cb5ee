"""Which of the random schedules hand on states in pieces, and who lies about these, does not send
them, or asks for too many."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gossip.faults import PIECE_ATTACKS, Fault, NodeAttack, Restart

IN_PIECES, PIECES_BYTES = 0.5, (4, 8, 20)  # of a state: a small part, or more than half of it
ATTACKER = 0.5
"""Of those with rolling rounds, in which others vouch for the pieces;
and with enough peers for that."""
BYZANTINE_PEERS = 4  # who asks, and 2f + 1 others
ASKING = 3  # are started again
EARLY_S = 2.0  # others have not been killed for good by then


def draw_pieces(seed: int) -> int | None:
    """Bytes of a piece; None: states go in one."""
    lot = Random(f"schedule/{seed}/pieces")
    return lot.choice(PIECES_BYTES) if lot.random() < IN_PIECES else None


def draw_attacker_of_pieces(seed: int, n: int, active_s: float) -> list[Fault]:
    """One of ``n`` peers who lies about pieces, or asks for each five times; and who asks for some.
    Empty: nobody does."""
    lot = Random(f"schedule/{seed}/liar of pieces")
    if lot.random() >= ATTACKER or n < BYZANTINE_PEERS:
        return []
    attacker, *others = lot.sample(range(n), n)
    times = [round(lot.uniform(EARLY_S, active_s - 0.5), 3) for _ in range(ASKING)]
    asking = [
        Restart(peer, None, round(lot.uniform(0.01, 1.0), 3), at_s)
        for peer, at_s in zip(others, times, strict=False)
    ]
    lie = lot.choice((*PIECE_ATTACKS, "swapped_states", "flood"))
    if lie == "flood":
        asking[0] = replace(asking[0], peer=attacker)
    return [*asking, NodeAttack(lie, (attacker,))]
