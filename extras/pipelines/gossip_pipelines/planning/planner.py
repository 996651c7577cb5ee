"""Search for the fastest pipeline on given peers, and prediction of a step without a pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gossip.config import Activations
from gossip.errors import ConfigError

from .alternatives import LOCAL_STEPS, DataParallel, data_parallel
from .costs import Costs, StageCosts, TrainingStep
from .placement import Groups, Placement, best_placement, every_assignment, improved
from .timeline import play

EVERY_ASSIGNMENT_PEERS = 5
"""Largest number of peers for which all assignments are tried. 5 peers have about 1,000
assignments, 6 peers have 9,000."""
STAGES_MAX = 8
"""Largest number of stages that is tried if there are too many peers for all assignments. A request
with more stages overrides it."""
TYPICAL_MICRO_BATCHES = 8
SEED = 0
"""Seed of the random searches. It is fixed, so that the same request gives the same plan."""
GIB = 2**30


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Options of ``make_plan``.

    Attributes:
        batch: Number of samples of a step.
        samples: Number of samples of a micro-batch; None to choose the best divisor of the batch.
        stages: Number of stages; None to choose the best number.
        members_least, state_copies, activations: As in ``TrainingStep``.
        local_steps: Number of steps between two rounds in the prediction of local steps.
    """

    batch: int
    samples: int | None = None
    stages: int | None = None
    members_least: int = 1
    state_copies: float = 4.0
    local_steps: int = LOCAL_STEPS
    activations: Activations = "exact"

    def work(self, samples: int) -> TrainingStep:
        return TrainingStep(
            self.batch // samples,
            samples,
            self.members_least,
            self.state_copies,
            self.activations,
        )

    @property
    def sample_counts(self) -> list[int]:
        """Numbers of samples of a micro-batch that are tried, in descending order."""
        if self.samples is not None:
            return [self.samples]
        return [each for each in range(self.batch, 0, -1) if self.batch % each == 0]


@dataclass(frozen=True, slots=True)
class PipelineOption:
    """The best pipeline with a certain number of stages.

    Attributes:
        played_s: Simulated time of a step in 1F1B order, including the exchange in its groups.
        exact: Whether all assignments were tried. Otherwise there may be a faster pipeline.
    """

    placement: Placement
    played_s: float
    exact: bool


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """Pipelines and, in ``others``, data-parallel training. Both are sorted by the time of a step,
    and empty if nothing fits."""

    pipelines: tuple[PipelineOption, ...]
    others: tuple[DataParallel, ...]


