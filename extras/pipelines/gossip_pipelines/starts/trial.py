"""Trial of a start: some training steps, and the loss on the plateau."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError
from gossip.topologies import draw
from gossip.training import seeded_generators

from .recipe import Make, StartRecipe, build

WINDOWS = 10
"""Number of windows of a trial. The loss of a window is the mean over its steps."""
SPAN = 3
"""Number of windows over which a slope is measured. A plateau has at least this length."""
FLAT = 0.2
"""Largest slope on a plateau, as a fraction of the steepest slope."""
MEASURED = 3
"""Number of measurements of the held-out loss. They are at the ends of the last windows."""
Loss: TypeAlias = Callable[[nn.Module, Any], Tensor]
MakeOptimizer: TypeAlias = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class TrialTask:
    """Settings of all trials of a search.

    Attributes:
        make: Builds the model.
        loss: Returns the loss of a model on a batch as a tensor with one element.
        optimizer: Creates the optimizer of the parameters.
        batch: ``(order, step) -> batch`` of training data. Trials with the same order have the same
            batches.
        held_out: Batch of samples that no ``batch`` contains.
        device: Device of the model.
    """

    make: Make
    loss: Loss
    optimizer: MakeOptimizer
    batch: Callable[[int, int], Any]
    held_out: Any
    device: torch.device | str = "cpu"


def run_trial(
    task: TrialTask,
    recipe: StartRecipe,
    steps: int,
    order: int = 0,
    between: Callable[[], object] = lambda: None,
) -> tuple[float, bool]:
    """Train a model for ``steps`` steps from a start.

    Args:
        order: Order of the batches.
        between: Function that is called after each step.
    Returns: The mean held-out loss at the end of the trial (infinity if it was not finite), and
        whether the trial was on its plateau.
    Raises: ConfigError: ``loss`` did not return a loss.
    """
    model = build(task.make, recipe).to(task.device)
    measured_at = {steps - at * max(1, steps // WINDOWS) for at in range(MEASURED)}
    losses, held_out = list[float](), list[float]()
    with seeded_generators(draw("trial", recipe.seed, order)):
        optimizer = task.optimizer(model.parameters())
        for step in range(1, steps + 1):
            model.train()
            optimizer.zero_grad()
            loss = _checked(task.loss(model, task.batch(order, step)))
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                return math.inf, True
            if step in measured_at:
                held_out.append(_measure(task, model))
            between()
    mean = math.fsum(held_out) / len(held_out) if all(map(math.isfinite, held_out)) else math.inf
    return mean, is_on_plateau(losses)


def _measure(task: TrialTask, model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        return float(_checked(task.loss(model, task.held_out)))


def _checked(loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise ConfigError(
            f"loss returned a {type(loss).__name__}, not a loss: a floating point tensor with one "
            "element",
            "loss=lambda model, batch: loss_fn(model(batch[0]), batch[1])",
        )
    return loss.reshape(())


def is_on_plateau(losses: Sequence[float]) -> bool:
    """Whether the mean slope of the loss over the last ``SPAN`` windows is at most ``FLAT`` times
    the steepest slope. The result is False if there are fewer steps than ``WINDOWS``.

    Args:
        losses: Loss of each step, in order. All are finite.
    """
    if len(losses) < WINDOWS:
        return False
    edges = [round(at * len(losses) / WINDOWS) for at in range(WINDOWS + 1)]
    means = [math.fsum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]
    steepest = max(means[at] - means[at + SPAN] for at in range(WINDOWS - SPAN))
    last = (math.fsum(means[-2 * SPAN : -SPAN]) - math.fsum(means[-SPAN:])) / SPAN
    return last <= FLAT * max(0.0, steepest)
