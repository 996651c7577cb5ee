"""What a rule is given wrongly it names: an update that is not finite, a number that is none, a
point that does not fit."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gossip.aggregators import (
    GramRule,
    geometric_median,
    krum,
    load,
    mean,
    median,
    names,
    pre_aggregations,
    rule,
)
from gossip.aggregators.arithmetic import LARGEST
from gossip.aggregators.kernels.rows import CHUNK_ELEMENTS
from gossip.aggregators.sharded import ShardedRule
from gossip.errors import AggregationError, TooFewUpdates

D = 6
COMPOSED = (
    "nnm+trimmed_mean",
    "arc+krum",
    "clipping+mean",
    "bucketing+median",
    "nnm+suspicion",
    "nnm+zeno",
)


def updates() -> Tensor:
    return torch.randn(11, D, generator=torch.Generator().manual_seed(0))


def call(spec: str, x: Any, how: str = "__call__", **given: Any) -> Any:
    """With whatever the rule needs, and f = 2 if it takes one."""
    bound = load(spec)
    have: dict[str, Any] = {
        "f": 2,
        "center": torch.zeros(D),
        "gradient": torch.ones(D),
        "learning_rate": 0.1,
        "evaluate": lambda step: float(1000.0 - step.double().sum()),
    }
    takes = bound.rule.parameters
    options = {
        key: value
        for key, value in have.items()
        if key in takes and (key != "center" or bound.needs_center)
    }
    return getattr(bound.rule, how)(x, **{**options, **given})


@pytest.mark.parametrize("spec", [*names(), *COMPOSED])
def test_an_update_that_is_not_finite_is_named_or_does_no_harm(spec: str) -> None:
    for bad in (float("nan"), float("inf")):
        x = updates()
        x[3, 2] = bad
        for how in ("__call__", "explain"):
            for given in (x, list(x.unbind())):
                try:
                    result = call(spec, given, how)
                except AggregationError as error:
                    words = str(error)
                else:
                    fine = bool(
                        torch.isfinite(
                            result if isinstance(result, Tensor) else result.aggregate
                        ).all()
                    )
                    words = "no harm" if fine else "its result is not finite"
                assert "update 3 of 11 is not finite" in words or words == "no harm", (
                    f"{spec}, {bad}: {words}"
                )


@pytest.mark.parametrize(
    "spec",
    [
        "krum",
        "caf",
        "dnc",
        "geometric_median",
        "suspicion",
        "cauchy",
        "multi_krum",
        "median",
        "mean",
    ],
)
def test_a_nan_is_never_worked_on_in_silence(spec: str) -> None:
    x = updates()
    x[3] = float("nan")
    with pytest.raises(AggregationError, match="update 3 of 11 is not finite"):
        call(spec, x)


STRANGE: dict[str, tuple[Any, str]] = {
    "sparse": (updates().to_sparse(), "dense vectors"),
    "meta": (updates().to("meta"), "have no data"),
    "float8": (updates().to(torch.float8_e4m3fn), "float8_e4m3fn do not support arithmetic"),
    "rows of float8": (
        list(updates().to(torch.float8_e4m3fn)),
        "float8_e4m3fn do not support arithmetic",
    ),
    "a sparse one among them": (
        [updates()[0], updates()[1].to_sparse(), *updates()[2:]],
        "dense vectors",
    ),
    "generator": ((row for row in ()), "a list of vectors, got generator"),
    "nothing": (None, "a list of vectors, got NoneType"),
}


@pytest.mark.parametrize("what", STRANGE)
@pytest.mark.parametrize("spec", [*names(), *COMPOSED])
def test_what_no_rule_can_work_with_is_named(spec: str, what: str) -> None:
    given, words = STRANGE[what]
    with pytest.raises(AggregationError, match=words):
        call(spec, given)


@pytest.mark.parametrize("at", [0, 3, 10])
@pytest.mark.parametrize(
    "spec",
    ["median", "trimmed_mean", "meamed", "phocas", "sign_majority", "bulyan", "nnm+trimmed_mean"],
)
def test_a_nan_is_not_lost_where_compiled_kernels_sort_it(spec: str, at: int) -> None:
    x = torch.randn(11, 50_001, generator=torch.Generator().manual_seed(5))
    x[at, -1] = float("nan")
    with pytest.raises(AggregationError, match=f"update {at} of 11 is not finite"):
        load(spec)(x, f=2)


# --- numbers beyond which float64 can tell no distance --------------------------------------------

SIZES = (1e122, 1e124, 1e131, 1e200, 1.7e308)
LIES = ("alike", "opposite", "in one coordinate")
ON_DISTANCES = [
    name for name in (*names(), *COMPOSED) if load(name).rule.scale and not load(name).needs_trainer
]
EXACT = ("mean", "median", "trimmed_mean", "meamed", "phocas")


def crowd(size: float, lies: str) -> Tensor:
    """Nine honest updates, and two of a size that leaves float64 when it is squared,
    summed or doubled."""
    x = updates().double()
    if lies == "in one coordinate":
        x[0, 0], x[1, 1] = size, -size
    else:
        x[0], x[1] = size, size if lies == "alike" else -size
    return x


@pytest.mark.parametrize("spec", [name for name in (*names(), *COMPOSED) if load(name).rule.robust])
def test_liars_as_large_as_float64_allows_do_no_more_harm_than_others(spec: str) -> None:
    """They stand first, where a rule on distances begins;
    two opposite ones had it take all others for equal."""
    for size in SIZES:
        for lies in LIES:
            x = crowd(size, lies)
            honest = x[2:].mean(dim=0)
            reach = float(honest.norm() + (x[2:] - honest).norm(dim=1).max())
            verdict = call(spec, x, "explain")
            assert float((verdict.aggregate - honest).norm()) < 4 * reach, (size, lies)
            assert bool(
                torch.isfinite(verdict.weights).all() & torch.isfinite(verdict.outlyingness).all()
            ), (size, lies)
            torch.testing.assert_close(call(spec, x), verdict.aggregate)
            if size > 1e123:
                assert torch.equal(call(spec, x.clamp(-LARGEST, LARGEST)), call(spec, x)), (
                    "as those as large as can be told"
                )


@pytest.mark.parametrize("spec", ON_DISTANCES)
def test_updates_most_of_which_are_so_large_are_refused_or_all_the_same(spec: str) -> None:
    x = updates().double()
    center = {"center": x[4]} if load(spec).needs_center else {}
    expected = call(spec, x, **center)
    for size in (1e120, 1e124, 1e131, 1e160, 1e200, 1e307):
        given = {key: size * value for key, value in center.items()}
        if size < 1e123 or spec in EXACT:
            torch.testing.assert_close(call(spec, size * x, **given), size * expected)
            continue
        for how in ("__call__", "explain"):
            with pytest.raises(
                AggregationError, match=r"11 of 11 updates have elements beyond 1e\+123"
            ) as caught:
                call(spec, size * x, how, **({"center": x[4]} if center else {}))
            assert caught.value.hint == "scale them down"


@pytest.mark.parametrize("spec", EXACT)
def test_medians_and_means_of_coordinates_agree_at_the_end_of_float64(spec: str) -> None:
    x = updates().double()
    large, usual = (load(spec).explain(size * x, f=2) for size in (1e307, 1.0))
    torch.testing.assert_close(large.aggregate / 1e307, usual.aggregate, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(large.outlyingness, usual.outlyingness)


def test_a_rule_of_ones_own_that_sums_too_much_is_told_of_the_update() -> None:
    x = updates().double()
    x[2:4] = 1.7e308
    with pytest.raises(AggregationError, match="own: update 2 of 11 has an element") as caught:
        rule(lambda rows, f: rows.sum(dim=0), name="own")(x, f=0)
    assert "drop it" in str(caught.value.hint)


def test_what_is_infinite_is_not_taken_for_large() -> None:
    x = updates().double()
    x[0], x[1] = 1e200, float("inf")
    with pytest.raises(AggregationError, match="update 1 of 11 is not finite"):
        krum(x, f=2)


def test_a_point_that_is_so_large_is_named() -> None:
    for spec, point in (
        ("monna", "center"),
        ("fltrust", "gradient"),
        ("centered_clipping", "previous"),
    ):
        with pytest.raises(AggregationError, match=f"{point} has an element beyond"):
            call(spec, updates().double(), **{point: torch.full((D,), 1e124, dtype=torch.float64)})


def test_less_than_half_may_be_so_large_and_no_more() -> None:
    x = updates().double()
    honest = x[5:].mean(dim=0)
    x[:5] = 1.7e308
    assert float((median(x, f=5) - honest).norm()) < 10
    assert float((geometric_median(x, f=5) - honest).norm()) < 10
    x[5] = -1.7e308
    with pytest.raises(AggregationError, match="6 of 11 updates"):
        geometric_median(x, f=5)


@pytest.mark.parametrize("spec", ["cauchy", "krum", "geometric_median", "trimmed_mean"])
def test_servers_of_shards_combine_updates_that_are_so_large_as_the_whole(spec: str) -> None:
    x, shards = crowd(1.7e308, "opposite"), (slice(0, 3), slice(3, D))
    bound = load(spec)
    if spec == "trimmed_mean":
        parts = [call(spec, x[:, shard]) for shard in shards]
    else:
        sharded = ShardedRule(bound)
        everybody = tuple(range(len(x)))
        decision = sharded.decide(
            [(everybody, sharded.measure(x[:, shard])) for shard in shards], f=2
        )
        parts = [sharded.combine(x[:, shard], decision.weights) for shard in shards]
        assert isinstance(bound.rule, GramRule)
        one = [bound.rule.combine(x[:, shard], decision) for shard in shards]
        torch.testing.assert_close(torch.cat(one), torch.cat(parts))
    torch.testing.assert_close(torch.cat(parts), call(spec, x), rtol=1e-6, atol=1e-6)


def test_shards_of_updates_that_are_so_large_decide_as_the_whole() -> None:
    x = crowd(1.7e308, "opposite")
    weights = krum.decide(
        krum.statistics(x[:, :3], x[5, :3]) + krum.statistics(x[:, 3:], x[5, 3:]), f=2
    ).weights
    assert np.array_equal(weights, krum.decide(krum.statistics(x, x[5]), f=2).weights)
    assert weights[:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "spec", [name for name in (*names(), "nnm+krum") if load(name).cross_shard]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e200, -1e200, 1e308])
def test_what_a_lying_server_has_measured_ends_in_a_decision_or_in_an_error_of_ours(
    spec: str, value: float
) -> None:
    sharded, everybody = ShardedRule(load(spec)), tuple(range(11))
    judged = {"gradient": torch.ones(D)} if load(spec).needs_trainer else {}
    honest = sharded.measure(updates(), **judged)
    of_fewer = honest[: len(honest) - 11 - len(sharded.points)]
    for lie in (
        np.full_like(honest, value),
        np.where(np.arange(len(honest)) % 2, value, -value),
        of_fewer,
    ):
        with contextlib.suppress(AggregationError):
            assert np.isfinite(
                sharded.decide([(everybody, honest), (everybody, lie)], f=2).weights
            ).all()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("zeno", {"rho_over_lr": float("nan")}, "rho_over_lr must be at least 0"),
    ("zeno", {"b": 1}, "leaves out b=1 updates, but f=2"),
    ("zeno", {"b": 2.5}, "b must be a whole number"),
    ("zeno_pp", {"rho_over_lr": float("nan")}, "rho_over_lr must be at least 0"),
    ("zeno_pp", {"rho_over_lr": -5.0}, "rho_over_lr must be at least 0"),
    ("zeno_pp", {"epsilon": float("nan")}, "epsilon must be finite, not nan"),
    ("geometric_median", {"nu": float("inf")}, "nu must be above 0 and finite"),
    ("rfa", {"nu": float("nan")}, "nu must be above 0 and finite"),
    ("rfa", {"steps": 1.5}, "steps must be a whole number"),
    ("huber", {"steps": 2.0}, "steps must be a whole number"),
    ("centered_clipping", {"steps": 2.0}, "steps must be a whole number"),
    ("suspicion_literal", {"alpha": float("inf")}, "alpha must be above 0 and finite"),
    ("suspicion_literal", {"steps": 1.5}, "steps must be a whole number"),
    ("dnc", {"c": float("nan")}, "c must be finite, not nan"),
    ("dnc", {"c": float("inf")}, "c must be finite, not inf"),
    ("multi_krum", {"m": 2.5}, "m must be a whole number"),
    ("bucketing+median", {"s": 1.5}, "s must be a whole number"),
    (
        "monna",
        {"center": torch.zeros(D, dtype=torch.complex64)},
        "center must be a floating point vector",
    ),
    ("monna", {"center": np.zeros(D, dtype=np.complex64)}, "floating point"),
    ("monna", {"center": torch.zeros(D + 1)}, "center must have the shape"),
    (
        "monna",
        {"center": torch.full((D,), 1e300, dtype=torch.float64)},
        "center does not fit into the torch.float32",
    ),
    ("fltrust", {"gradient": torch.full((D,), float("nan"))}, "gradient is not finite"),
    ("fltrust", {"gradient": torch.ones(D).to_sparse()}, "and gradient must be dense vectors"),
    (
        "monna",
        {"center": torch.ones(D, device="meta")},
        "updates and center on the device 'meta' have no data",
    ),
]


@pytest.mark.parametrize(
    ("spec", "given", "words"), WRONG, ids=[f"{spec} {given}" for spec, given, _ in WRONG]
)
def test_a_wrong_option_is_named(spec: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(AggregationError, match=words):
        call(spec, updates(), **given)


@pytest.mark.parametrize(
    "spec",
    [name for name in names() if name != "mean"]
    + [f"{part}+median" for part in pre_aggregations()],
)
@pytest.mark.parametrize("f", [2.0, 2.5, "2", None], ids=repr)
def test_f_counts_peers(spec: str, f: Any) -> None:
    with pytest.raises(AggregationError, match="f must be a whole number, not"):
        call(spec, updates(), f=f)


@pytest.mark.parametrize("spec", ["krum", "median", "nnm+trimmed_mean", "zeno"])
def test_f_may_be_a_whole_number_of_any_kind(spec: str) -> None:
    expected = call(spec, updates(), f=2)
    for f in (np.int64(2), torch.tensor(2)):
        assert torch.equal(call(spec, updates(), f=f), expected)


NUMBERS = [
    ("geometric_median", "nu"),
    ("rfa", "nu"),
    ("centered_clipping", "tau"),
    ("self_centered_clipping", "tau"),
    ("clipping+mean", "radius"),
    ("dnc", "c"),
    ("spectral_clipping", "gap"),
    ("spectral_clipping", "radius"),
    ("suspicion_literal", "alpha"),
    ("zeno", "learning_rate"),
    ("zeno", "rho_over_lr"),
    ("zeno_pp", "learning_rate"),
    ("zeno_pp", "rho_over_lr"),
    ("zeno_pp", "epsilon"),
]


@pytest.mark.parametrize(("spec", "option"), NUMBERS)
@pytest.mark.parametrize("value", ["2", [1.0, 2.0], torch.ones(2), 1j], ids=repr)
def test_what_is_no_number_is_named(spec: str, option: str, value: Any) -> None:
    with pytest.raises(AggregationError, match=f"{option} must be a number, not"):
        call(spec, updates(), **{option: value})


@pytest.mark.parametrize(("spec", "option"), NUMBERS)
def test_a_number_may_be_of_any_kind(spec: str, option: str) -> None:
    expected = call(spec, updates(), **{option: 1.0})
    for value in (np.float32(1.0), torch.tensor(1.0), 1):
        assert torch.equal(call(spec, updates(), **{option: value}), expected)


@pytest.mark.parametrize(
    ("spec", "option"), [("bucketing+krum", "s"), ("nnm+zeno", "b"), ("nnm+multi_krum", "m")]
)
@pytest.mark.parametrize("value", ["2", 2.0, [2]], ids=repr)
def test_what_is_no_whole_number_is_named_before_updates_are_counted(
    spec: str, option: str, value: Any
) -> None:
    with pytest.raises(AggregationError, match=f"{option} must be a whole number, not"):
        call(spec, updates(), **{option: value})


@pytest.mark.parametrize("m", [10, np.int64(10), torch.tensor(10)], ids=repr)
def test_multi_krum_never_averages_more_than_the_honest_whatever_m_is(m: Any) -> None:
    with pytest.raises(TooFewUpdates, match="multi_krum needs 12 updates to tolerate f=2"):
        call("multi_krum", updates(), m=m)
    with pytest.raises(TooFewUpdates, match="multi_krum needs 12 updates to tolerate f=2"):
        call("nnm+multi_krum", updates(), m=m)


def test_a_center_may_be_an_array_or_have_a_history() -> None:
    expected = call("monna", updates(), center=torch.ones(D))
    for center in (
        np.ones(D, np.float32),
        torch.ones(D, requires_grad=True),
        torch.ones(D, dtype=torch.float64),
    ):
        assert torch.equal(call("monna", updates(), center=center), expected)


def test_updates_may_be_lists_of_numbers() -> None:
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]
    assert median(rows, f=1).tolist() == [3.0, 4.0]
    assert call("faba", rows, f=0).tolist() == [3.0, 5.0]
    with pytest.raises(AggregationError, match="floating point"):
        median([[1, 2], [3, 4]], f=0)


@pytest.mark.parametrize("spec", ["mean", "median", "krum", "zeno", "nnm+trimmed_mean"])
def test_no_aggregate_has_a_history_of_gradients(spec: str) -> None:
    x = updates().requires_grad_()
    assert not call(spec, x).requires_grad
    assert not call(spec, x, "explain").aggregate.requires_grad
    assert not mean(list(x.unbind())).requires_grad


class Largest(TorchFunctionMode):
    """How many numbers the largest tensor has that is made."""

    elements = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.elements = max(self.elements, result.numel() if isinstance(result, Tensor) else 0)
        return result


@pytest.mark.parametrize("how", ["__call__", "explain"])
def test_zeno_does_not_stack_updates_that_lie_apart(how: str) -> None:
    n, d = 11, 100_000  # more than the chunk that is summed at once
    rows = [torch.full((d,), float(at)) for at in range(n)]
    with Largest() as largest:
        call("zeno", rows, how)
    assert d <= largest.elements <= CHUNK_ELEMENTS < n * d
