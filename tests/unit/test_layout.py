from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from gossip.errors import UnsupportedModel
from gossip.training.layout import PRESENT, Layout
from gossip.training.optimizer import without_gradients
from gossip.vectors.count_sketch import sketch
from gossip.vectors.sharding import shard_sizes


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def reference(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().float().reshape(-1) for tensor in tensors])


def with_marks(gradients: torch.Tensor) -> torch.Tensor:
    """An update of the four parameters of ``mlp`` or the two of a convolution,
    all of which have gradients."""
    return torch.cat([gradients, torch.full((2 if len(gradients) == 140 else 4,), PRESENT)])


def test_gradients_go_flat_and_back_without_losing_a_bit():
    model = mlp()
    layout = Layout(model, sgd(model))
    model(torch.randn(3, 6)).sum().backward()
    expected = reference(p.grad for p in model.parameters())
    flat = torch.full((layout.elements,), 9.0)
    layout.flatten_gradients(flat)
    assert torch.equal(flat, with_marks(expected))
    layout.scatter_gradients(flat * 2)
    assert torch.equal(reference(p.grad for p in model.parameters()), expected * 2)


@pytest.mark.parametrize(
    ("number", "finite"),
    [(1.0, True), (3e38, True), (float("inf"), False), (-float("inf"), False), (np.nan, False)],
)
def test_whether_gradients_are_finite_is_told_also_where_their_squares_are_not(number, finite):
    model = mlp()
    layout = Layout(model, sgd(model))
    model(torch.randn(3, 6)).sum().backward()
    model[2].weight.grad[1, 2] = number
    assert layout.flatten_gradients(torch.zeros(layout.elements)) is finite


def test_missing_gradients_are_zeros_and_marked():
    model = mlp()
    layout = Layout(model, sgd(model))
    flat = torch.full((layout.elements,), 9.0)
    layout.flatten_gradients(flat)
    assert not flat.any()
    layout.scatter_gradients(with_marks(torch.arange(float(layout.trained))))
    assert torch.equal(
        reference(p.grad for p in model.parameters()), torch.arange(float(layout.trained))
    )


def test_a_parameter_without_a_gradient_on_every_peer_has_none_in_the_aggregate():
    model, other = mlp(), mlp()
    layout = Layout(model, sgd(model))
    updates = torch.zeros(2, layout.elements)
    for at, one in enumerate((model, other)):
        one(torch.ones(3, 6)).sum().backward()
        one[0].bias.grad = None
        if at == 1:
            one[2].bias.grad = None
        Layout(one, sgd(one)).flatten_gradients(updates[at])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    layout.scatter_gradients(updates.mean(dim=0))
    assert model[0].bias.grad is None
    assert torch.equal(model[2].bias.grad, torch.full((4,), 1.5)), "one of two peers had 3.0 of it"
    assert torch.equal(model[0].weight.grad, other[0].weight.grad)


def test_a_gradient_of_a_parameter_that_was_frozen_at_first_is_refused():
    model = mlp()
    model[0].requires_grad_(False)
    layout = Layout(model, sgd(model))
    model(torch.randn(3, 6)).sum().backward()
    layout.flatten_gradients(torch.zeros(layout.elements))
    model[0].requires_grad_(True)
    model(torch.randn(3, 6)).sum().backward()
    with pytest.raises(
        UnsupportedModel, match=r"0\.weight has a gradient, but was frozen"
    ) as caught:
        layout.flatten_gradients(torch.zeros(layout.elements))
    assert "freeze it afterwards" in str(caught.value.hint)


def test_scattered_gradients_point_neither_into_the_arena_nor_at_one_element():
    model = mlp()
    layout = Layout(model, sgd(model))
    for parameter in model.parameters():
        parameter.grad = torch.zeros(()).expand_as(parameter)
    flat = torch.ones(layout.elements)
    layout.scatter_gradients(flat)
    for parameter in model.parameters():
        parameter.grad.zero_()
    assert flat.all()
    flat.fill_(5)
    assert not any(p.grad.any() for p in model.parameters())


