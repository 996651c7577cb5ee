"""The node of a peer: an event loop that owns the sockets, runs the core and serves one trainer.

Every iteration delivers all arrivals (from peers, trainer and worker) to the core, and carries out
the core's effects. Timers are checked only afterwards, because a peer that was stopped must read
its messages before it accuses another peer.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque

import torch

from gossip import aggregators, topologies
from gossip.core import Effect, Event, PeerId, events
from gossip.errors import ConfigError, LocalError, RemoteError
from gossip.ipc import Channel, ChannelClosed, messages as control
from gossip.run import (
    Journal,
    NodeLife,
    RunProgress,
    SeedFolder,
    dump_stacks_on_signal,
    write_error,
)
from gossip.transport import Arrival
from gossip.vectors import WireFormat

from .aggregation import Aggregation
from .alarms import StallDetector, TimerHeap, piled_up
from .comparison import ResultComparator
from .freed_memory import keep_freed_memory
from .reducer import Reducer, ResultWriter, TrainerJudge
from .seed_watch import SeedWatch
from .spec import (
    CoreMaker,
    NodeSpec,
    TransportMaker,
    faulty_node,
    keys_of,
    over_zeromq,
    real_core,
    shards_decide_together,
    spec_from,
    wire_of,
    with_encoding,
)
from .trainer_link import ForTrainer, RosterPlace, TrainerLink, pid_behind
from .usage import UsageMeter
from .weighing import by_samples
from .worker import Worker

__all__ = ["EXIT_CRASHED", "Node", "NodeSpec", "main", "over_zeromq"]

EXIT_CRASHED = 70
"""Exit code after a bug or a lack of resources. The trainer then starts another node."""
POLL_S = 0.1
"""Maximum time for which the loop sleeps, in seconds."""
AWAKE_S = 0.005
"""Time for which the node polls without sleeping after the trainer has sent its update, in seconds.
The processor has no other work then, and a sleeping virtual processor takes 50 us or more to wake
up. The time is 0 if the node is a thread of the trainer, or if there are more peers than
processors."""
LINGER_S = 1.0
TERMINATION_GRACE_S = 3.0
ANNOUNCE_S = 2.0
"""Time for which a node announces the death of its trainer before the node halts, in seconds."""


class Node:
    """Node of one peer. It may run in its own process or in a thread. ``run`` returns after the
    node has halted.

    Args:
        channel: One end of ``Channel.pair()``, which the node then owns. The trainer has the other
            end.
        transport: Function that creates the transport.
        make_core: Function that creates the core. Its arguments are the spec, the settings, the
            topology and both addresses of this peer.
    """

    def __init__(
        self,
        spec: NodeSpec,
        channel: socket.socket,
        transport: TransportMaker = over_zeromq,
        make_core: CoreMaker = real_core,
    ) -> None:
        self.spec = spec
        self._channel = Channel(channel)
        self._make_transport, self._make_core = transport, make_core
        self._worker = Worker()
        folder = None if spec.run_dir is None else spec.run_dir / f"peer-{spec.peer}"
        status = None if spec.status_fd is None else socket.socket(fileno=os.dup(spec.status_fd))
        plan = spec.config.pipeline
        stage = None if plan is None else plan.stage_of(spec.peer)
        self._journal = Journal(spec.peer, folder, status, stage)
        self._folder = folder
        self._seeds: SeedWatch | None = None
        self._alarms = TimerHeap()
        self._inbox: deque[Event] = deque()
        self._linked: set[PeerId] = set()
        self._halt: events.Halt | None = None
        self._owes_sends_done = False  # whether the core waits for ``SendsDone``
        self._stop_asked, self._stop_at = "", 0.0
        self._stopped_alone = False
        self._trainer_gone = False
        self._lost_deadline = 0.0
        self._round = -1
        self._opened = self._hurried = False
        self._awake_s = 0.0
        self._pidfd = -1

    def stop(self, reason: str, grace_s: float = 0.0) -> None:
        """Request that the node leaves the run, unless its trainer ends within ``grace_s`` seconds.

        Any thread or signal handler may call this.
        """
        self._stop_asked, self._stop_at = reason, time.monotonic() + grace_s
        self._worker.wake()

    # --- start and end ----------------------------------------------------------------------------

    def run(self) -> int:
        """Run until the core halts, and return the exit code. A fatal error is recorded in
        ``node_error.json``."""
        try:
            self._open(self._claim_life())
            while self._halt is None:
                self._turn()
            code = self._leave(self._halt)
        except Exception as error:  # noqa: BLE001
            # ``_die`` records the error. The trainer detects the closed channel.
            code = self._die(error)
        finally:
            self._close()
        return code

    def _claim_life(self) -> SeedFolder | None:
        """Choose an incarnation that this peer has not used before, and load or create its keys.
        Return the folder with the addresses of the other peers; None if the run has none."""
        config, folder = self.spec.config, None
        if self.spec.run_dir is not None and config.peers_max > 1:
            folder = SeedFolder(self.spec.run_dir / "seeds", self.spec.peer, config.peers_max)
            self.spec = dataclasses.replace(
                self.spec, incarnation=folder.next_incarnation(self.spec.incarnation)
            )
            if config.keyed:
                self.spec = dataclasses.replace(self.spec, keys=keys_of(self.spec, folder))
        return folder

    def _open(self, folder: SeedFolder | None) -> None:
        spec, config = self.spec, self.spec.config
        rule = aggregators.load(config.aggregator)
        topology = topologies.load(config.weighted_topology)
        settings = config.settings()
        cross_shard = shards_decide_together(config, rule, rolling=topology.rolling)
        needs = tuple([rule.at_least(f) for f in range(settings.f + 1)])
        self._begun = RunProgress(spec.run_dir, self._journal.event)
        settings = dataclasses.replace(
            settings,
            updates_for=needs,
            judged=rule.judges_directions,
            cross_shard=cross_shard,
            had_round=self._begun.had_round(),
        )
        faults = faulty_node(spec, self._journal, self._wire)
        transport = self._make_transport(
            spec, lambda: self.core.incarnation, lambda *header: self.core.admit(*header).nbytes
        )
        transport = with_encoding(config, transport, self._wire)
        self.transport = transport if faults is None else faults.around_transport(transport)
        own_control, own_bulk = self.transport.control, self.transport.bulk
        membership = dataclasses.replace(
            settings.membership, link_timeout_s=self.transport.link_timeout_s
        )
        self._settings = settings = dataclasses.replace(settings, membership=membership)
        core = self._make_core(spec, settings, topology, own_control, own_bulk)
        self.core = core if faults is None else faults.around_core(core, settings.seed)
        self._comparison = ResultComparator(self._worker, self._inbox.append)
        emit = self._inbox.append
        # In gossip rounds, results are not sent to other peers.
        results = (
            ResultWriter(lambda *shard: self.trainer.room(*shard), self._wire)
            if topology.rolling
            else ResultWriter()
        )
        reducer = Reducer(rule, self._worker, emit, centered=not topology.rolling, results=results)
        judged = dataclasses.replace(results, room=None)
        self._judge = TrainerJudge(self._ask, self._worker, emit, reducer.reduce, judged)
        self._aggregation = Aggregation(rule, reducer, self._judge, self._journal, emit)
        self.trainer = TrainerLink(
            self._channel,
            self._worker,
            self._journal,
            emit=self._inbox.append,
            prepared=self._prepare,
            judged=self._judge.judged,
            in_flight=self.transport.in_flight,
            share=functools.partial(
                self.transport.share,
                updates_stay=topology.rolling and reducer.only_adds_up,
            ),
            wire_of=wire_of(config, spec.peer),
            mixes=not topology.rolling,
            sketch_seed=settings.seed,
            roster_place=RosterPlace(spec.peer, config.peers, config.peers, spec.peer),
        )
        trainer_pid = pid_behind(self._channel)
        if trainer_pid != os.getpid():
            self._pidfd = os.pidfd_open(trainer_pid)
            self._awake_s = AWAKE_S if config.peers_max <= len(os.sched_getaffinity(0)) else 0.0
        self._listen_to(self._worker.fd, self._channel.fileno(), self._pidfd)
        if folder is not None:
            self._seeds = SeedWatch(
                folder, spec, self._journal, (own_control, own_bulk), time.monotonic()
            )
        addresses = {"control": own_control, "bulk": own_bulk}
        self._journal.event(
            "started",
            pid=os.getpid(),
            trainer_pid=trainer_pid,
            incarnation=spec.incarnation,
            host=socket.gethostname(),
            **addresses,
        )
        self._life = NodeLife(self._folder, self._journal.troubles)
        self._life.begins(spec.incarnation, trainer_pid)
        now = time.monotonic()
        self._usage = UsageMeter(trainer_pid, spec.run_dir, now)
        self._stall_detector = StallDetector(settings.membership.probe_interval_s, now)
        self._next_progress = now
        self._opened = True
        self._handle(events.Started(), now)
        self._settle(now)

    def _wire(self) -> WireFormat | None:
        """Return the format of payloads; None until the trainer has its model."""
        return self.trainer.wire if self._opened else None

    def _leave(self, halt: events.Halt) -> int:
        """Close the transport and report the end to the trainer. Return the exit code."""
        if self._stopped_alone and not (self.trainer.closed or halt.exit_code):
            # The core halts with 0 after a stop, but the script has not finished.
            halt = dataclasses.replace(halt, exit_code=control.EXIT_SIGTERM)
        self.transport.close(LINGER_S)
        self._report_usage()
        traffic = dataclasses.asdict(self.transport.traffic)
        how = {"reason": halt.reason, "exit_code": halt.exit_code, "round": self._round}
        self._journal.event(
            "halted", **how, traffic=traffic, **self.trainer.ended_with, **self._journal.last_words
        )
        self._journal.flush()
        self._life.ends(halt.exit_code)
        if not self._trainer_gone:
            try:
                self.trainer.send_halt(halt)
            except ChannelClosed:
                self._trainer_gone = True  # the trainer did not wait for the reply to its ``Close``
        return halt.exit_code

    def _report_usage(self) -> None:
        traffic = self.transport.traffic
        sent, received = traffic.sent_bytes, traffic.received_bytes
        used = self._usage.measure()
        self._journal.event("usage", **used, sent_bytes=sent, received_bytes=received)

    def _die(self, error: Exception) -> int:
        """Record a fatal error, and return the exit code."""
        if self._folder is not None:
            about = {"peer": self.spec.peer, "incarnation": self.spec.incarnation}
            trace = traceback.format_exception(error)
            write_error(self._folder / "node_error.json", error, **about, traceback=trace)
        message, hint = f"{type(error).__name__}: {error}", getattr(error, "hint", None)
        traceback.print_exception(error)
        self._journal.event("error", message=message, hint=hint, part="node", round=self._round)
        if not isinstance(error, (ConfigError, RemoteError)):
            return EXIT_CRASHED  # the trainer receives no ``Halt``, so it starts another node
        try:
            self._channel.send(
                events.Halt(f"{error} ({hint})" if hint else str(error), error.exit_code)
            )
        except LocalError:
            self._trainer_gone = True  # the channel is closed
        return error.exit_code

    def _close(self) -> None:
        self._journal.close()
        self._worker.close()
        if self._opened:
            self._usage.close()
            self.transport.close()
            self._judge.close()
            self.trainer.close()
        self._channel.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def _listen_to(self, *fds: int) -> None:
        """Set the descriptors that wake the loop in addition to those of the transport."""
        self._wake = tuple(fd for fd in fds if fd >= 0)
        self._local = select.poll()
        for fd in self._wake:
            self._local.register(fd, select.POLLIN)

    # --- one iteration ----------------------------------------------------------------------------

    def _turn(self) -> None:
        clock = time.monotonic
        now = clock()
        late_s = self._stall_detector.measure_delay(now)  # the previous iteration took too long
        next_at = self._alarms.next_at()
        timeout_s = POLL_S if next_at is None else min(POLL_S, max(0.0, next_at - now))
        self._stall_detector.expect(now + timeout_s)
        awake_s = (
            self.trainer.waits_since + self._awake_s - now if self.trainer.waits_since else 0.0
        )
        arrivals = self.transport.poll(timeout_s, self._wake, awake_s)
        now = clock()
        late_s += self._stall_detector.measure_delay(now)
        self._stall_detector.expect(now)
        self._handle_arrivals(arrivals, now)
        if late_s:
            for arrivals in piled_up(self.transport.poll, late_s, clock):
                self._handle_arrivals(arrivals, clock())
            now = clock()
        if self.transport.woken or late_s:
            self._receive(now, everything=late_s > 0)
        if late_s:
            self._settle(now)
            self._handle(events.ClockJumped(late_s), now)
            self._stall_detector.expect(now)
        if self._stop_asked and now >= self._stop_at:
            reason, self._stop_asked = self._stop_asked, ""
            if not self.trainer.closed:
                self._stop_alone(reason, now)
        self._hurried = self._settle(now) and not self._hurried
        if self._hurried:
            # A message was sent to the trainer. Its reply is the most urgent work, but other work
            # waits for at most one iteration.
            return
        now = clock()
        for token in self._alarms.due(now):
            self._handle(events.TimerFired(token), now)
        self._settle(now)  # messages to the trainer have priority over other work
        self._chores(now)
        self._settle(now)

    def _stop_alone(self, reason: str, now: float) -> None:
        """Leave the run after a stop signal that only the node has received. A scheduler would have
        sent the signal to the trainer, too."""
        if not self._stopped_alone:
            self._stopped_alone = True
            message = f"only the node of peer {self.spec.peer} received {reason}, not its trainer"
            self._journal.event(
                "notice",
                message=f"{message}: the peer leaves the run",
                hint="to stop the peer, send the signal to its trainer",
                about=None,
            )
        self._handle(events.Stop(reason), now)

    def _handle_arrivals(self, arrivals: list[Arrival], now: float) -> None:
        for arrival in arrivals:
            if isinstance(arrival, events.LinkUp):
                self._linked.add(arrival.peer)
            elif isinstance(arrival, events.LinkDown):
                self._linked.discard(arrival.peer)
            elif isinstance(arrival, events.Received):
                if (compared := self._comparison.of(arrival, self.core.admit)) is not None:
                    self._handle(compared, now)
                continue
            self._handle(arrival, now)

    def _receive(self, now: float, everything: bool) -> None:
        """Process results of the worker and packets of the trainer. ``everything``: whether to
        repeat this until none is left."""
        while ready := self._local.poll(0):
            for fd, _ in ready:
                if fd == self._worker.fd:
                    self._worker.finish()
                elif fd == self._pidfd:
                    # A forked child of the trainer may hold the trainer's end of the channel open.
                    # The channel then has no end of file.
                    self._lose_trainer("its process has ended", now)
                elif not self._trainer_gone:
                    try:
                        self.trainer.receive()
                    except ChannelClosed as closed:
                        self._lose_trainer(str(closed), now)
            if not everything:
                return

    def _lose_trainer(self, reason: str, now: float) -> None:
        self._trainer_gone = True
        self._listen_to(self._worker.fd)
        if self.trainer.closed:
            # The trainer had announced its end: it does not wait for the node, and cannot provide
            # its state.
            self._inbox.append(events.Stop(reason))
        else:
            self._lost_deadline = now + ANNOUNCE_S
            self._inbox.append(events.TrainerLost(reason))

    def _settle(self, now: float) -> bool:
        """Deliver queued events to the core until the queue is empty. Then send the queued messages
        to the trainer. Return whether any message was sent."""
        while self._inbox:
            self._handle(self._inbox.popleft(), now)
        if not self._trainer_gone:
            try:
                return self.trainer.flush()
            except ChannelClosed as closed:
                self._lose_trainer(str(closed), now)
                self._settle(now)
        return False

    def _handle(self, event: Event, now: float) -> None:
        if self._halt is not None:
            return  # the core returns no effects after its halt
        for effect in self.core.handle(event, now):
            self._carry_out(effect)
        if self._owes_sends_done:
            self._owes_sends_done = False
            self._handle(events.SendsDone(), now)

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901 - one case for each kind
        match effect:
            case events.Send(peer, message, payload):
                self.transport.send(peer, message, payload)
            case events.AfterSends():
                self._owes_sends_done = True
            case events.SetTimer(token, at):
                self._alarms.set(token, at)
            case events.CancelTimer(token):
                self._alarms.cancel(token)
            case events.Connect(peer, control_address, bulk_address):
                self.transport.connect(peer, control_address, bulk_address)
            case events.Disconnect(peer):
                self.transport.disconnect(peer)
                self._linked.discard(peer)
            case events.Aggregate():
                in_stage = self.spec.config.pipeline is not None
                self._aggregation.aggregate(by_samples(effect) if in_stage else effect)
            case events.Committed():
                self._aggregation.record_commit(effect)
            case events.Report():
                self._report(effect)
            case events.Halt():
                self._halt = effect
            case _:
                self._hand_to_trainer(effect)

    def _hand_to_trainer(self, effect: ForTrainer) -> None:
        if isinstance(effect, events.Restore):
            self._judge.forget()
        if not self._trainer_gone:
            self.trainer.queue(effect)

    def _prepare(self, trainer: events.Prepared) -> None:
        """Prepare the rule for the trainer's model, and then deliver ``Prepared`` to the core."""
        peers = self.spec.config.peers_alike(self.spec.peer)
        self._aggregation.prepare(
            peers, self.trainer.shard_elements, lambda: self._inbox.append(trainer)
        )

    def _ask(self, question: control.JudgeCommand, fd: int | None) -> None:
        if not self._trainer_gone:
            try:
                self.trainer.ask(question, fd)
            except ChannelClosed as closed:
                self._lose_trainer(str(closed), time.monotonic())

    def _report(self, report: events.Report) -> None:
        if report.event == "round":
            self._round = report.fields.get("round", self._round)
            self._begun.reached(self._round)
            roster_place = self.trainer.roster_place
            roster_place.alive = report.fields.get("alive", roster_place.alive)
        elif report.event in ("left", "dead", "alive_again"):
            left = self.trainer.roster_place.left
            note = left.add if report.event == "left" else left.discard
            note(report.fields["subject"])
        self._journal.event(report.event, **report.fields)

    def _chores(self, now: float) -> None:
        if now >= self._next_progress:
            self._next_progress = now + self._settings.membership.probe_interval_s
            progress = self.trainer.progress()
            if progress is not None and not self._trainer_gone:
                self._handle(progress, now)
            if self._seeds is not None:
                self._seeds.check_later_life()
        if self._seeds is not None:
            all_linked = len(self._linked) >= len(self._settings.peers) - 1
            for news in self._seeds.poll(now, all_linked=all_linked):
                self._handle(news, now)
        self._write_what_is_due(now)
        if self._lost_deadline and now >= self._lost_deadline and self._halt is None:
            self._halt = events.Halt("the trainer is gone", 1)

    def _write_what_is_due(self, now: float) -> None:
        for notice in self.transport.traffic.notices:
            self._journal.event("notice", **dataclasses.asdict(notice))
        self.transport.traffic.notices.clear()
        if self._usage.due(now):
            self._report_usage()
        self._journal.flush_due(now)


def main() -> int:
    """Run a node in its own process (``python -m gossip.node``). The ``GOSSIP_*`` environment
    variables describe the node."""
    torch.set_num_threads(1)
    keep_freed_memory()
    dump_stacks_on_signal("node")
    node = Node(spec_from(os.environ), socket.socket(fileno=int(os.environ["GOSSIP_NODE_FD"])))
    # Ctrl-C reaches the whole process group; only the trainer handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A scheduler sends SIGTERM to the whole process group. The grace period lets the trainer
    # complete its step.
    signal.signal(signal.SIGTERM, lambda number, frame: node.stop("SIGTERM", TERMINATION_GRACE_S))
    gc.collect()
    gc.freeze()  # modules stay forever, so collections can skip them
    return node.run()


if __name__ == "__main__":
    sys.exit(main())
