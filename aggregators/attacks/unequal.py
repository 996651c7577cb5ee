"""Attacks that cannot be distinguished from updates of honest peers with different data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.aggregators.numbers import FRACTION, NOT_NEGATIVE, POSITIVE

from .kinds import ROUNDS, attack
from .together import SEES_NOBODY_IN_TIME, find_hidden, frame, push_back

if TYPE_CHECKING:
    from torch import Tensor

    from .crowd import OmniscientView

TRIALS = 8
"""Number of times that ``spread_match`` evaluates the rule in a round."""
LAST_PART = 0.1
"""Share of the coordinates that ``few_coordinates`` changes, counted from the last one."""


@attack(
    shape="together",
    tries=True,
    strength=1.0,
    meaning="fraction of the distance at which the attack would stand out",
    allowed=FRACTION,
)
def spread_match(crowd: OmniscientView, *, strength: float) -> Tensor:
    """All attackers send the honest mean minus a multiple of it that is hidden as in ``min_max``:
    the multiple for which the inner product of this rule's result and the mean is smallest.

    The attack evaluates the rule 8 times per round.
    """
    mean = crowd.mean()
    farthest = strength * find_hidden(crowd, mean)
    tried = [crowd.all_alike(mean - farthest * (k / TRIALS) * mean) for k in range(1, TRIALS + 1)]
    return max(tried, key=crowd.measure_reversal)


@attack(shape="together", strength=20.0, meaning="number of honest rounds", allowed=ROUNDS)
def momentum_push(crowd: OmniscientView, *, strength: float) -> Tensor:
    """Attackers are honest for this number of rounds. Then all send the opposite of the running
    mean of the honest means, scaled to the norm of a typical honest update."""
    seen = crowd.memory["seen"] = crowd.memory.get("seen", 0) + 1
    lies = push_back(crowd, 1.0)
    return lies if seen > strength else crowd.own.clone()


@attack(
    shape="together",
    strength=1.0,
    meaning="distance, in standard deviations",
    allowed=NOT_NEGATIVE,
)
def slow_drift(crowd: OmniscientView, *, strength: float) -> Tensor:
    """``alie`` in nearly the same direction in every round. Each coordinate differs from the honest
    mean by ``strength`` standard deviations, against the sign of the sum of all honest means."""
    total = crowd.memory["total"] = crowd.memory.get("total", 0) + crowd.mean()
    return crowd.all_alike(crowd.mean() - strength * crowd.deviation() * total.sign())


@attack(strength=10.0, meaning="factor of the negated coordinates", allowed=POSITIVE)
def few_coordinates(update: Tensor, *, strength: float) -> Tensor:
    """The update with its last tenth of the coordinates (the last layers) negated and
    multiplied."""
    lie = update.clone()
    lie[int(len(lie) * (1 - LAST_PART)) :] *= -strength
    return lie


@attack(
    shape="together",
    strength=0.5,
    meaning="distance from the mean, as a multiple of the victim's distance",
    allowed=POSITIVE,
    refusal=SEES_NOBODY_IN_TIME,
)
def frame_rare(crowd: OmniscientView, *, strength: float) -> Tensor:
    """Every second attacker uses ``framing`` against the honest peer with the rarest data. The
    other attackers use ``drift_ip`` while that peer is suspected."""
    lies = push_back(crowd)
    lies[::2] = frame(crowd, strength)
    return lies


@attack(shape="together", strength=0.05, meaning="cosine with the honest mean", allowed=FRACTION)
def inside_radius(crowd: OmniscientView, *, strength: float) -> Tensor:
    """All attackers send a vector with the norm of a typical honest update, nearly at right angles
    to the honest mean, in nearly the same direction in all rounds."""
    import torch

    from .crowd import unit

    forward = unit(crowd.mean())
    aside = torch.randn(len(forward), generator=crowd.direction, dtype=torch.float64).to(forward)
    aside = unit(aside - (aside @ forward) * forward)
    lie = strength * forward + (1 - strength**2) ** 0.5 * aside
    return crowd.all_alike(crowd.typical_norm() * lie)
