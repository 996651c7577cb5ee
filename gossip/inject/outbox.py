"""What this node sends: what its core wants to say, or, when the fault plan makes it a liar, what
it says instead.

Lies about updates that go to everybody alike are told before the core hears of the update
(``update_attacks.UpdateAttack``).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from gossip.core import Envelope, Message, Payload, PeerId
from gossip.faults import FaultPlan, NodeAttack
from gossip.run import Journal
from gossip.transport import Transport

from .update_attacks import UpdateAttack


class Outbox:
    """Hands messages to the transport.

    Args:
        where: The round that this peer is in, for the journal.
        core: This peer's, as it is at the moment.
    """

    def __init__(
        self,
        plan: FaultPlan,
        peer: PeerId,
        peers: int,
        seed: str,
        transport: Transport,
        update_attack: UpdateAttack,
        journal: Journal,
        core: Callable[[], Any],
        where: Callable[[], int],
        rounds: int | None = None,
    ) -> None:
        self._peer, self._transport, self._update_attack, self._journal, self._where = (
            peer,
            transport,
            update_attack,
            journal,
            where,
        )
        self._planned = {fault.lie: str(fault) for fault in plan if isinstance(fault, NodeAttack)}
        self._attacker = None
        if lies := plan.lies_of(peer):
            from .byzantine import ByzantinePeer
            from .message_attacks import LIES  # for liars only

            assert LIES.keys() >= set(lies), "the plan was checked"
            self._attacker = ByzantinePeer(
                peer, tuple(range(peers)), core, Random(f"{seed}/{peer}"), lies, rounds=rounds
            )
        # Whoever is honest hands its letters to the transport itself:
        # to be able to lie costs nothing.
        self.send: Callable[[PeerId, Message, Payload | None], object] = transport.send
        if self._attacker is not None or update_attack.tells_each:
            self.send = self._send

    @property
    def ended_with(self) -> dict[str, dict[str, int]]:
        """Of a liar, how many letters each of its lies has changed or kept back."""
        return {} if self._attacker is None else {"attacks": dict(self._attacker.told)}

    def _send(self, to: PeerId, message: Message, payload: Payload | None) -> None:
        if self._update_attack.tells_each:
            payload = self._update_attack.tell(to, message, payload)
        if self._attacker is None:
            self._transport.send(to, message, payload)
            return
        before = dict(self._attacker.told)
        for receiver, said, content in self._attacker.says(
            to, Envelope(b"", self._peer, 0, message), payload
        ):
            assert isinstance(said, Envelope), "no lie of a real run sends noise"
            self._transport.send(receiver, said.message, content)
        for lie, times in self._attacker.told.items():
            if times and not before.get(lie):
                self._journal.event(
                    "fault", kind=lie, round=self._where(), fault=self._planned[lie]
                )
