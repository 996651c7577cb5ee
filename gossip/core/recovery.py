"""Handing the state to a peer that joins, returns or has lost the thread; and taking it.

The taker asks one donor after the other until one delivers, checks the digest, restores, then follows the commits made
meanwhile until a commit names it in the roster. A donor's trainer packs its state between two rounds, once for all who ask.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

from .events import Effect, Payload, Report, Restore, Restored, Send, SnapshotTaken, TakeSnapshot
from .messages import PeerId, StateOffer, StateRequest
from .record import record
from .settings import CoreSettings
from .timers import Timers

STATE_SLACK = 2**20  # a donor's packed state may be this much, and half, larger than ours

TAKERS_MAX = 4
"""Peers that one donor serves at a time; others are told to ask elsewhere."""


class Source(Protocol):
    """The rounds, as recovery sees them."""

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        """H of the round before, and what belongs to the state before ``round_id`` beside the trainer's; None: not kept."""

    def adopt(self, round_id: int, chain: bytes, snapshot: tuple[Any, ...]) -> None: ...


@record
class AskAnother:
    """The donor asked under ``nonce`` has had its time."""

    nonce: int


Stage: TypeAlias = Literal["idle", "asking", "restoring"]


class Recovery:
    """Both sides of a state transfer. ``donors`` gives the peers that may be asked, best first."""

    def __init__(
        self, settings: CoreSettings, source: Source, timers: Timers[Any], donors: Callable[[], tuple[PeerId, ...]]
    ) -> None:
        self.settings, self.source, self.timers, self.donors = settings, source, timers, donors
        self.stage: Stage = "idle"
        self.donor: PeerId | None = None
        self.state_bytes = 0  # of the own one, packed
        self._nonce = 0
        self._asked: set[PeerId] = set()
        self._offer: StateOffer | None = None
        self._takers: dict[PeerId, int] = {}
        self._has_own = False  # a state that it can go on with as long as it has not begun to take another

    # --- taking -----------------------------------------------------------------------------------------------------------

    def begin(self, first: PeerId | None, reason: str, now: float, has_own: bool = False) -> list[Effect]:
        """Asks ``first`` (or the best donor) for its state; does nothing when that is under way."""
        if self.stage != "idle":
            return []
        self._asked.clear()
        self._has_own = has_own
        return [Report("recovering", {"reason": reason, "from": first}), *self._ask(first, now)]

    def payload_bytes(self, offer: StateOffer) -> int:
        """The most that the state of an offer may measure; -1 when none may come."""
        if not offer.digest:
            return 0
        return self.state_bytes * 3 // 2 + STATE_SLACK if self.stage == "asking" else -1

    def _ask(self, first: PeerId | None, now: float) -> list[Effect]:
        donors = self.donors()
        fresh = [peer for peer in donors if peer not in self._asked]
        if first is None or first not in donors:
            first = fresh[0] if fresh else None
        self.stage, self.donor = "asking", first
        self._nonce += 1
        timer = self.timers.set(now + self._patience_s(first), AskAnother(self._nonce))
        if first is None:
            self._asked.clear()  # everybody was asked: begin again when the timer fires
            return [timer]
        self._asked.add(first)
        return [timer, Send(first, StateRequest(self.settings.lineage, self._nonce))]

    def _patience_s(self, donor: PeerId | None) -> float:
        return self.settings.rounds.round_timeout_s if donor is not None else self.settings.membership.probe_interval_s

    def on_timer(self, timer: AskAnother, now: float) -> list[Effect]:
        return self._ask(None, now) if self.stage == "asking" and timer.nonce == self._nonce else []

    def in_vain(self, timer: AskAnother) -> bool:
        """Whether everybody was asked, nobody had a state to give, and the own one is whole: it has to do, then.

        Else peers that all leave their branches at once, each for another's, would wait for each other for ever.
        """
        return self._has_own and self.stage == "asking" and self.donor is None and timer.nonce == self._nonce

    def give_up(self) -> None:
        self.stage = "idle"

    def on_view_change(self, now: float) -> list[Effect]:
        """A donor that is skipped will not deliver."""
        if self.stage == "asking" and self.donor is not None and self.donor not in self.donors():
            return self._ask(None, now)
        return []

    def on_offer(self, sender: PeerId, offer: StateOffer, payload: Payload | None, now: float) -> list[Effect]:
        if self.stage != "asking" or offer.nonce != self._nonce or sender != self.donor:
            return []
        if payload is None or not offer.digest:
            return [Report("no_state", {"from": sender, "reason": offer.reason}), *self._ask(None, now)]
        if payload.digest != offer.digest:
            return [Report("bad_state", {"from": sender, "round": offer.round_id}), *self._ask(None, now)]
        self.stage, self._offer, self._has_own = "restoring", offer, False
        return [Restore(offer.round_id, payload)]

    def on_restored(self, event: Restored, now: float) -> tuple[list[Effect], bool]:
        """Returns effects, and whether the rounds may go on from the new state."""
        if self.stage != "restoring" or self._offer is None or event.round_id != self._offer.round_id:
            return [], False
        offer, self._offer = self._offer, None
        problem = event.error
        if not problem:
            try:
                self.source.adopt(offer.round_id, offer.chain, _unpacked(offer.core))
            except (ValueError, OverflowError) as error:
                problem = str(error)
        if problem:
            return [Report("bad_state", {"from": self.donor, "reason": problem}), *self._ask(None, now)], False
        self.stage = "idle"
        return [Report("restored", {"round": offer.round_id, "from": self.donor, "nbytes": offer.nbytes})], True

    # --- giving -----------------------------------------------------------------------------------------------------------

    def on_request(self, sender: PeerId, request: StateRequest, able: bool) -> list[Effect]:
        if not able or (len(self._takers) >= TAKERS_MAX and sender not in self._takers):
            reason = "busy with other peers" if able else "has no state to give"
            return [self._refuse(sender, request.nonce, reason)]
        first = not self._takers
        self._takers[sender] = request.nonce
        return [TakeSnapshot()] if first else []

    def on_snapshot(self, event: SnapshotTaken) -> list[Effect]:
        takers, self._takers = self._takers, {}
        kept = self.source.snapshot(event.round_id)
        if kept is None:
            return [self._refuse(peer, nonce, "has moved on meanwhile") for peer, nonce in takers.items()]
        chain, snapshot = kept
        packed = json.dumps(snapshot).encode()
        effects: list[Effect] = []
        for peer, nonce in takers.items():
            offer = StateOffer(
                lineage=self.settings.lineage,
                nonce=nonce,
                round_id=event.round_id,
                chain=chain,
                digest=event.payload.digest,
                nbytes=event.payload.nbytes,
                core=packed,
                reason="",
            )
            effects.append(Send(peer, offer, event.payload))
            effects.append(Report("snapshot_served", {"to": peer, "round": event.round_id, "nbytes": event.payload.nbytes}))
        return effects

    def _refuse(self, peer: PeerId, nonce: int, reason: str) -> Send:
        return Send(peer, StateOffer(self.settings.lineage, nonce, 0, b"", b"", 0, b"", reason))


def _unpacked(core: bytes) -> tuple[Any, ...]:
    """Raises ValueError (of which a JSON error is one) when it is not a snapshot."""
    try:
        snapshot = json.loads(core)
    except RecursionError as error:
        raise ValueError("the snapshot is nested too deep") from error
    if not isinstance(snapshot, list):
        raise ValueError("the snapshot is not a list")
    return tuple(snapshot)
