"""S12: whose word a peer takes for the state of the swarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossip.core.events import Effect, Event, Received, Report, Restore, TimerFired
from gossip.core.messages import PeerId, Voucher
from gossip.core.peer import Peer

from .base import Checker, Circumstances, peer_core, took_the_word_of_few
from .rounds import rolling_of

if TYPE_CHECKING:
    from gossip.sim.driver import Swarm

KNOWN_S = 1.0  # who has had a state for so long has had the time to say so


class TakesNoFewersWord(Checker):
    """S12: in rolling rounds a peer takes over a state only when f + 1 peers have vouched for one and the same; of fewer only
    when fewer can have a state, or no more than 2f of those that have one are within reach for the time of a round."""

    invariant = "S12"
    events = (Voucher, TimerFired, Received)
    effects = (Report, Restore)

    def __init__(self, circumstances: Circumstances | None = None) -> None:
        super().__init__(circumstances)
        self._vouched: dict[PeerId, dict[PeerId, Voucher]] = {}
        self._began: dict[PeerId, float] = {}
        self._able: dict[PeerId, float] = {}  # since when it has a state

    def on_start(self, swarm: Swarm[Any], peer: PeerId) -> None:
        self._vouched[peer] = {}
        self._able.pop(peer, None)

    def on_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        core = peer_core(swarm, peer)
        if core is None or core.phase not in ("running", "draining"):
            self._able.pop(peer, None)
        else:
            self._able.setdefault(peer, swarm.now)
        if isinstance(event, Received) and isinstance(event.message, Voucher) and core is not None:
            voucher = event.message
            self._vouched[peer] |= {event.sender: voucher} if voucher.digest and voucher.nonce == core.recovery._nonce else {}

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        core = peer_core(swarm, peer)
        if core is None or rolling_of(core) is None or core.recovery.need == 1:
            return
        match effect:
            case Report("recovering"):
                self._began[peer] = swarm.now
            case Report("unvouched_state"):
                self._judge_few(swarm, peer, core)
            case Restore():
                agreed = core.recovery.agreed
                alike = [voucher for voucher in self._vouched[peer].values() if agreed is not None and _same(voucher, agreed)]
                enough = len(alike) >= core.recovery.need or took_the_word_of_few(swarm, peer)
                text = (
                    f"restores a state of round {effect.round_id} for which {len(alike)} have vouched, and f is {core.settings.f}"
                )
                self.demand(enough, swarm, peer, text)
            case _:
                return

    def _judge_few(self, swarm: Swarm[Any], peer: PeerId, core: Peer) -> None:
        f, waited_s = core.settings.f, swarm.now - self._began[peer]
        able = [other for other in swarm.hosts if self._has_a_state(swarm, core, other)]
        what = f"takes the word of fewer than {f + 1} for the state, and peers {able} have one"
        hurried = len(able) > f and waited_s < 0.9 * core.settings.rounds.round_timeout_s
        self.demand(len(able) <= 2 * f and not hurried, swarm, peer, f"{what}; it has asked for {waited_s:.2f} s")

    def _has_a_state(self, swarm: Swarm[Any], core: Peer, other: PeerId) -> bool:
        """Whether it can be asked for one, and could when ``core`` asked last."""
        host = swarm.hosts[other]
        able = host.state == "up" and not host.trainer_stopped and self._able.get(other, swarm.now) < swarm.now - KNOWN_S
        return able and other != core.local and not core.membership.skip_reason(other)


def _same(voucher: Voucher, agreed: Voucher) -> bool:
    return (voucher.round_id, voucher.chain, voucher.digest) == (agreed.round_id, agreed.chain, agreed.digest)


__all__ = ["TakesNoFewersWord"]
