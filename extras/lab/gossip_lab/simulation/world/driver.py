"""Runs the sans-IO cores of a whole swarm over a simulated network, on a virtual clock.

Runs with the same seed are identical; ``Swarm.trace_hash`` is used to test this. Messages are
encoded by the codec of real runs.

    swarm = Swarm(
        lambda peer, incarnation: Peer(...),
        n=8,
        seed=1,
        make_trainer=lambda peer, incarnation: ToyTrainer(peer, 1),
    )
    swarm.run_until(lambda: swarm.cores[0].round_id >= 10, limit_s=5)
    swarm.crash(3)
    swarm.run_for(2.0)

Virtual time is an integer number of nanoseconds, so that a sum of delays does not depend on the
order of its terms. Cores receive the time of their machine's clock, in seconds. ``hooks`` has the
observers (see ``observer``). ``outgoing`` replaces the messages of attackers (see ``liars``).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias

from gossip.core import Event, PeerId, Send, events
from gossip_lab.inspection import Inspection

from .dispatcher import Dispatcher
from .host import C, SimProcess
from .links import Links
from .machine import Machine, to_ns
from .network import Network
from .observer import Hooks
from .timeline import SimulationStuck, Timeline
from .toy_trainer import TRAINER_EFFECTS, Trainer
from .trace import Trace
from .trainers import Trainers
from .wire import Outgoing, Wire

__all__ = ["AnySwarm", "SimulationStuck", "Swarm", "address"]

# Minimum duration of a pause that a node detects (``StallDetector``).
STALLED_AFTER_S = 0.2


def address(peer: PeerId, incarnation: int = 0) -> tuple[str, str]:
    """Return the control and bulk address of a simulated peer. A restarted peer has new ports, as
    in real runs."""
    return (
        f"tcp://10.0.0.{peer}:{10_000 + 2 * incarnation}",
        f"tcp://10.0.0.{peer}:{10_001 + 2 * incarnation}",
    )


class Swarm(Timeline, Generic[C]):
    """A simulated swarm: n peers, a network and a clock.

    Args:
        make_core: Function ``(peer, incarnation) -> core``. Incarnations start at 0.
        n: Number of peers; their ids are 0 to n - 1. They start within ``start_spread_s``. Peers in
            ``absent`` do not start until ``join`` is called.
        seed: Seed of all random numbers in the swarm.
        network: Links and their faults. It may be changed while the swarm runs.
        make_trainer: Function ``(peer, incarnation) -> trainer``. The trainer handles the effects
            in ``TRAINER_EFFECTS``. Without a trainer, such an effect is an error.
        run: Id of the run, which is part of every envelope.
        encoded: Whether messages are encoded. Without encoding, long runs are several times faster.
        progress_s: Interval at which a core receives its trainer's progress, in seconds.
        stable_addresses: Whether a restarted peer keeps its addresses.
        traced: Whether ``trace_hash`` is computed, for which a message to many peers is recorded
            once per receiver.

    Attributes:
        now_ns: Virtual time in nanoseconds; ``now`` is the same time in seconds.
        counts: Fate of messages (``sent``, ``delivered``, ``lost``, ``cut``, ``no_link``, ``gone``,
            ``malformed``, ``duplicated``, ``corrupted``, ...) -> number of messages. It also has
            the numbers of crashes, restarts and pauses of processes.
        inspections: Peer -> inspection of its present incarnation, if this is a full core. The
            peers in a roster may be missing here, because a Byzantine peer may name peers that
            never existed.
        machines: Peer -> its machine, the same for all incarnations.
        hooks: Observers.
        dispatcher: Passes events to cores.
        outgoing: Function that replaces the messages of Byzantine peers; None if all peers are
            honest.
    """

    # Many arguments, because tests and campaigns vary them by name.
    def __init__(  # noqa: PLR0913
        self,
        make_core: Callable[[PeerId, int], C],
        n: int,
        seed: int,
        network: Network | None = None,
        *,
        make_trainer: Callable[[PeerId, int], Trainer] | None = None,
        run: bytes = b"\0" * 8,
        encoded: bool = True,
        start_spread_s: float = 0.05,
        progress_s: float = 0.2,
        stable_addresses: bool = False,
        traced: bool = True,
        absent: Sequence[PeerId] = (),
    ) -> None:
        super().__init__(network or Network())
        self.make_core, self.make_trainer = make_core, make_trainer
        self.seed, self.run, self.encoded = seed, run, encoded
        self.stable_addresses = stable_addresses
        self.rng = random.Random(f"swarm/{seed}")
        self.counts: Counter[str] = Counter()
        self.machines: dict[PeerId, Machine] = {}
        self.hooks = Hooks()
        self.outgoing: Outgoing | None = None
        self._dice: dict[PeerId, random.Random] = {}  # per peer, for all incarnations
        # Speed at which nodes copy received payloads, in bytes per second; 0.0 if copying takes no
        # time.
        self.copies_per_s = 0.0
        self.travel_s = 0.0  # maximum transfer time of a round's payloads
        self._trace = Trace() if traced else None
        self._links = Links(self)
        self._wire = Wire(self, self._links)
        self._trainers = Trainers(self, progress_s)
        self.dispatcher = Dispatcher(
            self,
            self._trace,
            {
                Send: self._wire.send,
                events.Connect: lambda host, it: self._links.connect(host, it.peer, it.control),
                events.Disconnect: lambda host, it: self._links.disconnect(host, it.peer),
                events.Halt: self._halt,
                **dict.fromkeys(TRAINER_EFFECTS, self._trainers.request),
            },
        )
        self.deliver = self.dispatcher.deliver
        self.hosts: dict[PeerId, SimProcess[C]] = {}
        self.inspections: dict[PeerId, Inspection] = {}
        self.past: list[SimProcess[C]] = []  # former incarnations
        for peer in range(n):
            after_s = self.rng.uniform(0.0, start_spread_s)
            if peer not in absent:
                self._add(peer, 0, after_s)

    # --- state for tests --------------------------------------------------------------------------

    @property
    def cores(self) -> dict[PeerId, C]:
        return {peer: host.core for peer, host in self.hosts.items()}

    @property
    def lives(self) -> tuple[SimProcess[C], ...]:
        """All incarnations of all peers so far."""
        return (*self.past, *self.hosts.values())

    @property
    def up(self) -> tuple[PeerId, ...]:
        """Peers with a running or paused process."""
        return tuple(peer for peer, host in self.hosts.items() if host.running)

    @property
    def trace_hash(self) -> str:
        """Hash of all events that were delivered so far, with their times."""
        assert self._trace is not None, "this run is not traced"
        return self._trace.hexdigest()

    def trainer(self, peer: PeerId) -> Trainer:
        trainer = self.hosts[peer].trainer
        assert trainer is not None, f"peer {peer} has no trainer"
        return trainer

    def reports(self, peer: PeerId, event: str | None = None) -> list[events.Report]:
        """Return the reports of a peer in its present incarnation, in order."""
        return [each for _, each in self.hosts[peer].reports if event in (None, each.event)]

    def commits(self, peer: PeerId) -> list[events.Committed]:
        return [committed for _, committed in self.hosts[peer].commits]

    def address_of(self, peer: PeerId, incarnation: int) -> tuple[str, str]:
        return address(peer, 0 if self.stable_addresses else incarnation)

    def _tend(self) -> None:
        self._links.heartbeats()

    def summary(self) -> str:
        """Return a text with the state, the core and the last reports of each peer."""
        network = dict(sorted(self.counts.items()))
        lines = [f"seed {self.seed}, network: {network}, cut: {list(self.network.cuts)}"]
        for peer, host in self.hosts.items():
            last = "; ".join(
                f"{at:.3f} {report.event} {report.fields}" for at, report in host.reports[-3:]
            )
            up = [other for other, lane in host.lanes.items() if lane.up]
            halted = f", halted: {host.halt}" if host.halt else ""
            lines.append(
                f"peer {peer}.{host.incarnation} {host.state}, {len(host.commits)} commits, "
                f"{len(host.timers)} timers, links {up}, core {host.core!r}{halted}\n    {last}"
            )
        return "\n".join(lines)

    # --- faults -----------------------------------------------------------------------------------

    def crash(self, peer: PeerId) -> None:
        """Kill core and trainer, as SIGKILL does. The other peers detect closed connections a
        moment later."""
        host = self.hosts[peer]
        assert host.running, f"peer {peer} is {host.state}"
        host.state = "crashed"
        self.counts["crashed"] += 1
        for see in self.hooks.crash:
            see(self, peer)
        self._close_process(host)

    def restart(self, peer: PeerId, after_s: float = 0.0) -> None:
        """Start the next incarnation of the peer after ``after_s``. If the peer runs, it is crashed
        first. If it is already starting, do nothing, because a launcher has only one process of
        each peer."""
        if self.hosts[peer].state == "starting":
            return
        if self.hosts[peer].running:
            self.crash(peer)
        self.counts["restarted"] += 1
        self.past.append(self.hosts[peer])
        self._add(peer, self.hosts[peer].incarnation + 1, after_s)

    def join(self, peer: PeerId) -> None:
        """Start a peer for the first time."""
        assert peer not in self.hosts, f"peer {peer} is {self.hosts[peer].state}"
        self.counts["joined"] += 1
        self._add(peer, 0, 0.0)

    def connect_all(self) -> None:
        """Connect all present peers to each other. Call this before they start."""
        for host in self.hosts.values():
            for other in self.hosts.values():
                if other is not host:
                    self._links.stand(host, other)

    def pause(self, peer: PeerId) -> None:
        """Pause core and trainer, as SIGSTOP does: events are queued, and the heartbeats of the
        peer's links fail."""
        host = self.hosts[peer]
        assert host.state == "up", f"peer {peer} is {host.state}"
        host.state, host.paused_at_ns = "paused", self.now_ns
        self.counts["paused"] += 1
        self._links.heartbeats()

    def resume(self, peer: PeerId) -> None:
        """Resume core and trainer, as SIGCONT does. The core handles first the queued events, then
        ``ClockJumped``, unless the pause was short, and then the late timers."""
        host = self.hosts[peer]
        assert host.state == "paused", f"peer {peer} is {host.state}"
        host.state = "up"
        for see in self.hooks.resume:
            see(self, peer)
        self.dispatcher.slow_nodes.catch_up(host)
        still_s = host.machine.clock_s(self.now_ns) - host.machine.clock_s(host.paused_at_ns)
        if still_s > STALLED_AFTER_S:
            self.dispatcher.handle(host, events.ClockJumped(still_s))
        late, host.late_timers = sorted(host.late_timers), []
        for due_ns, token in late:
            self.dispatcher.fire(host, token, due_ns)

    def pause_for(self, peer: PeerId, duration_s: float) -> None:
        self.pause(peer)
        host = self.hosts[peer]
        self.at_ns(
            self.now_ns + to_ns(duration_s),
            lambda: self.resume(peer) if host.state == "paused" else None,
        )

    def stop_trainer(self, peer: PeerId) -> None:
        """Make the trainer hang. Its node continues."""
        self.hosts[peer].trainer_stopped = True

    def resume_trainer(self, peer: PeerId) -> None:
        self._trainers.resume(self.hosts[peer])

    def lose_trainer(self, peer: PeerId) -> None:
        """Kill the trainer's process. Its node continues."""
        host = self.hosts[peer]
        host.trainer = None
        self.deliver(host, events.TrainerLost("killed"))

    def stop(self, peer: PeerId, reason: str = "asked to") -> None:
        """Request the peer to stop, as SIGTERM does, so that it can leave gracefully."""
        self.deliver(self.hosts[peer], events.Stop(reason))

    def inject(self, peer: PeerId, event: Event) -> None:
        """Deliver an event to a core at once, for example a forged message."""
        self.deliver(self.hosts[peer], event)

    def announce(self, peer: PeerId, text: str) -> None:
        """Report a fault of ``peer``, or of the network if ``peer`` is -1, to the observers."""
        for see in self.hooks.fault:
            see(self, peer, text)

    def let_go(self, sender: PeerId, to: PeerId) -> None:
        """Deliver at once the messages on this link that a fault has delayed."""
        self._wire.let_go(sender, to)

    def slow_down(self, peer: PeerId, factor: float, handling_s: float = 0.0) -> None:
        """Slow the machine down: the trainer's work takes ``factor`` times as long, and the node
        needs ``handling_s`` for each event."""
        machine, host = self.machines[peer], self.hosts[peer]
        machine.slowness, machine.handling_ns = factor, to_ns(handling_s)
        if not handling_s:
            self.dispatcher.slow_nodes.catch_up(host)

    def drift(self, peer: PeerId, rate: float = 1.0, jump_s: float = 0.0) -> None:
        """From now on, run the peer's clock at ``rate`` times the speed of virtual time. For
        ``jump_s`` see ``Machine.set_clock``."""
        host = self.hosts[peer]
        host.machine.set_clock(self.now_ns, rate, jump_s)
        # Pending timers also follow the new rate.
        for token, (_, at_s) in tuple(host.timers.items()):
            self.dispatcher.set_timer(host, token, at_s)

    def make_timers_late(self, peer: PeerId, late_s: float) -> None:
        """From now on delay every timer that the peer sets by ``late_s``, as on an overloaded
        machine."""
        self.machines[peer].late_ns = to_ns(late_s)

    # --- lives ------------------------------------------------------------------------------------

    def _add(self, peer: PeerId, incarnation: int, after_s: float) -> None:
        if incarnation == 0:
            self.machines[peer] = Machine()
            self._dice[peer] = random.Random(f"network/{self.seed}/{peer}")
        trainer = self.make_trainer(peer, incarnation) if self.make_trainer else None
        core = self.make_core(peer, incarnation)
        host = SimProcess(peer, incarnation, core, trainer, self.machines[peer], self._dice[peer])
        self.hosts[peer] = host
        if host.inspection is not None:
            self.inspections[peer] = host.inspection
        self.at_ns(self.now_ns + to_ns(after_s), self._start, host)

    def _start(self, host: SimProcess[C]) -> None:
        host.state, host.started_at = "up", self.now
        host.machine.free_at_ns = self.now_ns
        for see in self.hooks.start:
            see(self, host.peer)
        self.dispatcher.handle(host, events.Started())
        if host.trainer is not None:
            self._trainers.schedule(host, host.trainer.on_start(host.machine.clock_s(self.now_ns)))
            self._trainers.report_progress(host)

    def _halt(self, host: SimProcess[C], effect: events.Halt) -> None:
        host.halt, host.state = effect, "halted"
        self._close_process(host)

    def _close_process(self, host: SimProcess[C]) -> None:
        host.timers.clear()
        host.waiting.clear()
        self._links.close_process(host)


AnySwarm: TypeAlias = Swarm[Any]
"""A swarm with cores of any type."""