def test_gradients_that_are_put_by_are_back_though_a_step_raises():
    model = mlp()
    layout = Layout(model, sgd(model))
    for parameter in layout.parameters:
        parameter.grad = torch.ones_like(parameter)
    kept = [parameter.grad for parameter in layout.parameters]

    def steps() -> None:
        assert all(parameter.grad is None for parameter in layout.parameters)
        raise ValueError("a hook of the user's optimizer")

    with pytest.raises(ValueError, match="a hook"), without_gradients(layout.parameters):
        steps()
    assert all(
        parameter.grad is gradient
        for parameter, gradient in zip(layout.parameters, kept, strict=True)
    )


def test_a_gradient_that_is_not_contiguous_is_flattened_in_order():
    model = torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
    layout = Layout(model, sgd(model))
    model(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)).sum().backward()
    flat = torch.zeros(layout.elements)
    layout.flatten_gradients(flat)
    assert torch.equal(flat, with_marks(reference(p.grad for p in model.parameters())))


def test_tied_parameters_count_once_and_frozen_ones_not_at_all():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    layout = Layout(model, sgd(model))
    assert layout.names == ("0.weight", "0.bias", "1.bias")
    assert layout.trained == 16 + 4 + 4


def test_parameters_that_the_optimizer_does_not_train_are_left_out():
    model = mlp()
    layout = Layout(model, torch.optim.SGD(model[2].parameters(), lr=0.1))
    assert layout.names == ("2.weight", "2.bias")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_are_exchanged_in_float32(dtype):
    model = mlp().to(dtype)
    layout = Layout(model, sgd(model))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    expected = reference(p.grad for p in model.parameters())
    flat = torch.zeros(layout.elements)
    layout.flatten_gradients(flat)
    assert torch.equal(flat, with_marks(expected))
    layout.scatter_gradients(flat)
    assert all(p.grad.dtype == dtype for p in model.parameters())
    assert torch.equal(reference(p.grad for p in model.parameters()), expected.to(dtype).float())


def test_parameters_are_flattened_moved_and_put_back_bit_for_bit():
    model = mlp()
    layout = Layout(model, sgd(model))
    before, kept = reference(model.parameters()), layout.copy_parameters()
    flat = torch.zeros(layout.elements)
    layout.flatten_parameters(flat)
    assert torch.equal(flat[: layout.trained], before)
    assert not flat[layout.trained :].any()
    layout.add_to_parameters(torch.randn(layout.elements), 0.3)
    assert not torch.equal(reference(model.parameters()), before)
    layout.set_parameters(kept)
    assert torch.equal(reference(model.parameters()), before)


def test_views_are_never_those_of_another_vector():
    model = mlp()
    layout = Layout(model, sgd(model))
    model(torch.randn(3, 6)).sum().backward()
    expected = reference(p.grad for p in model.parameters())
    for _ in range(200):  # addresses and ids are used again
        flat = torch.zeros(layout.elements)
        layout.flatten_gradients(flat)
        assert torch.equal(flat, with_marks(expected))
        del flat


def test_the_digest_tells_names_shapes_and_types_apart():
    digests = set()
    for model in (
        mlp(),
        mlp().double(),
        torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4)),
        torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.ReLU(), torch.nn.Linear(8, 4)
        ),
    ):
        digests.add(Layout(model, sgd(model)).digest)
    assert len(digests) == 4
    one, other = mlp(), mlp()
    assert Layout(one, sgd(one)).digest == Layout(other, sgd(other)).digest
    assert len(Layout(one, sgd(one)).digest) == 16


def test_what_cannot_be_exchanged_is_named():
    model = torch.nn.Embedding(10, 3, sparse=True)
    layout = Layout(model, sgd(model))
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(UnsupportedModel, match="gradient of weight is sparse"):
        layout.flatten_gradients(torch.zeros(30))
    model = torch.nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(UnsupportedModel, match=r"parameter weight is torch.complex64"):
        Layout(model, sgd(model))
    model = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(UnsupportedModel, match="meta"):
        Layout(model, sgd(model))
    model = mlp()
    with pytest.raises(UnsupportedModel, match=r"holds 1 parameter"):
        Layout(
            model,
            torch.optim.SGD([*model.parameters(), torch.nn.Parameter(torch.zeros(2))], lr=0.1),
        )
    model = mlp().requires_grad_(False)
    with pytest.raises(UnsupportedModel, match="none of the model's"):
        Layout(model, sgd(model))


