"""The session: one peer of the swarm as the user's script sees it."""

from __future__ import annotations

import atexit
import copy
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar

import safetensors.torch
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from gossip import topologies
from gossip.aggregators import BoundRule, outer, senders
from gossip.config import RunConfig
from gossip.core import is_further, planned_peers
from gossip.errors import ConfigError, GossipError, UnsupportedModel
from gossip.ipc import (
    EXIT_SIGTERM,
    Channel,
    DivergenceReport,
    StartRoundCommand,
    clip,
    messages,
)
from gossip.node import wire_of
from gossip.run import OTHERS, checkpoints, stage_parts
from gossip.satellites import find_function
from gossip.topologies import draw

from .batches import BatchTracker, check_accumulate
from .checks import check_model, check_shapes, plain_model
from .collectives import (
    ANSWERS,
    Collectives,
    Means,
    RunOver,
    before_epoch,
    behind_epoch,
    pack_object,
    plain_of,
    read_answers,
    write_whole,
)
from .differing import compared
from .exchange import Exchange, StepsTaken
from .judging import JudgeService, LossJudge
from .last_state import LastState
from .layout import Layout
from .loader import ShardedLoader, loader_of
from .local_model import ExtraState, TrainedModel
from .local_steps import STATE as LOCAL_STATE, LocalSteps, groups_of, read_settings, settings_of
from .metrics import line_of
from .node_start import NodeHandle, PeerPlace, StartNode
from .optimizer import StepCoordinator, check_optimizers, make_modes_exact
from .own_state import Loaded, OwnParts, load_own, plan_own, plan_whole
from .reference import ReferenceData, needs_batch, reference_of
from .replicas import Divergence, ReplicaCheck, largest_difference
from .saving import HANDED_OVER_S, LEDGER_FILE, CheckpointSaver, SavePlan
from .schedulers import SchedulerPace, counts_steps
from .searching import SearchingPeer
from .seeding import drawing_from, seed_generators
from .several import as_one
from .stage import NORMS, OwnStage, Pipeline, StageSite
from .state import (
    TRAINING_FILE,
    StateFile,
    StateMismatch,
    load_checkpoint,
    plan_checkpoint,
)
from .step_clock import StepClock
from .stepping import EveryStep
from .steps import steps_of
from .streaming import ShardedStream
from .unprepared import UnpreparedOptimizers
from .watch import ExceptHook, TerminationHandler, watch_launcher, write_error

AUTO, ALONE = "auto", "alone"
LOST = "gossip.lost_rounds"  # in the state beside the model
CLOSE_S = 45.0
"""More than a node takes that waits for those who were lost shortly before the end: ``linger_s``
and ``drain_timeout_s``."""
HURRIED_CLOSE_S = 2.0
TENSORS_NAMED_MAX = 8
"""Tensors that a report names, of those that differ."""
SAVED_S = 20.0
"""For another peer to write the last checkpoint, when there is no hurry; and for the disk to make
it durable, from the signal on that ends this peer. Without a signal a slow disk has its time."""
GIVEN_UP_SHOWN = 16
UNUSED_REFERENCE = (
    "gossip.init was given a reference, and the rule {} does not judge by it: start the run with "
    "--aggregator judged_clipping, in rolling rounds"
)

Model = TypeVar("Model", bound=torch.nn.Module)
Optimizers = TypeVar("Optimizers", bound=torch.optim.Optimizer | Sequence[torch.optim.Optimizer])


