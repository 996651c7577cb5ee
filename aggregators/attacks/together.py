"""Attacks of colluding peers that have received the honest updates of the round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.aggregators.numbers import FINITE, FRACTION, NOT_NEGATIVE, POSITIVE
from gossip.errors import ConfigError

from .kinds import attack

if TYPE_CHECKING:
    from torch import Tensor

    from .crowd import OmniscientView

DRIFT_MEMORY, DRIFT_LENGTH = 0.9, 0.9
"""For ``drift_ip``: decay factor of the running mean in each round; length of the vector sent, in
typical norms of honest updates."""
MOMENTUM = 0.9
"""Momentum of the outer step that ``outer_momentum`` attacks, as in DiLoCo."""
SEES_NOBODY_IN_TIME = (
    "it needs another peer's update of the same round, which a peer of a real run does not see in "
    "time; use `gossip bench robustness` or the simulator"
)


@attack(shape="together", strength=0.1, meaning="epsilon", allowed=FINITE)
def ipm(crowd: OmniscientView, *, strength: float) -> Tensor:
    """Inner-product manipulation: all attackers send ``-epsilon`` times the honest mean.

    With a small epsilon the vectors hide among the honest updates. With a large epsilon (10) they
    outweigh the honest updates in a mean.
    Source: Xie, Koyejo, Gupta 2019, "Fall of Empires", arXiv:1903.03936.
    """
    return crowd.all_alike(-strength * crowd.mean())


@attack(
    shape="together",
    meaning="z, in standard deviations; computed from n and f by default",
    allowed=NOT_NEGATIVE,
    idle=lambda n, f: f < n and alie_z(n, f) == 0,
)
def alie(crowd: OmniscientView, *, strength: float | None) -> Tensor:
    """All attackers send the honest mean minus z times the standard deviation of the honest
    updates, in each coordinate ("a little is enough").

    By default, z is such that attackers and honest updates beyond z are a majority (``alie_z``).
    Source: Baruch, Baruch, Goldberg 2019, "A Little Is Enough", arXiv:1902.06156.
    """
    z = alie_z(crowd.h + crowd.f, crowd.f) if strength is None else strength
    return crowd.all_alike(crowd.mean() - z * crowd.deviation())


def alie_z(n: int, f: int) -> float:
    """Return z = Phi^-1((n - f - s) / (n - f)), where s = floor(n / 2 + 1) - f is the number of
    honest updates that the attackers need for a majority. These updates are beyond z.

    For small n, z is small: 0 for 2 attackers of 8 or 10 peers, 0.16 for 4 of 20. If n is even and
    there is one attacker, s is more than half of the honest peers, so z is below 0, on the other
    side of the mean.

    Where Phi^-1 would be infinite, z is limited: half an honest update is beyond it. This is the
    case if the attackers are a majority and need no honest update (s <= 0). For one attacker and
    one honest peer, z is 0.

    Raises: ConfigError: There is no attacker, or no other peer.
    """
    from statistics import NormalDist

    honest = n - f
    if f < 1 or honest < 1:
        raise ConfigError(
            f"alie: z needs Byzantine and honest peers, not {f} of {n}",
            "set the strength: alie*1.5",
        )
    beyond, outermost = (n // 2 + 1 - f) / honest, 0.5 / honest
    return NormalDist().inv_cdf(1 - min(max(beyond, outermost), 1 - outermost))


@attack(shape="together")
def min_max(crowd: OmniscientView) -> Tensor:
    """All attackers send the honest mean minus gamma times the standard deviation. Gamma is as
    large as possible while the distance to every honest update is at most the largest distance
    between two honest updates.

    Source: Shejwalkar, Houmansadr 2021, "Manipulating the Byzantine" (NDSS),
        with the deviation as perturbation.
    """
    return crowd.all_alike(crowd.mean() - find_hidden(crowd, crowd.deviation()) * crowd.deviation())


def find_hidden(crowd: OmniscientView, away: Tensor) -> float:
    """Return the largest gamma at which the mean minus gamma ``away`` is hidden: its distance to
    every honest update is at most the largest distance between two honest updates."""
    import torch

    apart, aside, along = _quadratics(crowd, away)
    limit = (
        torch.cdist(
            crowd.honest.double(),
            crowd.honest.double(),
            compute_mode="donot_use_mm_for_euclid_dist",
        ).max()
        ** 2
    )
    gammas = [
        _larger_root(along, b, float(c - limit)) for b, c in zip(aside.tolist(), apart, strict=True)
    ]
    return min(gammas)


@attack(shape="together")
def min_sum(crowd: OmniscientView) -> Tensor:
    """``min_max`` with sums: the sum of squared distances to all honest updates is at most the
    largest such sum of an honest update.

    Source: as ``min_max``.
    """
    import torch

    away, aside, along = _quadratics(crowd, crowd.deviation())
    pairs = torch.cdist(
        crowd.honest.double(), crowd.honest.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    limit = float((pairs**2).sum(dim=1).max())
    gamma = _larger_root(crowd.h * along, float(aside.sum()), float(away.sum()) - limit)
    return crowd.all_alike(crowd.mean() - gamma * crowd.deviation())


def _quadratics(crowd: OmniscientView, away: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the coefficients of |m - gamma p - x_i|^2 = along gamma^2 + 2 aside_i gamma + away_i,
    for the mean m, the perturbation p (``away``) and each honest update x_i."""
    apart = crowd.honest.double() - crowd.mean().double()
    perturbation = away.double()
    return (apart**2).sum(dim=1), apart @ perturbation, float(perturbation @ perturbation)


