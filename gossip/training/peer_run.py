"""The run of one peer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gossip.errors import ConfigError
from gossip.ipc import StartRoundCommand

from .collectives import CollectiveAnswers
from .exchange import Exchange
from .membership import MembershipCallbacks
from .node_start import PeerPlace
from .serving import NodeService
from .stepping import EveryStep
from .steps import steps_of
from .watch import TerminationHandler

ALONE = "alone"
"""Run name of a script that was started without a launcher."""


class PeerRun:
    """Run of this peer: its settings, its rounds, and the position of its script.

    Attributes:
        config: Settings of the run.
        peer: Number of this peer.
        incarnation: Incarnation with which the launcher started this process.
        run_dir: Folder of the run; None if the run writes nothing.
        hooks: Hooks before and after each step of this peer.
        node: Connection to the node of this peer.
        exchange: Rounds of this peer.
        applied: Applier of rounds to the model of this peer.
        model: Model of this peer.
        termination: Handler of signals that request the script's end.
        answers: Answers of the script's collective calls.
        membership: Functions of the script to call after changes of the roster.
        planned_peers: Number of peers for which epochs are planned.
        in_loop: Whether the script is in a loop of ``steps`` or ``epochs``, which ends with the
            run.
        epoch: Epoch that ``epochs`` yielded last; -1 before the first.
        in_round: Whether the script waits for a round.
        is_prepared: Whether the script has prepared its model.
        is_stopped: Whether a signal has ended this peer. Its node then halts with exit code 0, as
            after the last round.
        is_closed: Whether this peer has left the swarm.
    """

    def __init__(
        self, place: PeerPlace, node: NodeService, termination: TerminationHandler
    ) -> None:
        self.config, self.peer, self.run_dir = place.config, place.peer, place.run_dir
        self.incarnation = place.incarnation
        self.node, self.applied, self.model = node, node.applied, node.model
        self.exchange = Exchange(node, place.config.overlap > 0)
        self.termination = termination
        self.hooks, self.answers = steps_of(place), CollectiveAnswers(place.config.f or 0)
        self.applied.on_collected = self.answers.collected
        self.membership = MembershipCallbacks(node)
        self.planned_peers = place.config.peers
        self.in_loop = self.in_round = False
        self.is_prepared = self.is_stopped = self.is_closed = False
        self._pid = os.getpid()
        self.epoch = -1

    @property
    def stepper(self) -> EveryStep:
        """Strategy for the steps between two rounds."""
        return self.model.stepper

    @property
    def step(self) -> int:
        """Number of the next step."""
        return self.rounds_made * self.config.steps_per_round + self.stepper.taken

    @property
    def rounds_made(self) -> int:
        """Number of rounds that count as steps, including rounds that changed nothing and the round
        in flight."""
        return self.applied.step + self.exchange.in_flight

    @property
    def lost_steps(self) -> int:
        """Number of steps that changed nothing, because no peer had an update for them."""
        return self.applied.lost * self.config.steps_per_round

    @property
    def trains_alone(self) -> bool:
        """Whether the script was started without a launcher, and trains as it would without
        gossip."""
        config = self.config
        changed = config.has_local_steps or config.overlap or config.sender or config.pipeline
        return config.name == ALONE and not changed

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether a signal requests the script's end."""
        return self.termination.since is not None

    @property
    def is_out_of_rounds(self) -> bool:
        """Whether all rounds of the run are done."""
        return self.config.rounds is not None and self.applied.step >= self.config.rounds

    @property
    def is_over(self) -> bool:
        """Whether the run is over: all its rounds are done, or its end was requested."""
        halted = self.node.halted
        ended = halted is not None and halted.exit_code == 0 and not self.is_stopped
        return self.is_out_of_rounds or ended

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the script as waiting for a round in the ``with`` block."""
        self.in_round = True
        try:
            yield
        finally:
            self.in_round = False

    @contextmanager
    def waiting_in_loop(self) -> Iterator[None]:
        """Mark a loop of the script as waiting for a round in the ``with`` block. The loop ends
        with the run, so if the run is over, a SystemExit from the block is suppressed."""
        try:
            with self.waiting():
                yield
        except SystemExit:
            if not (self.in_loop and self.is_over):
                raise

    def notify(self, line: str) -> None:
        """Print a line for the user."""
        print(f"gossip: peer {self.peer}: {line}", file=sys.stderr, flush=True)

    @property
    def view(self) -> StartRoundCommand:
        """The roster and other facts about the current round. A peer that has just returned waits
        here until it takes part in rounds: after ``prepare`` it may have to apply further
        rounds."""
        node = self.node
        if node.is_prepared and not node.has_begun:
            try:
                self.exchange.wait_go()
            except SystemExit:
                if not self.is_over:
                    raise
        return node.view

    # --- checks -----------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this process is a peer that has not left the swarm."""
        return not self.is_closed and os.getpid() == self._pid

    def check_open(self) -> None:
        """Raise ConfigError if this peer has left the swarm, or this process is a fork of the
        peer."""
        if self.is_closed:
            raise ConfigError("this peer has left the swarm", "call it before peer.close()")
        if not self.is_active:
            raise ConfigError(
                "this is a forked child of the peer",
                "only the process that called gossip.init() is a peer",
            )

    def check_no_pipeline(self, operation: str) -> None:
        """Raise ConfigError if this run has a pipeline."""
        if self.config.pipeline is not None:
            raise ConfigError(
                f"{operation}: a pipeline does not support that",
                "each step of peer.steps(N) is one pipe.step(x, y); docs/plan.md lists what works",
            )

    def check_joined(self) -> None:
        """Raise ConfigError if this peer cannot take part in rounds yet."""
        self.check_open()
        if self.is_prepared and not self.node.is_prepared:
            raise ConfigError(
                "--resume auto, and the script names no folder of checkpoints",
                "call peer.save_every('checkpoints') after prepare, or use no values of the swarm "
                "before peer.steps(N, save='checkpoints')",
            )

    def check_prepared(self, operation: str) -> None:
        """Raise ConfigError if the model that ``operation`` needs is not prepared."""
        self.check_joined()
        if not self.is_prepared:
            raise ConfigError(
                f"{operation} was used before prepare", "call peer.prepare(model, optimizer) first"
            )