class Session:
    """One peer of the swarm as its script sees it. ``gossip.init()`` makes it.

    A process has one session at a time. ``optimizer.step()`` of the prepared optimizer exchanges
    the gradients with the swarm and steps with the aggregate. Afterwards ``.grad`` holds the
    aggregate. In rolling rounds the parameters of all peers are equal after every step, bit for
    bit. Used as a context manager, a session closes itself at the end of the block.
    """

    _coordinator: StepCoordinator | None = None  # since ``prepare``
    _diverged: tuple[Divergence, dict[str, Tensor]] | None = None  # until a state of others comes
    _warned_of_changes = False
    _made_a_step = False  # the script has called ``optimizer.step()``
    # functions, and behind the steps of which optimizer each runs; None: of the run
    _each_step: tuple[tuple[Callable[[], object], int | None], ...] = ()
    _have_stepped: frozenset[int] = frozenset()  # optimizers, on the samples of the last step
    _samples = 0  # that it was on
    _overtakes = 0  # until the first of them
    _parameters_seen = 0, 0  # by the script, behind its last step
    _advanced = 0  # steps of the run that the last call of ``optimizer.step()`` has applied
    _epoch = -1  # that epochs() has yielded
    _warned_of_steps = False
    _lost_at = 0  # ``_lost_steps`` of the state that was taken over
    _seeded = -1, 0  # the step that the generators were seeded for last, and with what

    _stopped = False
    """Whether a signal has ended this peer. Its node then ends as after the last round."""

    def __init__(
        self,
        place: PeerPlace,
        start: StartNode,
        connection: tuple[Channel, NodeHandle],
        termination: TerminationHandler,
        reference: Any = None,
    ) -> None:
        """Use ``gossip.init()``, which has started the node of ``connection``."""
        self._place, self._config = place, place.config
        self._pid = os.getpid()
        self.closed = False
        self._model: torch.nn.Module | None = None
        self._loader: ShardedLoader | ShardedStream | None = None
        self._batches = BatchTracker()  # of the loader, that no step has followed yet
        self._loss: float | None = None
        self._computing_since = time.monotonic()
        self._kept: dict[str, Any] = {}
        self._kept_states: dict[str, Any] = {}
        self._optimizer: torch.optim.Optimizer | None = None  # or what stands for several
        self._group_settings: list[dict[str, Any]] = []  # as they came with a state
        self._states_due: dict[str, Any] = {}  # of what is kept, that came within a step
        self._loaded_kept: set[str] = set()  # since it was known last of what step they are
        self._scheduler_pace = SchedulerPace()
        self._stepper = EveryStep()
        self._local_undone = False  # steps of one were, and it was said
        self._overlaps = self._config.overlap > 0
        self._reading: StartRoundCommand | None = None  # the round, or guess, of the batch in hand
        self._state_in_flight: dict[str, Any] = {}  # what goes with the state before that round
        self._dropped: dict[str, Any] | None = None  # a step was: what its script set before it
        self._clock = StepClock()
        self._kept_at = -1  # the step of the states that came last, where that was said
        self._in_round = self._counting = self._in_loop = False
        self._join: Callable[[], None] | None = None  # put off until it is known where we resume
        self._saver: CheckpointSaver | None = None
        self._collectives = Collectives(
            self.id,
            self._config.f or 0,
            self._config.peers_max,
            self._run_collective,
            self._called_alone,
        )
        self._said_alone = False
        self._saved_own = -1  # the step of which this peer has saved its own state last
        self._not_saved = ""  # why the last checkpoint is not there
        self._outdated = False  # the batch in hand is not of the round that comes
        self._boundary_due = False  # a step was made, and nothing was saved since
        self._unprepared = UnpreparedOptimizers()
        self._steps = steps_of(place)
        self._termination = termination
        termination.in_step = lambda: self._in_round or self._counting
        self._planned_peers = place.config.peers
        self._reference = (
            None
            if reference is None
            else reference_of(
                reference, self._config.reference_samples, (self._config.seed, self.id)
            )
        )
        self._judges_by_reference = False
        self._exchange = Exchange(
            start,
            connection,
            place,
            self._check_termination,
            senders.load(self._config.sender),
        )
        self._exchange.on_collected = self._collectives.answers.collected
        if place.run_dir is not None:
            about = {"run": self._config.name, "peer": place.peer, "incarnation": place.incarnation}
            self._exchange.last_state = LastState(place.run_dir / f"peer-{place.peer}", about)
        # A forked child, say of a DataLoader, must not keep the node believing that we live.
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.close)
        self._hook = ExceptHook(self._raised, lambda: termination.interrupted)
        if place.status_fd is not None:
            watch_launcher(place.status_fd, self._launcher_gone)

    # --- the five lines ---------------------------------------------------------------------------

    def prepare(
        self,
        model: Model,
        optimizer: Optimizers,
        judge: Callable[..., Tensor] | None = None,
        *,
        together: bool = False,
    ) -> tuple[Model, Optimizers]:
        """Connects the model and the optimizer to the swarm. Call it once, before the first step.

        From then on ``optimizer.step()`` exchanges gradients. The call waits until enough peers
        are there. If the swarm is ahead, or began with other weights, then the model, its buffers
        and the optimizer take over the swarm's state.

        Args:
            model: Any module, also one wrapped by ``torch.compile``. All peers build the same one.
            optimizer: One optimizer, or a sequence of them. Each step of each of several optimizers
                is a round. The first one on a batch is a step of the run.
            judge: Returns the loss of the current parameters on a batch, for rules that rate
                updates by it (judged_clipping, fltrust, zeno, zeno_pp):
                ``lambda batch: loss_fn(model(batch[0]), batch[1])``. The batch is drawn anew each
                round, from what ``gossip.init`` was given as ``reference``, or else from the data
                set of ``peer.shard``. A ``judge`` without an argument draws its own with the
                generator of torch, numpy or Python, whose state is restored afterwards.
            together: All optimizers step in one round, when the last one is asked to: for those
                that step one behind the other. What the script does between their steps sees the
                weights before them.
        Returns: ``(model, optimizer)``, the same objects.
        Raises:
            UnsupportedModel: Something in the model or the optimizer cannot be exchanged.
            ConfigError: It was called twice, or the rule needs a ``judge``.
            SwarmError: The swarm did not come together.
        """
        self._check_open()
        if self._model is not None:
            raise ConfigError(
                "prepare was called twice",
                "call it once: peer.prepare(model, [one, other]) for several optimizers, "
                "nn.ModuleList for several models",
            )
        if self._config.pipeline is not None and self._exchange.stage is None:
            raise ConfigError(
                "the run has a plan, and the script calls peer.prepare",
                "call peer.pipeline(layers, samples, loss=..., optimizer=...) in its place, or run "
                "it without --plan",
            )
        optimizers = check_optimizers(optimizer)
        check_model(model, optimizers)
        plain, combined = plain_model(model), as_one(optimizers)
        layout = Layout(plain, combined)
        # Late: a rule may be registered in the script, before this call.
        from gossip.aggregators import load

        rule = load(self._config.aggregator)
        self._check_rule(rule, judge is not None)
        by_batch = judge is not None and needs_batch(judge)
        if judge is not None and self._reference is not None and not by_batch:
            raise ConfigError(
                "there is a reference, and judge takes no batch of it",
                "judge=lambda batch: loss_fn(model(batch[0]), batch[1])",
            )
        self._judges_by_reference = by_batch and rule.needs_trainer
        if self._reference is not None and not rule.needs_trainer and self._config.peers_max > 1:
            warnings.warn(UNUSED_REFERENCE.format(rule.name), stacklevel=2)
        seed = f"{self._config.seed}/{self.id}".encode()
        self._optimizer = combined
        self._batches.prepare(plain, layout.parameters[-1])
        reference = self._reference_batch if by_batch else None
        bench = LossJudge(plain, layout, judge, seed, reference) if judge is not None else None
        with compared(self.run_dir, self.id, layout):
            parts = layout.cut(self._config.fragments)
            # With fragments no encoding needs shapes (``gossip.run.fitting``).
            shapes = layout.shapes if len(parts) == 1 else ()
            wire = wire_of(self._config, self.id)(parts[0].elements, parts[0].marks, shapes)
            check_shapes(wire)
            self._exchange.model.steps_directly = direct = self._is_alone and wire.is_plain
            for each in () if direct else optimizers:
                make_modes_exact(each)
            self._coordinator = StepCoordinator(optimizers, self._step, together, optimizer)
            self._trained = trained = self._with_local_steps(
                TrainedModel(plain, combined, self._coordinator.step, layout, wire, parts)
            )
            self._unprepared.prepared(optimizers, trained.optimizer, alone=self._is_alone)
            self._exchange.model.encode_with(wire, len(parts))
            judging = JudgeService(bench, rule if bench is not None else None, layout.elements)
        self._model = model
        if self._is_rolling and self._config.peers_max > 1 and self._config.pipeline is None:
            self._compare_replicas(trained)
        extra = ExtraState(self._extra_state, self._check_extra_state, self._load_extra_state)

        def join() -> None:
            with compared(self.run_dir, self.id, layout):
                self._exchange.prepare(trained, judging, extra)

        self._join = join
        if not self._resumes:
            self._join_now()
        elif self._config.resume != AUTO:
            self._resume_from(self._config.resume)
            self._join_now()
        self._computing_since = time.monotonic()
        return model, optimizer

    def _compare_replicas(self, trained: TrainedModel) -> None:
        if self._stepper.is_local:
            return  # between two rounds its parameters are its own

        def saves_at(step: int) -> bool:
            return self._saver is not None and self._saver.is_due(step)

        exchange = self._exchange
        check = ReplicaCheck(trained.model, trained.optimizer, self._kept, saves_at)
        exchange.replica_check = check
        exchange.hooks.on_divergence = self._note_divergence
        exchange.hooks.on_replaced = self._note_replaced

    def _note_divergence(self, found: Divergence) -> None:
        """This replica differs from that of most. Unless the run only warns, theirs follows."""
        if self._config.on_divergence == "warn":
            self._report_divergence(found, -1.0, replaced=False)
            return
        check = self._exchange.replica_check
        assert check is not None
        tensors = check.tensors()
        differing = {name: tensors[name].clone() for name in found.names if name in tensors}
        self._diverged = found, differing

    def _note_replaced(self) -> None:
        check, diverged, self._diverged = self._exchange.replica_check, self._diverged, None
        if check is not None and diverged is not None:
            found, before = diverged
            largest = largest_difference(before, check.tensors())
            self._report_divergence(found, largest, replaced=True)

    def _report_divergence(
        self, found: Divergence, largest: float, *, replaced: bool, peers_differ: bool = True
    ) -> None:
        self._exchange.report_divergence(
            DivergenceReport(
                found.round_id,
                peers_differ,
                replaced,
                tuple([clip(name) for name in found.names[:TENSORS_NAMED_MAX]]),
                len(found.names),
                min(largest, sys.float_info.max),
                clip(found.cause),
                clip(found.remedy),
            )
        )

    @property
    def _is_alone(self) -> bool:
        """Whether the script was started without a launcher, and nothing is to be done with its
        gradients: it trains as it would without gossip."""
        config = self._config
        changed = config.has_local_steps or config.overlap or config.sender or config.pipeline
        return config.name == ALONE and not changed

    def _check_rule(self, rule: BoundRule, has_judge: bool) -> None:
        """Raises ConfigError: The rule lacks something, or does not go with the run."""
        if rule.needs_trainer and not has_judge:
            raise ConfigError(
                f"the rule {rule.name} needs the loss of the model on samples that it can trust",
                "write peer.prepare(model, optimizer, "
                "judge=lambda batch: loss_fn(model(batch[0]), batch[1])), "
                "or take a rule without a judge: --aggregator suspicion",
            )
        if rule.needs_trainer and self._overlaps:
            raise ConfigError(
                f"overlap = 1, and the rule {rule.name} needs the trainer in every round",
                "leave out one of both",
            )
        if self._config.has_local_steps:
            rule.check_model_differences()

    def _with_local_steps(self, trained: TrainedModel) -> TrainedModel:
        """With them it is the outer optimizer that steps in a round."""
        config = self._config
        if not config.has_local_steps:
            return trained
        self._stepper = local = LocalSteps(
            trained.layout,
            trained.inner_step,
            config.steps_per_round,
            outer.load(config.outer_step),
            mixing=config.own_share,
        )
        return replace(trained, optimizer=local.outer, inner_step=local.outer.step)

    def _reference_batch(self, round_id: int) -> Any:
        """Return the batch by which the updates of a round are judged."""
        return self._found_reference().batch(round_id)

    def _found_reference(self) -> ReferenceData:
        """Return the reference that was given, or else the data set that all peers read."""
        if self._reference is None:
            if not isinstance(self._loader, ShardedLoader):
                raise ConfigError(
                    f"the rule {self._config.aggregator} judges updates by samples, and there are "
                    "none to draw from",
                    "write gossip.init(reference=dataset), or peer.shard(loader) of a data set "
                    "with an index",
                )
            self._reference = self._loader.reference(self._config.reference_samples)
        return self._reference

    def shard(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        classes: int | None = None,
        accumulate: int = 1,
        **options: Any,
    ) -> ShardedLoader | ShardedStream:
        """Makes a loader that reads this peer's share of the data. ``docs/data.md`` has its
        guarantees.

        One iteration is one epoch. From a map-style data set the swarm draws the order, and each
        sample of an epoch is used once, also when peers fail. From an iterable data set each peer
        reads every n-th element, which guarantees less.

        Args:
            data: A DataLoader or a data set, the same on every peer. ``shuffle`` and ``drop_last``
                of a map-style DataLoader have no effect, and a warning says so.
            batch_size: Samples of one peer in one round, when ``data`` is a data set.
            classes: Number of classes, for the label_flip fault. By default it is read off the
                targets.
            accumulate: Batches per optimizer step, the same on every peer. With ``local_steps`` a
                round is on so many times more.
            options: Further arguments of the DataLoader that is made for a data set, such as
                ``num_workers`` and ``collate_fn``.
        Returns: A ``ShardedLoader`` for map-style data, a ``ShardedStream`` for iterable data.
        Raises: ConfigError: It was called twice, or the data cannot be split.
        """
        self._check_open()
        self._check_no_pipeline("shard")
        if self._loader is not None:
            raise ConfigError(
                "shard was called twice",
                "shard one data set, with all that is trained on (ConcatDataset, or one that draws "
                "by epoch); other loaders, as for evaluation, need no shard",
            )
        loader = loader_of(data, batch_size, options)
        check_accumulate(accumulate)
        alter = self._steps.alteration(loader.dataset, classes)
        how = (self, self._config.seed, alter, accumulate * self._config.steps_per_round)
        self._batches.expected = accumulate
        if isinstance(loader.dataset, IterableDataset):
            self._loader = ShardedStream(loader, *how)
            return self._loader
        self._loader = sharded = ShardedLoader(loader, *how)
        self._exchange.shard(*sharded.plan)
        return sharded

    def pipeline(
        self,
        layers: torch.nn.Sequential | Sequence[torch.nn.Module | Callable[[], torch.nn.Module]],
        samples: Tensor,
        *,
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer],
    ) -> Pipeline:
        """In place of ``prepare``, for a model that is spread over peers: this peer computes the
        layers of its stage, as the plan says that the run was started with (``gossip run --plan``,
        ``docs/plan.md``). A script that was started alone computes all layers. It comes with
        gossip-pipelines.

        Layers may be given as functions that make them, such as their classes. Then a peer makes
        those of its stage alone, and needs no memory for the others, which it looks at on torch's
        meta device. Each is made under a seed of its own, from the run's and the layer's number: so
        a model begins alike wherever it is cut. Of layers that are built already, those of other
        stages lose their parameters: they are moved to the meta device.

        Args:
            layers: All layers of the model, in their order, alike on every peer: those that
                ``gossip plan profile`` has timed. Each is a module, or a function that takes
                nothing and returns one.
            samples: Some inputs, ``(n, ...)``; only their shape and type count.
            loss: Of outputs and targets, the mean over the samples.
            optimizer: Makes the optimizer of this peer's parameters: ``lambda parameters:
                torch.optim.Adam(parameters, lr=1e-3)``.
        Returns: The ``Pipeline``, whose ``step(x, y)`` takes the place of the usual loop's body.
        Raises:
            UnsupportedModel: A layer keeps statistics of batches, or something cannot be exchanged.
            ConfigError: gossip-pipelines is not installed; the run has no plan, or one for other
                layers; a layer cannot be made; it was called twice.
            SwarmError: The swarm did not come together.
        """
        self._check_open()
        plan = self._config.pipeline
        if plan is None and self._config.peers_max > 1:
            raise ConfigError(
                "peer.pipeline was called in a run without a plan",
                "gossip run --plan plan.toml SCRIPT, or gossip hosts --plan; gossip plan makes one",
            )
        make_stage = find_function("make_stage", "peer.pipeline")
        site = StageSite(
            self._config,
            self.id,
            self.run_dir,
            self._steps,
            self._check_extra_state,
            self._print_notice,
        )
        stage: OwnStage = make_stage(site, layers, samples, loss, optimizer)
        if plan is not None:
            self._exchange.stage = stage
            self._exchange.model.measure_gradients = stage.norms.measure
        self.prepare(stage.model, stage.optimizer)
        return Pipeline(stage, stage.stepping(self._run_stage, lambda: self.step))

    # --- optional ---------------------------------------------------------------------------------

    def search_start(
        self,
        make: Callable[[], torch.nn.Module],
        *,
        loss: Callable[[torch.nn.Module, Any], Tensor],
        optimizer: Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer],
        search: Any = None,
    ) -> Any:
        """Looks for better initial weights, with all peers in parallel, and puts them into the
        prepared model. Call it on all peers, behind ``prepare`` and ``shard``, before the first
        step (``docs/starts.md``). It comes with gossip-pipelines.

        Each peer trains other starts for some steps. The half with the smaller held-out loss at the
        end of these trials goes on, and is tried again, by twice as many peers each. What is agreed
        is the seed and the recipe of the winner: each peer draws its weights itself. With ``f`` > 0
        no start is chosen by what ``f`` peers claim. Peers that die meanwhile are skipped.

        Args:
            make: Builds the model that was prepared, with what its constructor draws.
            loss: Of a model on a batch of the loader: ``lambda model, batch:
                loss_fn(model(batch[0]), batch[1])``.
            optimizer: Makes the optimizer of a trial: ``lambda parameters:
                torch.optim.Adam(parameters, lr=1e-3)``.
            search: A ``gossip_pipelines.starts.StartSearch``: which starts are compared, and how
                long.
        Returns: The ``FoundStart``, the same on all peers. None: the run has had steps, as where
            this peer has returned or resumed, and the model has its state.
        Raises: ConfigError: gossip-pipelines is not installed, a call is missing before, this one
            differs from that of most peers, or no trial came to a finite loss.
        """
        self._check_prepared("search_start")
        find = find_function("search_start", "peer.search_start")
        peer = SearchingPeer(
            self.id,
            self._config.seed,
            self._config.f or 0,
            lambda: self.alive,
            self._search_round,
            self._search_goes_on,
            self._pause,
        )
        calls = make, loss, optimizer
        with self._unprepared.paused():
            found = find(peer, self._trained, self._loader, calls, search)
        if found is not None:
            self.log(start=str(found.recipe))
            if self.is_main:
                self._print_notice(f"begins with {found}")
        return found

    def _search_round(self, make: Callable[[], object]) -> dict[int, Any] | None:
        """Gather a value of each peer. None: the run has had steps."""
        if self.step:
            return None
        if self._is_rolling:
            given = self._collectives.gather_made("search_start", make)
        else:
            given = self._gather_directly(pack_object(make()))
        return None if self.step else given

    def _gather_directly(self, data: bytes) -> dict[int, Any]:
        """Return what peers have sent each other, where no commit collects it: for each the value
        of this operation or, where it has given none yet, its last one."""
        found: dict[int, Any] = {self.id: plain_of(data)}

        def collected(given: Sequence[tuple[int, bytes]]) -> None:
            found.update((peer, plain_of(each)) for peer, each in given)

        before, self._exchange.on_collected = self._exchange.on_collected, collected
        try:
            with suppress(RunOver):
                self._run_collective(data)
        finally:
            self._exchange.on_collected = before
        return found

    def _pause(self, pause_s: float) -> None:
        """Behind which others may have come further."""
        until = time.monotonic() + pause_s
        self._exchange.serve_while(lambda: time.monotonic() < until)
        self._search_goes_on()

    def _search_goes_on(self) -> None:
        """Between two steps of a trial: this peer is not stalled, and stops when it is to."""
        self._exchange.note_progress()
        self._check_termination()

    def no_sync(self) -> AbstractContextManager[None]:
        """Marks backward passes whose gradients are accumulated for a later step, as in DDP.

        It saves no traffic, because nothing is exchanged before ``optimizer.step()``. It guards
        against two mistakes inside the block: a step, and samples of another round.
        ``shard(loader, accumulate=k)`` puts k batches into one round.

        Returns: A context manager.
        Raises: ConfigError: Inside the block, the optimizer stepped or the round changed.
        """
        self._check_open()
        return self._batches.no_sync()

    def log(self, **metrics: Any) -> None:
        """Writes a line to this peer's ``metrics.jsonl`` and to the launcher's display.

        A metric named ``loss`` is also sent with the next update.

        Args:
            metrics: Numbers, tensors with one element, or strings of at most 200 characters.
        Raises: ConfigError: A value is something else.
        """
        self._check_open()
        text, loss = line_of(self.round, metrics)
        self._loss = self._loss if loss is None else loss
        self._exchange.log(text)

    def keep(self, **objects: Any) -> None:
        """Adds objects to the state that a joining or returning peer takes over.

        Learning-rate schedulers are the usual case.

        Args:
            objects: Anything with ``state_dict`` and ``load_state_dict``, under a name that is the
                same on every peer.
        Raises:
            ConfigError: An object lacks one of the two methods.
            UnsupportedModel: Its state has something that cannot be saved; the message says where.
        """
        for name, thing in objects.items():
            if not callable(getattr(thing, "state_dict", None)) or not callable(
                getattr(thing, "load_state_dict", None)
            ):
                raise ConfigError(
                    f"{name} is a {type(thing).__name__}, which has no state_dict and "
                    "load_state_dict"
                )
            StateFile({name: thing.state_dict()})  # raises now, and not at the first checkpoint
            self._kept[name] = thing
            if name in self._kept_states:
                thing.load_state_dict(self._kept_states.pop(name))
                self._loaded_kept.add(name)
                # Making a scheduler sets the rates of its first epoch; those that came with its
                # state are the right ones.
                self._apply_settings()

    def each_step(
        self, function: Callable[[], object], after: torch.optim.Optimizer | None = None
    ) -> Callable[[], object]:
        """Call ``function`` exactly once after each step of the run, in order, on every peer.

        It is the place for whatever follows a step: a moving average of the weights (EMA), a clamp,
        a target network, a manual decay, a counter. A peer that is late applies steps without
        running the body of the loop for them; ``function`` runs for those steps, too. It runs
        without autograd, and what it draws from torch is the same on all peers. It must not call
        this peer's other methods that exchange something. In it ``step`` is the number of steps
        that the parameters have. Give objects with a state, such as an
        average, to ``keep`` as well: then a peer that returns gets them.

        Args:
            function: Takes nothing, and is registered right behind ``prepare``.
            after: One of several optimizers: ``function`` is called after each of its steps, and
                not after those of the run, which the first optimizer on a batch makes.
        Returns: ``function``, so this can be a decorator.
        Raises: ConfigError: The run has local steps, which are each peer's own, or rounds that this
            peer has missed were applied before.
        """
        self._check_open()
        if self._config.has_local_steps:
            raise ConfigError(
                "each_step with local_steps: between two rounds each peer takes steps of its own",
                "leave out --local-steps, or do it after the run",
            )
        missed = self._exchange.model.steps
        if missed and not self._made_a_step:
            raise ConfigError(
                f"each_step after {missed} rounds were applied that this peer has missed: "
                "the function has not run for them",
                "call peer.each_step right behind peer.prepare, before you read peer.peers, "
                "peer.alive or peer.is_main",
            )
        coordinator = self._coordinator
        if after is not None and coordinator is None:
            raise ConfigError("each_step after an optimizer, before prepare", "prepare it first")
        at = None if after is None or coordinator is None else coordinator.find(after)
        self._each_step += ((function, at),)
        self._exchange.hooks.on_step = self._run_each_step
        return function

    def _run_each_step(self, applied: messages.ApplyCommand) -> None:
        """``applied``: the round that has made a step."""
        assert self._coordinator is not None
        stepped = self._coordinator.stepped if applied.slot >= 0 else ()
        # A state of others that came within this step is that of the parameters; what the script
        # does behind its own step concerns schedulers alone.
        self._load_states_due(
            {name for name in self._states_due if not counts_steps(self._kept[name])}
        )
        seed = draw("each_step", self._config.seed, self.step, applied.kind)
        draws = nullcontext() if self._is_alone else drawing_from(seed, self._trained.layout.device)
        with torch.no_grad(), draws, self._unprepared.paused():
            for function, after in self._each_step:
                if applied.is_step if after is None else after in stepped:
                    function()

    def save_every(self, folder: str | Path, every: int | None = None, keep: int = 3) -> None:
        """Saves checkpoints of the run: one every so many steps, one at the end, one at Ctrl-C and
        one at SIGTERM. Call it after ``prepare`` and ``keep``, before the first step.

        A checkpoint has the model, the optimizer, what ``keep`` was given, the position in the
        data and the history of the run. One of the living peers writes it, while training goes on.
        ``model.safetensors`` in it is a plain file; parameters that are not trained are in
        ``base.safetensors`` beside it. With ``gossip run --resume auto`` the run goes on from the
        newest one in ``folder`` (``docs/checkpoints.md``).

        Args:
            folder: Where to; a path relative to the working folder.
            every: Steps between two checkpoints; None: only at the end.
            keep: How many are kept, the newest ones.
        Raises:
            ConfigError: ``prepare`` was not called, a number is wrong, it was called twice, or the
                checkpoint to resume from does not fit the model.
        """
        self._check_open()
        if self._model is None or self._saver is not None:
            raise ConfigError(
                "save_every was called "
                + ("twice" if self._saver is not None else "before prepare"),
                "call it once, after peer.prepare and peer.keep",
            )
        for name, value in (("every", 1 if every is None else every), ("keep", keep)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}, not a number of at least 1")
        given, pipeline = Path(folder).absolute(), self._config.pipeline
        place = given
        if pipeline is not None:
            place = checkpoints.stage_folder(given, pipeline.stage_of(self.id))
        averaged = () if self._is_rolling else tuple(range(self._config.peers))
        # Who trains in a pipeline may have no room for a second state of its stage.
        streams = pipeline is not None
        plan = SavePlan(place, every, keep, averaged, self._config.steps_per_round, streams)
        saver = CheckpointSaver(plan, self.id, self._about_run(), self._print_notice)
        saver.check_folder(resumes=bool(self._config.resume))
        self._saver = saver
        self._report_plan()
        if self.run_dir is not None:
            with suppress(OSError):  # the run's records may be incomplete, and say so elsewhere
                checkpoints.note_folder(self.run_dir, given)
        if self._join is not None:
            if pipeline is None:
                self._resume(place, None)
            else:
                self._resume_stage(given, None)
            self._join_now()

    def steps(
        self,
        total: int,
        *,
        save: str | Path | None = None,
        every: int | None = None,
        keep: int = 3,
    ) -> Iterator[int]:
        """Yields the numbers of the steps that remain, from 0 to ``total`` - 1: those of the run,
        the same on every peer.

        A peer that joined late, returned, or resumed from a checkpoint begins where the run is.
        All peers leave the loop after the same step. A body without ``optimizer.step()`` passes
        its round: the others do it.

        Args:
            total: Steps of the whole run; a multiple of those of a round, ``local_steps`` by
                ``fragments``.
            save, every, keep: As for ``save_every``; without ``save`` nothing is saved.
        Raises: ConfigError: As ``save_every``, or ``total`` is no number of steps.
        """
        if not isinstance(total, int) or total < 0:
            raise ConfigError(f"steps({total!r}) is not a number of steps")
        if total % self._config.steps_per_round:
            self._refuse_part_of_round(total)
        self._save_in_loop(save, every, keep)
        return self._steps_to(total)

    def _refuse_part_of_round(self, total: int) -> NoReturn:
        of_round = self._config.steps_per_round
        below = total - total % of_round
        raise ConfigError(
            f"steps({total}) is no multiple of local_steps = {of_round}: the last round would not "
            "come to its end"
            if self._config.fragments == 1
            else f"steps({total}) is no multiple of {of_round}, the steps of a round "
            "(local_steps / fragments): the last one would not come to its end",
            f"take {below or of_round} or {below + of_round}",
        )

    def _share_parameters(self) -> None:
        """The model is the one that all share, without own steps."""
        self._stepper.return_to_anchor()

    def _save_in_loop(self, save: str | Path | None, every: int | None, keep: int) -> None:
        if save is not None:
            self.save_every(save, every, keep)
        elif every is not None:
            raise ConfigError("every without save", "say where: peer.steps(N, save='checkpoints')")

    def _report_plan(self, steps: int | None = None) -> None:
        """To whoever watches the run."""
        saver, of_round = self._saver, self._config.steps_per_round
        folder, every = (str(saver.folder), saver.every) if saver is not None else ("", None)
        steps = None if steps is None else -(-steps // of_round)  # the watcher counts rounds
        every = None if every is None else -(-every // of_round)
        self._exchange.plan(steps, folder, every)

    def _steps_to(self, total: int) -> Iterator[int]:
        self._report_plan(total)
        if total and self.next_round() is None:
            return
        self._counting = self._in_loop = True
        try:
            while (step := self.step) < total and not self.finished:
                self._collectives.answers.reached(2 * step)
                self._draw()  # whatever was drawn behind the step before, as for an evaluation
                self._have_stepped = frozenset()
                yield step
                self._check_gathered()
                if self.step == step and self._dropped is None and not self.finished:
                    self.pass_round()
                self._between_steps()
                if self.step >= total:
                    self._drain()
        finally:
            self._counting = False
        self._collectives.answers.reached(2 * self.step)
        if self.step < total:
            self._print_notice(
                f"the run ended before step {total}: this peer has the state of {self.step}"
            )
        self._end_training()

    def _end_training(self) -> None:
        """The loop is over: others confirm the final state, and it is saved."""
        self._in_loop = False
        self._undo_local_steps()
        self._drain()
        self._share_parameters()
        self._scheduler_pace.follow(self._kept, self.step - self._lost_steps, over=True)
        self._confirm(self._check_termination)
        self._exchange.note_end()
        if self._saver is not None:
            self._save_last(self._saver, SAVED_S)

    def epochs(
        self,
        total: int,
        *,
        remainder: Literal["leave", "extend"] = "leave",
        save: str | Path | None = None,
        every: int | None = None,
        keep: int = 3,
    ) -> Iterator[int]:
        """Yields the numbers of the epochs that remain, from 0 to ``total`` - 1: those of the run,
        the same on every peer.

        An epoch has ``len(loader)`` batches of the sharded loader, whoever fails. A peer that
        joined late, returned, or resumed from a checkpoint begins where the run is, also in the
        middle of an epoch. All peers leave the loop after the same step. What a body leaves of its
        epoch is passed: the others read it. Over a stream, or without a loader, each peer counts
        for itself.

        Args:
            total: Epochs of the whole run.
            remainder: What becomes of samples that failures have left unread when the last epoch is
                over. ``leave``: the summary of the run says how many they are. ``extend``: the last
                epoch has further steps, in which they are read. Samples that no step can use are
                given up after a bounded number of rounds (``loader.given_up``).
            save, every, keep: As for ``save_every``; ``every`` counts steps. Without ``save``
                nothing is saved.
        Raises: ConfigError: As ``save_every``, ``total`` is no number of epochs, or the data have
            no remainder that could be read.
        """
        if not isinstance(total, int) or total < 0:
            raise ConfigError(f"epochs({total!r}) is not a number of epochs")
        if remainder not in ("leave", "extend"):
            raise ConfigError(f"remainder is {remainder!r}", "'leave' or 'extend'")
        if remainder == "extend":
            self._extend(total)
        self._save_in_loop(save, every, keep)
        if isinstance(self._loader, ShardedLoader):
            return self._epochs_to(total)
        return self._own_epochs(total)

    def _extend(self, epochs: int) -> None:
        """Has what is left of so many epochs read in further rounds of the last one."""
        sharded = self._loader
        if not isinstance(sharded, ShardedLoader) or not self._is_rolling:
            raise ConfigError(
                "remainder='extend' needs rolling rounds, and a data set with an index that "
                "peer.shard was given before",
                "of streams, and in gossip rounds, it is not known what nobody has read",
            )
        if epochs:
            self._exchange.shard(*sharded.plan, extended=epochs)

    def _epochs_to(self, total: int) -> Iterator[int]:
        if isinstance(self._loader, ShardedLoader):
            self._report_plan(total * self._loader.steps * self._config.steps_per_round)
        self._counting = self._in_loop = True
        try:
            go = self.next_round()
            while go is not None and go.epoch < total:
                self._collectives.answers.reached(before_epoch(go.epoch))
                self._epoch = epoch = go.epoch
                self._note_loaded()
                self._scheduler_pace.begin_epoch(self._kept, epoch)
                yield epoch
                while (go := self.next_round()) is not None and go.epoch == epoch:
                    self.pass_round()
        finally:
            self._counting, self._epoch = False, -1
        if go is None and not self._out_of_rounds:
            self._print_notice(
                f"the run ended before epoch {total}: this peer has the state of {self.step}"
            )
        self._report_unused_samples()
        self._end_training()

    def _report_unused_samples(self) -> None:
        given_up = self._loader.given_up if isinstance(self._loader, ShardedLoader) else []
        if given_up and self.is_main:
            more = ", ..." if len(given_up) > GIVEN_UP_SHOWN else ""
            self._print_notice(
                f"the last epoch ended without {len(given_up)} of its samples, as no step could "
                f"use them (loader.given_up): {str(given_up[:GIVEN_UP_SHOWN])[1:-1]}{more}"
            )

    def _own_epochs(self, total: int) -> Iterator[int]:
        for epoch in range(total):
            if self._loader is not None and self.next_round() is None:
                return
            yield epoch
        if self._loader is None or self.next_round() is not None:
            self._end_training()

    @property
    def id(self) -> int:
        """Number of this peer, from 0."""
        return self._place.peer

    @property
    def round(self) -> int:
        """Number of the next round, from 0. The records of the run count in rounds."""
        return self._exchange.round_id

    @property
    def step(self) -> int:
        """Number of the next step, from 0: so many updates are in the parameters. A collective
        operation, such as ``mean``, takes a round and is no step. With ``local_steps`` each round
        counts so many. With ``overlap`` the last one may be in flight."""
        return self._rounds_made * self._config.steps_per_round + self._stepper.taken

    @property
    def _rounds_made(self) -> int:
        """By the script: steps in the parameters, and the one in flight."""
        return self._exchange.step + self._exchange.in_flight

    @property
    def _lost_steps(self) -> int:
        """Steps of the run that this peer saw change nothing, as nobody had an update for them."""
        return self._exchange.lost * self._config.steps_per_round

    @property
    def stepped(self) -> bool:
        """Whether the last ``optimizer.step()`` was one step of the run. A late peer applies
        several in one call, or none. For what has to happen once a step use ``each_step``."""
        return self._advanced == 1

    @property
    def is_main(self) -> bool:
        """Whether this peer is the one for what is to be done once, such as printing: the lowest
        of the roster that is trusted to serve, the same for all peers in a round. When it dies,
        another takes over. To write a file once, use ``save``."""
        return self._roster_known.main == self.id

    @property
    def count(self) -> int:
        """Number of peers that the run begins with. It never changes."""
        return self._config.peers

    @property
    def peers(self) -> int:
        """Number of peers in the roster, this one included."""
        return self._roster_known.peers

    @property
    def alive(self) -> int:
        """Number of peers of the roster that are alive in this peer's view."""
        return self._roster_known.alive

    @property
    def _roster_known(self) -> Exchange:
        """The exchange, once this peer is in a round. One that returns is not, behind ``prepare``:
        it has the state of others, and has yet to apply the rounds that they have had since."""
        exchange = self._exchange
        if self._model is not None and self._join is None and not exchange.has_begun:
            try:
                exchange.wait_go()
            except SystemExit:
                if not self.finished:
                    raise
        return exchange

    @property
    def run_dir(self) -> Path | None:
        """Folder of the run. None when the run writes nothing, as in a script started alone."""
        return self._place.run_dir

    @property
    def finished(self) -> bool:
        """Whether the run is over: all its rounds are done, or it was asked to end."""
        halted = self._exchange.halted
        ended = halted is not None and halted.exit_code == 0 and not self._stopped
        return self._out_of_rounds or ended

    @property
    def confirmed(self) -> bool | None:
        """Whether enough other peers confirmed that they hold the same final parameters.

        False: too few confirmed, so a Byzantine server of the last round may have forged them.
        None: training is not over, or ``f`` is 0, or replicas differ anyway as in gossip rounds.
        A script that counts its rounds itself gets the answer after ``close()``.
        """
        return self._exchange.confirmed

    def close(self, reason: str = "finished") -> None:
        """Leaves the swarm and ends the node. It also happens at exit, and twice is harmless.

        A peer that has finished first hands the final state to peers that are behind. It waits up
        to half a minute for a peer that was lost shortly before, because that one may come back.
        Ctrl-C and SIGTERM end the wait.

        Args:
            reason: ``finished``, ``stopped`` or ``raised``, for the run's log.
        """
        if self.closed or os.getpid() != self._pid:
            return
        self.closed = True
        if reason == "finished" and self._termination.since is not None:
            reason = "stopped"
        patience_s = CLOSE_S if reason == "finished" else HURRIED_CLOSE_S
        until = time.monotonic() + patience_s
        hurry: Callable[[], bool] = lambda: self._termination.since is not None  # noqa: E731
        if not self._in_round:
            self._stepper.end_boundary()
        self._undo_local_steps()
        try:
            if reason == "finished":
                with suppress(SystemExit):  # of a node that has ended as it should
                    self._drain(lambda: hurry() or time.monotonic() >= until)
            else:
                self._exchange.abandon()
            self._share_parameters()
            if reason == "finished":
                self._confirm(hurry)
            if self._saver is not None:
                self._save_last(self._saver, SAVED_S if reason == "finished" else HURRIED_CLOSE_S)
                self._saver.close()
            self._exchange.close(reason, patience_s, hurry, self._not_saved)
        except KeyboardInterrupt:
            self._exchange.close(reason, HURRIED_CLOSE_S)  # said twice, it means now
            raise
        finally:
            self._unprepared.over()
            if not self._termination.interrupted:  # else it keeps the traceback back
                self._hook.uninstall()
            self._termination.uninstall()
            atexit.unregister(self.close)
            if self._loader is not None:
                self._loader.close()  # last: workers may take seconds to end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self._raised(error)
        self.close("finished" if error is None else "stopped")

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"round {self.round}"
        return f"<gossip.Session peer {self.id} of {self._config.peers}, {state}>"

    # --- a step -----------------------------------------------------------------------------------

    def _step(self, loss: float | None, overflow: bool, which: frozenset[int]) -> None:
        """In place of ``step()`` of the optimizers ``which``. With ``overflow`` this peer only
        takes part: its gradients are no numbers."""
        before, trained, self._made_a_step = self.step, self._exchange.model.steps, True
        assert self._coordinator is not None
        kind = self._coordinator.kind_of(which)
        is_new = self._batches.unused if self._loader is not None else False
        if is_new or not self._have_stepped or which & self._have_stepped:
            self._warn_of_further_steps(bool(self._have_stepped) and not is_new)
            self._have_stepped = which
        else:
            self._have_stepped |= which
            kind += 1
        try:
            if is_further(kind):
                self._make_further_step(loss, overflow, kind)
            else:
                self._make_step(loss, overflow, kind)
        finally:
            self._advanced = (
                self._exchange.model.steps - trained if is_further(kind) else self.step - before
            )
            self._parameters_seen = self._parameters_now
            self._warn_of_changes()

    @property
    def _parameters_now(self) -> tuple[int, int]:
        """Counts that change with the parameters: rounds that stepped, and states taken over."""
        return self._exchange.model.steps, self._exchange.restores

    def _warn_of_changes(self) -> None:
        """Warn once that the script changes the replica itself between two steps."""
        check = self._exchange.replica_check
        if self._warned_of_changes or check is None or not check.outside or not self.is_main:
            return
        self._warned_of_changes = True
        cause = "the script changes them outside of optimizer.step(), which a late peer misses"
        remedy = "change them in a function that is given to peer.each_step"
        found = Divergence(self.round, check.outside, cause, remedy)
        self._report_divergence(found, -1.0, replaced=False, peers_differ=False)

    def _warn_of_further_steps(self, here: bool) -> None:
        """Warn once that a pass of ``steps`` makes several steps."""
        if not here or self._warned_of_steps or not self._counting or self._epoch >= 0:
            return
        self._warned_of_steps = True
        warnings.warn(
            "optimizer.step() runs several times in one pass of peer.steps(N): N counts steps, so "
            "there are fewer passes than N. Write peer.steps(passes * steps in each)",
            stacklevel=5,
        )

    def _begin_step(self) -> bool:
        """Do what precedes a step: save what is due, stop if this peer is to. Returns False where
        the loop ends behind the step, which changes nothing."""
        self._check_open()
        self._check_no_pipeline("optimizer.step()")
        self._unprepared.exchanged()
        self._batches.check_step()
        self._check_joined()
        self._between_steps()
        finished = self.finished
        if finished and not self._counting:
            raise SystemExit(0)
        return not finished

    def _make_step(self, loss: float | None, overflow: bool, kind: int) -> None:
        if not self._begin_step():
            return
        if self._judges_by_reference:
            self._found_reference()  # or says what is missing, before the first round
        if overflow:
            self._exchange.log(json.dumps({"round": self.round, "skipped": "overflow"}))
        self._check_batches()
        self._step_directly(overflow)
        if self._stepper.is_local:
            self._step_locally(overflow)
        if self._stepper.is_complete:
            self._end_round(loss, overflow, kind)
        else:
            self._step_is_within_round()

    def _make_further_step(self, loss: float | None, overflow: bool, kind: int) -> None:
        """Take the round of a step on the samples of the one before, by another optimizer."""
        self._check_open()
        encoder = self._exchange.model.encoder
        unable = {
            "local steps": self._stepper.is_local,
            "overlap": self._overlaps,
            "rounds without a server": not (self._is_rolling or self._is_alone),
            f"--sender {self._config.sender}": bool(self._config.sender),
            "an encoding that keeps what it loses": encoder is not None and encoder.keeps_lost,
        }
        for what, here in unable.items():
            if here:
                raise UnsupportedModel(
                    f"several optimizers step on one batch, each in a round of its own, and {what} "
                    "cannot be used with that",
                    "peer.prepare(..., together=True) if they step one behind the other and "
                    "nothing between their steps needs the new weights",
                )
        self._step_directly(overflow)
        self._run_round(loss, overflow, StepsTaken(kind=kind))
        if self._out_of_rounds:
            self._confirm(self._check_termination)
        self._computing_since = time.monotonic()

    def _step_directly(self, overflow: bool) -> None:
        if self._exchange.model.steps_directly and not overflow:
            assert self._coordinator is not None
            self._coordinator.step()

    def _end_round(self, loss: float | None, overflow: bool, kind: int = 0) -> None:
        """Take the round of the step, or of the local steps, that this peer has made."""
        behind = self._behind_round
        steps = self._stepper.count(kind, self._clock.lasted_s)
        overflow = self._stepper.load_update(overflow)
        if self._run_round(loss, overflow, steps):
            self._collectives.answers.reached(behind)
            self._step_is_over()
        else:
            self._drop_step()

    def _check_gathered(self) -> None:
        if self._coordinator is not None:
            self._coordinator.check_gathered()

    def _run_round(self, loss: float | None, overflow: bool, steps: StepsTaken) -> bool:
        """The round of the gradients. False: they were of no use."""
        self._in_round = True
        try:
            if not self._offer(loss, overflow, steps):
                return False
        except SystemExit:
            if not (self._counting and self.finished):
                raise
        finally:
            self._in_round = False
        if self._drain_is_due:
            self._drain()
        return True

    def _offer(self, loss: float | None, overflow: bool, steps: StepsTaken) -> bool:
        """Offers the gradients. Without overlap it returns when their round is applied. False:
        they are of no use, and were not offered."""
        computed: Callable[[], None] | None = partial(self._steps.computed, self._computing_since)
        if self._overlaps:
            self._steps.computed(self._computing_since)  # beside the round, as the computing was
            computed = None
            if not self._is_of_use():
                return False
        if not is_further(steps.kind):
            self._samples = self._count_samples(steps.taken)
        loss, self._loss = self._loss if loss is None else loss, None
        if not is_further(steps.kind):
            self._overtakes = self._exchange.model.overtakes
        else:
            self._exchange.wait_go()  # which may apply rounds that this peer has missed
        outdated = is_further(steps.kind) and self._parameters_seen != self._parameters_now
        outdated |= self._exchange.model.overtakes != self._overtakes
        used = 0 if overflow or outdated else self._samples
        # Local steps that overflow have their batches again.
        skipped = overflow and not self._stepper.is_local and not is_further(steps.kind)
        self._exchange.contribute(used, loss, computed, steps, skipped)
        if self._exchange.in_flight:
            self._stepper.continue_before_result()
        else:
            self._stepper.mark_exchanged(self._exchange.model.exchanged)
            self._stepper.resume_after_round()
        return True

    def _run_stage(self) -> None:
        """A step of a pipeline."""
        self._check_open()
        self._unprepared.exchanged()
        self._between_steps()
        if self.finished:
            if self._counting:
                return  # the loop ends behind this step, which changes nothing
            raise SystemExit(0)
        self._in_round = True
        try:
            self._exchange.run_stage()
        except SystemExit:
            if not (self._counting and self.finished):
                raise
        finally:
            self._in_round = False
        self._step_is_over()

    @property
    def _behind_round(self) -> int:
        """Return the place of a script behind the last step of this round: the same for all,
        however many local steps each has taken."""
        return 2 * (self._rounds_made + 1) * self._config.steps_per_round - 1

    # --- overlap ----------------------------------------------------------------------------------

    def _is_of_use(self) -> bool:
        """Waits for the round in flight, and applies it. Returns whether what was computed beside
        it can be offered to the round that comes: on parameters that lack one round at most, and on
        the samples that this peer has in it."""
        exchange, reading = self._exchange, self._reading
        before, restores = self._state_before_round(), exchange.restores
        in_turn = self._settle()
        go = exchange.wait_go()
        replaced = exchange.restores != restores
        self._state_in_flight = {} if replaced else before
        if replaced or not in_turn:
            return False
        if not go.sharded or reading is None:
            return True
        return (go.epoch, go.ranges) == (reading.epoch, reading.ranges)

    def _settle(self, expired: Callable[[], bool] = lambda: False) -> bool:
        """Waits for the round in flight, and applies it to the parameters that all share. Returns
        whether no other was applied."""
        was_in_flight = bool(self._exchange.unsettled)
        in_turn = self._exchange.settle(expired)
        if was_in_flight:
            self._stepper.mark_exchanged(self._exchange.model.exchanged)
        return in_turn

    def _state_before_round(self) -> dict[str, Any]:
        """Return the state that goes with the parameters with which the round of the next update
        begins."""
        return copy.deepcopy(self._stepper.extra_state(self._state_now))

    def _drop_step(self) -> None:
        """Drop a step that is of no use: it counts for nothing, and what the script does behind it
        is undone."""
        self._exchange.log(json.dumps({"round": self.round, "skipped": "overlap"}))
        self._dropped = self._state_in_flight
        self._stepper.discard_update()
        self._stepper.resume_after_round()
        self._batches.drop()
        self._outdated = False
        self._computing_since = time.monotonic()
        if self._termination.since is not None:
            self._stop_between_steps()

    def _undo_dropped(self) -> None:
        """Undo what the script has done behind a step that was dropped, such as to step a
        scheduler."""
        states, self._dropped = self._dropped, None
        if states:  # else they were replaced by those of others
            self._put_back_kept(states)

    @property
    def _drain_is_due(self) -> bool:
        """Whether the next step is to begin on parameters that have all rounds: behind the last
        step, and where others may go on from the state."""
        if not self._exchange.in_flight:
            return False
        rounds, saver = self._config.rounds, self._saver
        last = rounds is not None and self._rounds_made >= rounds
        saves = saver is not None and saver.is_due(self.step)
        return last or saves or self._termination.since is not None

    def _drain(self, expired: Callable[[], bool] = lambda: False) -> None:
        """Wait for the round in flight until ``expired``. Behind it none is in flight any more."""
        if not self._exchange.in_flight:
            return
        self._in_round = True
        try:
            with self._at_anchor():
                self._settle(expired)
        except SystemExit:
            if not (self._counting and self.finished):
                raise
        finally:
            self._in_round = False

    def _check_batches(self) -> None:
        if self._loader is not None:
            self._batches.check_batches(self._stepper.good + 1)

    def _step_locally(self, overflow: bool) -> None:
        local = self._stepper
        if local.taken == 0:
            since = self._computing_since
            self._clock.begin_round(since, self._exchange.late_s(since))
        local.step(self._state_now, overflow)
        if self._exchange.model.steps == 0 and local.good == 1:
            self._plan_own()  # raises UnsupportedModel now, and not at the first checkpoint
        if overflow:
            self._batches.skip(local.good)
        self._steps.computed(self._computing_since)
        self._computing_since = time.monotonic()
        self._clock.record_step()
        local.ends_early = self._config.shortens_rounds and (
            self._clock.is_late(self._exchange.deadline_s, local.total - local.taken)
            or self._exchange.is_decided()
        )

    def _step_is_within_round(self) -> None:
        """No round follows it."""
        self._exchange.note_progress()
        if self._exchange.is_asked_for_state():
            # Who comes back would else have it at the end of the round, and be in none but the
            # second after.
            with self._at_anchor():
                self._exchange.send_snapshot()
        self._collectives.answers.reached(2 * self.step - 1)
        self._scheduler_pace.stepped()
        if self._termination.since is not None:
            self._stop_between_steps()
        self._draw()

    def _undo_local_steps(self) -> None:
        """Those of a round that does not come to its end here."""
        undone = self._stepper.undo_steps()
        if undone:
            self._batches.drop()
            self._put_back_kept(self._stepper.extra_state(dict))
        if undone and self._termination.since is not None:
            self._print_notice(
                f"stopped within a round: the local steps that this peer has taken in it count for "
                f"nothing ({undone} of {self._config.steps_per_round})"
            )
        elif undone and (self.closed or not self._local_undone):
            self._local_undone = True
            self._print_notice(
                f"{undone} local steps were undone, because no round followed them: a round is on "
                f"{self._config.steps_per_round} steps in a row, each with the next batches of the "
                "loader"
            )

    def _put_back_kept(self, before: dict[str, Any]) -> None:
        """Restore what the script changed behind steps that are undone, such as a scheduler, to
        ``before``."""
        states = copy.deepcopy(before)
        for name, thing in self._kept.items():
            if name in states:
                thing.load_state_dict(states[name])
        _, self._group_settings = read_settings(states.get(LOCAL_STATE), self._users_optimizer)
        self._apply_settings()
        self._scheduler_pace.undone(self._kept)

    def _step_is_over(self) -> None:
        """Note that the next work of the script belongs to this step."""
        if self.round > self._exchange.restored_at:
            self._load_states_due()
            self._note_loaded()
        self._scheduler_pace.stepped()
        if self._out_of_rounds:
            self._confirm(self._check_termination)
        if self._saver is not None:
            self._boundary_due = True
        elif self._termination.since is not None:
            self._stop()
        self._draw()
        self._computing_since = time.monotonic()

    def _count_samples(self, steps: int) -> int:
        """Return the number of samples of ``steps``; 0 where the swarm has given them to others
        meanwhile. Without a loader each step counts for one."""
        samples = self._batches.end_round() if self._loader is not None else steps
        outdated, self._outdated = self._outdated, False
        return 0 if outdated else samples

    def _confirm(self, given_up: Callable[[], object]) -> None:
        """There is no round after this in which a lie would be found out."""
        if self._config.f and self._is_rolling:
            with self._at_anchor():
                self._exchange.confirm(given_up)

    @property
    def _is_rolling(self) -> bool:
        return topologies.load(self._config.topology).rolling

    @property
    def _out_of_rounds(self) -> bool:
        return self._config.rounds is not None and self._exchange.step >= self._config.rounds

    # --- collective operations --------------------------------------------------------------------

    def mean(self, **numbers: Any) -> Means:
        """The mean of numbers over the living peers, for metrics: the all-reduce of DDP scripts.
        All peers call it, with the same names, and get the same answer.

        With ``f`` > 0 it is the trimmed mean, without the ``f`` largest and ``f`` smallest of each
        name, so that ``f`` lying peers move it no further than honest numbers reach. The server of
        the round may still lie about what others have given (``docs/data.md``).

        Args:
            numbers: Numbers, or tensors with one element.
        Returns: name -> mean; its ``peers`` says whose numbers are in it.
        Raises: ConfigError: One is no number, or this is no rolling run.
        """
        self._check_collective("mean")
        return self._collectives.mean(numbers)

    def gather(self, value: Any) -> dict[int, Any]:
        """Collect a value from each living peer, the same for all. All peers call it.

        Args:
            value: None, bool, int, float, str, bytes, or lists and dicts of them; in all peers
                together at most 24 KiB.
        Returns: peer -> value. Tuples come as lists.
        Raises: ConfigError: It is something else or too much, or this is no rolling run.
        """
        self._check_collective("gather")
        return self._collectives.gather(value)

    def broadcast(self, value: Any = None) -> Any:
        """The value of one living peer, the same for all: of the lowest that has given one other
        than None. All peers call it. A lying peer may be that one.

        Args:
            value: As for ``gather``, at most 12 KiB.
        Returns: that value, or None when all gave None.
        Raises: ConfigError: As ``gather``.
        """
        self._check_collective("broadcast")
        return self._collectives.broadcast(value)

    def any(self, flag: bool) -> bool:
        """Whether more than ``f`` living peers have given True, the same for all: so no lying peer
        alone can stop a training. All peers call it.

        Raises: ConfigError: This is no rolling run.
        """
        self._check_collective("any")
        return self._collectives.any(flag)

    def barrier(self) -> tuple[int, ...]:
        """Waits until all living peers have come here, for ``round_timeout_s`` at most.

        Returns: the peers that have.
        Raises: ConfigError: This is no rolling run.
        """
        self._check_collective("barrier")
        self._collectives.collect("barrier", b"")
        return self.answered

    def save(self, path: str | Path, content: bytes | str | dict[str, Tensor]) -> bool:
        """Writes a file once, whole and durable, by one living peer; by another if that one dies.
        All peers call it.

        Args:
            path: Where to, on the host of the peer that writes.
            content: Bytes, a text, or tensors by name, which become a safetensors file.
        Returns: whether the file is there. If not, it is said why, and training goes on.
        Raises: ConfigError: ``content`` is something else, or this is no rolling run.
        """
        self._check_collective("save")
        place, data = Path(path).absolute(), _content_of(content)
        why = self._collectives.once(lambda: write_whole(place, data()))
        if why:
            self._print_notice(f"cannot save {place}: {why}")
        return not why

    @property
    def answered(self) -> tuple[int, ...]:
        """The peers whose answers are in the last collective operation, ascending."""
        return self._collectives.answered

    def _check_collective(self, operation: str) -> None:
        self._check_prepared(operation)
        if not self._is_rolling:
            raise ConfigError(
                f"{operation} needs rolling rounds: gossip rounds have no commit that decides",
                "gossip run --topology rolling",
            )

    def _check_prepared(self, operation: str) -> None:
        self._check_open()
        self._check_no_pipeline(operation)
        if self._model is None:
            raise ConfigError(
                f"{operation} was called before prepare",
                "call peer.prepare(model, optimizer) first",
            )
        self._check_joined()
        self._check_gathered()

    def _called_alone(self, operation: str) -> None:
        if self.alive < 2 or self._said_alone:
            return
        self._said_alone = True
        name = {"once": "save", "done": "save"}.get(operation, operation)
        self._print_notice(
            f"{name} has the answer of this peer alone: no other has called it at this place, or "
            "long ago. All peers must call the same operations in the same order, also those that "
            "are not is_main"
        )

    def _run_collective(self, data: bytes) -> bool:
        """To the next round, for a collective operation. Returns whether others trained in it."""
        exchange = self._exchange
        before = exchange.go
        steps = exchange.model.steps
        if exchange.halted is not None and exchange.halted.exit_code == 0:
            raise RunOver
        self._in_round = True
        try:
            with self._at_anchor():
                self._settle()
                (exchange.run_collective if self._is_rolling else exchange.gather_directly)(data)
        except SystemExit as end:
            if self._termination.since is None and not end.code:
                raise RunOver from end
            raise
        finally:
            self._in_round = False
        after = exchange.go
        if not self._overlaps and before is not None and after is not None and self._batches.unused:
            self._outdated |= (before.epoch, before.ranges) != (after.epoch, after.ranges)
        if self._termination.since is not None and not self._boundary_due:
            self._stop()
        return exchange.model.steps > steps

    def _at_anchor(self) -> AbstractContextManager[None]:
        """Within it the parameters are what the rounds have made of them."""
        return self._stepper.at_anchor()

    # --- for the loader ---------------------------------------------------------------------------

    def next_round(self, epoch_steps: int = 0) -> StartRoundCommand | None:
        """Waits for the next round of this peer. Loaders call it, scripts need not.

        Args:
            epoch_steps: Steps of an epoch, when called within one. Behind the last step the script
                may have more to do, such as evaluating, so it is the next call that saves.
        Returns: The round with its samples, or None when the run is over.
        Raises: ConfigError: ``prepare`` was not called, or the session is closed.
        """
        self._check_open()
        if self._model is None:
            raise ConfigError(
                "the sharded loader was used before prepare",
                "call peer.prepare(model, optimizer) first",
            )
        self._check_joined()
        self._check_gathered()
        self._undo_local_steps()
        if self._dropped is not None:
            self._undo_dropped()
        if not epoch_steps or self._rounds_made % epoch_steps:
            self._between_steps()
        try:
            go = None if self.finished else self._next_go()
        except SystemExit:
            if not self.finished:
                raise
            go = None
        self._collectives.answers.reached(2 * self.step)
        if go is None:
            return None
        self._reading = go
        self._draw()
        self._computing_since = time.monotonic()
        return None if self._out_of_rounds else go

    def _next_go(self) -> StartRoundCommand:
        """Return the round to compute: beside the round in flight the one that will probably follow
        it, as long as that is of the same epoch."""
        guess, reading = self._exchange.guess, self._reading
        if guess is not None and reading is not None and guess.epoch == reading.epoch:
            return guess
        self._drain()
        with self._at_anchor():
            return self._exchange.wait_go()

    def resume_pass(self, number: int) -> int:
        """Note that the loop asks for a batch of a pass. Loaders call it, scripts need not.

        Args:
            number: What was returned before; 0: a new pass.
        Returns: Number of the pass.
        Raises: ConfigError: The pass before was an evaluation.
        """
        return self._batches.resume_pass(number)

    def end_pass(self, epoch: int | None = None) -> None:
        """Note that a pass has come to its end. Loaders call it, scripts need not.

        Args:
            epoch: Whose, also where the run has come to a later one meanwhile.
        Raises: ConfigError: The pass was an evaluation.
        """
        if epoch is not None:
            self._collectives.answers.reached(behind_epoch(epoch))
        self._batches.end_pass()

    def pass_round(self, skipped: bool = False) -> None:
        """Takes part in the current round without an update. Loaders call it, scripts need not.

        Args:
            skipped: The script was handed the samples of this round and went on without a step:
                they do not come again. Otherwise they go back to the swarm.
        """
        self._check_no_pipeline("a step without pipe.step(x, y)")
        self._check_gathered()
        self._unprepared.check_passed()
        if skipped and self._stepper.taken:
            self._end_round(None, False)
            return
        self._undo_local_steps()
        self._batches.drop_unused()
        self._drain()
        self._in_round = True
        try:
            with self._at_anchor():
                self._exchange.contribute(0, None, skipped=skipped and self._has_read_slice())
        except SystemExit:
            if not (self._counting and self.finished):
                raise
        finally:
            self._in_round = False

    def _has_read_slice(self) -> bool:
        """Whether the batches in hand were those of the round, and not of one that was expected."""
        outdated, self._outdated = self._outdated, False
        go, reading = self._exchange.wait_go(), self._reading
        same = reading is None or (go.epoch, go.ranges) == (reading.epoch, reading.ranges)
        return same and not outdated

    def hand_out(self, samples: int, batch: int = 0, content: object = None) -> None:
        """Notes that a batch goes to the training loop. Loaders call it, scripts need not.

        Args:
            samples: Samples of the round that the next step will have used.
            batch: Number of the batch in its round, from 0.
            content: What the loop gets.
        """
        self._batches.hand_out(samples, batch, content)
        self._unprepared.begin_batch()

    @property
    def next_batch(self) -> int | None:
        """Number of the batch of the round that comes next. None: its step was taken. Loaders read
        it."""
        return self._batches.next_batch

    @property
    def planned_peers(self) -> int:
        """Number of peers that epochs are planned for. Loaders read it."""
        return self._planned_peers

    @property
    def least(self) -> int:
        """Smallest batch that the model accepts, in samples. Loaders read it."""
        return self._batches.least

    @property
    def unused(self) -> bool:
        """Whether a batch was handed out that no step has followed yet. Loaders read it."""
        return self._batches.unused

    # --- checkpoints ------------------------------------------------------------------------------

    @property
    def _resumes(self) -> bool:
        """Whether this life begins with a checkpoint. Who comes back takes the swarm's state."""
        return bool(self._config.resume) and self._place.incarnation < 2

    def _join_now(self) -> None:
        join, self._join = self._join, None
        assert join is not None
        join()
        self._stepper.resume_after_round()  # with own parameters of a checkpoint
        self._draw()

    def _check_joined(self) -> None:
        if self._join is not None:
            raise ConfigError(
                "--resume auto, and the script does not say where its checkpoints are",
                "call peer.save_every('checkpoints') behind prepare, or use nothing of the swarm "
                "before peer.steps(N, save='checkpoints')",
            )

    def _resume_from(self, said: str) -> None:
        """Load the checkpoint that the launcher has named and checked."""
        if self._config.pipeline is None:
            self._resume(*checkpoints.resolve(said))
            return
        where = said.removesuffix(OTHERS)
        folder, step = stage_parts.where_and_step(where)
        try:
            self._resume_stage(Path(folder), step)
        except stage_parts.LackingLayers as lacking:
            if where == said:
                raise
            self._print_notice(f"takes the state of others of its stage: {lacking}")

    def _resume_stage(self, folder: Path, step: int | None) -> None:
        """Loads this peer's layers from the checkpoints of the stages that had them at ``step``;
        None: at the newest one that every stage has. None there: this run begins."""
        plan = self._config.pipeline
        assert plan is not None, "only a pipeline has stages"
        if step is None:
            whole = stage_parts.newest_whole(folder)
            if not whole:
                return
            stage_parts.check_model(whole, plan.model, str(folder))
            step = whole[0].step
        own = plan.stages[plan.stage_of(self.id)].layers
        parts = stage_parts.of_layers(folder, step, own, plan.model)
        if [part.layers for part in parts] == [own]:
            self._resume(Path(parts[0].folder), step)
            return
        assert self._exchange.stage is not None, "peer.pipeline has made it"
        round_id, ledger, extra = self._exchange.stage.recut(parts)
        self._load_extra_state(extra)
        self._exchange.load(step, round_id, ledger)
        stages = ", ".join([str(part.stage) for part in parts])
        self._print_notice(
            f"goes on from step {step} with layers {own[0]} to {own[1]} of what "
            f"{'stage' if len(parts) == 1 else 'stages'} {stages} saved in {folder}"
        )

    def _resume(self, folder: Path, step: int | None) -> None:
        """Loads the newest good checkpoint of ``folder``, or that of ``step``. None there: this
        run begins."""
        found, damaged = checkpoints.newest_good(folder, step, everybody=self._config.deterministic)
        if found is None and damaged:
            raise ConfigError(
                f"no checkpoint in {folder} can be used: {'; '.join(damaged)}",
                "mend or remove them; without --resume the run begins anew",
            )
        for line in damaged if self.id == 0 else ():
            self._print_notice(f"passed over: {line}")
        if found is None:
            return
        files = {name: found.read(name) for name in (*found.model_files, TRAINING_FILE)}
        trained = self._trained
        _check_rounds(found, self._config)
        try:
            extra = load_checkpoint(
                files, trained.model, trained.optimizer, self._check_extra_state
            )
        except StateMismatch as error:
            raise ConfigError(
                f"{found.path} does not fit this script: {error}",
                "build the same model and optimizer, or begin anew without --resume",
            ) from error
        extra.pop(ANSWERS, None)  # all scripts begin anew, so their calls have no answers yet
        self._load_extra_state(extra)
        self._resume_own(folder, found)
        ledger, of_round = found.read(LEDGER_FILE), self._config.steps_per_round
        round_id, planned = _plan_of(ledger, found, of_round)
        self._planned_peers = planned or self._planned_peers
        self._exchange.load(found.step // of_round, round_id, ledger)
        if self.id == 0:
            self._print_notice(f"goes on from step {found.step}: {found.path}")

    def _resume_own(self, folder: Path, found: checkpoints.Checkpoint) -> None:
        """Load the state of this peer alone, if there is any."""
        trained = self._trained
        encoder = self._exchange.model.encoder
        owes = encoder is not None and trained.wire.encoding.feedback
        if self._is_rolling and self._plan_own() is None and not self._config.sender and not owes:
            return
        into = Loaded(trained.model, trained.optimizer, self._local_optimizer)
        own = load_own(folder, self.id, found.step, into)
        if self._stepper.is_local:
            try:
                self._stepper.load_own(own.parameters)
            except StateMismatch as error:
                own = own._replace(why=str(error))
            # Rates are those of the step, whatever was taken behind it.
            self._apply_settings()
        self._exchange.model.sender_memory = own.memory
        if encoder is not None:
            encoder.load(own.residual)
        if own.extra is not None:
            self._load_extra_state(own.extra)
        if own.why:
            begins = self._begins_without_own(f"peer {found.manifest.get('writer')}", owes)
            self._print_notice(
                f"its own state of step {found.step} is not there ({own.why}): {begins}"
            )

    def _begins_without_own(self, writer: str, owes: bool) -> str:
        """Go on without state of its own, which was not found."""
        if not self._is_rolling:
            return f"it begins with the mean model and the optimizer of {writer}"
        begins = {
            f"its buffers are those of {writer}": any(True for _ in self._trained.model.buffers()),
            "its optimizer begins anew": self._stepper.is_local,
            "it has no steps of its own on the fragments": self._config.fragments > 1,
            "its sender begins anew": bool(self._config.sender),
            "its encoding owes nothing": owes,
        }
        return ", ".join(what for what, is_so in begins.items() if is_so)

    @property
    def _local_optimizer(self) -> torch.optim.Optimizer | None:
        """Optimizer whose state belongs to this peer alone; None if all peers share it."""
        return self._optimizer if self._stepper.is_local else None

    def _plan_own(self) -> StateFile | None:
        """Plan the file of the state of this peer alone: in gossip rounds all of it."""
        trained, memory = self._trained, self._exchange.model.sender_memory
        encoder = self._exchange.model.encoder
        residual = None if encoder is None else encoder.saved()
        apart = self._stepper.own_parameters or None
        parts = OwnParts(memory, residual, self._local_optimizer, apart)
        if self._is_rolling:
            return plan_own(trained.model, parts)
        return plan_whole(trained.model, trained.optimizer, self._extra_state(), parts)

    def _between_steps(self) -> None:
        """Do what is due between two steps: the script has done what follows a step, such as to
        step a scheduler, so the state is the one that the next step begins with, and can be saved.
        """
        if self._dropped is not None:
            self._undo_dropped()
        self._load_states_due()
        self._note_loaded()
        self._scheduler_pace.follow(self._kept, self.step - self._lost_steps)
        self._stepper.end_boundary()
        if self._saver is None or not self._boundary_due:
            return
        self._boundary_due = False
        if self._termination.since is not None:
            self._stop_between_steps()
        if self._saver.is_due(self.step):
            self._save(self._saver, whole=self._saver.is_writer(), may_be_left_out=True)

    def _about_run(self) -> dict[str, Any]:
        config = self._config
        plan = config.pipeline
        of_stage = {} if plan is None else stage_parts.about(plan.cut, plan.model)
        return {
            **of_stage,
            "run": config.name,
            "seed": config.seed,
            "peers": config.peers,
            "aggregator": config.aggregator,
            "local_steps": config.local_steps,
            "fragments": config.fragments,
            "outer": config.outer_step if config.has_local_steps else "",
            "torch": torch.__version__,
        }

    def _save(self, saver: CheckpointSaver, whole: bool, may_be_left_out: bool = False) -> None:
        """Save the present state: this peer's own, once a step, and the ``whole`` checkpoint. It
        may be left out when the disk is slow, unless peers have state of their own: all save the
        same steps of that."""
        step = self.step
        own = self._plan_own() if self._saved_own != step else None
        if may_be_left_out and own is None and not saver.is_in_time(step):
            return
        self._saved_own = step
        with self._at_anchor():
            self._save_parts(saver, own, whole)

    def _save_parts(self, saver: CheckpointSaver, own: StateFile | None, whole: bool) -> None:
        trained = self._trained
        began = time.monotonic()

        def expired() -> bool:
            hurries = self.closed and self._termination.since is not None
            return time.monotonic() - began >= (HURRIED_CLOSE_S if hurries else SAVED_S)

        if not saver.wait(self._disk_expired):
            return
        ledger = self._exchange.ledger(expired) if whole else b""
        step = self.step  # behind whatever was applied while the ledger was waited for
        if not ledger:
            if own is not None:
                saver.save(step, own, {}, b"", {})
            return
        # Gossip rounds save the mean of all models, in one file.
        moved = trained.layout.parameters if self._is_rolling else None
        files = plan_checkpoint(trained.model, trained.optimizer, self._extra_state(), moved)
        about = {
            "writer": self.id,
            "parameters": trained.layout.digest_parameters().hex(),
            "history": json.loads(ledger)["chain"],
            "everybody": json.loads(ledger)["whole"],
        }
        saver.save(step, own, files, ledger, about)

    def _save_last(self, saver: CheckpointSaver, within_s: float) -> None:
        """The state as it is becomes durable, by this peer or another."""
        step, began = self.step, time.monotonic()
        leaves_early = self._in_loop and within_s == SAVED_S
        if step == 0 or (leaves_early and not saver.is_writer()):
            return  # others go on, and save

        def waits() -> bool:
            """For another peer, that has the lock and has not written it."""
            waited_s = time.monotonic() - began
            mine = saver.is_writer() or saver.failed or waited_s >= HANDED_OVER_S
            return not mine and not saver.has(step) and waited_s < within_s

        self._exchange.serve_while(waits)
        self._save(saver, whole=saver.newest != step and not saver.has(step))
        saver.wait(self._disk_expired, self._exchange.serve_while)
        said, self._not_saved = self._not_saved, ""
        if not saver.has(step):
            saver.release()  # others wait for it, and may be able to write
            self._not_saved = f"step {step} to {saver.folder}: {saver.failed or 'no ledger'}"
            if within_s == SAVED_S and not said:
                self._print_notice(f"the last checkpoint is not there: {self._not_saved}")

    def _disk_expired(self) -> bool:
        """Whether a checkpoint that is being written is not waited for any more."""
        since = self._termination.since
        return since is not None and time.monotonic() - since >= SAVED_S

    def _print_notice(self, line: str) -> None:
        print(f"gossip: peer {self.id}: {line}", file=sys.stderr, flush=True)

    def _draw(self) -> None:
        """Seeds the generators for the next step, each peer's with its own: what is drawn in it
        depends on nothing that was drawn before, so a resumed run draws the same. A script that
        was started alone draws as it would without gossip."""
        if self._config.name == ALONE:
            return
        step = self.step
        if step != self._seeded[0]:  # else it is of what was drawn in between
            self._seeded = step, draw("step", self._config.seed, self.id, step)
        seed_generators(self._seeded[1])

    # --- state beside the model -------------------------------------------------------------------

    def _extra_state(self) -> dict[str, Any]:
        """Return what goes with the parameters that all peers share."""
        if self._exchange.in_flight:
            state = self._state_in_flight
        else:
            state = self._stepper.extra_state(self._state_now)
        answers = self._collectives.answers.state()
        return {**state, ANSWERS: answers} if answers else state

    def _state_now(self) -> dict[str, Any]:
        answers = self._collectives.answers.state()
        apart = self._optimizer if self._has_settings_apart else None
        stage = self._exchange.stage
        norms = {} if stage is None else stage.norms.state()
        return {
            **({ANSWERS: answers} if answers else {}),
            **({NORMS: norms} if norms else {}),
            **({LOST: self._exchange.lost} if self._exchange.lost else {}),
            **({LOCAL_STATE: settings_of(apart, self.step)} if apart is not None else {}),
            **self._kept_states,
            **{name: thing.state_dict() for name, thing in sorted(self._kept.items())},
            **self._states_due,
        }

    @property
    def _has_settings_apart(self) -> bool:
        """Whether settings of the user's optimizer, such as its learning rate, are not those that
        go with the parameters: the script is ahead of them."""
        return self._stepper.is_local or self._overlaps

    def _check_extra_state(self, states: dict[str, Any]) -> None:
        """Before anything of a state is taken over. Raises StateMismatch."""
        if self._has_settings_apart:
            read_settings(states.get(LOCAL_STATE), self._users_optimizer)
        if not isinstance(states.get(LOST, 0), int):
            raise StateMismatch(f"{LOST} is no number of rounds: {states[LOST]!r:.80}")
        try:
            read_answers(states.get(ANSWERS, ()))
        except ValueError as error:
            raise StateMismatch(str(error)) from error

    def _load_extra_state(self, states: dict[str, Any]) -> None:
        settings = self._settings_in(states)
        self._exchange.lost = states.get(LOST, 0)
        self._lost_at = self._lost_steps
        for name, state in states.items():
            if name in (LOCAL_STATE, LOST):
                continue
            if name == ANSWERS:
                self._collectives.answers.adopt(state)
            elif name == NORMS:
                if self._exchange.stage is not None:
                    self._exchange.stage.norms.adopt(state)
            elif name in self._kept:
                self._states_due[name] = state
            else:
                self._kept_states[name] = state  # ``keep`` may be called for it yet
        self._group_settings = settings
        self._stepper.on_state_loaded(states)
        if self._has_settings_apart:
            self._apply_settings()
        if not self._in_round:
            self._load_states_due()

    def _settings_in(self, states: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the settings of the user's optimizers that came with a state."""
        if not self._has_settings_apart:
            return groups_of(self._users_optimizer)
        self._kept_at, settings = read_settings(states.get(LOCAL_STATE), self._users_optimizer)
        return settings

    @property
    def _users_optimizer(self) -> torch.optim.Optimizer:
        """Or what stands for several. Since ``prepare``."""
        assert self._optimizer is not None
        return self._optimizer

    def _apply_settings(self) -> None:
        for group, settings in zip(self._optimizer_groups(), self._group_settings, strict=True):
            group.update(settings)

    def _load_states_due(self, names: Collection[str] | None = None) -> None:
        """Not within a step: what the script does behind it, such as to step a scheduler, is of the
        step that it had begun, and not of the state that came meanwhile. ``names``: of all, or of
        those."""
        due = self._states_due if names is None else names & self._states_due.keys()
        if not due:
            return
        for name in tuple(due):
            self._kept[name].load_state_dict(self._states_due.pop(name))
            self._loaded_kept.add(name)
        self._apply_settings()

    def _note_loaded(self) -> None:
        """Note the step of the state that loaded schedulers belong to, before the script steps
        them."""
        if self._loaded_kept:
            loaded = {name: self._kept[name] for name in self._loaded_kept}
            at = self._kept_at if self._has_settings_apart else self._exchange.state_step
            self._scheduler_pace.loaded(loaded, at - self._lost_at)
            self._loaded_kept = set()

    def _optimizer_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups if self._optimizer is not None else []

    # --- ends -------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ConfigError(
                "this peer has left the swarm", "call gossip.init() again to come back"
            )
        if os.getpid() != self._pid:
            raise ConfigError(
                "this is a forked child of the peer",
                "only the process that called gossip.init() takes part",
            )

    def _check_no_pipeline(self, what: str) -> None:
        if self._config.pipeline is not None:
            raise ConfigError(
                f"{what}: a pipeline cannot do that",
                "each step of peer.steps(N) is one pipe.step(x, y); docs/plan.md has what is there",
            )

    def _check_termination(self) -> None:
        """Called about twice a second in every wait. A step that was begun is finished, if that
        does not take long."""
        since = None if self.closed else self._termination.since
        if since is not None and (not self._in_round or time.monotonic() - since > HURRIED_CLOSE_S):
            self._stop()

    def _stop_between_steps(self) -> None:
        """Ends the script, with the round in flight if it comes in time."""
        self._undo_local_steps()
        self._drain()
        self._stop()

    def _stop(self) -> None:
        self._stopped = True
        self.close("stopped")
        if self._termination.interrupted:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_SIGTERM)

    def _raised(self, error: BaseException) -> None:
        """The script raised, and nobody caught it."""
        if self.closed or os.getpid() != self._pid:
            return
        if not isinstance(error, Exception):
            self.close("stopped")  # KeyboardInterrupt and its like
            return
        if self.run_dir is not None:
            write_error(
                self.run_dir / f"peer-{self.id}", {"peer": self.id, "round": self.round}, error
            )
        self.close("raised")

    def _launcher_gone(self) -> None:
        """In the watching thread. The training thread may be anywhere, so it is not asked."""
        if self.closed or os.getpid() != self._pid:
            return
        try:
            self._exchange.link.send_close("stopped")
            self._exchange.link.node_ended(HURRIED_CLOSE_S)
        except GossipError:
            self._exchange.link.node_ended(0.1)
        os._exit(1)

    def _forked(self) -> None:
        if not self.closed:
            self._exchange.link.drop_after_fork()


def _check_rounds(checkpoint: checkpoints.Checkpoint, config: RunConfig) -> None:
    """Raises ConfigError: Its rounds were on other steps than those of this run, or were followed
    by another one."""
    after = config.outer_step if config.has_local_steps else ""
    for name, default, own in (
        ("local_steps", 1, config.local_steps),
        ("fragments", 1, config.fragments),
        ("outer", "", after),
    ):
        saved = checkpoint.manifest.get(name, default)
        if saved != own:
            raise ConfigError(
                f"{checkpoint.path} was saved with {name} = {saved or 'none'}, and this run has "
                f"{own or 'none'}",
                f"resume with --{name.replace('_', '-')} {saved}"
                if saved
                else f"resume without --{name}",
            )


def _plan_of(
    ledger: bytes, checkpoint: checkpoints.Checkpoint, of_round: int
) -> tuple[int, int | None]:
    """The round that comes after a checkpoint, and how many peers epochs are planned for, if they
    are. Raises ConfigError: That is not in there."""
    found = json.loads(ledger)
    round_id = found.get("round") if isinstance(found, dict) else None
    try:
        if type(round_id) is int and round_id * of_round >= checkpoint.step:
            return round_id, planned_peers(ledger)
        why = "its round is not there"
    except ValueError as error:
        why = str(error)
    raise ConfigError(
        f"{checkpoint.path} was written by another version of gossip: {why}",
        "use the version of gossip that has written it",
    )


def _content_of(content: object) -> Callable[[], bytes]:
    """Return a function that makes the bytes of a file, where it is written. Raises ConfigError:
    ``content`` is of another kind."""
    match content:
        case bytes():
            return lambda: content
        case str():
            return lambda: content.encode()
        case dict() if all(
            isinstance(name, str) and isinstance(each, Tensor) for name, each in content.items()
        ):
            return lambda: safetensors.torch.save(
                {name: tensor.detach().clone().contiguous() for name, tensor in content.items()}
            )
    raise ConfigError(
        f"save was given a {type(content).__name__}",
        "give it bytes, a text, or a dict of tensors such as model.state_dict()",
    )
