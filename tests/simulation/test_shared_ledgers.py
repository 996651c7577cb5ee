"""A ledger that peers share is the ledger that each of them would compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checked_swarm import core_settings, peer_swarm, toy_trainers

from gossip.core.ledger import Ledger
from gossip.core.peer import Peer
from gossip.core.settings import TrustSettings
from gossip_lab.simulation.world import SharedLedgers
from gossip_lab.simulation.world.driver import Swarm

N, ROUNDS, BYZANTINE, SLOW, RESTARTED = 6, 60, 4, 5, 2


def swarm_of(ledgers: SharedLedgers | None) -> Swarm[Peer]:
    """Peers of which one sends updates that are not finite, one is slow, and one restarts."""
    settings = core_settings(N, 3, f=1, trust=TrustSettings(quarantine_rounds=12, parole_rounds=8))
    swarm = peer_swarm(
        settings,
        toy_trainers(
            3,
            compute_s=(0.095, 0.105),
            by_samples=True,
            slowness={peer: 4.0 if peer == SLOW else 1.0 for peer in range(N)},
            lie={peer: _not_finite if peer == BYZANTINE else None for peer in range(N)},
        ),
        share=ledgers,
    )
    swarm.run_until(_is_in(swarm, 15), limit_s=60)
    swarm.restart(RESTARTED)
    swarm.run_until(_is_in(swarm, ROUNDS), limit_s=60)
    return swarm


def _not_finite(update: Any, round_id: int) -> Any:
    return np.full_like(update, np.nan)


def _is_in(swarm: Swarm[Peer], round_id: int) -> Callable[[], bool]:
    return lambda: min(core.rounds.round_id for core in swarm.cores.values()) >= round_id


def test_shared_ledgers_change_nothing_but_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    applied, apply = [0], Ledger.apply

    def counted(ledger: Ledger, commits: Any) -> Any:
        applied[0] += 1
        return apply(ledger, commits)

    monkeypatch.setattr(Ledger, "apply", counted)
    own = swarm_of(None)
    of_each, applied[0] = applied[0], 0
    shared = swarm_of(SharedLedgers())
    assert shared.trace_hash == own.trace_hash
    for peer in range(N):
        assert shared.reports(peer) == own.reports(peer)
        assert shared.commits(peer) == own.commits(peer)
        ours, theirs = (swarm.cores[peer].rounds for swarm in (shared, own))
        assert ours.snapshot(ours.round_id) == theirs.snapshot(theirs.round_id) is not None
    # All that the ledger has to hold has come about.
    events = {report.event for host in shared.hosts.values() for _, report in host.reports}
    assert {"quarantined", "parole", "share", "epoch", "restored"} <= events
    rounds = max(core.rounds.round_id for core in shared.cores.values())
    assert of_each > (N - 1) * rounds
    assert applied[0] == rounds


def test_a_peer_with_an_adopted_state_shares_again() -> None:
    swarm = swarm_of(SharedLedgers())
    assert swarm.reports(RESTARTED, "restored")
    by_round: dict[int, list[Ledger]] = {}
    for core in swarm.inspections.values():
        by_round.setdefault(core.rounds.round_id, []).append(core.rolling.replicated.ledger)
    assert any(len(ledgers) > 1 for ledgers in by_round.values())
    for ledgers in by_round.values():
        assert all(ledger is ledgers[0] for ledger in ledgers)
