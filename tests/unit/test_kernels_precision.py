"""Rules do not take part in the precision that a script wants for its own matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gossip.aggregators import load
from gossip.aggregators.kernels import Rows, between, gram, mixed, precision, weighted_sum

PRODUCTS = {"__matmul__", "matmul", "mm", "bmm"}


def in_use() -> Any:
    if hasattr(torch.backends.mkldnn, "matmul"):
        return torch.backends.mkldnn.matmul.fp32_precision
    return torch.get_float32_matmul_precision()


@pytest.fixture(params=["high", "medium"])
def setting(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


class Products(TorchFunctionMode):
    """Keeps which precision each matrix product had."""

    def __init__(self) -> None:
        self.had: list[Any] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in PRODUCTS:
            self.had.append(in_use())
        return function(*args, **(kwargs or {}))


def cloud() -> Tensor:
    """Close to each other and far from zero: apart by fewer digits than bfloat16 has."""
    return 1 + 0.01 * torch.randn(32, 8000, generator=torch.Generator().manual_seed(0))


CALLS: dict[str, tuple[Callable[[Rows], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "gram": (gram, lambda x: x @ x.T),
    "weighted_sum": (
        lambda rows: weighted_sum(rows, np.full(32, 1 / 32)),
        lambda x: x.mean(axis=0),
    ),
    "mixed": (
        lambda rows: mixed(rows, np.full((2, 32), 1 / 32)),
        lambda x: np.stack([x.mean(axis=0)] * 2),
    ),
    "between": (
        lambda rows: between(rows, 0, 2, matrix=np.full((3, 32), 1 / 32))[0],
        lambda x: x.mean(axis=0),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_products_are_exact_whatever_the_script_has_set(
    name: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSIP_KERNELS", "plain")
    ours, oracle = CALLS[name]
    wanted = in_use()
    with Products() as products:
        found = np.asarray(ours(Rows.of(cloud())))
    assert products.had
    assert wanted not in products.had
    assert set(products.had) <= {"ieee", "highest"}
    np.testing.assert_allclose(found, oracle(cloud().double().numpy()), rtol=2e-6)
    assert torch.get_float32_matmul_precision() == setting
    assert in_use() == wanted


@pytest.mark.parametrize(
    "spec",
    ["multi_krum", "nnm+trimmed_mean", "geometric_median", "centered_clipping:steps=3", "mean"],
)
def test_a_rule_says_the_same(spec: str, setting: str) -> None:
    with_it = load(spec)(cloud(), f=3)
    torch.set_float32_matmul_precision("highest")
    assert torch.equal(with_it, load(spec)(cloud(), f=3))


def test_the_setting_is_put_back_when_the_last_thread_leaves_and_after_errors(setting: str) -> None:
    wanted, (first, second) = in_use(), (precision.full(), precision.full())
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert in_use() in ("ieee", "highest")
    second.__exit__(None, None, None)
    assert in_use() == wanted
    with pytest.raises(ZeroDivisionError), precision.full():
        raise ZeroDivisionError
    assert (in_use(), torch.get_float32_matmul_precision()) == (wanted, setting)
