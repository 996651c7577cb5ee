"""Rules that are right in one round of odd n and one f, and broken in another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gossip.aggregators import Gram, gram_rule, pre_aggregation, rule, trimmed_mean
from gossip.testing import check_aggregator


@rule
def even_n(updates: Tensor, *, f: int) -> Tensor:
    return trimmed_mean(updates, f=f) if len(updates) % 2 else updates[0].clone()


@pre_aggregation
def half_even(gram: Gram, *, f: int) -> np.ndarray:
    return np.eye(gram.n) if gram.n % 2 else np.full((gram.n, gram.n), 1 / gram.n)


@rule
def f_ignored(updates: Tensor, *, f: int) -> Tensor:
    return trimmed_mean(updates, f=min(2, (len(updates) - 1) // 2))


@rule
def last_chunk(updates: Tensor, *, f: int) -> Tensor:
    """A thousand columns at a time; what is left over is forgotten."""
    result = torch.zeros_like(updates[0])
    step = min(len(result), 1000)
    for at in range(0, len(result) - step + 1, step):
        result[at : at + step] = trimmed_mean(updates[:, at : at + step], f=f)
    return result


@rule
def f64_of_f32(updates: Tensor, *, f: int) -> Tensor:
    made = trimmed_mean(updates, f=f)
    return made.double() if updates.dtype == torch.float32 else made


@rule
def in_place_on_outliers(updates: Tensor, *, f: int) -> Tensor:
    norms = updates.double().norm(dim=1)
    far = norms > 3 * norms.median()
    updates[far] *= (3 * norms.median() / norms[far]).to(updates.dtype)[:, None]
    return trimmed_mean(updates, f=f)


@gram_rule(points=("previous",))
def gram_previous(gram: Gram, *, f: int) -> np.ndarray:
    if gram.has("previous"):
        return gram.only("previous")
    return gram.even(np.median(gram.squared_distances(), axis=1).argsort()[:3].tolist())


@rule
def previous_written_to(updates: Tensor, *, f: int, previous: Tensor | None = None) -> Tensor:
    made = trimmed_mean(updates, f=f)
    return made if previous is None else previous.copy_(made).clone()


@rule
def round_dep(updates: Tensor, *, f: int, round_id: int = 0) -> Tensor:
    return updates[0].clone() if round_id else trimmed_mean(updates, f=f)


_BEFORE: dict[tuple[int, ...], Tensor] = {}


@rule
def hidden_state(updates: Tensor, *, f: int) -> Tensor:
    made = trimmed_mean(updates, f=f)
    before = _BEFORE.get((*updates.shape, updates.element_size()), made)
    _BEFORE[(*updates.shape, updates.element_size())] = made.clone()
    return 0.9 * before + 0.1 * made if len(updates) == 12 else made


ELSEWHERE: list[tuple[Any, str]] = [
    (
        even_n,
        r"even_n depends on the order of the updates: .* \(round 1 of a run, 12 updates, f=1\)",
    ),
    (
        half_even,
        r"1 of 12 Byzantine peers, .*, move half_even\+trimmed_mean .* away from the honest mean",
    ),
    (
        f_ignored,
        r"3 of 14 Byzantine peers, .*, move f_ignored .* \(round 2 of a run, 14 updates, f=3\)",
    ),
    (last_chunk, "last_chunk depends on the order of 49999 coordinates"),
    (f64_of_f32, "f64_of_f32 makes an aggregate in torch.float64 of torch.float32"),
    (in_place_on_outliers, "in_place_on_outliers writes to its updates with 2 Byzantine peers"),
    (gram_previous, "gram_previous: the aggregate of equal updates is .* away from them .round 1"),
    (previous_written_to, "previous_written_to writes to the last aggregate .round 1"),
    (round_dep, "round_dep depends on the order of the updates: .*round 1"),
    (
        hidden_state,
        "hidden_state makes another aggregate of the same updates when it is called again",
    ),
]


@pytest.mark.parametrize(
    ("broken", "words"), ELSEWHERE, ids=[broken.name for broken, _ in ELSEWHERE]
)
def test_the_kit_looks_at_other_rounds_other_n_and_another_f(broken: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_aggregator(broken, strengths=2)


def test_a_rule_whose_options_cover_no_more_liars_is_not_asked_to_bear_with_more() -> None:
    check_aggregator("trimmed_mean:f=2", strengths=2)
    with pytest.raises(AssertionError, match=r"round 2 of a run, 14 updates, f=3"):
        check_aggregator(f_ignored, strengths=2)
