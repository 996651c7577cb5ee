"""Whether enough other peers hold the parameters that a script ends with: the trainer's question,
and its node's answer."""

from __future__ import annotations

from dataclasses import dataclass

from gossip.ipc import ConfirmReply, ConfirmRequest


@dataclass(slots=True)
class StateConfirmation:
    """``said``: the node's answer to the last question; None: there is none yet. ``asked_at``: the
    question was about the parameters before this round; -1: nothing was asked."""

    said: ConfirmReply | None = None
    asked_at: int = -1

    def ask(self, round_id: int) -> ConfirmRequest:
        """The script has had all its rounds before ``round_id``."""
        self.said, self.asked_at = None, round_id
        return ConfirmRequest(round_id)

    def is_known(self, round_id: int) -> bool:
        """Whether enough others hold what we hold before ``round_id``."""
        return self.said == ConfirmReply(round_id, True)

    def verdict(self, round_id: int) -> bool | None:
        """Likewise; None when nobody was asked about that round."""
        return self.is_known(round_id) if self.asked_at >= 0 else None
