"""How many peers a round takes: for the quorum, and for the rule."""

from __future__ import annotations

from gossip.core.settings import CoreSettings


def quorum_of(settings: CoreSettings, n: int) -> int:
    """Answers without which a round of ``n`` peers is not closed."""
    return 1 if n < 3 or settings.rounds.quorum == "available" else n // 2 + 1


def needed_by_rule(settings: CoreSettings, proven: int) -> int:
    """Peers without which the rule makes nothing of a round. ``proven``: so many are proven to lie,
    which is that many fewer for the rule to tolerate; their updates are not used.

    With the quorum ``available`` it tolerates fewer rather than have the run stand still.
    """
    return (
        settings.updates_needed(0 if settings.rounds.quorum == "available" else settings.f - proven)
        + proven
    )
