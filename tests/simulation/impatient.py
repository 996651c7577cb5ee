"""Servers that wait for the grace alone, as they did when some seeds were found: what these are
about happens no more in them otherwise, and could still."""

from __future__ import annotations

import pytest

from gossip.core.rounds import punctuality
from gossip.core.rounds.server import Server


def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punctuality, "NOT_SLOW_S", 0.0)
    monkeypatch.setattr(punctuality, "NOT_SLOW_ROUNDS", 0.0)
    take = Server.accept_update

    def observed(self, shard, sender, update, payload, now):  # type: ignore[no-untyped-def]
        if (
            sender == self.local
            and update.attempt == shard.served.attempt
            and shard.served.ticket is None
        ):
            self.patience.deadline.observe(
                now - shard.served.first_at if shard.served.answers else 0.0
            )
        return take(self, shard, sender, update, payload, now)

    monkeypatch.setattr(Server, "accept_update", observed)
    monkeypatch.setattr(
        punctuality.LatenessTracker, "record_late_update", lambda self, sender, update, now: None
    )
