"""What liars send."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gossip.aggregators import attacks
from gossip.aggregators.attacks import finding
from gossip.errors import ConfigError, UnknownName

UPDATE = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 0.01
NOT_APART = [name for name in attacks.names(lonely=True) if attacks.KINDS[name].shape != "apart"]


def make(name: str, seed: int = 0) -> attacks.Attack:
    return attacks.make(
        name,
        seed=seed,
        attacker_group=attacks.AttackerGroup(
            honest=3, attackers=2, rule=lambda updates: updates.mean(dim=0)
        ),
    )


@pytest.mark.parametrize("name", NOT_APART)
def test_an_attack_keeps_shape_dtype_and_its_argument(name: str) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        honest = UPDATE.to(dtype)
        lie = make(name)(honest, 3)
        assert (lie.shape, lie.dtype) == (honest.shape, dtype)
        assert torch.equal(honest, UPDATE.to(dtype))
        lie.fill_(7.0)
        assert torch.equal(honest, UPDATE.to(dtype)), "the lie has memory of its own"


@pytest.mark.parametrize("name", NOT_APART)
def test_the_same_seed_and_round_tell_the_same_lie(name: str) -> None:
    def lie(seed: int, round_id: int) -> torch.Tensor:
        return make(name, seed)(UPDATE, round_id)

    assert torch.equal(lie(4, 9).view(torch.int32), lie(4, 9).view(torch.int32))
    if name in ("gaussian", "bit_flip"):
        assert not torch.equal(lie(4, 9), lie(5, 9))
        assert not torch.equal(lie(4, 9), lie(4, 10))


def test_attacks_do_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    for name in NOT_APART:
        make(name)(UPDATE, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_the_plain_attacks_send() -> None:
    assert torch.equal(attacks.make("sign_flip")(UPDATE, 0), -UPDATE)
    assert torch.equal(attacks.make("sign-flip", 10)(UPDATE, 0), -10 * UPDATE)
    assert torch.equal(attacks.make("scale", 1000)(UPDATE, 0), 1000 * UPDATE)
    assert torch.equal(attacks.make("zero")(UPDATE, 0), torch.zeros_like(UPDATE))
    assert bool(attacks.make("nan")(UPDATE, 0).isnan().all())
    infinite = attacks.make("inf")(UPDATE, 0)
    assert bool(infinite.isinf().all())
    assert torch.equal(infinite.sign(), UPDATE.sign())
    noise = attacks.make("gaussian", 200)(UPDATE, 0)
    assert float(noise.std()) == pytest.approx(200, rel=0.05)
    assert abs(float(noise.mean())) < 10


def test_bit_flip_flips_these_four_bits_in_that_share_of_the_coordinates() -> None:
    lie = attacks.make("bit_flip", 0.25)(UPDATE, 0)
    changed = UPDATE.numpy().view(np.uint32) ^ lie.numpy().view(np.uint32)
    mask = sum(1 << bit for bit in (22, 29, 30, 31))
    assert set(changed.tolist()) == {0, mask}
    assert (changed != 0).mean() == pytest.approx(0.25, abs=0.03)
    assert float(lie.abs().max()) > 1e12
    everywhere = attacks.make("bit_flip", 1)(UPDATE, 0).numpy().view(np.uint32)
    assert set((everywhere ^ UPDATE.numpy().view(np.uint32)).tolist()) == {mask}


def test_random_direction_is_as_long_as_the_update_and_the_same_all_through_the_run() -> None:
    attacker = attacks.make("random_direction", 2.0, seed=4)
    first, later = attacker(UPDATE, 0), attacker(5 * UPDATE, 9)
    assert float(first.norm()) == pytest.approx(2 * float(UPDATE.norm()), rel=1e-5)
    assert torch.allclose(later, 5 * first, rtol=1e-5)
    other = attacks.make("random_direction", 2.0, seed=5)(UPDATE, 0)
    assert abs(float(torch.cosine_similarity(first, other, dim=0))) < 0.1


def test_stale_replays_the_update_of_so_many_rounds_ago_and_keeps_no_more_than_it_needs() -> None:
    stale = attacks.make("stale", 3)
    said = [float(stale(torch.full((2,), float(round_id)), round_id)[0]) for round_id in range(10)]
    assert said == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert len(stale._past) <= 4
    assert float(stale(torch.full((2,), 9.0), 9)[0]) == 6, (
        "a second attempt of a round tells the same lie"
    )
    assert float(stale(torch.full((2,), 20.0), 20)[0]) == 9, (
        "rounds that it missed are not invented"
    )


def test_stale_keeps_a_copy_of_what_its_caller_overwrites() -> None:
    stale, buffer = attacks.make("stale", 1), torch.zeros(3)
    stale(buffer, 0)
    buffer.fill_(5.0)
    assert stale(buffer, 1).tolist() == [0.0, 0.0, 0.0]


def test_a_sleeper_is_honest_until_its_round_or_until_an_honest_peer_is_in_quarantine() -> None:
    sleeper = attacks.make("sleeper", 3)
    for round_id in range(3):
        assert torch.equal(sleeper(UPDATE, round_id), UPDATE)
    assert torch.equal(sleeper(UPDATE, 3), -10 * UPDATE)
    crew, own = attacks.make("sleeper", 3), UPDATE.repeat(2, 1)
    assert torch.equal(crew.collude(own, 2, own=own, round_id=0), own)
    assert torch.equal(crew.collude(own, 2, own=own, round_id=1, locked=[1]), -10 * own)
    assert torch.equal(crew.collude(own, 2, own=own, round_id=2), -10 * own), "it stays awake"


def test_every_second_update_is_honest() -> None:
    attack = attacks.make("every_second", 10)
    for round_id in range(4):
        assert torch.equal(attack(UPDATE, round_id), UPDATE * (1 if round_id % 2 else -10))


def test_flipped_labels_run_backwards() -> None:
    assert attacks.flip_labels(3, 10) == 6
    assert attacks.flip_labels(torch.tensor([0, 9, 4]), 10).tolist() == [9, 0, 5]
    assert attacks.flip_labels(np.array([0, 2]), 3).tolist() == [2, 0]


def test_misuse_of_attacks_says_what_is_allowed() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'sign_flip'"):
        attacks.make("signflip")
    with pytest.raises(ConfigError, match="labels") as caught:
        attacks.make("label_flip")
    assert "flip_labels" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="zero has no strength"):
        attacks.make("zero", 3)
    for name, strength in (
        ("stale", 0),
        ("stale", 1.5),
        ("bit_flip", 2),
        ("gaussian", -1),
        ("scale", float("inf")),
        ("stale", float("nan")),
    ):
        with pytest.raises(ConfigError, match=rf"{name}\*.*must be"):
            attacks.make(name, strength)


def test_a_decorator_above_an_attack_counts(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(
        "import functools\n"
        "from gossip.aggregators.attacks import attack\n"
        "def twice(function):\n"
        "    @functools.wraps(function)\n"
        "    def wrapped(update):\n"
        "        return 2 * function(update)\n"
        "    return wrapped\n"
        "@twice\n"
        "@attack(strength=3.0)\n"
        "def mine(update):\n"
        "    return -update\n"
    )
    kind = finding.load(f"{tmp_path}/twice.py:mine")
    assert (kind.function(3.0), kind.strength) == (-6.0, 3.0)


def test_attacks_of_two_modules_may_have_one_name_and_none_stays_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a module that the file of a rule or an attack imports."""
    declared = "from gossip.aggregators.attacks import attack\n@attack()\ndef mine(update):\n"
    for module, factor in (("first_liars", 2), ("second_liars", 3)):
        (tmp_path / f"{module}.py").write_text(f"{declared}    return {factor} * update\n")
    (tmp_path / "own.py").write_text("from first_liars import mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = attacks.names()
    places = (f"{tmp_path}/own.py:mine", "second_liars:mine")
    assert [finding.load(place).function(1.0) for place in places] == [2.0, 3.0]
    assert attacks.names() == before
