"""What a peer says of itself to others: which model it trains, how far it is, whether it goes on,
where it is reached."""

from __future__ import annotations

from collections.abc import Callable

from gossip.core.events import Effect, Prepared, Received, Send
from gossip.core.membership import MemberTable, StageView
from gossip.core.messages import Hello, PeerId, Stage, Update, UpdateRequest
from gossip.core.rounds import LocalProgress
from gossip.core.settings import CoreSettings

# to the same life of a peer: two that are in round 0 would answer each other's answers for ever
ANSWER_EVERY_S = 0.1


class HelloExchange:
    """``stage``: unless it is ``ready``, nobody is to expect anything of us any more.

    Args:
        may_begin: Whether the run may begin with our weights; unless it may,
            others do not hear of them.
    """

    def __init__(
        self,
        settings: CoreSettings,
        members: MemberTable | StageView,
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
        self._answered: dict[PeerId, tuple[int, float]] = {}  # which life of a peer, and when

    def prepare(self, event: Prepared) -> None:
        """The trainer has built its model."""
        self.layout, self.state = event.layout, event.state

    def adopt(self, state: bytes) -> None:
        """The run goes on here with another's state. ``state``: the weights that it began with;
        whoever has the same needs none of ours."""
        self.begun, self.state = True, state

    def ask(self, asks: bool) -> None:
        """Whether others are to say what they hold."""
        self.asks = asks

    def end(self, stage: Stage) -> None:
        self.stage = stage

    def begin(self) -> None:
        """The run begins with our weights, or goes on from the checkpoint that all have loaded."""
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
        """To a hello, but not to each: between two whom nothing else occupies every answer would
        call for another."""
        life, answered_at = self._answered.get(peer, (-1, 0.0))
        if life == incarnation and now - answered_at < ANSWER_EVERY_S:
            return []
        self._answered[peer] = incarnation, now
        return [self.to(peer)]

    def again(self, event: Received, now: float) -> list[Effect]:
        """To one that counts on us though we have said that we go on no more:
        it has missed that."""
        missed = isinstance(event.message, Update | UpdateRequest)
        return self.answer(event.sender, event.incarnation, now) if missed else []

    def to_all(self) -> list[Send]:
        """Also to those who have not spoken yet: one that was told a false address of ours
        can only hear us."""
        hello = self.hello()
        return [Send(peer, hello) for peer in self.members.within_reach()]
