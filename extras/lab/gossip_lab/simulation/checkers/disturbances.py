"""Disturbances of a run: pauses and cuts of peers, and times at which the network was worse than
the protocol must tolerate.

Several invariants are required only of undisturbed peers.
"""

from __future__ import annotations

from gossip.core import Applied, ClockJumped, PeerId, TimerFired
from gossip_lab.simulation.world import HANDSHAKE_WAYS, NS, AnySwarm, LinkModel

from .event_observer import EventObserver, on_event

PAUSE_S = 0.25
"""Minimum duration of a pause that is a disturbance, in seconds."""

# Maximum share of lost messages on a link at which no running peer may be declared dead
# (docs/design_notes.md N5).
LOSS_MAX = 0.2
DELAY_VARIATION_MAX_S = 0.105
"""Maximum delay of a message, relative to the fastest message on its link, at which no running peer
may be declared dead, in seconds. If links are reset, the delay includes the setup of a new
connection."""
CHECK_INTERVAL_S = 0.1
LATE_S = 0.05
"""Delay, in seconds, from which a message may arrive after its sender was skipped: half of the
timeout of a probe."""

NEVER = float("-inf")


class Disturbances(EventObserver):
    """Records disturbances. It must come before the checkers in the list of observers."""

    needs = ""

    def __init__(self) -> None:
        self.crashed_at: dict[PeerId, float] = {}
        self.paused_until: dict[PeerId, float] = {}
        """End of the last pause of each peer."""
        self.pause_s: dict[PeerId, float] = {}
        """Duration of the last pause of each peer."""
        self.overloaded_until: dict[PeerId, float] = {}
        """Last time at which the node of each peer was so busy that messages waited longer than
        ``LATE_S``."""
        self.bad_network_until = NEVER
        self.uneven_until = NEVER
        """Last time at which the network treated messages unequally: it dropped some messages, or
        delayed some longer than ``LATE_S``."""
        self.network_fault_until = NEVER
        """Last time at which the network had a fault other than cuts."""
        self.cuts_changed_at = NEVER
        self._cut_until: dict[PeerId, float] = {}
        self._cut: tuple[PeerId, ...] = ()
        self._changed = -1
        self._next_check_at = NEVER
        self._default: LinkModel | None = None

    def begin_incarnation(self) -> None:
        if self._default is None:
            self._default = self.swarm.network.default
        self.paused_until.pop(self.peer, None)

    def end_pause(self) -> None:
        if (pause_s := paused_s(self.swarm, self.peer)) > PAUSE_S:
            self.paused_until[self.peer] = self.now
            self.pause_s[self.peer] = pause_s

    @on_event
    def record(self, event: TimerFired | Applied | ClockJumped) -> None:
        self._record_cuts(self.swarm)
        if self.now >= self._next_check_at:
            self._next_check_at = self.now + CHECK_INTERVAL_S
            self._record_conditions(self.swarm)

    def end_incarnation(self) -> None:
        self.crashed_at[self.peer] = self.now

    def last_pause(self, peer: PeerId) -> tuple[float, float]:
        """Return the end and the duration of the last pause of ``peer``, which is handling an
        event. Return (-inf, 0) if it was not paused."""
        return self.paused_until.get(peer, NEVER), self.pause_s.get(peer, 0.0)

    def undisturbed_s(self, swarm: AnySwarm, peer: PeerId) -> float:
        """Return the seconds since the running ``peer`` was last disturbed: paused, affected by a
        cut, overloaded, or in a network that is too bad."""
        self._record_conditions(swarm)
        if peer in self._cut or (
            swarm.hosts[peer].state == "paused" and paused_s(swarm, peer) > PAUSE_S
        ):
            return 0.0
        own = (
            self.paused_until.get(peer, NEVER),
            self._cut_until.get(peer, NEVER),
            self.overloaded_until.get(peer, NEVER),
        )
        ends = (*own, self.bad_network_until)
        return swarm.now - max(ends)

    def all_undisturbed_since(self, swarm: AnySwarm, since_s: float, but: PeerId) -> bool:
        """Whether no peer except ``but`` was disturbed or crashed since ``since_s``."""
        for peer, host in swarm.hosts.items():
            if peer == but:
                continue
            if self.crashed_at.get(peer, NEVER) >= since_s:
                return False
            if host.running and swarm.now - self.undisturbed_s(swarm, peer) > since_s:
                return False
        return True

    def calm_since(self, swarm: AnySwarm) -> float:
        """Return the time since when no peer was paused or overloaded, the network had no faults
        other than cuts, and the cuts did not change."""
        self._record_conditions(swarm)
        return max(
            self.network_fault_until,
            self.cuts_changed_at,
            *self.paused_until.values(),
            *self.overloaded_until.values(),
            NEVER,
        )

    def _record_cuts(self, swarm: AnySwarm) -> None:
        if swarm.network.changed == self._changed:
            return
        self._changed = swarm.network.changed
        for peer in self._cut:
            self._cut_until[peer] = swarm.now
        self.uneven_until = self.cuts_changed_at = swarm.now
        self._cut = tuple(dict.fromkeys(peer for link in swarm.network.cuts for peer in link))

    def _record_conditions(self, swarm: AnySwarm) -> None:
        self._record_cuts(swarm)
        network = swarm.network
        models = (network.default, *network.models.values())
        for peer, host in swarm.hosts.items():
            late_s = len(host.waiting) * host.machine.handling_ns / NS
            if late_s > LATE_S or host.machine.slowness > 1.0:
                self.overloaded_until[peer] = swarm.now
        if network.models or network.default != self._default:
            self.network_fault_until = swarm.now
        if network.cuts or any(map(_loses, models)):
            self.uneven_until = swarm.now
        for model in models:
            # A corrupted message is dropped like a lost message. A delayed message also delays all
            # later messages.
            spike_s = model.spike_s if model.spike else 0.0
            least, most = model.delay_s
            away_s = most - least + spike_s + HANDSHAKE_WAYS * least * (model.reset > 0)
            if model.loss + model.corrupt > LOSS_MAX or away_s > DELAY_VARIATION_MAX_S:
                self.bad_network_until = swarm.now
                return


def _loses(model: LinkModel) -> bool:
    """Whether a message may be lost, or arrive so late that other peers continue without it."""
    if (
        model.loss
        or model.corrupt
        or model.corrupt_payload
        or model.reset
        or model.bytes_per_s is not None
        or model.unreadable
    ):
        return True
    late_s = (model.spike_s if model.spike else 0.0) + (model.reorder_s if model.reorder else 0.0)
    return model.delay_s[1] + late_s > LATE_S


def paused_s(swarm: AnySwarm, peer: PeerId) -> float:
    """Return how long a process that is paused, or is just resuming, has been paused, in
    seconds."""
    return (swarm.now_ns - swarm.hosts[peer].paused_at_ns) / NS
