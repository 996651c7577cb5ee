"""Messages of rounds that this peer's trainer has not begun."""

from __future__ import annotations

from gossip.core import Activation, Counted, Message, Received, Withdraw


class EarlyMessages:
    """Stores these messages until their round begins. To limit memory, it stores only the message
    with the latest attempt for each type and micro-batch, and only the latest report of each
    sender."""

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
