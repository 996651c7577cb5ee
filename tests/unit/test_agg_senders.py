"""What peers make of their updates before they send them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from gossip.aggregators import attacks, krum, senders
from gossip.errors import ConfigError, UnknownName

UPDATES = torch.randn(6, 50, generator=torch.Generator().manual_seed(2))


def sent_by(spec: str, updates: Tensor = UPDATES) -> Tensor:
    sender, memory, sent = senders.load(spec), None, []
    for update in updates:
        told, memory = sender(update, memory)
        sent.append(told)
    return torch.stack(sent)


def test_both_forms_of_momentum_are_what_they_are_written_as() -> None:
    mean = total = torch.zeros(50)
    for round_id, update in enumerate(UPDATES):
        mean, total = 0.8 * mean + 0.2 * update, 0.8 * total + update
        assert torch.allclose(sent_by("momentum:beta=0.8")[round_id], mean, atol=1e-6)
        assert torch.allclose(sent_by("momentum:beta=0.8,form=sum")[round_id], total, atol=1e-6)


def test_without_beta_and_without_steps_updates_go_as_they_are() -> None:
    assert torch.equal(sent_by("momentum:0"), UPDATES)
    assert torch.equal(sent_by(""), UPDATES)
    assert not senders.load("")


def test_clip_and_normalise_set_the_length_and_keep_the_direction() -> None:
    lengths = torch.tensor([0.0, 0.5, 2.0, 1e20])
    rows = lengths[:, None] * torch.nn.functional.normalize(UPDATES[:1], dim=1)
    assert torch.allclose(
        sent_by("clip:radius=1", rows).norm(dim=1), torch.tensor([0.0, 0.5, 1.0, 1.0])
    )
    assert torch.allclose(
        sent_by("normalise:2", rows).norm(dim=1), torch.tensor([0.0, 2.0, 2.0, 2.0])
    )
    assert torch.equal(sent_by("normalize", UPDATES), sent_by("normalise:length=1", UPDATES))


def test_what_is_short_enough_stays_as_it_is_and_what_is_tiny_has_a_direction() -> None:
    just_below = 0.99 * torch.nn.functional.normalize(UPDATES[:1], dim=1)
    assert torch.equal(sent_by("clip:1", just_below), just_below)
    tiny = 1e-30 * UPDATES[:1].double()  # its square is no float32
    assert float(sent_by("normalise", tiny).norm()) == pytest.approx(1.0)


def test_what_is_sent_has_no_history_of_gradients() -> None:
    sent, memory = senders.load("momentum:0.9+clip:1")(UPDATES[0].clone().requires_grad_())
    assert not sent.requires_grad
    assert not memory[0].requires_grad


def test_steps_apply_from_left_to_right() -> None:
    first_clipped, first_averaged = sent_by("clip:1+momentum"), sent_by("momentum+clip:1")
    assert float(first_clipped[1].norm()) < 0.3
    assert float(first_averaged[5].norm()) == pytest.approx(1.0, abs=1e-5)


def test_memory_is_data_that_a_later_life_goes_on_with() -> None:
    sender, memory = senders.load("clip:3+momentum:0.9"), None
    for update in UPDATES[:3]:
        _, memory = sender(update, memory)
    saved = tuple(None if kept is None else kept.clone() for kept in memory)
    again = [
        sender(UPDATES[3], memory)[0],
        senders.load("clip:3+momentum:0.9")(UPDATES[3], saved)[0],
    ]
    assert torch.equal(*again)
    assert torch.equal(saved[1], memory[1]), "a step changes no memory in place"
    with pytest.raises(ConfigError, match="does not belong to the sender"):
        sender(UPDATES[0], saved[:1])
    with pytest.raises(ConfigError, match="of 49 elements"):
        sender(UPDATES[0, 1:], saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_update_that_is_not_finite_does_not_poison_the_memory(value: float) -> None:
    sender = senders.load("momentum")
    _, memory = sender(UPDATES[0])
    bad = UPDATES[1].clone()
    bad[7] = value
    sent, after = sender(bad, memory)
    assert sent is bad
    assert torch.equal(after[0], memory[0])


def test_a_sum_that_overflows_does_not_poison_the_memory() -> None:
    sender, memory = senders.load("momentum:0.9,form=sum"), None
    for _ in range(5):  # 0.9 * 54,208 + 20,000 is no number of half precision
        sent, memory = sender(torch.full((4,), 2e4, dtype=torch.float16), memory)
    assert bool(sent.isinf().all()), "the others are to see it and drop it"
    for _ in range(2):
        sent, memory = sender(torch.ones(4, dtype=torch.float16), memory)
        assert bool(sent.isfinite().all())


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 1e-42),
        (torch.float32, 3e38),
        (torch.float64, 1e-200),
        (torch.float64, 1e200),
    ],
    ids=str,
)
def test_lengths_are_set_at_both_ends_of_a_dtype(dtype: torch.dtype, size: float) -> None:
    update = torch.tensor([size, -size, 0.0, size], dtype=dtype)
    expected = torch.tensor([1.0, -1.0, 0.0, 1.0], dtype=dtype) / 3**0.5
    assert torch.allclose(senders.load("normalise")(update)[0], expected)
    if size > 1:
        assert torch.allclose(
            senders.load("clip:1e-8")(update)[0], 1e-8 * expected, rtol=1e-5, atol=0
        )


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("momentun", "Did you mean 'momentum'"),
        ("momentum:betta=0.9", "Did you mean 'beta'"),
        ("momentum:beta=1", "below 1"),
        ("momentum:beta=-0.1", "at least 0"),
        ("momentum:beta=much", "not a number"),
        ("momentum:beta=", "no value"),
        ("momentum:0.9,sum", "option 'sum' has no value"),
        ("momentum:form=both", "sender momentum's form"),
        ("momentum:0.9,beta=0.8", "given twice"),
        ("clip", "needs radius"),
        ("clip:-1", "above 0"),
        ("clip:inf", "finite"),
        ("normalise:0", "above 0"),
        ("normalise:inf", "finite"),
        ("momentum+", "step is missing"),
    ],
)
def test_a_bad_text_says_what_is_wrong(spec: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        senders.load(spec)
    assert says in f"{caught.value} {caught.value.hint}"
    assert type(caught.value) in (ConfigError, UnknownName), "no rule has failed to aggregate"


def test_texts_are_checked_without_importing_torch() -> None:
    code = (
        "import sys; from gossip.aggregators import senders; senders.load('clip:9'); assert "
        "'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_momentum_saves_krum_from_negated_copies() -> None:
    """docs/design_notes.md N21 in small: noise twice the gradient;
    8 of 20 send the same negated noisy gradient."""
    ends = {}
    for spec in ("", "momentum:beta=0.9"):
        generator = torch.Generator().manual_seed(0)
        sender, attacker = senders.load(spec), attacks.make("negated_copies")
        target, here = torch.randn(100, generator=generator), torch.zeros(100)
        memories: list[senders.Memory | None] = [None] * 20
        for round_id in range(150):
            updates = []
            for worker in range(20):
                noise = torch.randn(100, generator=generator) * 2 * target.norm() / 10
                told, memories[worker] = sender(here - target + noise, memories[worker])
                updates.append(told)
            lies = attacker.collude(
                torch.stack(updates[8:]), 8, own=torch.stack(updates[:8]), round_id=round_id
            )
            here = here - 0.05 * krum(torch.cat([lies, torch.stack(updates[8:])]), f=8)
        ends[spec] = float((here - target).norm() / target.norm())
    assert ends[""] > 2, "without momentum the copies win"
    assert ends["momentum:beta=0.9"] < 0.6, ends