def _larger_root(a: float, b: float, c: float) -> float:
    """Return the larger root of a x^2 + 2 b x + c = 0, where c <= 0. If all honest updates are
    equal (a = 0), return 0."""
    return max(0.0, (-b + max(0.0, b * b - a * c) ** 0.5) / a) if a > 0 else 0.0


@attack(
    shape="together",
    refusal=SEES_NOBODY_IN_TIME,
)
def mimic(crowd: OmniscientView) -> Tensor:
    """All attackers copy the honest update of one peer, the same in all rounds.

    The victim's update is farthest along the direction in which the honest updates of the first
    round differ most.
    Source: Karimireddy, He, Jaggi 2022, "Byzantine-Robust Learning on Heterogeneous Datasets via
    Bucketing", arXiv:2006.09365 (where attackers first estimate the direction over some rounds).
    """
    victim = crowd.memory.setdefault("victim", _outermost(crowd))
    return crowd.all_alike(crowd.honest[min(victim, crowd.h - 1)])


def _outermost(crowd: OmniscientView) -> int:
    import torch

    apart = (crowd.honest - crowd.mean()).double()
    _, vectors = torch.linalg.eigh(apart @ apart.T)
    return int(vectors[:, -1].abs().argmax())


@attack(
    shape="together",
    strength=0.5,
    meaning="distance from the mean, as a multiple of the victim's distance",
    allowed=POSITIVE,
    refusal=SEES_NOBODY_IN_TIME,
)
def framing(crowd: OmniscientView, *, strength: float) -> Tensor:
    """All attackers send a vector opposite to one honest peer's update, as seen from the honest
    mean, so that this peer stands out.

    With the victim's update x and the honest mean m, the vector is m - strength (x - m). The victim
    is the honest peer with the update farthest from the mean. It stays the same until it is in
    quarantine; then the next victim is chosen.
    """
    return crowd.all_alike(frame(crowd, strength))


def frame(crowd: OmniscientView, strength: float) -> Tensor:
    """Return the vector of ``framing``, ``(d,)``."""
    import torch

    apart = crowd.honest - crowd.mean()
    victim = crowd.memory.get("victim")
    if victim is None or victim in crowd.locked or victim >= crowd.h:
        far = torch.linalg.vector_norm(apart.double(), dim=1)
        free = [peer for peer in range(crowd.h) if peer not in crowd.locked]
        victim = max(free or range(crowd.h), key=lambda peer: float(far[peer]))
        crowd.memory["victim"] = victim
    lie: Tensor = crowd.mean() - strength * apart[victim]
    return lie


