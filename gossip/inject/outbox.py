"""Messages that this node sends: those of its core or, when the fault plan makes it Byzantine,
others in their place.

False updates that are the same to all peers are made before the core receives the update
(``faulty_node.FaultyCore``).
"""

from __future__ import annotations

from collections.abc import Callable

from gossip.core import Envelope, Message, Payload, PeerId

from .byzantine import ByzantinePeer
from .update_attacks import UpdateAttack


class Outbox:
    """Hands messages to the transport.

    Args:
        send: The transport's.
        attacker: The Byzantine peer; None: this node is honest about all but its updates.
        report_attack: Called when a lie is sent for the first time.
    """

    def __init__(
        self,
        send: Callable[[PeerId, Message, Payload | None], object],
        update_attack: UpdateAttack,
        attacker: ByzantinePeer | None,
        report_attack: Callable[[str], None],
    ) -> None:
        self._hand_over, self._update_attack = send, update_attack
        self.attacker, self._report_attack = attacker, report_attack
        self.send = send
        if attacker is not None or update_attack.tells_each:
            self.send = self._send

    def _send(self, to: PeerId, message: Message, payload: Payload | None) -> None:
        if self._update_attack.tells_each:
            payload = self._update_attack.replace_payload(to, message, payload)
        if self.attacker is None:
            self._hand_over(to, message, payload)
            return
        before = dict(self.attacker.told)
        for receiver, said, content in self.attacker.disguise(
            to, Envelope(b"", self.attacker.peer, 0, message), payload
        ):
            assert isinstance(said, Envelope), "no lie of a real run sends noise"
            self._hand_over(receiver, said.message, content)
        for lie, times in self.attacker.told.items():
            if times and not before.get(lie):
                self._report_attack(lie)