def test_shards_cover_the_vector_and_stay_within_their_bounds():
    draw = random.Random(7)
    for _ in range(500):
        elements, peers = (
            draw.choice([draw.randrange(1, 100), draw.randrange(1, 2**26)]),
            draw.randrange(1, 40),
        )
        sizes = shard_sizes(elements, peers, False)
        assert sum(sizes) == elements
        assert min(sizes) > 0
        assert len(sizes) <= peers
        assert all(size % 16 == 0 for size in sizes[:-1])
        assert max(sizes) - 16 <= max(2**18, -(-elements // peers))
        assert len(sizes) == 1 or 4 * elements > 2**20
        assert shard_sizes(elements, peers, True) == (elements,)
        together = shard_sizes(elements, peers, True, cross_shard=True)
        assert sum(together) == elements
        assert together[0] == (16 if len(together) > 1 else elements)
        assert len(together) == 1 or 4 * elements > 2**22
    assert shard_sizes(2**18, 8, False) == (2**18,)
    assert shard_sizes(1_000_000, 2, False) == (500_000,) * 2
    assert shard_sizes(1_000_000, 4, False, summed_here=True) == (1_000_000,)
    assert shard_sizes(1_000_000, 2, False, summed_here=True) == (500_000,) * 2
    assert shard_sizes(2_000_000, 4, False, summed_here=True) == (1_000_000,) * 2
    assert shard_sizes(25_000_000, 8, False) == (3_125_008,) * 7 + (3_124_944,)


def test_a_sketch_is_linear_and_keeps_norms():
    draw = np.random.default_rng(3)
    ratios = []
    for seed in range(60):
        x, y = (draw.standard_normal(3001).astype(np.float32) for _ in range(2))
        apart = np.frombuffer(sketch(x, seed), np.float32) - np.frombuffer(
            sketch(y, seed), np.float32
        )
        ratios.append(float(apart @ apart) / float(((x - y) ** 2).sum()))
    assert abs(np.mean(ratios) - 1) < 0.06
    assert 0.05 < np.std(ratios) < 0.25
    x = draw.standard_normal(3001).astype(np.float32)
    assert len(sketch(x, 1)) == 4 * 128
    assert sketch(x, 1) == sketch(x.copy(), 1) != sketch(x, 2)
    doubled = np.frombuffer(sketch(2 * x, 1), np.float32)
    assert np.allclose(doubled, 2 * np.frombuffer(sketch(x, 1), np.float32), rtol=1e-5, atol=1e-5)


def test_a_sketch_in_pieces_is_the_sketch_of_the_whole(monkeypatch):
    from gossip.vectors import count_sketch as module

    x = np.random.default_rng(3).standard_normal(10_000).astype(np.float32)
    whole = np.frombuffer(sketch(x, 5), np.float32)
    monkeypatch.setattr(module, "_SKETCH_CHUNK", 999)
    assert np.allclose(np.frombuffer(sketch(x, 5), np.float32), whole, atol=1e-4)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(
    "shapes",
    [
        [(3,), (300, 500), (7, 2), (2**17,), (1,)],
        [(2**17 + 1,), (5,)],
        [(4, 2**16), (4, 2**15)],
        [(5,), (6,)],
    ],
)
def test_gradients_of_any_length_are_gathered_and_each_number_is_looked_at(shapes, contiguous):
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])
    layout = Layout(model, sgd(model))
    draw = torch.Generator().manual_seed(1)
    for parameter in model:
        gradient = torch.randn(parameter.shape, generator=draw)
        if not contiguous and gradient.dim() == 2:
            gradient = gradient.t().contiguous().t()
        parameter.grad = gradient
    flat = torch.full((layout.elements,), 7.0)
    assert layout.flatten_gradients(flat)
    expected = torch.cat([p.grad.reshape(-1) for p in model])
    assert torch.equal(flat[: layout.trained], expected)
    for parameter in model:
        for at in ((0,) * parameter.dim(), (-1,) * parameter.dim()):
            kept = parameter.grad[at].item()
            parameter.grad[at] = float("nan")
            assert not layout.flatten_gradients(flat)
            parameter.grad[at] = kept
    model[0].grad = None
    assert layout.flatten_gradients(flat), "what is missing is zero"
    assert not flat[: model[0].numel()].any()
