"""Zeno and Zeno++: rules that ask the loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gossip.aggregators import ShardedRule, fltrust, judged_clipping, load, zeno, zeno_pp
from gossip.errors import AggregationError, ConfigError, TooFewUpdates

D, LR = 200, 0.1


class Bowl:
    """loss(x) = |x - goal|^2 / 2 from x = 0; remembers the steps it was asked about."""

    def __init__(self, seed: int = 0) -> None:
        self.goal = torch.randn(D, generator=torch.Generator().manual_seed(seed))
        self.gradient = -self.goal
        self.asked: list[Tensor] = []

    def __call__(self, step: Tensor) -> float:
        self.asked.append(step.clone())
        return float(0.5 * (-step.double() - self.goal.double()).square().sum())

    def honest(self, n: int, noise: float = 0.5) -> Tensor:
        return self.gradient + noise * torch.randn(n, D, generator=torch.Generator().manual_seed(n))


def test_zeno_is_what_numpy_makes_of_it() -> None:
    bowl = Bowl()
    updates = torch.cat([bowl.honest(6), -3 * bowl.honest(2)])
    x, goal = updates.double().numpy(), bowl.goal.double().numpy()
    for norm, size in (("sum", 1), ("mean", D)):
        scores = (goal @ goal - ((-LR * x - goal) ** 2).sum(axis=1)) / 2 - LR / 5 * (x**2).sum(
            axis=1
        ) / size
        best = np.argsort(-scores)[:5]
        result = zeno(
            updates, f=2, b=3, evaluate=bowl, learning_rate=LR, rho_over_lr=1 / 5, norm=norm
        )
        np.testing.assert_allclose(result.numpy(), x[best].mean(axis=0), atol=1e-5)


def test_zeno_asks_about_no_step_first_and_then_about_each_update_once() -> None:
    bowl = Bowl()
    updates = bowl.honest(4)
    zeno(updates, f=1, evaluate=bowl, learning_rate=LR)
    assert torch.equal(bowl.asked[0], torch.zeros(D))
    torch.testing.assert_close(torch.stack(bowl.asked[1:]), LR * updates)


def test_zeno_needs_no_honest_majority() -> None:
    bowl = Bowl()
    honest = bowl.honest(2)
    updates = torch.cat([-10 * bowl.honest(6), honest])
    verdict = zeno.explain(updates, f=6, evaluate=bowl, learning_rate=LR)
    torch.testing.assert_close(verdict.aggregate, honest.mean(dim=0))
    assert min(verdict.outlyingness[:6].tolist()) > 3 > max(verdict.outlyingness[6:].tolist())


def test_zeno_says_how_many_updates_its_b_needs() -> None:
    assert zeno.least(2) == 3
    assert zeno.least(2, options={"b": 5}) == 6
    with pytest.raises(TooFewUpdates, match="zeno needs 6 updates"):
        zeno(torch.ones(5, D), f=2, b=5, evaluate=Bowl(), learning_rate=LR)


def test_an_update_whose_loss_is_not_finite_is_never_averaged() -> None:
    updates = torch.cat([torch.full((3, 1), 1.0), torch.full((2, 1), 50.0)])

    def evaluate(step: Tensor) -> float:
        return math.nan if float(step) > 1 else 1.0 - float(step)

    # b=1, but there are two of them
    verdict = zeno.explain(updates, f=1, evaluate=evaluate, learning_rate=LR)
    assert verdict.weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0])
    assert float(verdict.aggregate) == pytest.approx(1.0)
    assert bool(torch.isfinite(verdict.outlyingness).all())
    assert min(verdict.outlyingness[3:].tolist()) > 3


def test_when_every_loss_is_absurd_zeno_does_not_step_and_accuses_nobody() -> None:
    losses = iter([1.0, math.inf, math.nan, math.inf])
    verdict = zeno.explain(
        torch.ones(3, 4), f=1, evaluate=lambda step: next(losses), learning_rate=LR
    )
    assert verdict.aggregate.tolist() == [0.0] * 4
    assert verdict.weights.tolist() == [0.0] * 3
    assert verdict.outlyingness.tolist() == [1.0] * 3


def test_scorers_say_when_their_judge_or_their_options_are_no_good() -> None:
    updates, bowl = torch.ones(3, D), Bowl()
    with pytest.raises(AggregationError, match="judge's own loss is nan"):
        zeno(updates, f=1, evaluate=lambda step: math.nan, learning_rate=LR)
    with pytest.raises(AggregationError, match="judge's own gradient is not finite"):
        zeno_pp(updates, f=1, gradient=torch.full((D,), math.inf), learning_rate=LR)
    with pytest.raises(AggregationError, match=r"gradient must have the shape \(200,\)"):
        zeno_pp(updates, f=1, gradient=torch.ones(3), learning_rate=LR)
    with pytest.raises(AggregationError, match="learning_rate must be above 0 and finite"):
        zeno_pp(updates, f=1, gradient=bowl.gradient, learning_rate=0.0)
    with pytest.raises(AggregationError, match="b=-1"):
        zeno(updates, f=1, b=-1, evaluate=bowl, learning_rate=LR)


def test_zeno_pp_is_what_numpy_makes_of_it() -> None:
    bowl = Bowl()
    updates = torch.cat([bowl.honest(5, noise=4.0), -bowl.honest(3)])
    x, v = updates.double().numpy(), bowl.gradient.double().numpy()
    for rho, epsilon in ((0.01, 0.0), (0.3, 0.0), (0.0, 10.0), (0.5, 60.0)):
        scaled = x * np.linalg.norm(v) / np.linalg.norm(x, axis=1, keepdims=True)
        scores = LR * scaled @ v - LR * rho * (scaled**2).sum(axis=1)
        expected = scaled[scores >= -LR * epsilon].mean(axis=0)
        result = zeno_pp(
            updates, f=2, gradient=bowl.gradient, learning_rate=LR, rho_over_lr=rho, epsilon=epsilon
        )
        np.testing.assert_allclose(result.numpy(), expected, atol=1e-4)


def test_zeno_pp_charges_for_the_norm_after_rescaling() -> None:
    # By the norm from before, 1000 times the gradient would cost a million times
    # rho and be dropped.
    bowl = Bowl()
    verdict = zeno_pp.explain(
        bowl.gradient.repeat(3, 1) * torch.tensor([[1.0], [1.0], [1000.0]]), f=1, **judged_by(bowl)
    )
    assert verdict.weights.tolist() == pytest.approx([1 / 3] * 3)
    torch.testing.assert_close(verdict.aggregate, bowl.gradient)
    assert verdict.outlyingness[2] == pytest.approx(1000)  # harmless, but it stands out


def judged_by(bowl: Bowl) -> dict[str, object]:
    return {"gradient": bowl.gradient, "learning_rate": LR}


def test_zeno_pp_without_an_acceptable_update_makes_no_step() -> None:
    bowl = Bowl()
    verdict = zeno_pp.explain(-bowl.honest(4), f=1, **judged_by(bowl))
    assert verdict.aggregate.tolist() == [0.0] * D
    assert verdict.weights.tolist() == [0.0] * 4
    assert max(verdict.outlyingness.tolist()) < 3


def test_zeno_pp_takes_the_gradient_from_a_function_too() -> None:
    bowl = Bowl()
    expected = zeno_pp(bowl.honest(4), f=1, **judged_by(bowl))
    assert torch.equal(
        zeno_pp(bowl.honest(4), f=1, gradient=lambda: bowl.gradient, learning_rate=LR), expected
    )


def test_zeno_pp_accepts_no_zero_update_and_survives_a_zero_gradient() -> None:
    bowl = Bowl()
    verdict = zeno_pp.explain(
        torch.cat([bowl.honest(3), torch.zeros(1, D)]), f=1, **judged_by(bowl)
    )
    assert verdict.weights.tolist() == pytest.approx([1 / 3] * 3 + [0])
    still = zeno_pp.explain(bowl.honest(3), f=1, gradient=torch.zeros(D), learning_rate=LR)
    assert still.aggregate.tolist() == [0.0] * D
    assert bool(torch.isfinite(still.outlyingness).all())


@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e30, 1e37])
def test_zeno_pp_knows_a_direction_at_any_size(size: float) -> None:
    bowl = Bowl()
    result = zeno_pp(bowl.honest(4) * size, f=1, **judged_by(bowl))
    torch.testing.assert_close(
        result, zeno_pp(bowl.honest(4), f=1, **judged_by(bowl)), atol=1e-4, rtol=1e-3
    )


# --- as long as the updates are -------------------------------------------------------------------

LONG = 30.0  # times the gradient, as the model differences of many steps may be
OF_UPDATES = ["zeno_pp:lengths=updates", "fltrust:lengths=updates"]


def in_length(spec: str, updates: Tensor, f: int, gradient: Tensor) -> Tensor:
    return load(spec)(updates, f=f, gradient=gradient, learning_rate=LR)


def test_zeno_pp_at_the_length_of_the_updates_is_what_numpy_makes_of_it() -> None:
    bowl = Bowl()
    updates = LONG * torch.cat([bowl.honest(6, noise=4.0), -4 * bowl.honest(2)])
    x, v = updates.double().numpy(), bowl.gradient.double().numpy()
    norms = np.linalg.norm(x, axis=1)
    for f, radius in ((2, np.median(norms)), (6, np.sort(norms)[1])):
        for rho, epsilon in ((0.01, 0.0), (0.3, 0.0), (0.0, 10.0), (0.5, 60.0)):
            cosines = x @ v / norms / np.linalg.norm(v)
            good = cosines >= rho - epsilon / (v @ v)
            expected = (radius * x / norms[:, None])[good].mean(axis=0)
            options = {"learning_rate": LR, "rho_over_lr": rho, "epsilon": epsilon}
            result = zeno_pp(updates, f=f, gradient=bowl.gradient, lengths="updates", **options)
            np.testing.assert_allclose(result.numpy(), expected, atol=1e-3)


@pytest.mark.parametrize("name", ["zeno_pp", "fltrust"])
def test_whom_a_judge_trusts_does_not_depend_on_how_long_an_update_is_made(name: str) -> None:
    bowl = Bowl()
    updates = LONG * torch.cat([bowl.honest(5, noise=4.0), -bowl.honest(2), torch.zeros(1, D)])
    updates[0] *= 5
    one, other = [
        load(f"{name}:lengths={lengths}").explain(updates, f=2, **judged_by(bowl))
        for lengths in ("gradient", "updates")
    ]
    torch.testing.assert_close(one.weights, other.weights)
    torch.testing.assert_close(one.outlyingness, other.outlyingness)
    turned = torch.cosine_similarity(one.aggregate, other.aggregate, dim=0)
    assert float(turned) == pytest.approx(1.0)
    assert other.aggregate.norm() > 10 * one.aggregate.norm()


@pytest.mark.parametrize("spec", OF_UPDATES)
@pytest.mark.parametrize("f", [2, 5, 9])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_no_step_is_longer_than_an_honest_update_whoever(spec: str, f: int, size: float) -> None:
    for seed in range(5):
        updates, common = unequal(seed)
        honest = updates[f:]
        updates[:f] = size * (torch.randn_like(updates[:f]) + honest.mean(dim=0))
        updates[0] = size * common
        step = in_length(spec, updates, f, 0.01 * common)
        assert step.norm() <= honest.norm(dim=1).max() * (1 + 1e-5)
        assert float(step @ common) >= 0


@pytest.mark.parametrize("spec", OF_UPDATES)
def test_without_a_direction_or_a_length_there_is_no_step(spec: str) -> None:
    bowl = Bowl()
    nothing, most_are_zero = torch.zeros(D), torch.zeros(5, D)
    most_are_zero[0] = bowl.gradient
    assert not in_length(spec, bowl.honest(5), 1, nothing).any()
    assert not in_length(spec, most_are_zero, 1, bowl.gradient).any()
    assert not in_length(spec, torch.zeros(5, D), 1, bowl.gradient).any()


@pytest.mark.parametrize("spec", OF_UPDATES)
def test_an_update_that_is_next_to_nothing_is_made_at_most_n_times_as_long(spec: str) -> None:
    updates = torch.zeros(5, 4)
    updates[:4, 0], updates[4, 0], updates[4, 1] = 10.0, 1e-3, 1e-3
    judge = torch.tensor([1.0, 1.0, 0.0, 0.0])
    share = {"zeno_pp": 1 / 5, "fltrust": 1 / (4 * math.sqrt(0.5) + 1)}[spec.split(":")[0]]
    step = in_length(spec, updates, 1, judge)
    assert float(step[1]) == pytest.approx(share * 5e-3)


@pytest.mark.parametrize(("lengths", "part"), [("gradient", 1.0), ("updates", 0.01)])
def test_on_shards_fltrust_is_what_it_is_on_the_whole_though_one_sends_next_to_nothing(
    lengths: str, part: float
) -> None:
    rule = load(f"fltrust:lengths={lengths}")
    sharded = ShardedRule(rule)
    updates, common = unequal(6)
    judge = part * common
    updates[0] = 1e-6 * common  # would weigh a million, and servers allow no more than n
    updates[1] *= 50
    whole = rule.explain(updates, f=2, gradient=judge)
    cuts = torch.arange(200).tensor_split(3)
    rows = range(len(updates))
    parts = [(rows, sharded.measure(updates[:, cut], gradient=judge[cut])) for cut in cuts]
    decision = sharded.decide(parts, f=2)
    found = [sharded.combine(updates[:, cut], decision.weights.tolist()) for cut in cuts]
    torch.testing.assert_close(torch.cat(found), whole.aggregate, rtol=1e-4, atol=1e-4)
    assert decision.shares == pytest.approx(whole.weights.numpy())
    assert decision.outlyingness == pytest.approx(whole.outlyingness.numpy(), rel=1e-4)
    assert 0.0 < whole.weights[0] < 1.0, "it counts, for next to nothing"
    longest = max(float(judge.norm()), float(updates[2:].norm(dim=1).max()))
    assert 0.05 * longest < whole.aggregate.norm() < longest


@pytest.mark.parametrize("name", ["zeno_pp", "fltrust"])
def test_lengths_are_of_the_gradient_or_of_the_updates(name: str) -> None:
    rule, bowl = {"zeno_pp": zeno_pp, "fltrust": fltrust}[name], Bowl()
    judged = judged_by(bowl) if name == "zeno_pp" else {"gradient": bowl.gradient}
    with pytest.raises(AggregationError, match="'gradient' or 'updates', not 'longest'"):
        rule(bowl.honest(4), f=1, lengths="longest", **judged)


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("zeno_pp", "zeno_pp:lengths=updates"),
        ("fltrust:lengths=gradient", "fltrust:lengths=updates"),
        ("nnm+zeno-pp:epsilon=0.1", "nnm+zeno-pp:epsilon=0.1,lengths=updates"),
        ("bucketing:s=2+fltrust", "bucketing:s=2+fltrust:lengths=updates"),
        ("zeno_pp: lengths = gradient , f=1", "zeno_pp: lengths=updates , f=1"),
        ("fltrust: ", "fltrust:lengths=updates"),
    ],
)
def test_a_rule_that_makes_updates_as_long_as_a_gradient_takes_no_model_differences(
    spec: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match="as long as the judge's gradient") as refused:
        load(spec).check_model_differences()
    assert refused.value.hint == f"write {hint}"
    load(hint).check_model_differences()


@pytest.mark.parametrize("spec", ["mean", "zeno", "judged_clipping", "nnm+krum"])
def test_other_rules_take_model_differences(spec: str) -> None:
    load(spec).check_model_differences()


# --- clipping by a judge --------------------------------------------------------------------------


def unequal(seed: int, n: int = 10, d: int = 200) -> tuple[Tensor, Tensor]:
    """What peers with a data set of their own each find, far apart, and their common gradient."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=generator)
    return common + 3.0 * torch.randn(n, d, generator=generator), common


