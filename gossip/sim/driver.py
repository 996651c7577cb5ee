"""Runs sans-IO cores over a simulated network on a virtual clock: what the node does for one real peer, for a whole swarm.

The same seed gives the same run, to the last bit: ``Swarm.trace_hash`` says so. Messages travel as the codec's bytes.

    swarm = Swarm(lambda peer, incarnation: Peer(...), n=8, seed=1, make_trainer=lambda peer, inc: ToyTrainer(peer, 1))
    swarm.run_until(lambda: swarm.cores[0].round_id >= 10, limit_s=5)
    swarm.crash(3)
    swarm.run_for(2.0)
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Generic, assert_never

from gossip.core import events
from gossip.core.events import Effect, Event, Payload, Token
from gossip.core.messages import BULK_MESSAGES, Envelope, Message, PeerId
from gossip.errors import Malformed
from gossip.transport.codec import decode, encode

from .host import C, Host
from .links import Links
from .network import Network, between
from .toy_trainer import Trainer
from .trace import Trace

DELIVERIES_MAX = 50_000_000  # in one run: a core that answers itself for ever is a bug, not a long test


class Stuck(AssertionError):
    """``run_until`` waited in vain. The message says for how long and what everybody was doing."""


def address(peer: PeerId, incarnation: int = 0) -> tuple[str, str]:
    """Control and bulk address of a simulated peer. A restarted one has new ports, as real ones do."""
    return f"tcp://10.0.0.{peer}:{10_000 + 2 * incarnation}", f"tcp://10.0.0.{peer}:{10_001 + 2 * incarnation}"


def node_rng(seed: int, peer: PeerId, incarnation: int) -> random.Random:
    """The one source of randomness of a node's life."""
    return random.Random(f"node/{seed}/{peer}/{incarnation}")


