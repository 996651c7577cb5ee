"""The session: the user's interface to one peer of the swarm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from gossip.aggregators import senders
from gossip.errors import ConfigError
from gossip.ipc import Channel
from gossip.satellites import find_function

from .batches import check_accumulate
from .checkpointing import RunCheckpoints
from .collective_calls import CollectiveCalls
from .collectives import Collectives
from .extra_state import ExtraState
from .leaving import Leaving
from .loader import ShardedLoader, loader_of
from .loop_calls import LoopCalls
from .loops import TrainingLoop
from .membership import MembershipChange
from .metrics import line_of
from .node_start import NodeHandle, PeerPlace, StartNode
from .peer_run import PeerRun
from .preparing import Preparation
from .reference import JudgeReference
from .replicas import compare_replicas
from .resuming import load_named
from .rounds import ScriptRounds
from .script_steps import ScriptSteps
from .searching import SearchingPeer
from .serving import NodeService
from .stage import OwnStage, Pipeline
from .streaming import ShardedStream
from .typed import LoaderOptions
from .watch import TerminationHandler

AUTO = "auto"
Model = TypeVar("Model", bound=torch.nn.Module)
Optimizers = TypeVar("Optimizers", bound=torch.optim.Optimizer | Sequence[torch.optim.Optimizer])


class Session(LoopCalls, CollectiveCalls):
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
        node = NodeService(start, connection, place, sender)
        self._node, self._run = node, PeerRun(place, node, termination)
        run = self._run
        run.model.extra = ExtraState(run)
        self._reference = JudgeReference(config, peer, reference)
        self._checkpoints = RunCheckpoints(run)
        node.leave_state = self._checkpoints.leave_state
        self._rounds = rounds = ScriptRounds(run, self._checkpoints)
        self._collectives = Collectives(run, rounds.run_collective)
        self._steps = steps = ScriptSteps(run, rounds, self._reference)
        self._loop = TrainingLoop(run, rounds, steps)
        self._leaving = Leaving(run, self._loop, place.status_fd)
        self._leaving.at_end += [steps.unprepared.over, self._close_loader]
        node.interrupt = self._leaving.check_termination

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
            model: Any module, also one wrapped by ``torch.compile``. It must be the same on all
                peers.
            optimizer: One optimizer, or a sequence of them. With several optimizers, each step of
                each one is a round. The first one on a batch is a step of the run.
            judge: Returns the loss of the current parameters on a batch, for rules that rate
                updates by it (judged_clipping, fltrust, zeno, zeno_pp): ``lambda batch:
                loss_fn(model(batch[0]), batch[1])``. A new batch is drawn in each round, from the
                ``reference`` of ``gossip.init``, or else from the data set of ``peer.shard``. A
                ``judge`` without an argument draws its own batch with the generator of torch, numpy
                or Python. The state of that generator is restored afterwards.
            together: Step all optimizers in one round, at the ``step()`` of the last one, if the
                script steps one after the other. Code between their steps reads the weights before
                all steps.
            clip_norm: Largest Euclidean norm of the aggregate for a step. A longer one is scaled to
                it, as by ``torch.nn.utils.clip_grad_norm_`` after DDP has averaged.
        Returns: ``(model, optimizer)``, the same objects.
        Raises:
            UnsupportedModel: A part of the model or the optimizer cannot be exchanged.
            ConfigError: The method was called twice, the rule needs a ``judge``, ``clip_norm`` is
                not positive, or the run has local steps, which exchange no gradients to clip.
            SwarmError: Too few peers met before the start timeout.
        """
        self._run.check_open()
        if self._run.is_prepared:
            raise ConfigError(
                "prepare was called twice",
                "call it once: peer.prepare(model, [one, other]) for several optimizers, "
                "nn.ModuleList for several models",
            )
        if self._config.pipeline is not None and self._node.stage is None:
            raise ConfigError(
                "the run has a plan, and the script calls peer.prepare",
                "call peer.pipeline(layers, samples, loss=..., optimizer=...) instead, or run "
                "it without --plan",
            )
        given = Preparation(model, optimizer, judge, together, clip_norm)
        given.attach(self._run, self._rounds, self._steps, self._reference)
        self._run.is_prepared = True
        compare_replicas(self._run, self._checkpoints.is_due)
        # The swarm's state replaces that of a returning peer.
        resume = self._config.resume if self._place.incarnation < 2 else ""
        if resume and resume != AUTO:
            load_named(self._run, resume)
        if resume != AUTO:
            self._steps.join()
        self._rounds.computing_since = time.monotonic()
        return model, optimizer

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
        Raises: ConfigError: The method was called twice, or the data cannot be split.
        """
        self._run.check_open()
        self._run.check_no_pipeline("shard")
        if self._loader is not None:
            raise ConfigError(
                "shard was called twice",
                "shard one data set with all training samples (ConcatDataset, or one that draws "
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
                    "pass shard a data set with __getitem__ and __len__, or no order",
                )
            self._loader = ShardedStream(loader, *how)
            return self._loader
        sharded = ShardedLoader(loader, *how)
        if order:
            sharded.order_by(order)
        self._loader = sharded
        self._reference.shared = sharded.reference
        self._node.shard(*sharded.plan)
        return sharded

    def pipeline(
        self,
        layers: torch.nn.Sequential | Sequence[torch.nn.Module | Callable[[], torch.nn.Module]],
        samples: Tensor,
        *,
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer],
    ) -> Pipeline:
        """Prepare a model that is spread over peers, instead of ``prepare``.

        This peer computes the layers of its stage, by the plan of the run (``gossip run --plan``,
        ``docs/plan.md``). A script that was started alone computes all layers. Requires
        gossip-pipelines.

        Layers may be given as functions that make them, such as their classes. Then a peer makes
        only those of its stage, and inspects the others on torch's meta device, without memory for
        them. Each layer is made with a seed from the run's seed and the layer's number, so the
        initial weights do not depend on the cut. Built layers of other stages are moved to the meta
        device, and lose their parameters.

        Args:
            layers: All layers of the model in order, the same on every peer: those that
                ``gossip plan profile`` has timed. Each is a module, or a function without arguments
                that returns one.
            samples: Some inputs, ``(n, ...)``; only their shape and type matter.
            loss: Function of outputs and targets: the mean loss over the samples.
            optimizer: Makes the optimizer of this peer's parameters: ``lambda parameters:
                torch.optim.Adam(parameters, lr=1e-3)``.
        Returns: The ``Pipeline``. Its ``step(x, y)`` replaces the body of the usual loop.
        Raises:
            UnsupportedModel: A layer keeps statistics of batches, or has values that cannot be
                exchanged.
            ConfigError: gossip-pipelines is not installed; the run has no plan, or one for other
                layers; a layer cannot be made; it was called twice.
            SwarmError: Too few peers met before the start timeout.
        """
        self._run.check_open()
        plan = self._config.pipeline
        if plan is None and self._config.peers_max > 1:
            raise ConfigError(
                "peer.pipeline was called in a run without a plan",
                "gossip run --plan plan.toml SCRIPT, or gossip hosts --plan; gossip plan makes one",
            )
        make_stage = find_function("make_stage", "peer.pipeline")
        given = (layers, samples), loss, optimizer
        stage: OwnStage = make_stage(self._run, *given, self._steps.step_with)
        if plan is not None:
            self._node.stage = stage
            self._run.model.measure_gradients = stage.norms.measure
        self.prepare(stage.model, stage.optimizer)
        return stage

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
        the winner, and each peer draws the weights itself. With ``f`` > 0 false claims of ``f``
        peers cannot select the start. The search skips peers that die.

        Args:
            make: Builds the prepared model, with the random numbers of its constructor.
            loss: Loss of a model on a batch of the loader: ``lambda model, batch:
                loss_fn(model(batch[0]), batch[1])``.
            optimizer: Makes the optimizer of a trial: ``lambda parameters:
                torch.optim.Adam(parameters, lr=1e-3)``.
            search: A ``gossip_pipelines.starts.StartSearch``: the starts to compare, and the length
                of trials.
        Returns: The ``FoundStart``, the same on all peers. None if the run has made steps, for
            example if this peer has returned or resumed, and the model has the run's state.
        Raises: ConfigError: gossip-pipelines is not installed, an earlier call is missing, this
            call differs from that of most peers, or no trial reached a finite loss.
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

        A metric named ``loss`` is also sent with the next update. Screens show it, and the lowest
        ``accuracy`` or ``acc`` of the peers.

        Args:
            metrics: Numbers, tensors with one element, or strings of at most 200 characters.
        Raises: ConfigError: A value has another type.
        """
        self._run.check_open()
        text, loss = line_of(self.round, metrics)
        if loss is not None:
            self._rounds.loss = loss
        self._node.log(text)

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
        body of the loop for them; ``function`` also runs for those steps. It runs without autograd,
        and its random numbers from torch are the same on all peers. It must not call methods of
        this peer that exchange data. Inside it ``step`` is the number of steps in the parameters.
        Pass objects with a state, such as an average, also to ``keep``, so that a returning peer
        receives them.

        Args:
            function: Function without arguments, registered right after ``prepare``.
            after: One of several optimizers: ``function`` is called after each of its steps,
                not after those of the run, which the first optimizer on a batch makes.
        Returns: ``function``, so this can be a decorator.
        Raises: ConfigError: The run has local steps, which differ between peers, or missed rounds
            were applied before the call.
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
        roster of this process is not a change. In rolling rounds the roster is part of the commit,
        so all peers in a round have the same one. A late peer gets the changes of missed rounds as
        one change. In gossip rounds the roster has the peers that are neither dead nor left in this
        peer's view, in a pipeline those of its stage.

        Args:
            function: Function of a ``MembershipChange``. It must not call methods of this peer that
                exchange data. Its exceptions are raised in the script.
        Returns: ``function``, so this can be a decorator.
        """
        self._run.check_open()
        self._run.membership.add(function)
        return function

    def close(self, reason: str = "finished") -> None:
        """Leave the swarm and end the node. Also called at exit; a second call has no effect.

        A finished peer first sends the final state to peers that are behind. It waits up to half a
        minute for a peer that was lost shortly before, because that peer may return. Ctrl-C and
        SIGTERM end the wait.

        Args:
            reason: ``finished``, ``stopped`` or ``raised``, for the run's log.
        """
        self._leaving.close(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self._leaving.record(error)
        self.close("finished" if error is None else "stopped")

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"round {self.round}"
        return f"<gossip.Session peer {self.id} of {self._config.peers}, {state}>"

    def _close_loader(self) -> None:
        if self._loader is not None:
            self._loader.close()  # last, because workers may take seconds to end