def test_judged_clipping_makes_the_steps_of_the_mean_and_not_those_of_the_judge() -> None:
    updates, common = unequal(0)
    mean = updates.mean(dim=0)
    step = judged_clipping(updates, f=2, gradient=common)
    assert float(torch.cosine_similarity(step, mean, dim=0)) > 0.9
    assert 0.8 * mean.norm() < step.norm() < 1.25 * mean.norm()
    assert fltrust(updates, f=2, gradient=common).norm() < 0.5 * mean.norm()


def test_the_length_of_the_judges_gradient_does_not_matter_unless_it_is_next_to_nothing() -> None:
    updates, common = unequal(1)
    one = judged_clipping(updates, f=2, gradient=common)
    other = judged_clipping(updates, f=2, gradient=0.5 * common)
    assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)
    # at the end of training it is noise, and is not to be blown up
    nothing = judged_clipping(updates, f=2, gradient=1e-9 * common)
    without = judged_clipping(updates, f=0, gradient=common)
    kept = int((updates @ common > 0).sum())
    assert torch.allclose(nothing, kept / (kept + 2) * without, rtol=1e-5, atol=1e-5)


def test_the_judge_has_as_many_votes_in_judged_clipping_as_there_may_be_liars() -> None:
    updates, common = unequal(4)
    along = torch.nn.functional.normalize(common, dim=0)
    across = torch.randn(200, generator=torch.Generator().manual_seed(5))
    across -= (across @ along) * along
    updates[:2] = common.norm() * across + 10.0 * along  # together, and not against the judge
    told = judged_clipping(updates, f=2, gradient=common)
    deaf = judged_clipping(updates, f=0, gradient=common)
    astray = [float(step @ across / step.norm()) for step in (told, deaf)]
    assert 0 < astray[0] < 0.8 * astray[1]


