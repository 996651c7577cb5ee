"""Carries faults out: on what a node sends, on its links, on its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .byzantine import ByzantinePeer as ByzantinePeer
    from .byzantine import OutMessage as OutMessage
    from .message_attacks import LIES as LIES
    from .outbox import Outbox as Outbox
    from .process import FaultInjector as FaultInjector
    from .state_attacks import FAR_ROUNDS as FAR_ROUNDS
    from .update_attacks import UpdateAttack as UpdateAttack
    from .update_attacks import rule_of as rule_of
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "byzantine": (
                "OutMessage",
                "ByzantinePeer",
            ),
            "message_attacks": ("LIES",),
            "outbox": ("Outbox",),
            "process": ("FaultInjector",),
            "state_attacks": ("FAR_ROUNDS",),
            "update_attacks": (
                "UpdateAttack",
                "rule_of",
            ),
        },
    )
