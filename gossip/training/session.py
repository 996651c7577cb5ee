"""The session: the user's interface to one peer of the swarm."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar, Unpack

import safetensors.torch
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from gossip.aggregators import load, senders
from gossip.errors import ConfigError, GossipError
from gossip.ipc import EXIT_SIGTERM, Channel
from gossip.node import wire_of
from gossip.satellites import find_function

from .batches import check_accumulate
from .checkpointing import RunCheckpoints
from .checks import check_clip_norm, check_model, check_rule, check_shapes, plain_model
from .collectives import Collectives, Means, write_whole
from .differing import compared
from .exchange import Exchange
from .extra_state import ExtraState
from .judging import JudgeService, LossJudge
from .layout import Layout
from .loader import ShardedLoader, loader_of
from .local_model import TrainedModel
from .local_steps import choose_stepper
from .loops import TrainingLoop
from .membership import MembershipChange
from .metrics import line_of
from .node_start import NodeHandle, PeerPlace, StartNode
from .optimizer import StepCoordinator, check_optimizers, make_modes_exact
from .peer_run import PeerRun
from .reference import JudgeReference
from .replicas import compare_replicas
from .resuming import load_named, load_newest
from .rounds import ScriptRounds
from .script_steps import ScriptSteps
from .searching import SearchingPeer
from .several import as_one
from .stage import OwnStage, Pipeline
from .streaming import ShardedStream
from .typed import LoaderOptions
from .watch import HURRIED_S, ExceptHook, TerminationHandler, watch_launcher, write_error

AUTO = "auto"
CLOSE_S = 45.0
"""Timeout of ``close``. It exceeds ``linger_s`` and ``drain_timeout_s``, which a node waits for
peers that were lost shortly before the end."""
Model = TypeVar("Model", bound=torch.nn.Module)
Optimizers = TypeVar("Optimizers", bound=torch.optim.Optimizer | Sequence[torch.optim.Optimizer])


class Session:
    """One peer of the swarm, as an object for its script. Created by ``gossip.init()``.

    A process has one session at a time. ``optimizer.step()`` of the prepared optimizer exchanges
    the gradients with the swarm and steps with the aggregate. Afterwards ``.grad`` holds the
    aggregate. In rolling rounds the parameters of all peers are equal after every step, bit for
    bit. Used as a context manager, a session closes itself at the end of the block.
    """

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
        self._loader: ShardedLoader | ShardedStream | None = None
        config, peer = place.config, place.peer
        sender = senders.load(config.sender)
        exchange = Exchange(start, connection, place, self._check_termination, sender)
        self._exchange, self._run = exchange, PeerRun(place, exchange, termination)
        run = self._run
        run.model.extra = ExtraState(run)
        termination.stop, termination.in_step = self._stop, lambda: run.in_round or run.in_loop
        self._reference = JudgeReference(config, peer, reference)
        self._checkpoints = RunCheckpoints(run)
        exchange.leave_state = self._checkpoints.leave_state
        self._rounds = rounds = ScriptRounds(run, self._checkpoints)
        self._collectives = Collectives(run, rounds.run_collective)
        self._steps = steps = ScriptSteps(run, rounds, self._reference)
        self._loop = TrainingLoop(run, rounds, steps)
        # A forked child, such as a DataLoader's worker, must not keep the channel to the node open.
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
        clip_norm: float | None = None,
    ) -> tuple[Model, Optimizers]:
        """Connect the model and the optimizer to the swarm. Call it once, before the first step.

        From then on ``optimizer.step()`` exchanges gradients. The call waits until enough peers
        have joined. If the swarm is ahead, or began with other weights, the swarm's state replaces
        that of the model, its buffers and the optimizer.

        Args:
            model: Any module, also one wrapped by ``torch.compile``. All peers build the same one.
            optimizer: One optimizer, or a sequence of them. Each step of each of several optimizers
                is a round. The first one on a batch is a step of the run.
            judge: Returns the loss of the current parameters on a batch, for rules that rate
                updates by it (judged_clipping, fltrust, zeno, zeno_pp): ``lambda batch:
                loss_fn(model(batch[0]), batch[1])``. A new batch is drawn in each round, from the
                ``reference`` of ``gossip.init``, or else from the data set of ``peer.shard``. A
                ``judge`` without an argument draws its own batch with the generator of torch, numpy
                or Python. The state of that generator is restored afterwards.
            together: Step all optimizers in one round, at the ``step()`` of the last one, if the
                script steps one after the other. Code between their steps sees the weights before
                all of them.
            clip_norm: Largest Euclidean norm of the aggregate that a round steps with. A longer one
                is scaled to it, as by ``torch.nn.utils.clip_grad_norm_`` after DDP has averaged.
        Returns: ``(model, optimizer)``, the same objects.
        Raises:
            UnsupportedModel: Something in the model or the optimizer cannot be exchanged.
            ConfigError: It was called twice, the rule needs a ``judge``, ``clip_norm`` is not
                positive, or the run has local steps, which exchange no gradients to clip.
            SwarmError: The swarm did not come together.
        """
        self._run.check_open()
        if self._run.is_prepared:
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
        if clip_norm is not None:
            check_clip_norm(clip_norm, self._config)
        optimizers = check_optimizers(optimizer)
        check_model(model, optimizers)
        plain, combined = plain_model(model), as_one(optimizers)
        layout = Layout(plain, combined)
        # Late: a rule may be registered in the script, before this call.
        rule = load(self._config.aggregator)
        check_rule(rule, self._config, judge is not None)
        draw_batch = self._reference.fit(rule, judge)
        seed = f"{self._config.seed}/{self.id}".encode()
        local, alone = self._run.model, self._run.trains_alone
        local.extra.optimizer = combined
        self._rounds.batches.prepare(plain, layout.parameters[-1])
        bench = None if judge is None else LossJudge(plain, layout, judge, seed, draw_batch)
        with compared(self.run_dir, self.id, layout):
            parts = layout.cut(self._config.fragments)
            # With fragments no encoding needs shapes (``gossip.run.fitting``).
            shapes = layout.shapes if len(parts) == 1 else ()
            wire = wire_of(self._config, self.id)(parts[0].elements, parts[0].marks, shapes)
            check_shapes(wire)
            clip = {} if clip_norm is None else {"clip_norm": clip_norm}
            local.steps_directly = alone and wire.is_plain and not clip
            for each in () if local.steps_directly else optimizers:
                make_modes_exact(each)
            coordinator = StepCoordinator(optimizers, self._steps.step, together, optimizer)
            self._steps.coordinator = coordinator
            trained = TrainedModel(plain, combined, coordinator.step, layout, wire, parts, clip)
            stepper, trained = choose_stepper(trained, self._run)
            local.attach(trained, stepper)
            self._steps.unprepared.prepared(optimizers, trained.optimizer, alone=alone)
            self._judging = JudgeService(bench, rule, layout.elements)
        self._run.is_prepared = True
        compare_replicas(self._run, self._checkpoints.is_due)
        # A peer that returns takes the swarm's state.
        resume = self._config.resume if self._place.incarnation < 2 else ""
        if resume and resume != AUTO:
            load_named(self._run, resume)
        if resume != AUTO:
            self._join_now()
        self._rounds.computing_since = time.monotonic()
        return model, optimizer

    def _join_now(self) -> None:
        with compared(self.run_dir, self.id, self._run.model.trained.layout):
            self._exchange.prepare(self._judging)
        self._run.stepper.resume_after_round()  # with own parameters of a checkpoint
        self._run.membership.notify()
        self._steps.seed()

    def shard(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        classes: int | None = None,
        accumulate: int = 1,
        order: str = "",
        **options: Unpack[LoaderOptions],
    ) -> ShardedLoader | ShardedStream:
        """Return a loader that reads this peer's share of the data. ``docs/data.md`` has its
        guarantees.

        One iteration is one epoch. With a map-style data set the swarm draws the order, and each
        sample of an epoch is used once, even if peers fail. With an iterable data set each peer
        reads every n-th element, which guarantees less.

        Args:
            data: A DataLoader or a data set, the same on every peer. ``shuffle`` and ``drop_last``
                of a map-style DataLoader have no effect, and cause a warning.
            batch_size: Samples of one peer in one round, if ``data`` is a data set.
            classes: Number of classes, for the label_flip fault. By default it is read from the
                targets.
            accumulate: Batches per optimizer step, the same on every peer. With ``local_steps`` a
                round has this number of batches for each local step.
            order: Order of the samples within an epoch, the same on every peer:
                ``stratified:labels`` or ``similar:labels`` (``docs/data.md``). By default it is
                drawn from the run's seed.
            options: Further arguments of the DataLoader for a data set, such as ``num_workers`` and
                ``collate_fn``.
        Returns: A ``ShardedLoader`` for map-style data, a ``ShardedStream`` for iterable data.
        Raises: ConfigError: It was called twice, or the data cannot be split.
        """
        self._run.check_open()
        self._run.check_no_pipeline("shard")
        if self._loader is not None:
            raise ConfigError(
                "shard was called twice",
                "shard one data set, with all that is trained on (ConcatDataset, or one that draws "
                "by epoch); other loaders, as for evaluation, need no shard",
            )
        loader = loader_of(data, batch_size, dict(options))
        check_accumulate(accumulate)
        alter = self._run.hooks.alteration(loader.dataset, classes)
        of_round = accumulate * self._config.steps_per_round
        how = self._loop, self._config.seed, alter, of_round
        self._rounds.batches.expected = accumulate
        if isinstance(loader.dataset, IterableDataset):
            if order:
                raise ConfigError(
                    f"order {order}: an IterableDataset is read in its own order",
                    "give shard a data set with __getitem__ and __len__, or no order",
                )
            self._loader = ShardedStream(loader, *how)
            return self._loader
        sharded = ShardedLoader(loader, *how)
        if order:
            sharded.order_by(order)
        self._loader = sharded
        self._reference.shared = sharded.reference
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
        """Prepare a model that is spread over peers, in place of ``prepare``.

        This peer computes the layers of its stage, by the plan of the run (``gossip run --plan``,
        ``docs/plan.md``). A script that was started alone computes all layers. Requires
        gossip-pipelines.

        Layers may be given as functions that make them, such as their classes. Then a peer makes
        only those of its stage, and inspects the others on torch's meta device, without memory for
        them. Each layer is made under a seed from the run's seed and the layer's number, so a model
        starts alike wherever it is cut. Layers of other stages that are built already are moved to
        the meta device and lose their parameters.

        Args:
            layers: All layers of the model, in their order, alike on every peer: those that
                ``gossip plan profile`` has timed. Each is a module, or a function that takes
                nothing and returns one.
            samples: Some inputs, ``(n, ...)``; only their shape and type matter.
            loss: Of outputs and targets, the mean over the samples.
            optimizer: Makes the optimizer of this peer's parameters: ``lambda parameters:
                torch.optim.Adam(parameters, lr=1e-3)``.
        Returns: The ``Pipeline``. Its ``step(x, y)`` replaces the body of the usual loop.
        Raises:
            UnsupportedModel: A layer keeps statistics of batches, or something cannot be exchanged.
            ConfigError: gossip-pipelines is not installed; the run has no plan, or one for other
                layers; a layer cannot be made; it was called twice.
            SwarmError: The swarm did not come together.
        """
        self._run.check_open()
        plan = self._config.pipeline
        if plan is None and self._config.peers_max > 1:
            raise ConfigError(
                "peer.pipeline was called in a run without a plan",
                "gossip run --plan plan.toml SCRIPT, or gossip hosts --plan; gossip plan makes one",
            )
        make_stage = find_function("make_stage", "peer.pipeline")
        stage: OwnStage = make_stage(self._run, layers, samples, loss, optimizer)
        if plan is not None:
            self._exchange.stage = stage
            self._run.model.measure_gradients = stage.norms.measure
        self.prepare(stage.model, stage.optimizer)
        return Pipeline(stage, stage.stepping(self._steps.run_stage))

    # --- optional ---------------------------------------------------------------------------------

    def search_start(
        self,
        make: Callable[[], torch.nn.Module],
        *,
        loss: Callable[[torch.nn.Module, Any], Tensor],
        optimizer: Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer],
        search: Any = None,
    ) -> Any:
        """Search for better initial weights, with all peers in parallel, and load them into the
        prepared model. Call it on all peers, after ``prepare`` and ``shard``, before the first step
        (``docs/starts.md``). Requires gossip-pipelines.

        Each peer trains different starts for some steps. The half with the smaller held-out loss is
        tried again, each start by twice as many peers. Peers agree on the seed and the recipe of
        the winner, and each peer draws the weights itself. With ``f`` > 0 the claims of ``f`` peers
        alone choose no start. The search skips peers that die.

        Args:
            make: Builds the prepared model, with the random numbers of its constructor.
            loss: Of a model on a batch of the loader: ``lambda model, batch:
                loss_fn(model(batch[0]), batch[1])``.
            optimizer: Makes the optimizer of a trial: ``lambda parameters:
                torch.optim.Adam(parameters, lr=1e-3)``.
            search: A ``gossip_pipelines.starts.StartSearch``: the starts to compare, and the length
                of trials.
        Returns: The ``FoundStart``, the same on all peers. None: the run has made steps, for
            example if this peer has returned or resumed, and the model has the run's state.
        Raises: ConfigError: gossip-pipelines is not installed, a call is missing before, this one
            differs from that of most peers, or no trial came to a finite loss.
        """
        self._run.check_no_pipeline("search_start")
        self._steps.check_prepared("search_start")
        find = find_function("search_start", "peer.search_start")
        peer = SearchingPeer(self._run, self._rounds, self._collectives)
        calls = make, loss, optimizer
        with self._steps.unprepared.paused():
            found = find(peer, self._run.model.trained, self._loader, calls, search)
        if found is not None:
            self.log(start=str(found.recipe))
            if self.is_main:
                self._run.notify(f"begins with {found}")
        return found

    def no_sync(self) -> AbstractContextManager[None]:
        """Mark backward passes as accumulating gradients for a later step, as in DDP.

        It saves no traffic, because nothing is exchanged before ``optimizer.step()``. It guards
        against two mistakes inside the block: a step, and samples of another round. ``shard(loader,
        accumulate=k)`` puts k batches into one round.

        Returns: A context manager.
        Raises: ConfigError: Inside the block, the optimizer stepped or the round changed.
        """
        self._run.check_open()
        return self._rounds.batches.no_sync()

    def log(self, **metrics: Any) -> None:
        """Write a line to this peer's ``metrics.jsonl`` and to the launcher's display.

        A metric named ``loss`` is also sent with the next update.

        Args:
            metrics: Numbers, tensors with one element, or strings of at most 200 characters.
        Raises: ConfigError: A value has another type.
        """
        self._run.check_open()
        text, loss = line_of(self.round, metrics)
        if loss is not None:
            self._rounds.loss = loss
        self._exchange.log(text)

    def keep(self, **objects: Any) -> None:
        """Add objects to the state that a joining or returning peer receives.

        Learning-rate schedulers are the usual case.

        Args:
            objects: Anything with ``state_dict`` and ``load_state_dict``, under a name that is the
                same on every peer.
        Raises:
            ConfigError: An object lacks one of the two methods.
            UnsupportedModel: A part of its state cannot be saved; the message names the place.
        """
        for name, thing in objects.items():
            self._run.model.extra.keep(name, thing)

    def each_step(
        self, function: Callable[[], object], after: torch.optim.Optimizer | None = None
    ) -> Callable[[], object]:
        """Call ``function`` exactly once after each step of the run, in order, on every peer.

        Use it for work that follows a step: a moving average of the weights (EMA), a clamp, a
        target network, a manual decay, a counter. A late peer applies steps without running the
        body of the loop for them; ``function`` runs for those steps, too. It runs without autograd,
        and its random numbers from torch are the same on all peers. It must not call methods of
        this peer that exchange data. In it ``step`` is the number of steps that the parameters
        have. Give objects with a state, such as an average, also to ``keep``: then a returning peer
        receives them.

        Args:
            function: Takes nothing, and is registered right after ``prepare``.
            after: One of several optimizers: ``function`` is called after each of its steps, and
                not after those of the run, which the first optimizer on a batch makes.
        Returns: ``function``, so this can be a decorator.
        Raises: ConfigError: The run has local steps, which are each peer's own, or rounds that this
            peer has missed were applied before.
        """
        self._run.check_open()
        if after is not None and not self._run.is_prepared:
            raise ConfigError("each_step after an optimizer, before prepare", "prepare it first")
        self._steps.add_function(function, after)
        return function

    def on_membership_change(
        self, function: Callable[[MembershipChange], object]
    ) -> Callable[[MembershipChange], object]:
        """Call ``function`` with each change of the roster: peers that joined, returned, died or
        left.

        It is called in the thread of the script, between two steps: when the loader, ``steps`` or
        ``epochs`` begins a step, and without them at the end of ``optimizer.step()``. The first
        roster of this process is no change. In rolling rounds the roster is part of the commit, so
        all peers in a round have the same one. A late peer gets the changes of missed rounds as
        one. In gossip rounds the roster has the peers that are neither dead nor left in this peer's
        view, in a pipeline those of its stage.

        Args:
            function: Takes a ``MembershipChange``. It must not call methods of this peer that
                exchange data. Its exceptions are those of the script.
        Returns: ``function``, so this can be a decorator.
        """
        self._run.check_open()
        self._run.membership.add(function)
        return function

    def save_every(self, folder: str | Path, every: int | None = None, keep: int = 3) -> None:
        """Save checkpoints of the run: one every ``every`` steps, at the end, at Ctrl-C and at
        SIGTERM. Call it after ``prepare`` and ``keep``, before the first step.

        A checkpoint has the model, the optimizer, the objects of ``keep``, the position in the data
        and the history of the run. One of the living peers writes it, while training continues. Its
        ``model.safetensors`` is a plain file; parameters that are not trained are in
        ``base.safetensors`` beside it. With ``gossip run --resume auto`` the run resumes from the
        newest one in ``folder`` (``docs/checkpoints.md``).

        Args:
            folder: Folder of the checkpoints, relative to the working folder.
            every: Steps between two checkpoints; None: only at the end.
            keep: Number of checkpoints to keep, the newest ones.
        Raises:
            ConfigError: ``prepare`` was not called, a number is wrong, it was called twice, or the
                checkpoint to resume from does not fit the model.
        """
        self._run.check_open()
        is_prepared = self._run.is_prepared
        if not is_prepared or self._checkpoints.saver is not None:
            when = "twice" if is_prepared else "before prepare"
            raise ConfigError(
                f"save_every was called {when}",
                "call it once, after peer.prepare and peer.keep",
            )
        place = Path(folder).absolute()
        self._checkpoints.open(place, every, keep)
        self._loop.report_plan()
        if not self._exchange.is_prepared:
            load_newest(self._run, place)
            self._join_now()

    def steps(
        self,
        total: int,
        *,
        save: str | Path | None = None,
        every: int | None = None,
        keep: int = 3,
    ) -> Iterator[int]:
        """Yield the numbers of the steps that remain, from 0 to ``total`` - 1: those of the run,
        the same on every peer.

        A peer that joined late, returned, or resumed from a checkpoint begins at the present step
        of the run. All peers leave the loop after the same step. If a body makes no
        ``optimizer.step()``, this peer takes part in the round without an update.

        Args:
            total: Steps of the whole run; a multiple of those of a round, ``local_steps`` by
                ``fragments``.
            save, every, keep: As for ``save_every``; without ``save`` nothing is saved.
        Raises: ConfigError: As ``save_every``, or ``total`` is not a number of steps.
        """
        self._check_total("steps", total)
        of_round = self._config.steps_per_round
        if total % of_round:
            below = total - total % of_round
            raise ConfigError(
                f"steps({total}) is no multiple of {of_round}, the steps of a round (local_steps / "
                "fragments): the last round would not come to its end",
                f"take {below or of_round} or {below + of_round}",
            )
        self._save_in_loop(save, every, keep)
        return self._loop.run_steps(total)

    @staticmethod
    def _check_total(what: str, total: object) -> None:
        if not isinstance(total, int) or total < 0:
            raise ConfigError(f"{what}({total!r}) is not a number of {what}")

    def _save_in_loop(self, save: str | Path | None, every: int | None, keep: int) -> None:
        if save is not None:
            self.save_every(save, every, keep)
        elif every is not None:
            raise ConfigError(
                "every without save", "name a folder: peer.steps(N, save='checkpoints')"
            )

    def epochs(
        self,
        total: int,
        *,
        remainder: Literal["leave", "extend"] = "leave",
        save: str | Path | None = None,
        every: int | None = None,
        keep: int = 3,
    ) -> Iterator[int]:
        """Yield the numbers of the epochs that remain, from 0 to ``total`` - 1: those of the run,
        the same on every peer.

        An epoch has ``len(loader)`` batches of the sharded loader, even if peers fail. A peer that
        joined late, returned, or resumed from a checkpoint begins at the present epoch of the run,
        also in the middle of an epoch. All peers leave the loop after the same step. If a body
        leaves its epoch early, other peers read the rest. Over a stream, or without a loader, each
        peer counts its own epochs.

        Args:
            total: Epochs of the whole run.
            remainder: Treatment of samples that failures have left unread at the end of the last
                epoch. ``leave``: the summary of the run has their number. ``extend``: the last
                epoch has further steps that read them. Samples that no step can use are given up
                after a bounded number of rounds (``loader.given_up``).
            save, every, keep: As for ``save_every``; ``every`` counts steps. Without ``save``
                nothing is saved.
        Raises: ConfigError: As ``save_every``, ``total`` is not a number of epochs, or the data
            have no readable remainder.
        """
        self._check_total("epochs", total)
        if remainder not in ("leave", "extend"):
            raise ConfigError(f"remainder is {remainder!r}", "'leave' or 'extend'")
        if remainder == "extend":
            self._extend(total)
        self._save_in_loop(save, every, keep)
        loader = self._loader
        if isinstance(loader, ShardedLoader):
            return self._loop.run_epochs(total, loader.steps, lambda: loader.given_up)
        return self._loop.run_own_epochs(total, loader is not None)

    def _extend(self, epochs: int) -> None:
        """Request that the remainder of ``epochs`` epochs is read in further rounds of the last
        one."""
        sharded = self._loader
        if not isinstance(sharded, ShardedLoader) or not self._config.is_rolling:
            raise ConfigError(
                "remainder='extend' needs rolling rounds, and a data set with an index that "
                "peer.shard was given before",
                "for streams, and in gossip rounds, the unread samples are unknown",
            )
        if epochs:
            self._exchange.shard(*sharded.plan, extended=epochs)

    @property
    def id(self) -> int:
        """Number of this peer, from 0."""
        return self._run.peer

    @property
    def round(self) -> int:
        """Number of the next round, from 0. The records of the run count in rounds."""
        return self._exchange.round_id

    @property
    def step(self) -> int:
        """Number of the next step, from 0. A step counts also if no peer had an update for it, so
        that it changed nothing. A collective operation, such as ``mean``, takes a round and is no
        step. With ``local_steps`` each round counts as that number of steps. With ``overlap`` the
        last step may be in flight."""
        return self._run.step

    @property
    def stepped(self) -> bool:
        """Whether the last ``optimizer.step()`` was one step of the run. A late peer applies
        several steps in one call, or none. For work that must run once per step use
        ``each_step``."""
        return self._steps.advanced == 1

    @property
    def is_main(self) -> bool:
        """Whether this peer does the work that is done once per run, such as printing. The main
        peer is the lowest of the roster that is trusted to serve, the same for all peers in a
        round. If it dies, another peer becomes the main peer. To write a file once, use
        ``save``."""
        return self._run.roster.main == self.id

    @property
    def device(self) -> torch.device:
        """Device for the model of this peer: a CUDA device, of which the peers of a host share
        several in turn, or else the CPU. The run does not depend on it."""
        devices = torch.cuda.device_count()
        return torch.device("cuda", self.id % devices) if devices else torch.device("cpu")

    @property
    def initial_peers(self) -> int:
        """Number of peers that the run begins with. It never changes."""
        return self._config.peers

    @property
    def planned_peers(self) -> int:
        """Number of peers that epochs are planned for."""
        return self._run.planned_peers

    @property
    def roster(self) -> tuple[int, ...]:
        """Numbers of the peers in the roster of the present round, ascending, this one included."""
        return self._run.roster.roster

    @property
    def roster_peers(self) -> int:
        """Number of peers in ``roster``."""
        return len(self.roster)

    @property
    def alive_peers(self) -> int:
        """Number of peers of the roster that are alive in this peer's view."""
        return self._run.roster.alive

    @property
    def run_dir(self) -> Path | None:
        """Folder of the run. None when the run writes nothing, as in a script started alone."""
        return self._run.run_dir

    @property
    def finished(self) -> bool:
        """Whether the run is over: all its rounds are done, or its end was requested."""
        return self._run.is_over

    @property
    def confirmed(self) -> bool | None:
        """Whether enough other peers confirmed that they hold the same final parameters.

        False: too few confirmed, so a Byzantine server of the last round may have forged them.
        None: training is not over, or ``f`` is 0, or replicas differ anyway as in gossip rounds.
        A script that counts its rounds itself gets the answer after ``close()``.
        """
        return self._exchange.confirmed

    @property
    def closed(self) -> bool:
        """Whether this peer has left the swarm."""
        return self._run.is_closed

    def close(self, reason: str = "finished") -> None:
        """Leave the swarm and end the node. Also called at exit; a second call has no effect.

        A finished peer first sends the final state to peers that are behind. It waits up to half a
        minute for a peer that was lost shortly before, because that peer may return. Ctrl-C and
        SIGTERM end the wait.

        Args:
            reason: ``finished``, ``stopped`` or ``raised``, for the run's log.
        """
        if not self._run.is_active:
            return
        self._run.is_closed = True
        if reason == "finished" and self._run.is_asked_to_stop:
            reason = "stopped"
        finished = reason == "finished"
        patience_s = CLOSE_S if finished else HURRIED_S
        until = time.monotonic() + patience_s
        hurry: Callable[[], bool] = lambda: self._run.is_asked_to_stop  # noqa: E731
        stepper, saves = self._run.stepper, self._checkpoints
        if not self._run.in_round:
            stepper.end_boundary()
        self._rounds.undo_local_steps()
        try:
            if finished:
                with suppress(SystemExit):  # the node has ended as planned
                    self._rounds.drain(lambda: hurry() or time.monotonic() >= until)
            else:
                self._exchange.abandon()
            stepper.return_to_anchor()
            if finished:
                self._rounds.confirm(hurry)
            saves.save_last(in_hurry=not finished, leaves_early=finished and self._loop.is_left)
            if saves.saver is not None:
                saves.saver.close()
            self._exchange.close(reason, patience_s, hurry, saves.missing)
        except KeyboardInterrupt:
            self._exchange.close(reason, HURRIED_S)  # a second goodbye requests an immediate end
            raise
        finally:
            self._steps.unprepared.over()
            if not self._run.termination.interrupted:  # else the hook must suppress the traceback
                self._hook.uninstall()
            self._run.termination.uninstall()
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

    # --- collective operations --------------------------------------------------------------------

    def mean(self, **numbers: Any) -> Means:
        """Return the mean of numbers over the living peers, for metrics: the all-reduce of DDP
        scripts. All peers call it with the same names, and get the same result.

        With ``f`` > 0 it is the trimmed mean, without the ``f`` largest and ``f`` smallest numbers
        of each name, so ``f`` Byzantine peers cannot move it beyond the range of honest numbers. A
        Byzantine server of the round can still forge the numbers of other peers (``docs/data.md``).

        Args:
            numbers: Numbers, or tensors with one element.
        Returns: name -> mean; its ``peers`` are the peers with numbers in it.
        Raises: ConfigError: A value is not a number, or the run is not rolling.
        """
        return self._collective("mean").mean(numbers)

    def gather(self, value: Any) -> dict[int, Any]:
        """Collect a value from each living peer, the same for all. All peers call it.

        Args:
            value: None, bool, int, float, str, bytes, or lists and dicts of them; in all peers
                together at most 24 KiB.
        Returns: peer -> value, with tuples as lists.
        Raises: ConfigError: The value has another type or is too large, or the run is not rolling.
        """
        return self._collective("gather").gather(value)

    def broadcast(self, value: Any = None) -> Any:
        """Return the value of one living peer, the same for all: the lowest peer with a value other
        than None. All peers call it. That peer may be Byzantine.

        Args:
            value: As for ``gather``, at most 12 KiB.
        Returns: that value, or None if all gave None.
        Raises: ConfigError: As ``gather``.
        """
        return self._collective("broadcast").broadcast(value)

    def any(self, flag: bool) -> bool:
        """Whether more than ``f`` living peers have given True, the same for all: so ``f``
        Byzantine peers cannot stop a training. All peers call it.

        Raises: ConfigError: The run is not rolling.
        """
        return self._collective("any").any(flag)

    def barrier(self) -> tuple[int, ...]:
        """Wait until all living peers have called it, for ``round_timeout_s`` at most.

        Returns: the peers that have called it.
        Raises: ConfigError: The run is not rolling.
        """
        self._collective("barrier").collect("barrier", b"")
        return self.answered

    def save(self, path: str | Path, content: bytes | str | dict[str, Tensor]) -> bool:
        """Write a file once, whole and durable, on one living peer; on another if that one dies.
        All peers call it.

        Args:
            path: Path of the file, on the host of the writing peer.
            content: Bytes, a text, or tensors by name, which become a safetensors file.
        Returns: whether the file is written. If not, a message has the reason, and training
            continues.
        Raises: ConfigError: ``content`` has another type, or the run is not rolling.
        """
        operations = self._collective("save")
        place, data = Path(path).absolute(), _content_of(content)
        why = operations.once(lambda: write_whole(place, data()))
        if why:
            self._run.notify(f"cannot save {place}: {why}")
        return not why

    @property
    def answered(self) -> tuple[int, ...]:
        """Peers with answers in the last collective operation, ascending."""
        return self._collectives.answered

    def _collective(self, operation: str) -> Collectives:
        """Return the operations. Raises ConfigError: ``operation`` cannot be called."""
        self._run.check_no_pipeline(operation)
        self._steps.check_prepared(operation)
        if not self._config.is_rolling:
            raise ConfigError(
                f"{operation} needs rolling rounds: gossip rounds have no commit that decides",
                "gossip run --topology rolling",
            )
        return self._collectives

    # --- checks -----------------------------------------------------------------------------------

    # --- ends -------------------------------------------------------------------------------------

    def _check_termination(self) -> None:
        """Stop the script after a signal; called about twice a second in every wait. A step under
        way may finish within ``HURRIED_S``."""
        since = None if self.closed else self._run.termination.since
        if since is not None and (not self._run.in_round or time.monotonic() - since > HURRIED_S):
            self._stop()

    def _stop(self) -> NoReturn:
        self._run.is_stopped = True
        self.close("stopped")
        if self._run.termination.interrupted:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_SIGTERM)

    def _raised(self, error: BaseException) -> None:
        """Record an uncaught exception of the script, and leave."""
        if not self._run.is_active:
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
        """End the process after the launcher's end. Called in the watching thread, without the
        training thread, which may be busy."""
        if not self._run.is_active:
            return
        try:
            self._exchange.link.send_close("stopped")
            self._exchange.link.node_ended(HURRIED_S)
        except GossipError:
            self._exchange.link.node_ended(0.1)
        os._exit(1)

    def _forked(self) -> None:
        if not self.closed:
            self._exchange.link.drop_after_fork()


def _content_of(content: object) -> Callable[[], bytes]:
    """Return a function that makes the bytes of a file, for the writing peer. Raises ConfigError:
    ``content`` has another type."""
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
