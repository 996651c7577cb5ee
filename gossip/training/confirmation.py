"""Whether others are known to hold the parameters that a script ends with: what it asked its node, and what that said."""

from __future__ import annotations

from dataclasses import dataclass

from gossip.ipc import Confirm, Confirmed


@dataclass(slots=True)
class Confirmation:
    """``said``: by the node, of what was asked last; None: nothing yet. ``asked_at``: the round before which that was."""

    said: Confirmed | None = None
    asked_at: int = -1

    def ask(self, round_id: int) -> Confirm:
        """The script has had all its rounds before ``round_id``."""
        self.said, self.asked_at = None, round_id
        return Confirm(round_id)

    def is_known(self, round_id: int) -> bool:
        """Whether enough others hold what we hold before ``round_id``."""
        return self.said == Confirmed(round_id, True)

    def verdict(self, round_id: int) -> bool | None:
        """Likewise; None when nobody was asked about that round."""
        return self.is_known(round_id) if self.asked_at >= 0 else None