@attack(
    shape="together",
    strength=DRIFT_LENGTH,
    meaning="length, as a fraction of the median honest norm",
    allowed=FRACTION,
)
def drift_ip(crowd: OmniscientView, *, strength: float) -> Tensor:
    """All attackers send the opposite of the running mean of the honest means, no longer than a
    typical honest update.

    Source: the inner-product manipulation of Xie, Koyejo, Gupta 2019, arXiv:1903.03936, coupled
        over time as in Karimireddy, He, Jaggi 2021, arXiv:2012.10333.
    """
    return push_back(crowd, strength)


def push_back(crowd: OmniscientView, length: float = DRIFT_LENGTH) -> Tensor:
    """Return ``(f, d)``: for each attacker the opposite of the running mean of the honest means.
    Its norm is ``length`` times the typical norm."""
    import torch

    mean = crowd.mean()
    drift = DRIFT_MEMORY * crowd.memory.get("drift", mean) + (1 - DRIFT_MEMORY) * mean
    crowd.memory["drift"] = drift
    size = torch.linalg.vector_norm(drift).clamp(min=1e-30)
    return crowd.all_alike(drift * (-length * crowd.typical_norm() / size))


@attack(
    shape="together",
    strength=1.0,
    meaning="multiple of the largest gamma that still hides the attack (2 is twice as far out)",
    allowed=POSITIVE,
)
def outer_momentum(crowd: OmniscientView, *, strength: float) -> Tensor:
    """All attackers send the honest mean plus gamma times the momentum of an outer step over the
    honest means so far. Gamma is as large as possible while the vector is hidden as in ``min_max``.

    In each round the momentum m <- mu m + D decays by the fraction 1 - mu. If the attackers add g m
    to D, this fraction is only 1 - mu - g. If g is at least 1 - mu (0.1), the momentum does not
    decay, and the model overshoots increasingly. Without an outer momentum the attack only makes
    steps longer.
    """
    before = crowd.memory.get("momentum")
    mean = crowd.mean()
    momentum = mean if before is None else MOMENTUM * before + mean
    crowd.memory["momentum"] = momentum
    gamma = strength * find_hidden(crowd, -momentum)
    return crowd.all_alike(mean + gamma * momentum)


@attack(
    shape="together",
    strength=1.0,
    meaning="factor of the negated gradient",
    allowed=POSITIVE,
    refusal=(
        "the attackers would have to exchange an update within the round; use `ipm:PEERS*1`, which "
        "sends copies of the negated estimate of the mean, or `gossip bench robustness`"
    ),
)
def negated_copies(crowd: OmniscientView, *, strength: float) -> Tensor:
    """All attackers send the same vector: the negated gradient of the first Byzantine peer.

    The Zeno paper calls this "bit-flipping". ``bit_flip`` flips bits.
    Source: Xie, Koyejo, Gupta 2019, "Zeno", arXiv:1805.10032.
    """
    return crowd.all_alike(-strength * crowd.own[0])


@attack(
    shape="together",
    strength=1000.0,
    meaning="distance of the anchor, in norms of the honest mean",
    allowed=POSITIVE,
)
def sacrificial_anchor(crowd: OmniscientView, *, strength: float) -> Tensor:
    """One attacker sends a vector far away, the others send the resulting mean of all updates.

    A rule that starts from the mean drops the anchor and trusts the copies of the mean most. These
    copies are as far from the honest updates as the anchor has moved the mean, so two attackers
    break the rule. A single attacker is only an outlier.
    """
    import torch

    from .crowd import unit

    aside = unit(
        torch.randn(crowd.honest.shape[1], generator=crowd.direction, dtype=torch.float64)
    ).to(crowd.honest)
    mean = crowd.mean()
    anchor = mean + aside * (strength * max(float(torch.linalg.vector_norm(mean)), 1e-12))
    # If the other f - 1 attackers send m = (sum of the honest + anchor) / (h + 1), the mean of all
    # updates is m.
    on_the_mean = (crowd.h * mean + anchor) / (crowd.h + 1)
    return torch.cat([anchor[None], on_the_mean.repeat(crowd.f - 1, 1)])
