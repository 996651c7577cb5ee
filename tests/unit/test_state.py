from __future__ import annotations

import copy
import itertools
import math
import sys
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import zygote
from trainer_fakes import pack_state, part_sizes, small_model, unpack_state

from gossip.errors import UnsupportedModel
from gossip.training.several import as_one
from gossip.training.state import (
    StateMismatch,
    load_document,
    plan_checkpoint,
    plan_state,
    read_checkpoint,
    read_packed_state,
    sizes_of,
    split_state,
)

HERE = Path(__file__).parent


def net(width: int = 6) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 2)
    )


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True),
    "groups": lambda model: torch.optim.Adam(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
    ),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01, centered=True),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters()),
}


def trained(kind: str, seed: int = 0):
    torch.manual_seed(seed)
    model = net()
    optimizer = OPTIMIZERS[kind](model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_that_was_taken_over_goes_on_bit_for_bit_alike(kind):
    model, optimizer = trained(kind)
    optimizer.param_groups[0]["lr"] = 0.033
    other, other_optimizer = trained(kind, seed=1)
    data = pack_state(model, optimizer, {})
    parameters = list(other.parameters())
    unpack_state(data, other, other_optimizer)
    assert pack_state(other, other_optimizer, {}) == data
    assert all(a is b for a, b in zip(parameters, other.parameters(), strict=True))
    for m, o in ((model, optimizer), (other, other_optimizer)):
        torch.manual_seed(5)
        m.zero_grad()
        m(torch.randn(8, 4)).square().sum().backward()
        o.step()
    assert pack_state(other, other_optimizer, {}) == pack_state(model, optimizer, {})


def parts(model, optimizer, extra) -> list[bytes]:
    data = pack_state(model, optimizer, extra)
    edges = [0, *itertools.accumulate(part_sizes(data))]
    assert edges[-1] == len(data)
    assert part_sizes(data) == sizes_of(plan_state(model, optimizer, extra))[0]
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_differs_by_peer_is_in_a_part_of_its_own(kind):
    model, optimizer = trained(kind)
    state, settings, own = parts(model, optimizer, {"scheduler": {"at": 3}})
    model[1].running_mean += 1.0
    assert parts(model, optimizer, {"scheduler": {"at": 3}})[:2] == [state, settings]
    assert parts(model, optimizer, {"scheduler": {"at": 3}})[2] != own
    other = parts(model, optimizer, {"scheduler": {"at": 4}})
    assert (other[0] == state, other[1] == settings) == (True, False)
    optimizer.param_groups[0]["lr"] *= 0.5
    other = parts(model, optimizer, {"scheduler": {"at": 3}})
    assert (other[0] == state, other[1] == settings) == (True, False)
    for key in {"momentum_buffer", "exp_avg", "square_avg", "sum"} & set(
        optimizer.state[model[0].weight]
    ):
        optimizer.state[model[0].weight][key][0, 0] += 1.0
        other = parts(model, optimizer, {"scheduler": {"at": 3}})
        assert other[0] != state
    with torch.no_grad():
        model[2].bias[0] += 1.0
    assert parts(model, optimizer, {})[0] != other[0]


def test_buffers_of_kept_modules_are_in_the_part_that_may_differ():
    model, optimizer = trained("sgd")
    average, _ = trained("sgd")

    def packed() -> bytes:
        return pack_state(
            model, optimizer, {"average": average.state_dict()}, kept={"average": average}
        )

    def split(data: bytes) -> list[bytes]:
        return [file.ljust(-(-len(file) // 8) * 8, b"\0") for file in split_state(data)]

    first = packed()
    average[1].running_mean += 1.0
    before, now = split(first), split(packed())
    assert [a == b for a, b in zip(before, now, strict=True)] == [True, True, True, False]
    back = unpack_state(packed(), model, optimizer)["average"]
    assert back.keys() == average.state_dict().keys()
    assert all(torch.equal(back[key], value) for key, value in average.state_dict().items())
    average[1].running_mean = torch.zeros(3)
    *_, other = split(packed())
    with pytest.raises(StateMismatch, match="other shapes"):
        read_packed_state(b"".join([*before[:3], other]))


@pytest.mark.parametrize("state", [{"running_mean": 1.5}, ["running_mean", 1]])
def test_kept_modules_may_have_states_of_other_types(state):
    model, optimizer = trained("sgd")
    data = pack_state(model, optimizer, {"own": state}, kept={"own": torch.nn.BatchNorm1d(2)})
    assert unpack_state(data, model, optimizer)["own"] == state


def test_a_state_without_its_settings_leaves_the_own_ones():
    model, optimizer = trained("groups")
    other, other_optimizer = trained("groups", seed=1)
    other_optimizer.param_groups[0]["lr"] = 0.033
    packed = pack_state(model, optimizer, {"scheduler": {"at": 3}})
    back = load_document(read_packed_state(packed, other_optimizer), other, other_optimizer)
    assert back == {}
    assert other_optimizer.param_groups[0]["lr"] == 0.033
    assert parts(other, other_optimizer, {})[0] == parts(model, optimizer, {})[0]


def test_extras_come_back_as_they_were():
    model, optimizer = trained("sgd")
    extra = {"a": {"b": (1, 2.5, None, True), "c": [1, "x"], 3: "int key"}, "t": torch.arange(3)}
    back = unpack_state(pack_state(model, optimizer, extra), model, optimizer)
    assert torch.equal(back["t"], torch.arange(3))
    assert back["a"] == extra["a"]
    assert isinstance(back["a"]["b"], tuple)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_survive(dtype):
    model = torch.nn.Linear(3, 2).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    data = pack_state(model, optimizer, {})
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    unpack_state(data, model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_tied_and_transposed_parameters_survive():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[0].bias.data = torch.randn(8)[::2]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = pack_state(model, optimizer, {})
    expected = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    unpack_state(data, model, optimizer)
    assert all(torch.equal(expected[name], tensor) for name, tensor in model.state_dict().items())


def test_equal_states_have_equal_bytes_in_every_process():
    lines = (
        "import sys",
        f"sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}",
        "print(hash('x'))",
        "from test_state import trained",
        "from hashlib import blake2b",
        "from trainer_fakes import pack_state",
        "print(blake2b(pack_state(*trained('adamw'), {'x': 1, 'y': [2]})).hexdigest())",
    )
    elsewhere = zygote.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    theirs, digest = elsewhere.stdout.split()
    assert int(theirs) != hash("x"), "both have the same hash seed"
    states = [pack_state(*trained("adamw"), {"y": [2], "x": 1}) for _ in range(3)]
    seen = {blake2b(state).hexdigest() for state in states}
    seen.add(digest)
    assert len(seen) == 1
    assert blake2b(pack_state(*trained("adamw", seed=1), {})).hexdigest() not in seen


def untouched(model, optimizer, change) -> None:
    before = pack_state(model, optimizer, {})
    change()
    assert pack_state(model, optimizer, {}) == before


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: (net(7), "sgd"),
            r"0.weight is \(7, 4\) torch.float32 in the packed state and \(6, 4\)",
        ),
        (lambda: (net().double(), "sgd"), "torch.float64 in the packed state and"),
        (lambda: (torch.nn.Sequential(*net()[:2]), "sgd"), "the packed state has no 2.weight"),
        (
            lambda: (torch.nn.Sequential(*net(), torch.nn.Linear(2, 2)), "sgd"),
            "has 3.bias, but the model does not",
        ),
        (
            lambda: (net(), "adamw"),
            "group 0 of the packed optimizer lacks dampening, momentum, nesterov",
        ),
        (lambda: (net(), "groups"), "2 parameter groups, the optimizer 1"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing_and_says_why(make, says):
    model, optimizer = trained("sgd")
    other, kind = make()
    data = pack_state(other, OPTIMIZERS[kind](other), {})

    def load():
        with pytest.raises(StateMismatch, match=says):
            unpack_state(data, model, optimizer)

    untouched(model, optimizer, load)


def test_damaged_bytes_change_nothing_and_raise_nothing_else():
    model, optimizer = trained("adamw")
    data = bytearray(pack_state(*trained("adamw", seed=1), {}))

    def load():
        for cut in (0, 4, 8, 100, len(data) // 2, len(data) - 1):
            with pytest.raises(StateMismatch):
                unpack_state(bytes(data[:cut]), model, optimizer)
        draw = torch.Generator().manual_seed(3)
        header = 8 + int.from_bytes(data[:8], "little")
        for _ in range(100):
            broken = bytearray(data)
            at = int(torch.randint(header, (1,), generator=draw))
            broken[at] ^= 1 << int(torch.randint(8, (1,), generator=draw))
            twin, twin_optimizer = trained("adamw")
            try:
                unpack_state(bytes(broken), twin, twin_optimizer)
            except StateMismatch:
                assert pack_state(twin, twin_optimizer, {}) == pack_state(model, optimizer, {})

    untouched(model, optimizer, load)


def test_what_cannot_be_packed_is_named():
    model, optimizer = trained("sgd")
    with pytest.raises(UnsupportedModel, match=r"extra.a.0 is a object"):
        pack_state(model, optimizer, {"a": [object()]})
    with pytest.raises(UnsupportedModel, match=r"extra.a is a torch.sparse"):
        pack_state(model, optimizer, {"a": torch.eye(3).to_sparse()})


def test_nothing_is_pickled():
    data = pack_state(*trained("adamw"), {})
    assert int.from_bytes(data[:8], "little") < len(data)
    assert data[8:9] == b"{"


# --- any optimizer --------------------------------------------------------------------------------


class NamedPair(NamedTuple):
    one: int
    other: int


class KeepingOptimizer(torch.optim.Optimizer):
    """An optimizer that is not torch's own, and keeps whatever ``fill`` puts in its state."""

    def __init__(self, parameters, fill=lambda optimizer, parameter: None) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.fill = fill

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.fill(self, parameter)
                parameter.add_(parameter.grad, alpha=-group["lr"])


def kept_by_parameter(**values):
    return lambda optimizer, parameter: optimizer.state[parameter].update(copy.deepcopy(values))


KEPT = {
    "nothing": lambda optimizer, parameter: None,
    "a preconditioner": kept_by_parameter(right=torch.randn(40, 40), inverse=None),
    "a history": kept_by_parameter(gradients=[torch.randn(9, 9), None, torch.randn(3)], at=2),
    "float64 and integers": kept_by_parameter(
        mean=torch.randn(6, dtype=torch.float64) / 3,
        codes=torch.arange(99, dtype=torch.uint8),
        mask=torch.tensor([True, False]),
        count=torch.tensor(2**40 + 1),
    ),
    "plain values": kept_by_parameter(
        mode="train", shape=(3, (4, 5)), on=True, nested={"a": {3: [torch.ones(2)]}}, nan=math.nan
    ),
    "half": kept_by_parameter(mean=torch.randn(6).bfloat16(), scale=torch.tensor(0.1).double()),
    "a word as key": lambda optimizer, parameter: optimizer.state["global"].update(
        k=1, vector=torch.randn(3, dtype=torch.float64)
    ),
    "keys that read alike": kept_by_parameter(**{"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}),
}


def stepped(make, seed: int = 0):
    torch.manual_seed(seed)
    model = net()
    optimizer = make(model)
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def loaded_both_ways(state, model, optimizer):
    """By a peer that joins, and by one that resumes."""
    joined, resumed = stepped(state, seed=1), stepped(state, seed=2)
    unpack_state(pack_state(model, optimizer, {}), *joined)
    files = {}
    for name, file in plan_checkpoint(model, optimizer, {}).items():
        files[name] = b"".join(bytes(block) for block in file.blocks())
    load_document(read_checkpoint(files), *resumed)
    return joined, resumed


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("several", [False, True])
def test_state_of_any_kind_and_size_is_loaded_bit_for_bit_again_and_again(kept, several):
    def make(model):
        if not several:
            return KeepingOptimizer(model.parameters(), KEPT[kept])
        one, other = [KeepingOptimizer(model[at].parameters(), KEPT[kept]) for at in (0, 2)]
        together = as_one([one, other])
        together.step = lambda: (one.step(), other.step())
        return together

    model, optimizer = stepped(make)
    data = pack_state(model, optimizer, {})
    for other in loaded_both_ways(make, model, optimizer):
        for _ in range(2):
            assert pack_state(*other, {}) == data
            unpack_state(data, *other)
        other[1].step()


def test_keys_that_read_alike_keep_their_own_tensors():
    def make(model):
        return KeepingOptimizer(model.parameters(), KEPT["keys that read alike"])

    for model, optimizer in loaded_both_ways(make, *stepped(make)):
        kept = optimizer.state[model[0].weight]
        assert (kept["a.b"].item(), kept["a"]["b"].item()) == (1.0, 0.0)


def test_a_history_of_lbfgs_is_loaded():
    def make(model):
        optimizer = torch.optim.LBFGS(model.parameters(), history_size=5)
        step = optimizer.step
        optimizer.step = lambda: step(lambda: model(torch.ones(8, 4)).square().sum())
        return optimizer

    model, optimizer = stepped(make)
    for other in loaded_both_ways(make, model, optimizer):
        assert pack_state(*other, {}) == pack_state(model, optimizer, {})


def test_what_an_optimizer_saves_beside_state_and_groups_is_loaded():
    class CountingOptimizer(KeepingOptimizer):
        taken = 0

        def state_dict(self):
            return {**super().state_dict(), "taken": self.taken}

        def load_state_dict(self, state):
            self.taken = state["taken"]
            super().load_state_dict(state)

    def make(model):
        return CountingOptimizer(model.parameters())

    model, optimizer = stepped(make)
    optimizer.taken = 7
    for _, other in loaded_both_ways(make, model, optimizer):
        assert other.taken == 7


def test_a_state_that_an_optimizer_does_not_keep_as_it_was_is_refused_by_name():
    class RoundingOptimizer(KeepingOptimizer):
        def state_dict(self):
            found = super().state_dict()
            state = {
                key: {name: value.float() for name, value in entries.items()}
                for key, entries in found["state"].items()
            }
            return {**found, "state": state}

    fill = kept_by_parameter(mean=torch.randn(3, dtype=torch.float64))
    model, optimizer = stepped(lambda model: KeepingOptimizer(model.parameters(), fill))
    twin = stepped(lambda model: RoundingOptimizer(model.parameters(), fill), seed=1)

    def load():
        with pytest.raises(StateMismatch, match=r"mean of 0\.weight"):
            unpack_state(pack_state(model, optimizer, {}), *twin)

    untouched(*twin, load)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "is a object"),
        (torch.eye(3).to_sparse(), "is a torch.sparse"),
        (torch.zeros(2, dtype=torch.complex128), "is of type torch.complex128"),
        (NamedPair(1, 2), "is a NamedPair"),
        ({1, 2}, "is a set"),
        ([torch.ones(1), {"a": object()}], "is a object"),
    ],
)
def test_state_that_cannot_be_packed_is_named_by_its_parameter(value, says):
    model, optimizer = stepped(lambda model: KeepingOptimizer(model.parameters()))
    optimizer.state[model[2].bias]["strange"] = value
    for plan in (plan_state, plan_checkpoint):
        with pytest.raises(UnsupportedModel, match=rf"strange.* of 2\.bias.*{says}"):
            plan(model, optimizer, {})


# --- any model ------------------------------------------------------------------------------------


def partial_model(rename: bool = False, seed: int = 0):
    """As scripts of LoRA do it: what is saved are the adapters, under names of their own."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), net())
    whole = model.state_dict
    model.state_dict = lambda *args, **kwargs: {
        name.replace("2.0.", "adapter.") if rename else name: value
        for name, value in whole(*args, **kwargs).items()
        if name.startswith("2.0.")
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("rename", [False, True])
def test_a_model_that_saves_a_part_of_itself_is_loaded_whole(rename):
    model, optimizer = partial_model(rename)
    data = pack_state(model, optimizer, {})
    other, its_optimizer = partial_model(rename, seed=1)
    unpack_state(data, other, its_optimizer)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    for one, two in zip(model.buffers(), other.buffers(), strict=True):
        assert torch.equal(one, two)
    assert pack_state(other, its_optimizer, {}) == data


class CountingModule(torch.nn.Module):
    """Has extra state, and a buffer that grows from None."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.register_buffer("seen", None)
        self.count = 0

    def forward(self, x):
        self.count += 1
        self.seen = x if self.seen is None else torch.cat([self.seen, x])
        return self.linear(x)

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = int(state["count"])


def test_extra_state_and_buffers_that_grow_are_loaded():
    def make(steps):
        model = CountingModule()
        for _ in range(steps):
            model(torch.randn(3, 4))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    donor = make(5)
    for steps in (0, 2):
        taker = make(steps)
        unpack_state(pack_state(*donor, {}), *taker)
        assert taker[0].count == 5
        assert torch.equal(taker[0].seen, donor[0].seen)


def test_a_model_that_refuses_its_extra_state_changes_nothing():
    model, optimizer = stepped(lambda model: torch.optim.AdamW(model.parameters()))
    counting = CountingModule()
    counting.count = "many"
    twin = torch.nn.Sequential(net(), CountingModule())
    own = twin, torch.optim.AdamW(twin[0].parameters())
    whole = torch.nn.Sequential(model, counting)

    def load():
        with pytest.raises(StateMismatch, match="_extra_state"):
            unpack_state(pack_state(whole, optimizer, {}), *own)
        assert not own[1].state

    untouched(*own, load)


def test_the_order_of_a_state_in_memory_is_handed_over_as_well():
    """An optimizer that sums over its memory rounds by that."""
    models = small_model(1)[0], small_model(2)[0]
    theirs, ours = (torch.optim.SGD(each.parameters(), lr=0.1) for each in models)
    parameter = next(models[0].parameters())
    kept = torch.randn(4, 3, 5).permute(2, 0, 1)
    theirs.state[parameter]["kept"] = kept
    unpack_state(pack_state(models[0], theirs, {}), models[1], ours)
    found = ours.state[next(models[1].parameters())]["kept"]
    assert torch.equal(found, kept)
    assert found.stride() == kept.stride()
    assert pack_state(models[1], ours, {}) == pack_state(models[0], theirs, {})
