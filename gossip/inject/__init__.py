"""Injects faults into the messages of a node, its links, and its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .byzantine import (
        ByzantinePeer,
        Instead,
        Letter,
        OutMessage,
        lie,
    )
    from .faulty_node import FaultyNode, Site
    from .faulty_trainer import FaultyTrainer
    from .message_attacks import LIES
    from .state_attacks import FAR_ROUNDS
    from .update_attacks import rule_of
else:
    __getattr__, __dir__ = lazy(__name__)