@pytest.mark.parametrize("f", [2, 5, 9])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_judged_clipping_never_climbs_nor_makes_a_longer_step_than_an_honest_peer(
    f: int, size: float
) -> None:
    for seed in range(5):
        updates, common = unequal(seed)
        honest = updates[f:]
        updates[:f] = size * (torch.randn_like(updates[:f]) + honest.mean(dim=0))
        updates[0] = -size * common
        step = judged_clipping(updates, f=f, gradient=common)
        assert float(step @ common) >= 0
        assert step.norm() <= honest.norm(dim=1).max() * (1 + 1e-5)


def test_judged_clipping_accuses_who_goes_against_the_judge_or_is_absurdly_loud() -> None:
    updates, common = unequal(2)
    updates[0] = -updates[0]
    updates[1] *= 10
    updates[2] *= 1000
    verdict = judged_clipping.explain(updates, f=2, gradient=common)
    assert verdict.weights[0] == 0.0
    assert float(verdict.weights.sum()) == pytest.approx(1.0)
    assert float(verdict.outlyingness[0]) > 3.0
    assert float(verdict.outlyingness[2]) > 3.0
    assert float(verdict.outlyingness[[1, *range(3, 10)]].max()) < 3.0
    assert verdict.aggregate.norm() <= updates[3:].norm(dim=1).max()  # it is clipped


def test_judged_clipping_makes_no_step_that_the_judge_refutes() -> None:
    common = torch.randn(20, generator=torch.Generator().manual_seed(3))
    verdict = judged_clipping.explain(-common.repeat(5, 1), f=1, gradient=common)
    assert not verdict.aggregate.any()
    assert not verdict.weights.any()
    assert verdict.outlyingness.tolist() == [1.0] * 5  # the judge knows no better
