"""Each rule of the library against a few lines of float64 numpy of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from gossip.aggregators import load
from gossip.errors import AggregationError, TooFewUpdates

Array = np.ndarray


def cloud(n: int, d: int, seed: int = 0) -> Tensor:
    """Honest updates around one direction, and every fourth somewhere else."""
    generator = torch.Generator().manual_seed(seed)
    x = 3 + torch.randn(n, d, generator=generator)
    x[::4] += 5 * torch.randn(len(x[::4]), d, generator=generator)
    return x


def squares_of(x: Array) -> Array:
    return ((x[:, None] - x[None]) ** 2).sum(-1)


def clip(x: Array, center: Array, tau: float) -> Array:
    apart = np.linalg.norm(x - center, axis=1, keepdims=True)
    return np.minimum(1, tau / np.maximum(apart, 1e-300)) * (x - center)


def median(x: Array, f: int) -> Array:
    return np.median(x, axis=0)


def trimmed_mean(x: Array, f: int) -> Array:
    return np.sort(x, axis=0)[f : len(x) - f].mean(axis=0)


def nearest_to(x: Array, center: Array, count: int) -> Array:
    order = np.lexsort((x, np.abs(x - center)), axis=0)  # of two as near the lesser
    return np.take_along_axis(x, order[:count], axis=0).mean(axis=0)


def meamed(x: Array, f: int) -> Array:
    return nearest_to(x, np.median(x, axis=0), len(x) - f)


def phocas(x: Array, f: int) -> Array:
    return nearest_to(x, trimmed_mean(x, f), len(x) - f)


def sign_majority(x: Array, f: int) -> Array:
    return np.sign(np.sign(x).sum(axis=0))


def krum_scores(x: Array, f: int) -> Array:
    return np.sort(squares_of(x), axis=1)[:, 1 : 1 + max(1, len(x) - f - 2)].sum(axis=1)


def krum(x: Array, f: int) -> Array:
    return x[np.argmin(krum_scores(x, f))]


def multi_krum(x: Array, f: int) -> Array:
    return x[np.argsort(krum_scores(x, f), kind="stable")[: len(x) - f]].mean(axis=0)


def bulyan(x: Array, f: int) -> Array:
    # who comes first of equals
    left, chosen = [int(row) for row in np.argsort(krum_scores(x, f), kind="stable")], []
    while len(chosen) < len(x) - 2 * f:
        chosen.append(left.pop(int(np.argmin(krum_scores(x[left], f)))))
    return nearest_to(x[chosen], np.median(x[chosen], axis=0), len(x) - 4 * f)


def mda(x: Array, f: int) -> Array:
    squares = squares_of(x)
    order = [int(row) for row in np.argsort(squares.sum(axis=1), kind="stable")]
    kept = min(
        itertools.combinations(order, len(x) - f),
        key=lambda rows: squares[np.ix_(rows, rows)].max(),
    )
    return x[list(kept)].mean(axis=0)


def faba(x: Array, f: int) -> Array:
    left = x
    for _ in range(f):
        left = np.delete(left, np.linalg.norm(left - left.mean(axis=0), axis=1).argmax(), axis=0)
    return left.mean(axis=0)


def cge(x: Array, f: int) -> Array:
    return x[np.argsort(np.linalg.norm(x, axis=1))[: len(x) - f]].mean(axis=0)


def smea(x: Array, f: int) -> Array:
    kept = min(
        itertools.combinations(range(len(x)), len(x) - f),
        key=lambda rows: np.linalg.norm(x[list(rows)] - x[list(rows)].mean(0), 2),
    )
    return x[list(kept)].mean(axis=0)


def caf(x: Array, f: int) -> Array:
    c, best, answer = np.ones(len(x)), np.inf, x.mean(axis=0)
    while c.sum() > len(x) - 2 * f:
        mean = c @ x / c.sum()
        values, vectors = np.linalg.eigh((c[:, None] * (x - mean)).T @ (x - mean) / c.sum())
        if values[-1] < best:
            best, answer = values[-1], mean
        t = np.where(c > 0, ((x - mean) @ vectors[:, -1]) ** 2, 0)
        c = c * (1 - t / t.max())
    return answer


def dnc(x: Array, f: int) -> Array:
    along = ((x - x.mean(axis=0)) @ np.linalg.svd(x - x.mean(axis=0))[2][0]) ** 2
    return x[np.argsort(along)[: len(x) - f]].mean(axis=0)


def spectral_clipping(x: Array, f: int) -> Array:
    differences, norms = x - x.mean(axis=0), np.linalg.norm(x, axis=1)
    _, sizes, directions = np.linalg.svd(differences)
    order = np.argsort((differences @ directions[0]) ** 2)
    stands_out = sizes[0] ** 2 > 1.2 * sum(sizes[1:2]) ** 2
    kept = order[: len(x) - f] if stands_out else order
    longest = 2 * min(np.median(norms), np.sort(norms)[len(x) - f - 1])
    return (x[kept] * np.minimum(1, longest / norms[kept])[:, None]).mean(axis=0)


def reweighted(x: Array, f: int, weight: Callable[[Array], Array]) -> Array:
    center = np.median(x, axis=0)
    scale = max(np.median(np.linalg.norm(x - center, axis=1)), 1e-12)
    for _ in range(3):
        w = weight(np.linalg.norm(x - center, axis=1) / scale)
        center = w @ x / w.sum()
    return center


def huber(x: Array, f: int) -> Array:
    return reweighted(x, f, lambda s: 1 / np.maximum(1, s))


def cauchy(x: Array, f: int) -> Array:
    return reweighted(x, f, lambda s: 1 / (1 + s**2))


def geometric_median(x: Array, f: int) -> Array:
    z = np.median(x, axis=0)
    for _ in range(3000):
        w = 1 / np.maximum(1e-12, np.linalg.norm(x - z, axis=1))
        z = w @ x / w.sum()
    return z


def rfa(x: Array, f: int) -> Array:
    z = np.zeros(x.shape[1])
    for _ in range(8):
        w = 1 / np.maximum(0.1, np.linalg.norm(x - z, axis=1))
        z = w @ x / w.sum()
    return z


def centered_clipping(x: Array, f: int) -> Array:
    v = np.full(x.shape[1], 2.0)
    for _ in range(5):
        v = v + clip(x, v, 4.0).mean(axis=0)
    return v


def self_centered_clipping(x: Array, f: int) -> Array:
    apart = np.sort(np.linalg.norm(x - x[1], axis=1))
    return x[1] + clip(x, x[1], np.sqrt((apart[: len(x) - f] ** 2).sum() / f)).mean(axis=0)


def monna(x: Array, f: int) -> Array:
    return x[np.argsort(np.linalg.norm(x - x[1], axis=1))[: len(x) - f]].mean(axis=0)


def fltrust(x: Array, f: int) -> Array:
    g = np.full(x.shape[1], 2.0)
    norms = np.linalg.norm(x, axis=1)
    trust = np.maximum(0, x @ g / norms / np.linalg.norm(g))
    return (trust * np.linalg.norm(g) / norms) @ x / trust.sum()


def fltrust_of_updates(x: Array, f: int) -> Array:
    norms = np.linalg.norm(x, axis=1)
    radius = min(np.median(norms), np.sort(norms)[len(x) - f - 1])
    return fltrust(x, f) * radius / np.linalg.norm(np.full(x.shape[1], 2.0))


def judged_clipping(x: Array, f: int) -> Array:
    g = np.full(x.shape[1], 2.0)
    norms = np.linalg.norm(x, axis=1)
    radius = min(np.median(norms), np.sort(norms)[len(x) - f - 1])
    trust = np.maximum(0, x @ g / norms / np.linalg.norm(g)) ** 2
    mean, kept = trust @ clip(x, np.zeros(x.shape[1]), radius) / trust.sum(), (trust > 0).sum()
    longer = min(radius / np.linalg.norm(g), len(x))
    return (kept * mean + f * longer * g) / (kept + f)


def nnm(x: Array, f: int) -> Array:
    return np.stack([x[np.argsort(row)[: len(x) - f]].mean(axis=0) for row in squares_of(x)])


def arc(x: Array, f: int) -> Array:
    norms = np.linalg.norm(x, axis=1)
    cut = int(2 * f / len(x) * (len(x) - f))
    return clip(x, np.zeros(x.shape[1]), float(np.sort(norms)[len(x) - cut - 1]))


def clipping(x: Array, f: int) -> Array:
    return clip(x, np.zeros(x.shape[1]), 5.0)


ORACLES: dict[str, Callable[[Array, int], Array]] = {
    "mean": lambda x, f: x.mean(axis=0),
    "median": median,
    "trimmed_mean": trimmed_mean,
    "meamed": meamed,
    "phocas": phocas,
    "sign_majority": sign_majority,
    "krum": krum,
    "multi_krum": multi_krum,
    "bulyan": bulyan,
    "mda": mda,
    "faba": faba,
    "cge": cge,
    "smea": smea,
    "caf": caf,
    "dnc": dnc,
    "spectral_clipping": spectral_clipping,
    "huber": huber,
    "cauchy": cauchy,
    "geometric_median": geometric_median,
    "rfa": rfa,
    "centered_clipping:tau=4,steps=5": centered_clipping,
    "self_centered_clipping": self_centered_clipping,
    "monna": monna,
    "fltrust": fltrust,
    "fltrust:lengths=updates": fltrust_of_updates,
    "judged_clipping": judged_clipping,
    "nnm+mean": lambda x, f: nnm(x, f).mean(axis=0),
    "nnm+trimmed_mean": lambda x, f: trimmed_mean(nnm(x, f), f),
    "nnm+krum": lambda x, f: krum(nnm(x, f), f),
    "nnm+bulyan": lambda x, f: bulyan(nnm(x, f), f),
    "nnm+huber": lambda x, f: huber(nnm(x, f), f),
    "arc+nnm+multi_krum": lambda x, f: multi_krum(nnm(arc(x, f), f), f),
    "nnm+arc+multi_krum": lambda x, f: multi_krum(arc(nnm(x, f), f), f),
    "arc+meamed": lambda x, f: meamed(arc(x, f), f),
    "clipping:radius=5+median": lambda x, f: median(clipping(x, f), f),
}
SIZES = [(11, 1, 2), (11, 40, 2), (13, 300, 2), (15, 17, 3)]


def run(spec: str, x: Tensor | list[Tensor], f: int) -> Tensor:
    rule, row = load(spec), x[1].clone()
    center = row if rule.needs_center else None
    return rule(
        x,
        f=f,
        center=center,
        previous=torch.full_like(row, 2.0),
        gradient=torch.full_like(row, 2.0),
    )


@pytest.mark.parametrize("spec", ORACLES)
def test_a_rule_is_what_numpy_makes_of_it(spec: str) -> None:
    # The one is smoothed; to the other, updates are nearly alike after mixing, and their distances
    # what float32 left of them.
    tolerance = 2e-4 if spec in ("geometric_median", "nnm+huber") else 1e-5
    for n, d, f in SIZES:
        x = cloud(n, d)
        expected = ORACLES[spec](x.to(torch.float64).numpy(), f)
        for updates in (x, [row.clone() for row in x], x.to(torch.float64)):
            scale = max(1.0, float(np.abs(expected).max()))
            found = run(spec, updates, f).to(torch.float64).numpy()
            np.testing.assert_allclose(
                found, expected, atol=tolerance * scale, rtol=0, err_msg=f"{spec} n={n} d={d} f={f}"
            )


def colluders(push: float) -> Tensor:
    """Nine peers with data of their own, each in a direction of its own, and two that push along
    one more together."""
    x = torch.zeros(11, 10)
    x[:9] = torch.eye(10)[:9]
    x[9:, 9] = push
    return x


def test_spectral_clipping_leaves_out_pushers_and_hears_all_in_each_third_round() -> None:
    rule = load("spectral_clipping")
    pushed = [rule(colluders(5.0), f=2, round_id=round_id)[9].item() for round_id in range(6)]
    assert pushed == pytest.approx([0, 0, 2 * 2 / 11, 0, 0, 2 * 2 / 11]), "clipped to 2 when heard"
    never_left_out = load("spectral_clipping:every=1")(colluders(5.0), f=2)
    assert never_left_out[9].item() == pytest.approx(2 * 2 / 11)


def test_spectral_clipping_keeps_all_where_no_direction_stands_out() -> None:
    x = torch.eye(11)
    weights = load("spectral_clipping").explain(x, f=2).weights
    assert weights.tolist() == pytest.approx([1 / 11] * 11)
    x[9:] = 0.8 * x[9:].mean(dim=0)  # they agree, and are no longer than any one peer alone
    assert load("spectral_clipping").explain(x, f=2).weights.tolist() == pytest.approx(
        [1 / 11] * 11
    )


@pytest.mark.parametrize("s", [1, 2, 3, 20])
def test_buckets_hold_every_update_once_and_are_drawn_anew_each_round(s: int) -> None:
    x = cloud(11, 5)
    mixed = [load(f"bucketing:s={s}+mean")(x, f=0, round_id=round_id) for round_id in (1, 1, 2)]
    assert torch.equal(mixed[0], mixed[1])
    weights = (
        load(f"bucketing:s={s}+krum:f=0").explain(x, f=0, round_id=3).weights if s < 6 else None
    )
    if weights is not None:
        used = weights[weights > 0].tolist()
        assert used == pytest.approx([1 / len(used)] * len(used)), (
            "one bucket was chosen, of s updates or of what is left over"
        )
        assert len(used) in (s, 11 % s or s)
    if s == 2:
        assert not torch.equal(mixed[0], mixed[2]), (
            "another round, other buckets, another odd one out"
        )


def test_bucketing_needs_as_many_buckets_as_the_rule_needs_updates() -> None:
    assert load("bucketing:s=2+krum").at_least(2) == 2 * 6 + 1
    assert load("bucketing:s=3+trimmed_mean").at_least(1) == 3 * 2 + 1
    assert load("nnm+krum").at_least(2) == 7
    assert load("nnm+bulyan:f=1").at_least(2) == 7, (
        "bulyan's own f is fixed, the neighbours' is not"
    )
    with pytest.raises(TooFewUpdates, match=r"bucketing\+krum needs 13 updates to tolerate f=2"):
        load("bucketing+krum")(cloud(12, 3), f=2)


@pytest.mark.parametrize(("n", "f"), [(7, 1), (8, 1), (12, 1), (11, 2), (14, 2)])
def test_bulyan_does_not_depend_on_the_order_of_updates_of_which_two_are_nearest_to_each_other(
    n: int, f: int
) -> None:
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 16, generator=generator)
        order = torch.randperm(n, generator=generator)
        torch.testing.assert_close(
            run("bulyan", x[order], f), run("bulyan", x, f), atol=1e-5, rtol=0
        )


def test_bulyan_scores_those_that_are_left_anew_after_each_choice() -> None:
    # By the first scores the far pair would never be chosen; once their neighbours are gone,
    # distances among the rest decide.
    x = cloud(11, 2, seed=3)
    y = x.to(torch.float64).numpy()
    first_scores = np.argsort(krum_scores(y, 2), kind="stable")[:7]
    chosen = np.flatnonzero(load("bulyan").explain(x, f=2).weights.numpy())
    np.testing.assert_allclose(run("bulyan", x, 2).numpy(), bulyan(y, 2), atol=1e-5)
    assert sorted(first_scores.tolist()) != chosen.tolist(), (
        "the case tells a dead branch from a living one"
    )


def test_a_search_that_would_take_too_long_is_refused_with_a_way_out() -> None:
    with pytest.raises(
        AggregationError, match="smea tries every 20 of 30 updates, 30045015 subsets"
    ) as caught:
        load("smea")(cloud(30, 3), f=10)
    assert "caf" in str(caught.value.hint)
    assert torch.isfinite(load("mda")(cloud(60, 30), f=15)).all(), (
        "mda searches covers, not subsets"
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("centered_clipping:tau=0", "tau must be above 0, not 0"),
        ("centered_clipping:steps=0", "steps must be at least 1, not 0"),
        ("self_centered_clipping:tau=-1", "tau must be above 0, not -1"),
        ("geometric_median:nu=0", "nu must be above 0"),
        ("rfa:nu=-1", "nu must be above 0"),
        ("rfa:steps=0", "steps must be at least 1, not 0"),
        ("huber:steps=0", "huber: steps must be at least 1, not 0"),
        ("dnc:c=9", "would leave out 18 of 11"),
        ("dnc:c=-1", "leaves out -2 updates, but f=2"),
        ("dnc:c=0.7", "leaves out 1 updates, but f=2"),
        ("dnc:c=inf", "c must be finite, not inf"),
        ("spectral_clipping:gap=0.9", "gap must be at least 1 and finite, not 0.9"),
        ("spectral_clipping:radius=0", "radius must be above 0 and finite, not 0"),
        ("spectral_clipping:every=0", "every must be at least 1, not 0"),
        ("bucketing:s=0+mean", "s must be at least 1, not 0"),
        ("clipping:radius=0+mean", "radius must be above 0, not 0"),
        ("clipping:about=center+mean", "needs the local update, which is not available"),
        ("multi_krum:m=0", "m must be at least 1, not 0"),
    ],
)
def test_an_option_out_of_range_is_named(spec: str, words: str) -> None:
    with pytest.raises(AggregationError, match=words):
        load(spec)(cloud(11, 4), f=2, center=torch.zeros(4) if "self" in spec else None)


def test_memory_comes_in_as_a_point_and_is_the_origin_at_first() -> None:
    x = cloud(9, 6)
    rule = load("centered_clipping:tau=1")
    first = rule(x, f=2)
    torch.testing.assert_close(first, rule(x, f=2, previous=torch.zeros(6)))
    second = rule(x, f=2, previous=first)
    assert 0 < float((second - first).norm()) <= 1 + 1e-6
    assert float(first.norm()) <= 1 + 1e-6


def test_clipping_once_around_the_origin_bounds_what_a_liar_adds() -> None:
    x = torch.ones(5, 100)
    x[4] *= 1e9
    torch.testing.assert_close(load("centered_clipping")(x, f=1), x[0])