class Swarm(Generic[C]):
    """n peers, a network and a clock.

    Args:
        make_core: makes the core of a peer's life, ``(peer, incarnation) -> core``; incarnations start at 0.
        n: peers 0..n-1. They start within ``start_spread_s`` of each other.
        seed: of everything random in here.
        network: links and their faults; may be changed while the swarm runs.
        make_trainer: of what answers Go, Aggregate, Apply, TakeSnapshot, Restore, ``(peer, incarnation) -> trainer``. Without
            it such an effect is an error.
        run: the run's id in every envelope.
        encoded: whether messages travel as bytes. Turning it off makes long runs several times faster.
        progress_s: how often the core is told of its trainer's progress.
        stable_addresses: a restarted peer gets its old address again.
    """

    def __init__(
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
        progress_s: float = 0.1,
        stable_addresses: bool = False,
    ) -> None:
        self.make_core, self.make_trainer = make_core, make_trainer
        self.network = network or Network()
        self.seed, self.run, self.encoded = seed, run, encoded
        self.progress_s, self.stable_addresses = progress_s, stable_addresses
        self.rng = random.Random(f"network/{seed}")
        self.now = 0.0
        self.counts: Counter[str] = Counter()  # deliveries, and losses by cause: lost, no_link, malformed, gone, cut, ...
        self.watch: Callable[[PeerId, Effect], None] | None = None
        """Called before each effect is carried out; may crash the peer, which then carries out no further one."""
        self.on_event: Callable[[PeerId, Event], None] | None = None
        """Called before each event is handed to a core."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._seq = 0
        self._deliveries = 0
        self._trace = Trace()
        self._links = Links(self)
        self._network_seen = self.network.changed
        self.hosts: dict[PeerId, Host[C]] = {}
        self.past: list[Host[C]] = []  # former lives
        for peer in range(n):
            self._add(peer, 0, self.rng.uniform(0.0, start_spread_s))

    # --- what tests look at -----------------------------------------------------------------------------------------------

    @property
    def cores(self) -> dict[PeerId, C]:
        return {peer: host.core for peer, host in self.hosts.items()}

    @property
    def up(self) -> tuple[PeerId, ...]:
        """Peers whose process runs (a paused one counts)."""
        return tuple(peer for peer, host in self.hosts.items() if host.running)

    @property
    def trace_hash(self) -> str:
        """Of everything that was delivered so far, and when."""
        return self._trace.hexdigest()

    def trainer(self, peer: PeerId) -> Trainer:
        trainer = self.hosts[peer].trainer
        assert trainer is not None, f"peer {peer} has no trainer"
        return trainer

    def reports(self, peer: PeerId, event: str | None = None) -> list[events.Report]:
        """What a peer reported in its present life, in order."""
        return [report for _, report in self.hosts[peer].reports if event is None or report.event == event]

    def commits(self, peer: PeerId) -> list[events.Committed]:
        return [committed for _, committed in self.hosts[peer].commits]

    def address_of(self, peer: PeerId, incarnation: int) -> tuple[str, str]:
        return address(peer, 0 if self.stable_addresses else incarnation)

    # --- running ----------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Lets the next thing happen. False when nothing is left to happen."""
        if self._network_seen != self.network.changed:
            self._network_seen = self.network.changed
            self._links.heartbeats()
        if not self._heap:
            return False
        self.now, _, act = heapq.heappop(self._heap)
        act()
        return True

    def run_for(self, duration_s: float) -> None:
        end = self.now + duration_s
        while self._next_at() <= end and self.step():
            pass
        self.now = end

    def run_until(self, predicate: Callable[[], bool], limit_s: float) -> float:
        """Runs until ``predicate()``; returns the virtual seconds that took. Raises Stuck after ``limit_s``."""
        start = self.now
        while not predicate():
            if self._next_at() > start + limit_s or not self.step():
                raise Stuck(f"not so after {limit_s} s (virtual time {self.now:.3f} s, seed {self.seed})\n{self.summary()}")
        return self.now - start

    def summary(self) -> str:
        """One line a peer: its state, its core, what it said last."""
        lines = [f"network: {dict(sorted(self.counts.items()))}, cut: {list(self.network.cuts)}"]
        for peer, host in self.hosts.items():
            last = "; ".join(f"{at:.3f} {report.event} {report.fields}" for at, report in host.reports[-3:])
            up = [other for other, lane in host.lanes.items() if lane.up]
            lines.append(
                f"peer {peer}.{host.incarnation} {host.state}, {len(host.commits)} commits, {len(host.timers)} timers, "
                f"links {up}, core {host.core!r}" + (f", halted: {host.halt}" if host.halt else "") + f"\n    {last}"
            )
        return "\n".join(lines)

    # --- faults -----------------------------------------------------------------------------------------------------------

    def crash(self, peer: PeerId) -> None:
        """SIGKILL: core and trainer are gone; the others see their connections close a moment later."""
        host = self.hosts[peer]
        assert host.running, f"peer {peer} is {host.state}"
        host.state = "crashed"
        self._close_process(host)

    def restart(self, peer: PeerId, after_s: float = 0.0) -> None:
        """Starts the peer again, with the next incarnation; crashes it first when it runs."""
        if self.hosts[peer].running:
            self.crash(peer)
        self.past.append(self.hosts[peer])
        self._add(peer, self.hosts[peer].incarnation + 1, after_s)

    def pause(self, peer: PeerId) -> None:
        """SIGSTOP for core and trainer: what comes is queued; heartbeats over its links fail."""
        host = self.hosts[peer]
        assert host.state == "up", f"peer {peer} is {host.state}"
        host.state, host.paused_at = "paused", self.now
        self._links.heartbeats()

    def resume(self, peer: PeerId) -> None:
        """SIGCONT: first what was queued, then ``ClockJumped``, then the timers that are late."""
        host = self.hosts[peer]
        assert host.state == "paused", f"peer {peer} is {host.state}"
        host.state = "up"
        while host.inbox and host.state == "up":
            self._handle(host, host.inbox.popleft())
        self._handle(host, events.ClockJumped(self.now - host.paused_at))
        late, host.late_timers = sorted(host.late_timers), []
        for _, token in late:
            self._fire(host, token)

    def pause_for(self, peer: PeerId, duration_s: float) -> None:
        self.pause(peer)
        host = self.hosts[peer]
        self.at(self.now + duration_s, lambda: self.resume(peer) if host.state == "paused" else None)

    def stop_trainer(self, peer: PeerId) -> None:
        """The trainer hangs, its node does not."""
        self.hosts[peer].trainer_stopped = True

    def resume_trainer(self, peer: PeerId) -> None:
        host = self.hosts[peer]
        host.trainer_stopped = False
        waiting, host.trainer_inbox = host.trainer_inbox, []
        for event in waiting:
            self.deliver(host, event)
        asked, host.asked = host.asked, []
        for effect in asked:
            self._ask_trainer(host, effect)

    def lose_trainer(self, peer: PeerId) -> None:
        """The trainer's process dies, its node does not."""
        host = self.hosts[peer]
        host.trainer = None
        self.deliver(host, events.TrainerLost("killed"))

    def stop(self, peer: PeerId, reason: str = "asked to") -> None:
        """SIGTERM: the peer may leave politely."""
        self.deliver(self.hosts[peer], events.Stop(reason))

    def inject(self, peer: PeerId, event: Event) -> None:
        """Hands a core any event at once, a forged message say."""
        self.deliver(self.hosts[peer], event)

    def at(self, t: float, act: Callable[[], None]) -> None:
        """Calls ``act`` at virtual time ``t``."""
        heapq.heappush(self._heap, (max(t, self.now), self._seq, act))
        self._seq += 1

    # --- lives ------------------------------------------------------------------------------------------------------------

    def _add(self, peer: PeerId, incarnation: int, after_s: float) -> None:
        trainer = self.make_trainer(peer, incarnation) if self.make_trainer else None
        host = Host(peer, incarnation, self.make_core(peer, incarnation), trainer)
        self.hosts[peer] = host
        self.at(self.now + after_s, lambda: self._start(host))

    def _start(self, host: Host[C]) -> None:
        host.state = "up"
        self._handle(host, events.Started())
        if host.trainer is not None:
            self._answer(host, host.trainer.on_start(self.now))
            self._watch_progress(host)

    def _watch_progress(self, host: Host[C]) -> None:
        if host.trainer is None or host.state in ("crashed", "halted"):
            return
        if host.state == "up":  # read from shared memory by the node, so a hung trainer has some too
            self._handle(host, host.trainer.progress(self.now))
        self.at(self.now + self.progress_s, lambda: self._watch_progress(host))

    def _close_process(self, host: Host[C]) -> None:
        host.timers.clear()
        host.inbox.clear()
        self._links.close_process(host)

    # --- events and effects -----------------------------------------------------------------------------------------------

    def _next_at(self) -> float:
        if self._network_seen != self.network.changed:
            return self.now
        return self._heap[0][0] if self._heap else float("inf")

    def deliver(self, host: Host[C], event: Event) -> None:
        """Hands an event to a core; to one that is paused, when it goes on."""
        if host.state == "paused":
            host.inbox.append(event)
        elif host.state == "up":
            self._handle(host, event)

    def _handle(self, host: Host[C], event: Event) -> None:
        if host.state != "up":
            return
        self._deliveries += 1
        if self._deliveries > DELIVERIES_MAX:
            raise Stuck(f"{DELIVERIES_MAX} events in one run: some core answers itself for ever\n{self.summary()}")
        self.counts["delivered"] += 1
        self._trace.delivered(self.now, host.peer, event)
        if self.on_event is not None:
            self.on_event(host.peer, event)
        for effect in host.core.handle(event, self.now):
            assert host.halt is None, f"peer {host.peer} asks for {effect} after it halted"
            if self.watch is not None:
                self.watch(host.peer, effect)
            if host.killed:
                return  # killed by the one who watches: what was not carried out is lost
            self._carry_out(host, effect)

    def _carry_out(self, host: Host[C], effect: Effect) -> None:
        match effect:
            case events.Send(peer, message, payload):
                self._send(host, peer, message, payload)
            case events.SetTimer(token, at):
                # A token that names two timers in one life is how stale timers kill the healthy (F14).
                assert token not in host.used_tokens, f"peer {host.peer} used timer token {token} twice"
                host.used_tokens.add(token)
                host.timers[token] = at
                self.at(at, lambda: self._fire(host, token))
            case events.CancelTimer(token):
                host.timers.pop(token, None)
            case events.Connect(peer, control, _):
                self._links.connect(host, peer, control)
            case events.Disconnect(peer):
                self._links.disconnect(host, peer)
            case events.Report():
                host.reports.append((self.now, effect))
            case events.Committed():
                host.commits.append((self.now, effect))
            case events.Halt():
                host.halt, host.state = effect, "halted"
                self._close_process(host)
            case events.Aggregate() | events.Apply() | events.Go() | events.TakeSnapshot() | events.Restore():
                self._ask_trainer(host, effect)
            case _:
                assert_never(effect)

    def _fire(self, host: Host[C], token: Token) -> None:
        if token not in host.timers:
            return
        if host.state == "paused":
            host.late_timers.append((host.timers[token], token))
            return
        del host.timers[token]
        self._handle(host, events.TimerFired(token))

    def _ask_trainer(self, host: Host[C], effect: Effect) -> None:
        assert host.trainer is not None, f"peer {host.peer} asks a trainer that is not there for {type(effect).__name__}"
        if host.trainer_stopped and not isinstance(effect, events.Aggregate):  # the node itself aggregates
            host.asked.append(effect)
        else:
            self._answer(host, host.trainer.on_effect(effect, self.now))

    def _answer(self, host: Host[C], answers: list[tuple[float, Event]]) -> None:
        for delay_s, event in answers:
            self.at(self.now + delay_s, partial(self._from_trainer, host, event))

    def _from_trainer(self, host: Host[C], event: Event) -> None:
        if host.trainer is None:
            return
        if host.trainer_stopped and not isinstance(event, events.Aggregated):
            host.trainer_inbox.append(event)
        else:
            self.deliver(host, event)

    # --- messages ---------------------------------------------------------------------------------------------------------

    def _send(self, host: Host[C], to: PeerId, message: Message, payload: Payload | None) -> None:
        assert to != host.peer, f"peer {to} sends itself a {type(message).__name__}"
        link = (host.peer, to)
        model = self.network.model(link)
        # Every die is cast whether it matters or not, so that switching one fault off leaves the others as they were.
        lost, doubled = self.rng.random() < model.loss, self.rng.random() < model.duplicate
        delays = (between(self.rng, model.delay_s), between(self.rng, model.delay_s))
        damaged, place = self.rng.random() < model.corrupt, self.rng.random()
        lane = host.lanes.get(to)
        self.counts["sent"] += 1
        if lane is None or not lane.up:
            self.counts["no_link"] += 1
            return
        said = Envelope(self.run, host.peer, host.incarnation, message)
        envelope: Envelope | bytes = said
        if self.encoded or damaged:
            data = bytearray(encode(said))
            if damaged:
                self.counts["corrupted"] += 1
                data[int(place * len(data))] ^= 1 << int(place * 8191) % 8
            envelope = bytes(data)
        if lost or self.network.is_cut(link):
            self.counts["lost" if lost else "cut"] += 1
            return
        bulk = isinstance(message, BULK_MESSAGES)
        leaves = self.now
        if bulk and model.bytes_per_s is not None and payload is not None:
            leaves = lane.free_at = max(self.now, lane.free_at) + payload.nbytes / model.bytes_per_s
        for delay_s in delays[: 2 if doubled else 1]:
            arrives = leaves + delay_s
            if self.network.fifo:
                arrives = lane.arrives[bulk] = max(arrives, lane.arrives.get(bulk, 0.0))
            self._arrive_later(to, lane.to_incarnation, arrives, envelope, payload)
        self.counts["duplicated"] += doubled

    def _arrive_later(self, to: PeerId, incarnation: int, t: float, envelope: Envelope | bytes, payload: Payload | None) -> None:
        def arrive() -> None:
            host = self.hosts[to]
            if host.incarnation != incarnation or not host.running:
                self.counts["gone"] += 1
                return
            if isinstance(envelope, bytes):
                try:
                    read = decode(envelope)
                except Malformed:
                    self.counts["malformed"] += 1
                    return
            else:
                read = envelope
            if read.run != self.run:
                self.counts["foreign_run"] += 1
                return
            self.deliver(host, events.Received(read.sender, read.incarnation, read.message, payload))

        self.at(t, arrive)
