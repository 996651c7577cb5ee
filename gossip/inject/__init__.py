"""Carries faults out: on what a node sends, on its links, on its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .byzantine import (
        ByzantinePeer as ByzantinePeer,
        Letter as Letter,
        OutMessage as OutMessage,
    )
    from .faulty_node import FaultyNode as FaultyNode, Site as Site
    from .faulty_trainer import FaultyTrainer as FaultyTrainer
    from .message_attacks import LIES as LIES
    from .state_attacks import FAR_ROUNDS as FAR_ROUNDS
    from .update_attacks import rule_of as rule_of
else:
    __getattr__, __dir__ = lazy(__name__)
