"""Sends the messages of this node's core, or false messages if the fault plan makes the node
Byzantine.

A false update that is the same for all peers is not created here: ``faulty_node.FaultyCore``
    replaces the update before the core receives it.
"""

from __future__ import annotations

from collections.abc import Callable

from gossip.core import Envelope, Message, Payload, PeerId

from .byzantine import ByzantinePeer
from .update_attacks import UpdateAttack


class Outbox:
    """Sender of messages over the transport.

    Args:
        send: Sends a message over the transport.
        attacker: The Byzantine peer; None if this node is honest or falsifies only its updates.
        report_attack: Called at the first message of each attack.
    """

    def __init__(
        self,
        send: Callable[[PeerId, Message, Payload | None], object],
        update_attack: UpdateAttack,
        attacker: ByzantinePeer | None,
        report_attack: Callable[[str], None],
    ) -> None:
        self._forward, self._update_attack = send, update_attack
        self.attacker, self._report_attack = attacker, report_attack
        self.send = send
        if attacker is not None or update_attack.tells_each:
            self.send = self._send

    def _send(self, to: PeerId, message: Message, payload: Payload | None) -> None:
        if self._update_attack.tells_each:
            payload = self._update_attack.replace_payload(to, message, payload)
        if self.attacker is None:
            self._forward(to, message, payload)
            return
        before = dict(self.attacker.told)
        for receiver, envelope, content in self.attacker.disguise(
            to, Envelope(b"", self.attacker.peer, 0, message), payload
        ):
            assert isinstance(envelope, Envelope), "no attack of a real run sends noise"
            self._forward(receiver, envelope.message, content)
        for lie, times in self.attacker.told.items():
            if times and not before.get(lie):
                self._report_attack(lie)
