"""Worlds: descriptions of a training swarm, and functions that play a world."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from gossip import topologies
from gossip.aggregators import outer, registry
from gossip.config import REFERENCE_SAMPLES
from gossip.core import CoreSettings, GossipSettings
from gossip.errors import ConfigError, UnknownName
from gossip_lab import data_sets, splits

from .adamw import Optimizer
from .availability import read_availability
from .compare import PEERS_MAX as CHECKED_MAX, Comparison, compare
from .fields import fields_of, read_toml, write_toml
from .graphs import count_labels
from .learners import Cohort
from .mishaps import Mishaps, read_mishaps
from .moments import Moment
from .networks import make_model
from .parts import Parts
from .played import PlayedRun, Row, measure
from .policies import MovePolicy, SharedOrder, read_assign
from .tasks import Task
from .timing import read_compute, read_links

PEERS_MAX = 10_000
COUNT_MAX = 2**20
HIGHEST = {
    "batch": COUNT_MAX,
    "local_steps": COUNT_MAX,
    "mix_every": COUNT_MAX,
    "reference_samples": COUNT_MAX,
    "lr": sys.float_info.max,
    "mixing": 1,
}
"""Highest value of each field with values above 0."""
_GOSSIP = GossipSettings()
EngineName = Literal["fast", "exact"]


@dataclass(frozen=True, slots=True)
class World:
    """Description of a training swarm. All fields are numbers or texts, so a world can be written
    as a TOML file, as a command line or as a row of a table.

    Attributes:
        peers: Number of peers, Byzantine ones included.
        data: Data set: ``digits``, ``mnist`` or a path, as for ``gossip bench robustness``.
        split: Split of the samples among the peers, such as ``iid``, ``dirichlet:0.1`` or
            ``sorted@clusters:10``.
        model: ``linear``, ``mlp:128-64``, ``small_cnn``, ``cnn_mnist`` or ``file.py:name``.
        topology: ``rolling``, ``full``, ``ring``, ``random-k:k=7``, ``static-regular``,
            ``exponential``, ``dumbbell``, ``d-cliques``, ``push:k=3``, ``pull:k=3`` or
            ``file.py:name``. The label counts of the peers are passed to a topology with the option
            ``histograms``.
        aggregator: Rule, as for ``gossip run --aggregator``.
        f: Number of Byzantine peers that the rule tolerates in each aggregation.
        batch: Number of samples per peer and local step.
        lr: Learning rate.
        local_steps: Number of local steps per round.
        outer: Outer step after the local steps. If empty, the default of a run is used when there
            is more than one local step.
        optimizer: ``sgd``; in gossip rounds also ``adamw`` and ``adamw-mixed``. With
            ``adamw-mixed``, peers mix both moments like parameters.
        mix_every: In gossip rounds, number of rounds between two exchanges of parameters.
        mixing: In gossip rounds, weight of the other peers in the mixed parameters. If it is above
            0.5 and ``mix_every = 1``, it is also their weight in model differences.
        faults: Faults as in a fault plan, such as ``crash:0-49@50`` or ``sign_flip:90-99*10``.
        links: Links between peers, such as ``wan`` or ``delay:20ms-50ms,bytes:12.5MB``.
        compute: Compute times of updates, such as ``uniform:0.04:0.06`` or ``lognormal:0.3``.
        availability: Presence of each peer, such as ``spot:2h:10m`` or ``trace.csv``.
        assign: Data policy, such as ``stratified:labels`` or ``moves:10:5``.
        reference_samples: Number of samples by which a rule with a judge, such as
            ``judged_clipping``, rates updates. They are drawn from all training samples.
        engine: ``fast`` or ``exact``.
        seed: Seed of all random numbers.
    """

    peers: int = 16
    data: str = data_sets.DIGITS
    split: str = splits.IID
    model: str = "mlp:32"
    topology: str = "rolling"
    aggregator: str = "mean"
    f: int = 0
    batch: int = 16
    lr: float = 0.1
    local_steps: int = 1
    outer: str = ""
    optimizer: Optimizer = "sgd"
    mix_every: int = _GOSSIP.mix_every
    mixing: float = _GOSSIP.mixing
    faults: tuple[str, ...] = ()
    links: str = "lan"
    compute: str = "uniform:0.045:0.055"
    availability: str = ""
    assign: str = ""
    reference_samples: int = REFERENCE_SAMPLES
    engine: EngineName = "fast"
    seed: int = 0

    def __post_init__(self) -> None:
        for each in fields_of(World):
            object.__setattr__(self, each.name, each.read(getattr(self, each.name)))
        if not 1 <= self.peers <= PEERS_MAX:
            raise ConfigError(f"{self.peers} peers", f"a world has 1 to {PEERS_MAX}")
        for name, highest in HIGHEST.items():
            if not 0 < getattr(self, name) <= highest:
                hint = f"{name} is above 0, at most {highest:.7g}"
                raise ConfigError(f"{name} = {getattr(self, name)}", hint)
        if self.f < 0:
            raise ConfigError(f"f = {self.f}", "f is at least 0")

    @classmethod
    def from_toml(cls, path: str | Path) -> World:
        """Return the world in a TOML file. Missing fields have their defaults.

        Raises: ConfigError: The file cannot be read, or a field does not exist or has another type.
        """
        return cls().replace(**read_toml(path))

    def to_toml(self) -> str:
        """Return all fields as TOML."""
        return write_toml(dataclasses.asdict(self))

    def replace(self, /, **changes: Any) -> World:
        """Return a copy of the world with other values of these fields.

        Raises: ConfigError: There is no such field, or a value does not fit its field.
        """
        known = [each.name for each in fields_of(World)]
        for name in changes:
            if name not in known:
                raise UnknownName("field of a world", name, known)
        return replace(self, **changes)

    def check_mixing(self) -> None:
        """Raise ConfigError if fields for gossip rounds are set in a world with rolling rounds.
        ``build`` does not check this, because the cells of a grid with several topologies share
        these fields."""
        if topologies.load(self.topology).rolling:
            for name in ("mix_every", "mixing"):
                if getattr(self, name) != getattr(_GOSSIP, name):
                    raise ConfigError(
                        f"{name}: rolling rounds exchange no parameters",
                        f"leave it out, or choose another topology than {self.topology}",
                    )

    def build(
        self,
        data: data_sets.TrainingData | None = None,
        mishaps: Mishaps | None = None,
        split_seed: int | None = None,
    ) -> Parts:
        """Return the parts of the world.

        Args:
            data: Data set, in place of the data set that the field ``data`` names.
            mishaps: Faults, in place of the field ``faults``.
            split_seed: Seed of the split; by default the seed of the world.

        Raises: ConfigError: A field names something unknown, or the fields contradict each other.
        """
        rule = registry.load(self.aggregator)
        if rule.at_least(self.f) > self.peers:
            raise ConfigError(
                f"{self.aggregator} needs {rule.at_least(self.f)} updates for f = {self.f}, and "
                f"there are {self.peers} peers"
            )
        if mishaps is None:
            mishaps = read_mishaps(self.faults, self.peers)
        if self.assign and not self.assign.startswith("moves") and self.split != splits.IID:
            raise ConfigError(
                f"assign {self.assign} and split {self.split}: all peers then share one data set",
                "leave out one of them",
            )
        topology = topologies.load(self.topology)
        self._check_steps(rule, topology.rolling)
        task = self._task(
            data or data_sets.load(self.data),
            mishaps,
            self.seed if split_seed is None else split_seed,
        )
        if missing := topology.missing:
            raise ConfigError(
                f"topology {self.topology} has no {missing[0]}",
                f"such as {self.topology}:{missing[0]}=3",
            )
        if "histograms" in topology.options:
            counts = count_labels(task.data.labels, task.shares, task.data.classes)
            topology = topology.bind(histograms=counts)
        samples = self.batch * self.local_steps
        assign = read_assign(self.assign, task.data, self.peers, samples, self.seed)
        if isinstance(assign, SharedOrder):
            task = replace(task, order=assign)
        return Parts(
            self._settings(rule),
            topology,
            rule,
            task,
            mishaps,
            read_compute(self.compute, self.seed, self.batch, self.local_steps),
            read_links(self.links),
            read_availability(self.availability, self.peers, self.seed),
            assign if isinstance(assign, MovePolicy) else None,
        )

    def play(
        self, rounds: int, every: int = 10, watch: Callable[[Moment], None] | None = None
    ) -> PlayedRun:
        """Play the world, and evaluate it every ``every`` rounds and at the end.

        Args:
            watch: Function that is called after each round.

        Raises: ConfigError: For the same reasons as ``evaluations`` and ``check_mixing``.
        """
        self.check_mixing()
        found = self.evaluations(rounds, every, watch)
        return PlayedRun(tuple(itertools.chain.from_iterable(found)))

    def evaluations(
        self, rounds: int, every: int = 10, watch: Callable[[Moment], None] | None = None
    ) -> Iterator[list[Row]]:
        """Play the world as ``play`` does, and yield the rows of each evaluation. Warn if there
        were rounds without a step.

        Raises: ConfigError: ``rounds`` or ``every`` is below 1, or for the same reasons as
        ``build``.
        """
        if min(rounds, every) < 1:
            raise ConfigError(f"rounds {rounds}, every {every}", "each is at least 1")
        parts = self.build()
        if self.engine == "fast" and parts.mishaps.slow and not parts.topology.rolling:
            warnings.warn(
                "with slow peers in gossip rounds, times and accuracies of one seed depend on "
                "chance: compare means over seeds",
                stacklevel=2,
            )
        done = lost = lowered = 0
        try:
            for moment in itertools.islice(play_moments(self.engine, parts), rounds):
                done, lost = moment.rounds, lost + moment.lost
                lowered += moment.lowered
                if watch is not None:
                    watch(moment)
                if moment.rounds % every == 0 or moment.rounds == rounds:
                    yield measure(moment, parts)
        finally:
            _warn(lost, done, f"made no step: {self.aggregator} failed, or had too few updates")
            few = f"had too few vectors for f = {self.f}, and aggregated with a lower f"
            _warn(lowered, done, few)

    def check(self, rounds: int = 20, peers: int | None = None) -> Comparison:
        """Play the world in both engines, and compare all parameters after each round.

        Args:
            peers: Reduce the world to this number of peers, at most 16; None to play all peers.

        Raises: ConfigError: ``rounds`` is below 1, or a fault names a peer that the reduced world
            lacks.
        """
        if rounds < 1:
            raise ConfigError(f"{rounds} rounds", "a comparison takes at least 1")
        self.check_mixing()
        world = self if peers is None else replace(self, peers=min(self.peers, peers, CHECKED_MAX))
        parts = self.build()  # an error of the reduced world has another cause
        if world != self:
            try:
                parts = world.build()
            except ConfigError as error:
                raise ConfigError(
                    f"a comparison plays only the first {world.peers} of {self.peers} peers: "
                    f"{error}",
                    f"describe a world of {world.peers} peers",
                ) from error
        return compare(play_moments("exact", parts), play_moments("fast", parts), parts, rounds)

    def _check_steps(self, rule: registry.BoundRule, rolling: bool) -> None:
        if self.optimizer == "adamw-mixed" and rule.needs_trainer:
            raise ConfigError(
                f"optimizer adamw-mixed: {rule.name} rates a difference by its loss as a step, and "
                "differences of moments are no steps",
                "optimizer adamw",
            )
        if self._has_local_steps:
            rule.check_model_differences()
        if self.optimizer != "sgd" and (rolling or self._has_local_steps):
            raise ConfigError(
                f"optimizer {self.optimizer} is for gossip rounds without local steps",
                "leave it out; or choose another topology, such as random-k, and local_steps = 1",
            )

    def _settings(self, rule: registry.BoundRule) -> CoreSettings:
        return CoreSettings(
            run=b"\0" * 8,
            lineage=b"",
            seed=self.seed,
            peers=tuple(range(self.peers)),
            f=self.f,
            updates_for=tuple([rule.at_least(f) for f in range(self.f + 1)]),
            judged=rule.judges_directions,
            local_steps=self._has_local_steps,
            gossip=GossipSettings(mix_every=self.mix_every, mixing=self.mixing),
        )

    @property
    def _has_local_steps(self) -> bool:
        return self.local_steps > 1 or bool(self.outer)

    def _task(self, data: data_sets.TrainingData, mishaps: Mishaps, split_seed: int) -> Task:
        model = make_model(self.model, data.images.shape[1], data.classes, self.seed)
        honest = [peer for peer in range(self.peers) if peer not in mishaps.byzantine]
        samples = data.labels, data.images
        parts = iter(splits.split(self.split, samples, len(honest), self.batch, split_seed))
        # Byzantine peers draw from all samples, so that they do not reduce the shares of honest
        # peers.
        everything = torch.arange(len(data.labels))
        shares = [
            everything if peer in mishaps.byzantine else next(parts) for peer in range(self.peers)
        ]
        return Task(
            Cohort(model, data.images.shape[1]),
            data,
            [share.numpy() for share in shares],
            self.batch,
            self.local_steps,
            self.lr,
            outer.load(self.outer or outer.NESTEROV) if self._has_local_steps else None,
            self.seed,
            optimizer=self.optimizer,
            reference_samples=self.reference_samples,
        )


def _warn(count: int, rounds: int, what: str) -> None:
    if count:
        text = f"in {count} of {rounds} rounds some or all peers {what}"
        warnings.warn(text, stacklevel=3)


def play_moments(engine: EngineName, parts: Parts) -> Iterator[Moment]:
    """Play a world round by round, without end.

    The fast engine computes all peers at once, without messages. It uses the product's own
    topology, rule, trust table and grace periods; only the decision which peers are in time is its
    own. In gossip rounds, the next round overwrites the parameters of a yielded moment.

    Raises: ConfigError: The engine does not support a part of the world, or a round does not end,
        because too few peers are left.
    """
    if engine == "exact":
        from . import exact

        return exact.play_moments(parts)
    from .fast_gossip import GossipWorld
    from .fast_rolling import RollingWorld

    world = RollingWorld(parts) if parts.topology.rolling else GossipWorld(parts)
    return (world.play_round() for _ in itertools.count())
