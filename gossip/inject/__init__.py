"""Carries faults out: on what a node sends, on its links, on its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .byzantine import Letter as Letter
    from .byzantine import Liar as Liar
    from .message_attacks import LIES as LIES
    from .outbox import Letters as Letters
    from .process import Saboteur as Saboteur
    from .state_attacks import FAR_ROUNDS as FAR_ROUNDS
    from .update_attacks import Tongue as Tongue
    from .update_attacks import rule_of as rule_of
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "byzantine": (
                "Letter",
                "Liar",
            ),
            "message_attacks": ("LIES",),
            "outbox": ("Letters",),
            "process": ("Saboteur",),
            "state_attacks": ("FAR_ROUNDS",),
            "update_attacks": (
                "Tongue",
                "rule_of",
            ),
        },
    )
