"""The ``Hello`` messages of a peer: its model, its round, its stage and its addresses."""

from __future__ import annotations

from collections.abc import Callable

from gossip.core.events import Effect, Prepared, Received, Send
from gossip.core.messages import Hello, PeerId, Stage, Update, UpdateRequest
from gossip.core.rounds import LocalProgress
from gossip.core.settings import ANSWER_INTERVAL_S, CoreSettings
from gossip.core.view import MembersView


class HelloExchange:
    """The ``Hello`` of this peer, and its replies to the ``Hello`` messages of other peers.

    ``stage`` is ``ready`` as long as other peers may rely on this peer.

    Args:
        may_begin: Function that returns whether the run may begin with the weights of this peer. If
            not, the hello omits the digest of the weights.
    """

    def __init__(
        self,
        settings: CoreSettings,
        members: MembersView,
        progress: LocalProgress,
        address: tuple[str, str],
        may_begin: Callable[[], bool],
    ) -> None:
        self.settings, self.members, self.progress, self.address = (
            settings,
            members,
            progress,
            address,
        )
        self.layout = b""
        self.state = b""
        self.stage: Stage = "ready"
        self.asks = self.begun = False
        self._may_begin = may_begin
        # incarnation and time of the last reply, by peer
        self._answered: dict[PeerId, tuple[int, float]] = {}

    def prepare(self, event: Prepared) -> None:
        """Record the layout and state digest of the trainer's model."""
        self.layout, self.state = event.layout, event.state

    def adopt(self, state: bytes) -> None:
        """Continue with an adopted state. ``state`` is the digest of the initial weights of the
        run. In round 0, a peer with the same weights needs no state from this peer."""
        self.begun, self.state = True, state

    def ask(self, asks: bool) -> None:
        """Set ``Hello.asks``: whether hellos request a hello in reply, for the final check."""
        self.asks = asks

    def end(self, stage: Stage) -> None:
        self.stage = stage

    def begin(self) -> None:
        """Record that the run has begun, with the weights of this peer or from a checkpoint that
        all peers have loaded."""
        self.begun = True

    def hello(self) -> Hello:
        chain, side = self.progress.branch() if self.begun else (b"", ())
        return Hello(
            lineage=self.settings.lineage,
            layout=self.layout,
            state=self.state
            if self.progress.round_id == 0 and (self.begun or self._may_begin())
            else b"",
            round_id=self.progress.round_id,
            stage=self.stage,
            address=self.address[0],
            bulk=self.address[1],
            chain=chain,
            side=side,
            asks=self.asks,
            begun=self.begun,
        )

    def to(self, peer: PeerId) -> Send:
        return Send(peer, self.hello())

    def answer(self, peer: PeerId, incarnation: int, now: float) -> list[Effect]:
        """Reply to a hello, at most once in ``ANSWER_INTERVAL_S`` to the same incarnation of a
        peer. Otherwise two idle peers would reply to each other forever."""
        last, answered_at = self._answered.get(peer, (-1, 0.0))
        if last == incarnation and now - answered_at < ANSWER_INTERVAL_S:
            return []
        self._answered[peer] = incarnation, now
        return [self.to(peer)]

    def answer_missed_farewell(self, event: Received, now: float) -> list[Effect]:
        """Reply to an update or an update request with a hello, because the sender has missed the
        announcement that this peer has ended."""
        missed = isinstance(event.message, Update | UpdateRequest)
        return self.answer(event.sender, event.incarnation, now) if missed else []

    def to_all(self) -> list[Send]:
        """Return a hello for every peer within reach, including peers that have sent nothing yet.
        Such a peer may have a wrong address of this peer, so that it can receive but not send."""
        hello = self.hello()
        return [Send(peer, hello) for peer in self.members.within_reach()]
