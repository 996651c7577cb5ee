"""Messages of rounds that this peer's trainer has not begun."""

from __future__ import annotations

from gossip.core import Activation, Counted, Message, Received, Withdraw


class EarlyMessages:
    """Stores such messages until the round begins. To limit memory, only one message per type and
    micro-batch or sender is stored: the one with the latest attempt, or the latest report."""

    def __init__(self) -> None:
        self._kept: dict[tuple[type, int], Received] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, event: Received, message: Message, of_stage: bool) -> None:
        """Store a message. ``of_stage``: whether the sender is a member of this stage."""
        if isinstance(message, Counted):
            if of_stage:
                self._kept[Counted, event.sender] = event
        elif isinstance(message, Activation | Withdraw):
            key = type(message), message.micro_batch
            held = self._kept[key].message if key in self._kept else message
            assert isinstance(held, Activation | Withdraw)
            if held.attempt <= message.attempt:
                self._kept[key] = event

    def drain(self) -> list[Received]:
        events = list(self._kept.values())
        self._kept.clear()
        return events
