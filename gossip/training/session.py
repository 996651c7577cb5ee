"""The session: the user's interface to one peer of the swarm."""

from __future__ import annotations

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
    bit. A session is also a context manager: it is closed at the end of the ``with`` block.
    """

    def __init__(
        self,
        place: PeerPlace,
        start: StartNode,
        connection: tuple[Channel, NodeHandle],
        termination: TerminationHandler,
        reference: Any = None,
    ) -> None:
        """Do not call this: ``gossip.init()`` creates the session, and has started the node at the
        other end of ``connection``."""
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
        have joined. If the swarm is ahead of this peer, or began with other weights, this peer
        loads the swarm's parameters, buffers and optimizer state.

        Args:
            model: Any module; it may be wrapped by ``torch.compile``. It must be the same on all
                peers.
            optimizer: One optimizer, or a sequence of optimizers. With several optimizers, every
                ``step()`` is a round. Only the first ``step()`` on a batch counts as a step of the
                run.
            judge: Loss of the current parameters on a batch: ``lambda batch:
                loss_fn(model(batch[0]), batch[1])``. Required by the rules judged_clipping,
                fltrust, zeno and zeno_pp, which rate updates by this loss. In each round a new
                batch is sampled from the ``reference`` of ``gossip.init``, or else from the data
                set of ``peer.shard``. A ``judge`` without an argument samples its own batch. The
                generators of torch, numpy and Python are restored afterwards.
            together: Whether several optimizers that step one after the other share one round. All
                steps are then made in the ``step()`` of the last optimizer. Code before that call
                reads the weights from before all steps.
            clip_norm: Maximum Euclidean norm of the aggregate. A longer aggregate is scaled down,
                like averaged gradients in DDP by ``torch.nn.utils.clip_grad_norm_``.
        Returns: ``(model, optimizer)``, the same objects.
        Raises:
            UnsupportedModel: A part of the model or the optimizer cannot be exchanged.
            ConfigError: The method was called twice, the rule needs a ``judge``, ``clip_norm`` is
                not positive, or ``clip_norm`` is set in a run with local steps, which exchange no
                gradients.
            SwarmError: Too few peers started before the start timeout.
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
        self._rounds.begin_computing()
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
        """Return a loader of this peer's share of the data (``docs/data.md``).

        One iteration over the loader is one epoch. With a map-style data set, the run's seed
        determines the order, and no sample is used twice in an epoch, even if peers fail. With an
        iterable data set, each of n peers reads every n-th element, and elements of failed peers
        are lost.

        Args:
            data: A DataLoader or a data set, the same on every peer. ``shuffle`` and ``drop_last``
                of a map-style DataLoader have no effect, and cause a warning.
            batch_size: Samples of one peer in a batch, required if ``data`` is a data set.
            classes: Number of classes, for the label_flip fault. By default it is computed from the
                targets.
            accumulate: Number of batches per optimizer step (or per local step), the same on every
                peer.
            order: Order of the samples within an epoch, the same on every peer:
                ``stratified:labels`` or ``similar:labels`` (``docs/data.md``). By default it is
                random, from the run's seed.
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
        """Prepare a model with layers on several peers. Call it instead of ``prepare``.

        This peer computes the layers that the run's plan assigns to its stage (``gossip run
        --plan``, ``docs/plan.md``). A script that was started alone computes all layers. Requires
        gossip-pipelines.

        A layer may be passed as a function that builds it, such as its class. Then a peer allocates
        memory only for the layers of its stage, and builds the others on torch's meta device. The
        seed of a layer depends on the run's seed and the layer's number, so the initial weights do
        not depend on the stages. A layer of another stage that was passed as a module is moved to
        the meta device, and loses its parameters.

        Args:
            layers: All layers of the model in order, the same on every peer and in ``gossip plan
                profile``: modules, or functions without arguments that return modules.
            samples: Example inputs, ``(n, ...)``. Only their shape and dtype matter.
            loss: Mean loss over the samples, a function ``(outputs, targets)``.
            optimizer: Builds the optimizer of this peer's parameters: ``lambda parameters:
                torch.optim.Adam(parameters, lr=1e-3)``.
        Returns: The ``Pipeline``. Its ``step(x, y)`` replaces forward pass, backward pass and
            optimizer step.
        Raises:
            UnsupportedModel: A layer has running statistics of batches, such as BatchNorm, or
                values that cannot be exchanged.
            ConfigError: gossip-pipelines is not installed, the run has no plan for these layers, a
                layer cannot be built, or this method was called twice.
            SwarmError: Too few peers started before the start timeout.
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

        Each peer trains different starts (initial weights) for some steps. The better half, by
        held-out loss, is tried again, with twice as many peers per start. Peers agree on the seed
        and the recipe of the best start, and every peer generates its weights from them. If ``f`` >
        0, false claims of ``f`` peers cannot select the start. If a peer dies, the search continues
        without its trials.

        Args:
            make: Builds a new model like the prepared one, with fresh random weights.
            loss: Loss of a model on a batch of the loader: ``lambda model, batch:
                loss_fn(model(batch[0]), batch[1])``.
            optimizer: Builds the optimizer of a trial: ``lambda parameters:
                torch.optim.Adam(parameters, lr=1e-3)``.
            search: A ``gossip_pipelines.starts.StartSearch``: the starts to compare, and the steps
                of a trial.
        Returns: The ``FoundStart``, the same on all peers. None if the model already has the state
            of later steps, because this peer has returned or resumed.
        Raises: ConfigError: gossip-pipelines is not installed, ``prepare`` or ``shard`` was not
            called before, the arguments differ from those of most peers, or no trial reached a
            finite loss.
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
        """Mark backward passes in a ``with`` block as accumulating gradients for a later step, as
        in DDP.

        This saves no traffic, because gradients are exchanged only in ``optimizer.step()``. It
        detects two mistakes: a step inside the block, and accumulation over two rounds. With
        ``shard(loader, accumulate=k)`` one round has k batches.

        Returns: A context manager.
        Raises: ConfigError: Inside the block, the optimizer stepped or the round changed.
        """
        self._run.check_open()
        return self._rounds.batches.no_sync()

    def log(self, **metrics: Any) -> None:
        """Write a line to this peer's ``metrics.jsonl`` and to the launcher's display.

        A metric named ``loss`` is also sent with the next update. Displays show the loss, and the
        lowest ``accuracy`` or ``acc`` of all peers.

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

        Use it for learning-rate schedulers, for example.

        Args:
            objects: Objects with ``state_dict`` and ``load_state_dict``, under the same names on
                every peer.
        Raises:
            ConfigError: An object lacks one of the two methods.
            UnsupportedModel: A part of an object's state cannot be saved. The message names that
                part.
        """
        for name, thing in objects.items():
            self._run.model.extra.keep(name, thing)

    def each_step(
        self, function: Callable[[], object], after: torch.optim.Optimizer | None = None
    ) -> Callable[[], object]:
        """Call ``function`` exactly once after each step of the run that changes the parameters, in
        order, on every peer. A round in which no peer has an update changes none.

        Use it for work that follows a step: a moving average of the weights (EMA), a clamp, a
        target network, a manual decay, a counter. A late peer applies steps without running the
        body of the loop for them; ``function`` also runs for those steps. It runs without autograd,
        and random numbers inside it are the same on all peers. It must not call methods of
        this peer that exchange data. Inside it, ``peer.step`` is the number of steps that the
        parameters contain. Pass objects with a state, such as an average, also to ``keep``, so that
        a returning peer receives them.

        Args:
            function: Function without arguments, registered right after ``prepare``.
            after: One of several optimizers. ``function`` is then called after each step of this
                optimizer, instead of each step of the run.
        Returns: ``function``, so this can be a decorator.
        Raises: ConfigError: The run has local steps, which differ between peers, or this peer has
            already applied missed rounds.
        """
        self._run.check_open()
        if after is not None and not self._run.is_prepared:
            raise ConfigError("each_step after an optimizer, before prepare", "prepare it first")
        self._steps.add_function(function, after)
        return function

    def on_membership_change(
        self, function: Callable[[MembershipChange], object]
    ) -> Callable[[MembershipChange], object]:
        """Call ``function`` after each change of the roster: when peers have joined, returned, died
        or left.

        ``function`` is called in the thread of the script: before a step if the script uses the
        loader, ``steps`` or ``epochs``, otherwise at the end of ``optimizer.step()``. The first
        roster of this process is not a change. In rolling rounds the roster is part of the commit,
        so all peers in a round have the same roster. A late peer gets the changes of all missed
        rounds as one change. In gossip rounds, the roster has the peers that are neither dead nor
        left in this peer's view. In a pipeline, the roster has the peers of this stage.

        Args:
            function: Function with one argument, a ``MembershipChange``. It must not call methods
                of this peer that exchange data. Its exceptions are raised in the script.
        Returns: ``function``, so this can be a decorator.
        """
        self._run.check_open()
        self._run.membership.add(function)
        return function

    def close(self, reason: str = "finished") -> None:
        """Leave the swarm and end the node. Also called at exit; a second call has no effect.

        A finished peer first sends the final state to peers that have not finished. If a peer was
        lost shortly before, this peer waits up to half a minute for its return. Ctrl-C and SIGTERM
        end the wait.

        Args:
            reason: Reason for the run's log: ``finished``, ``stopped`` or ``raised``.
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
