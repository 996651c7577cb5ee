"""Reconstruction of the state of a stage that has lost all its members.

The first restarted peer of the stage creates a state for the round of the other stages. The other
peers of the stage receive it by state transfer. The trainer chooses the source of the state
(``RebuildState``). If the source is the layers of neighbouring stages, this peer requests them with
the same messages as a peer that joins a stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gossip.core import (
    Arriving,
    CancelTimer,
    CoreSettings,
    Donor,
    DonorTimeout,
    Effect,
    MemberTable,
    Payload,
    PeerId,
    RebuildState,
    Received,
    Recovery,
    Report,
    Restore,
    SetTimer,
    StateOffer,
    StateRebuilt,
    StateRequest,
    Timers,
    Token,
    record,
)

from .barrier import StageBarrier


@record
class RebuildTimer:
    """Timeout ``what`` of the transfer from a stage; None means the timeout of all transfers
    together."""

    stage: int
    what: DonorTimeout | None


@dataclass(eq=False)
class StageRebuild:
    """The reconstruction of the state of this stage.

    Args:
        settings: Settings of the whole run.

    Attributes:
        round_id: Round of the state that is being created; None if there is no reconstruction.
    """

    settings: CoreSettings
    barrier: StageBarrier
    members: MemberTable
    timers: Timers[Any]

    def __post_init__(self) -> None:
        self.round_id: int | None = None
        self._held = 0, b""
        self._fetching: dict[int, Recovery] = {}
        self._beside: dict[int, Payload] = {}
        self._until = 0.0  # Deadline of all transfers.

    def prepare(self, round_id: int, state: bytes) -> None:
        """Store the round and the digest of the trainer's state. Round 0 means the initial
        state."""
        self._held = round_id, state

    def held(self, round_id: int) -> StateRebuilt | None:
        """Return the state of a trainer that survived the restart of its node; None if the trainer
        has completed no round. ``round_id``: the round of the other stages."""
        step, state = self._held
        return StateRebuilt(round_id, "own", step, state) if step else None

    def begin(self, round_id: int) -> list[Effect]:
        """Request a state from the trainer, unless this was done already."""
        if self.round_id is not None:
            return []
        self.round_id = round_id
        fields = {"round": round_id, "stage": self.barrier.stage}
        return [Report("rebuilding_stage", fields), RebuildState(round_id)]

    def cancel(self) -> None:
        """End the reconstruction, because another peer has a state."""
        self.round_id = None
        self._fetching.clear()
        self._beside.clear()

    def on_rebuilt(self, event: StateRebuilt, now: float) -> tuple[list[Effect], bool]:
        """Process the reply of the trainer. Return effects, and whether the trainer has a state
        now."""
        if self.round_id is None or event.round_id != self.round_id:
            return [], False
        if event.source:
            self.cancel()
            return [], True
        self._until = now + self.settings.rounds.start_timeout_s
        effects: list[Effect] = [self.timers.set(self._until, RebuildTimer(-1, None))]
        for stage, nbytes in event.needs:
            self._fetching[stage] = fetching = self._fetch_from(stage, nbytes)
            effects += self._store_fetched(stage, fetching.begin(None, "", now))
        return effects, False

    def _fetch_from(self, stage: int, nbytes: int) -> Recovery:
        peers = self.barrier.pipeline.stages[stage]
        timers = _TimersOf(self.timers, stage)
        giving = Donor(self.settings.of_stage(peers[0]), _NoRounds(), timers)
        sources = _Beside(self.barrier, self.members, stage)
        fetching = Recovery(self.barrier.local, giving, sources, self.settings.f + 1)
        fetching.prepare(nbytes)
        return fetching

    # --- transfers from neighbouring stages -------------------------------------------------------

    def payload_bytes(self, sender: PeerId, offer: StateOffer) -> int:
        """Return the largest permitted payload of an offer from another stage, in bytes; -1 if no
        payload is permitted."""
        fetching = self._fetching.get(self._stage_of(sender))
        return -1 if fetching is None else fetching.payload_bytes(sender, offer)

    def on_message(self, event: Received, now: float) -> list[Effect]:
        """Process a message of a state transfer from another stage."""
        stage = self._stage_of(event.sender)
        fetching = self._fetching.get(stage)
        if fetching is None or isinstance(event.message, StateRequest):
            return []
        return self._store_fetched(stage, fetching.on_message(event, False, now))

    def on_arriving(self, event: Arriving, now: float) -> list[Effect]:
        fetching = self._fetching.get(self._stage_of(event.sender))
        return [] if fetching is None else fetching.on_arriving(event, now)

    def on_view_change(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for stage, fetching in tuple(self._fetching.items()):
            effects += self._store_fetched(stage, fetching.on_view_change(now))
        return effects

    def on_timer(self, timer: RebuildTimer, now: float) -> list[Effect]:
        if timer.what is None:
            return self._go_on() if self._fetching and now >= self._until else []
        if (fetching := self._fetching.get(timer.stage)) is None:
            return []
        return self._store_fetched(timer.stage, fetching.on_timer(timer.what, now))

    def _stage_of(self, peer: PeerId) -> int:
        stage = self.barrier.pipeline.stage_of(peer)
        return -1 if stage is None else stage

    def _store_fetched(self, stage: int, effects: list[Effect]) -> list[Effect]:
        """Store a received state, and return the remaining effects of its transfer. Reports are
        dropped, because they describe the state as if it were that of this peer's stage."""
        kept: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Restore):
                self._beside[stage] = effect.payload
                del self._fetching[stage]
            elif not isinstance(effect, Report):
                kept.append(effect)
        return kept + (self._go_on() if stage in self._beside and not self._fetching else [])

    def _go_on(self) -> list[Effect]:
        """Request the state from the trainer again, now with the received states."""
        assert self.round_id is not None
        self._fetching.clear()
        return [RebuildState(self.round_id, tuple(sorted(self._beside.items())), is_last=True)]


class _NoRounds:
    """Stub of the rounds for a transfer from another stage. The ledger of that stage is ignored."""

    round_id = 0

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        return None

    def check(self, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        """Accept any snapshot."""


class _Beside:
    """``StateSources`` for the members of another stage."""

    def __init__(self, barrier: StageBarrier, members: MemberTable, stage: int) -> None:
        self.barrier, self.members = barrier, members
        self._peers = barrier.pipeline.stages[stage]

    def donors(self) -> tuple[PeerId, ...]:
        return tuple([peer for peer in self._peers if not self.members.skip_reason(peer)])

    def round_of(self, peer: PeerId) -> int:
        return self.barrier.round_of(peer)

    def record_round(self, peer: PeerId, round_id: int) -> None:
        """Do nothing: the barrier receives the reports itself."""

    def note_state(self, peer: PeerId, until: float) -> None:
        """Do nothing: no peer of this stage waits for these transfers."""

    def is_gone(self, peer: PeerId) -> bool:
        return self.members.is_gone(peer)

    def met(self) -> tuple[PeerId, ...]:
        return self._peers


class _TimersOf(Timers[Any]):
    """Timers of one transfer. Among the timers of the peer, each is wrapped in a
    ``RebuildTimer``."""

    def __init__(self, timers: Timers[Any], stage: int) -> None:
        super().__init__()
        self._timers, self._stage = timers, stage

    def set(self, at: float, what: Any) -> SetTimer:
        return self._timers.set(at, RebuildTimer(self._stage, what))

    def cancel(self, token: Token | None) -> list[CancelTimer]:
        return self._timers.cancel(token)