def make_plan(costs: Costs, request: PlanRequest) -> PlanAnswer:
    """Find the best pipeline for each number of stages, and predict data-parallel training for
    comparison.

    Raises: ConfigError: A layer does not fit any peer, there are too few peers for the stages, or
        no plan fits into the memory of these peers.
    """
    _check(costs, request)
    largest = min(len(costs.peers) // request.members_least, len(costs.layers))
    if request.stages is not None:
        numbers: range = range(request.stages, request.stages + 1)
    elif len(costs.peers) <= EVERY_ASSIGNMENT_PEERS:
        numbers = range(2, largest + 1)
    else:
        numbers = range(2, min(largest, STAGES_MAX) + 1)
    found = [option for stages in numbers if (option := _best_of(costs, request, stages))]
    smallest = request.work(request.sample_counts[-1])
    others = data_parallel(costs, smallest, request.local_steps)
    if not found and not others:
        need = request.state_copies * costs.parameter_bytes.sum() / GIB
        raise ConfigError(
            f"nothing fits the memory of these peers: parameters and optimizer need {need:.2f} "
            "GiB, activations need more, and the peers have "
            f"{costs.memory_bytes.sum() / GIB:.2f} GiB together",
            "more peers, smaller micro-batches (--samples), or fewer peers in each stage",
        )
    return PlanAnswer(
        tuple(sorted(found, key=lambda option: option.played_s)),
        tuple(sorted(others, key=lambda other: other.step_s)),
    )


def _check(costs: Costs, request: PlanRequest) -> None:
    if request.samples is not None and request.batch % request.samples:
        raise ConfigError(
            f"micro-batches of {request.samples} samples do not divide a batch of {request.batch}",
            f"for example --samples {math.gcd(request.samples, request.batch)}",
        )
    if request.stages is not None:
        wanted = request.stages * request.members_least
        if wanted > len(costs.peers):
            raise ConfigError(
                f"{request.stages} stages need {wanted} peers, and there are {len(costs.peers)}",
                f"at most {len(costs.peers) // request.members_least} stages, or more profiles",
            )
        if request.stages > len(costs.layers):
            raise ConfigError(
                f"{len(costs.layers)} layers cannot be divided into {request.stages} stages"
            )
    smallest = request.work(request.sample_counts[-1])
    need = smallest.state_copies * costs.parameter_bytes + smallest.samples * costs.kept_bytes
    layer, most = int(need.argmax()), float(costs.memory_bytes.max())
    if need[layer] > most:
        raise ConfigError(
            f"layer {layer} ({costs.layers[layer]}) fits no peer: it needs "
            f"{need[layer] / GIB:.3f} GiB with its optimizer, and the largest has {most / GIB:.3f} "
            "GiB",
            "divide the layer in two, use smaller micro-batches, or add a peer with more memory",
        )


def _best_of(costs: Costs, request: PlanRequest, stages: int) -> PipelineOption | None:
    exact = len(costs.peers) <= EVERY_ASSIGNMENT_PEERS
    search = _tried if exact else _searched
    found = search(costs, request, stages)
    best = min(found, key=lambda placement: placement.step_s, default=None)
    return None if best is None else PipelineOption(best, played_step_s(best), exact)


def played_step_s(placement: Placement) -> float:
    """Return the simulated time of a step in seconds, including the exchange of the slowest
    group."""
    ended = max(task.end_s for task in play(placement))
    return ended + placement.cut.exchange_s


def _tried(costs: Costs, request: PlanRequest, stages: int) -> Iterator[Placement]:
    """Try all assignments with each size of micro-batches. Yield each result that is better than
    the previous ones."""
    below = math.inf
    for samples in request.sample_counts:
        stage_costs = StageCosts(costs, request.work(samples))
        assignments = every_assignment(len(costs.peers), stages, request.members_least)
        if (found := best_placement(stage_costs, assignments, below)) is not None:
            below = found.step_s
            yield found


def _searched(costs: Costs, request: PlanRequest, stages: int) -> Iterator[Placement]:
    """Search from two assignments: the result of the differentiable search, and an assignment that
    deals out the peers to the stages in the order of their speed. Local searches improve both.
    Searches with other sizes of micro-batches start from the best result."""
    # This import is local, because torch takes a second to import.
    from .relaxed import search_placement

    nearest = min(
        request.sample_counts,
        key=lambda samples: abs(math.log(request.batch / samples / TYPICAL_MICRO_BATCHES)),
    )
    stage_costs = StageCosts(costs, request.work(nearest))
    groups = _dealt_by_speed(stage_costs, stages)
    searched = search_placement(stage_costs, stages, SEED)
    starts = sorted({groups, searched.groups if searched else groups})
    found = [improved(stage_costs, start, SEED) for start in starts]
    best = min((each for each in found if each), key=lambda each: each.step_s, default=None)
    if best is not None:
        yield best
        groups = best.groups
    for samples in request.sample_counts:
        if samples != nearest:
            stage_costs = StageCosts(costs, request.work(samples))
            if (other := improved(stage_costs, groups, SEED)) is not None:
                yield other


def _dealt_by_speed(stage_costs: StageCosts, stages: int) -> Groups:
    order = np.argsort(stage_costs.seconds.sum(axis=1), kind="stable")
    return tuple(tuple(sorted(map(int, order[stage::stages]))) for stage in range(stages))
