"""Where byzfl is wrong: what comes out of it, and what of ours.
The numbers are those of byzfl 0.0.11."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from byzfl_rules import byzfl, cloud, relative
from torch import Tensor

from gossip.aggregators import (
    caf,
    centered_clipping,
    compose,
    geometric_median,
    krum,
    load,
    mean,
    median,
    multi_krum,
    nnm,
    smea,
    trimmed_mean,
)

theirs = byzfl()


def heard(updates: Tensor) -> Tensor:
    """The updates that reach a rule of ours: who receives one that is not finite drops it, and
    counts it as a lie."""
    return updates[torch.isfinite(updates).all(dim=1)]


def exact_distances(updates: Tensor) -> np.ndarray:
    rows = updates.to(torch.float64).numpy()
    return np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(-1))


# --- rows that are not finite ---------------------------------------------------------------------

RUINED_BY_NAN: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "median": theirs.Median,
    "krum": lambda: theirs.Krum(f=2),
    "geometric_median": theirs.GeometricMedian,
    "centered_clipping": theirs.CenteredClipping,
    "meamed": lambda: theirs.Meamed(f=2),
}


@pytest.mark.parametrize("name", RUINED_BY_NAN)
def test_two_nan_rows_of_ten_make_everything_nan_there_and_nothing_here(name: str) -> None:
    updates = cloud(10, 20)
    updates[3:5] = torch.nan
    assert bool(torch.isnan(RUINED_BY_NAN[name]()(updates)).all()), "byzfl"
    ours = load(name)(heard(updates), f=2)
    honest = heard(updates)
    assert float((ours - honest.mean(dim=0)).norm()) <= float(
        (honest - honest.mean(dim=0)).norm(dim=1).max()
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_leaves_caf_without_an_answer_there(value: float) -> None:
    updates = cloud(10, 20)
    updates[3:5] = value
    assert theirs.CAF(f=2)(updates) is None, "byzfl"
    assert bool(torch.isfinite(caf(heard(updates), f=2)).all())


def test_two_rows_of_infinities_make_centered_clipping_infinite_or_nan_there() -> None:
    updates = cloud(10, 20)
    updates[3:5] = torch.inf
    assert not bool(torch.isfinite(theirs.CenteredClipping()(updates)).all()), "byzfl"
    assert bool(torch.isfinite(centered_clipping(heard(updates), f=2, tau=100.0)).all())


# --- arguments ------------------------------------------------------------------------------------


def test_clipping_overwrites_the_updates_of_its_caller_there() -> None:
    updates = cloud(10, 20)
    for rule in (theirs.Clipping(c=0.1), theirs.ARC(f=3)):
        given = updates.clone()
        rule(given)
        assert not torch.equal(given, updates), "byzfl"
    for spec in ("clipping:radius=0.1+mean", "arc+mean"):
        given = updates.clone()
        load(spec)(given, f=3)
        assert torch.equal(given, updates)


def test_a_start_for_centered_clipping_is_refused_there_and_taken_here() -> None:
    updates, start = cloud(10, 20), torch.ones(20)
    for given in (start, start.numpy()):
        with pytest.raises(TypeError, match=r"m must be of type np\.ndarray or torch\.Tensor"):
            theirs.CenteredClipping(m=given)
    ours = centered_clipping(updates, f=2, previous=start, tau=1e9)
    torch.testing.assert_close(ours, updates.mean(dim=0))
    near_start = centered_clipping(updates, f=2, previous=start, tau=1e-3)
    assert float((near_start - start).norm()) <= 1e-3


def test_float64_is_quietly_made_float32_there_and_bfloat16_too() -> None:
    updates = cloud(10, 20).to(torch.float64) + 1e-9
    for dtype in (torch.float64, torch.bfloat16):
        assert theirs.TrMean(f=2)(updates.to(dtype)).dtype == torch.float32, "byzfl"
        for rule in (trimmed_mean, median, multi_krum, geometric_median):
            assert rule(updates.to(dtype), f=2).dtype == dtype
    exact = np.sort(updates.numpy(), axis=0)[2:8].mean(axis=0)
    assert np.abs(theirs.TrMean(f=2)(updates).to(torch.float64).numpy() - exact).max() > 1e-9, (
        "byzfl"
    )
    np.testing.assert_allclose(trimmed_mean(updates, f=2).numpy(), exact, atol=1e-14)


# --- arithmetic -----------------------------------------------------------------------------------


def parameters(n: int, d: int = 5000) -> Tensor:
    """Rows like model parameters: far from zero, near each other."""
    return 10 + 1e-3 * torch.randn(n, d, generator=torch.Generator().manual_seed(3))


def test_more_than_25_rows_of_parameters_are_chosen_from_at_random_there() -> None:
    updates = parameters(30)
    exact = exact_distances(updates)
    apart = ~np.eye(30, dtype=bool)
    # what byzfl takes for distances
    by_cdist = torch.cdist(updates, updates).to(torch.float64).numpy()
    assert np.median(np.abs(by_cdist[apart] / exact[apart] - 1)) > 0.1, (
        "byzfl: distances that are all rounding"
    )

    # with its own count of neighbours
    scores = np.sort(exact**2, axis=1)[:, 1 : 30 - 5].sum(axis=1)
    chosen = int((updates == theirs.Krum(f=5)(updates)).all(dim=1).nonzero()[0])
    assert chosen != int(scores.argmin()), "byzfl: not the row that its own definition asks for"
    assert torch.equal(krum(updates, f=4), updates[int(scores.argmin())])

    best = np.argsort(scores, kind="stable")[:25]
    expected = updates.to(torch.float64)[torch.from_numpy(best.copy())].mean(dim=0)
    spread = float((updates - updates[0]).abs().max())
    assert (
        float((theirs.MultiKrum(f=5)(updates).to(torch.float64) - expected).abs().max())
        > 0.01 * spread
    ), "byzfl"
    assert (
        float((multi_krum(updates, f=4, m=25).to(torch.float64) - expected).abs().max())
        < 1e-5 + 1e-3 * spread
    )


def test_neighbours_of_parameters_are_mixed_at_random_there() -> None:
    updates = parameters(30)
    order = np.argsort(exact_distances(updates), axis=1, kind="stable")[:, :25]
    rows = updates.to(torch.float64).numpy()
    expected = np.median(rows[order].mean(axis=1), axis=0)
    spread = float((updates - updates[0]).abs().max())
    wrong = np.abs(
        np.median(theirs.NNM(f=5)(updates).to(torch.float64).numpy(), axis=0) - expected
    ).max()
    right = np.abs(compose(nnm, median)(updates, f=5).to(torch.float64).numpy() - expected).max()
    assert wrong > 10 * right, f"{wrong:.3g} there, {right:.3g} here"
    assert right < 1e-3 * spread, f"{right:.3g} of {spread:.3g}"


def test_the_geometric_median_depends_on_where_the_origin_is_there() -> None:
    updates, shift = cloud(10, 20), torch.full((20,), 100.0)
    updates[:3] = 1e6
    theirs_moved = theirs.GeometricMedian()(updates + shift) - shift
    ours_moved = geometric_median(updates + shift) - shift
    scale = float(updates[3:].norm(dim=1).median())
    assert float((theirs_moved - theirs.GeometricMedian()(updates)).norm()) > 0.5 * scale, "byzfl"
    assert float((ours_moved - geometric_median(updates)).norm()) < 1e-2 * scale

    honest = updates[3:].mean(dim=0)
    assert float((geometric_median(updates) - honest).norm()) < float(
        (theirs.GeometricMedian()(updates) - honest).norm()
    )


@pytest.mark.parametrize(("name", "rule"), [("CAF", caf), ("SMEA", smea)])
def test_rules_on_eigenvectors_give_another_result_each_time_there(
    name: str, rule: Callable[..., Tensor]
) -> None:
    updates = cloud(9, 30)
    torch.manual_seed(0)
    results = [getattr(theirs, name)(f=3)(updates) for _ in range(10)]
    assert max(relative(result, results[0]) for result in results) > 1e-3, (
        "byzfl: one step from a random start"
    )
    ours = [rule(updates, f=3) for _ in range(3)]
    assert all(torch.equal(result, ours[0]) for result in ours)


def test_neighbour_mixing_copies_the_neighbours_of_every_row_there() -> None:
    """n (n - f) d floats there. Ours is counted with the mean behind it, as one pass and a weighted
    sum: no copy of the rows."""
    n, f, d = 20, 4, 40_000
    updates = cloud(n, d)
    input_bytes = updates.nbytes
    assert _peak_bytes(lambda: theirs.NNM(f=f)(updates)) >= (n - f) * input_bytes, "byzfl"
    rule = compose(nnm, mean)
    rule(updates, f=f)
    assert _peak_bytes(lambda: rule(updates, f=f)) <= 2 * input_bytes


def _peak_bytes(function: Callable[[], object]) -> int:
    """The most that torch and numpy held at once, beyond what there was before."""
    held = most = 0
    tracemalloc.start()
    try:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            function()
        in_python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most + in_python
