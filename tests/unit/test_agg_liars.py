"""What a liar remembers, guesses and draws; and the edges of the attacks that a
crew tells together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gossip.aggregators import attacks
from gossip.aggregators.attacks.adaptive import directions, strongest
from gossip.aggregators.attacks.crowd import OmniscientView, unit
from gossip.aggregators.attacks.guessing import RESIDUALS_MAX, WAITING_MAX, HonestEstimate
from gossip.errors import ConfigError, UnknownName


def rows(n: int, d: int = 50, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 1


# --- what it guesses ------------------------------------------------------------------------------


def test_a_guess_is_the_last_result_and_the_last_own_deviations_in_turn() -> None:
    guess, own, results = HonestEstimate(), rows(12, seed=1), rows(12, seed=2)
    guess.sends(own[0], 0)
    for round_id in range(11):
        guess.sends(own[round_id + 1], round_id + 1)  # the next is sent before this one is known
        guess.saw(results[round_id], round_id)
    assert RESIDUALS_MAX == 8
    apart = (own - results)[3:11]
    expected = results[10] + apart - apart.mean(dim=0)
    assert torch.allclose(guess.honest(own[11], 11), torch.cat([expected, expected[:3]]), atol=1e-6)


def test_a_guess_is_not_led_back_by_the_result_of_an_earlier_round() -> None:
    guess, results = HonestEstimate(), rows(2)
    guess.saw(results[0], 5)
    guess.saw(results[1], 4)
    assert torch.equal(guess.honest(rows(1)[0], 2), results[0].repeat(2, 1))


def test_a_guess_keeps_what_it_sent_until_the_round_is_over_and_not_for_ever() -> None:
    guess, zeros = HonestEstimate(), torch.zeros(3)
    for round_id in range(100):
        guess.sends(torch.full((3,), float(round_id)), round_id)
    assert sorted(guess._own) == list(range(100 - WAITING_MAX, 100)), "the oldest go first"
    guess.saw(zeros, 95)
    assert sorted(guess._own) == [96, 97, 98, 99], "rounds before it will not be heard of"
    guess.saw(zeros, 97)
    assert guess.honest(zeros, 2).tolist() == [[-1.0] * 3, [1.0] * 3], "95 and 97, about their mean"


def test_a_guess_keeps_copies_of_what_its_callers_overwrite() -> None:
    attacker, buffer, result = (
        attacks.make("ipm", 1.0, attacker_group=attacks.AttackerGroup(honest=2)),
        torch.zeros(4),
        torch.ones(4),
    )
    attacker(buffer, 0)
    buffer.fill_(50.0)
    attacker.saw(result, 0)
    result.fill_(70.0)
    assert attacker(torch.full((4,), 3.0), 1).tolist() == [-1.0] * 4
    attacker.saw(torch.ones(4), 1)
    # Deviations of -1 and 2 about a result of 1: whatever became of the buffers.
    assert attacker._guess.honest(buffer, 2)[:, 0].tolist() == pytest.approx([-0.5, 2.5])
    assert attacker(torch.zeros(4), 2).tolist() == [-1.0] * 4


# --- what it remembers and draws ------------------------------------------------------------------


def test_what_stale_told_may_be_written_to() -> None:
    stale = attacks.make("stale", 1)
    stale(torch.ones(3), 0).fill_(9.0)
    assert stale(torch.full((3,), 2.0), 1).tolist() == [1.0] * 3


def test_liars_alone_in_one_crew_each_have_a_memory_and_a_chance_of_their_own() -> None:
    attacker_group, first, later = attacks.make("stale", 1), rows(2, seed=1), rows(2, seed=2)
    attacker_group.collude(rows(4), 2, own=first, round_id=0)
    assert torch.equal(attacker_group.collude(rows(4), 2, own=later, round_id=1), first)
    noise = attacks.make("gaussian").collude(rows(4), 3)
    assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[1], noise[2])


def test_a_crew_without_updates_of_its_own_takes_those_of_the_honest_in_turn() -> None:
    honest = rows(2)
    assert torch.equal(attacks.make("sign_flip").collude(honest, 3), -honest[[0, 1, 0]])


def test_a_crowd_of_nobody_or_of_fewer_than_no_liars_is_refused() -> None:
    for honest, f in ((rows(3), -1), (rows(3)[:0], 2)):
        with pytest.raises(ConfigError, match=f"got f = {f} and {len(honest)}"):
            attacks.make("ipm").collude(honest, f)


@attacks.attack(shape="together")
def drawing(crowd: OmniscientView) -> Tensor:
    """Draws once of the round and once of the run."""
    DRAWN.append(
        (
            float(torch.rand(1, generator=crowd.generator)),
            float(torch.rand(1, generator=crowd.direction)),
        )
    )
    return crowd.honest[:1].repeat(crowd.f, 1)


DRAWN: list[tuple[float, float]] = []
DRAWING = f"{__name__}:drawing"


def test_a_crew_draws_alike_each_round_and_for_the_run() -> None:
    attackers = [
        attacks.make(DRAWING, seed=rank, attacker_group=attacks.AttackerGroup(3, 2, rank, seed=9))
        for rank in range(2)
    ]
    for round_id in (0, 1):
        for attacker in attackers:
            attacker(rows(1)[0], round_id)
    (round_0, run), (again, _), (round_1, _), _ = DRAWN
    assert (round_0, run) == (again, run)
    assert round_1 != round_0
    assert {of_the_run for _, of_the_run in DRAWN} == {run}
    chosen = torch.Generator().manual_seed(4)
    attacks.make(DRAWING).collude(rows(3), 1, chosen)
    assert DRAWN[-1][0] == float(torch.rand(1, generator=torch.Generator().manual_seed(4)))


@pytest.mark.parametrize("name", ["sacrificial_anchor", "random_direction"])
def test_where_to_go_is_drawn_once_for_a_run_and_otherwise_for_another_seed(name: str) -> None:
    def way(seed: int, round_id: int) -> Tensor:
        honest = rows(4, 500)
        lie = attacks.make(name, 100.0, seed=seed).collude(honest, 2, round_id=round_id)[0]
        return lie - honest.mean(dim=0) if name == "sacrificial_anchor" else lie

    assert torch.cosine_similarity(way(1, 0), way(1, 7), dim=0) > 0.999
    assert abs(float(torch.cosine_similarity(way(1, 0), way(2, 0), dim=0))) < 0.3


def test_adaptive_goes_aside_the_same_way_in_all_rounds() -> None:
    honest = rows(4)
    ways = [
        directions(
            OmniscientView(
                honest,
                honest[:1],
                torch.Generator().manual_seed(of_round),
                torch.Generator().manual_seed(run),
            )
        )["aside"]
        for of_round, run in ((1, 5), (2, 5), (1, 6))
    ]
    assert torch.equal(ways[0], ways[1])
    assert not torch.equal(ways[0], ways[2])


def test_lies_carry_no_history_of_gradients() -> None:
    assert not attacks.make("alie", 1.0).collude(rows(3).requires_grad_(), 2).requires_grad


def test_a_crew_reckons_in_float32_at_least_and_in_float64_where_updates_are() -> None:
    fine = 1 + 1e-12 * rows(4).double()
    apart = (fine.mean(dim=0) - attacks.make("alie", 1.0).collude(fine, 1)[0]) / fine.std(dim=0)
    assert torch.allclose(apart, torch.ones_like(apart), rtol=1e-2)
    coarse = rows(40).bfloat16()
    expected = coarse.float().mean(dim=0) - 3 * coarse.float().std(dim=0)
    assert torch.equal(attacks.make("alie", 3.0).collude(coarse, 1)[0], expected.bfloat16())


# --- strengths and edges --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "refused", "allowed"),
    [
        ("sacrificial_anchor", (float("inf"), 0.0), 1e-3),
        ("gaussian", (float("inf"), -1.0), 0.0),
        ("alie", (float("inf"),), 0.0),
        ("bit_flip", (0.0, 1.001), 1.0),
        ("adaptive", (0.0, 2.5), 1.0),
        ("ipm", (float("inf"),), -2.0),
    ],
)
def test_a_strength_is_refused_beyond_its_bounds_and_not_on_them(
    name: str, refused: tuple[float, ...], allowed: float
) -> None:
    for strength in refused:
        with pytest.raises(ConfigError, match="must be"):
            attacks.make(name, strength)
    assert attacks.make(name, allowed).strength == allowed


def test_a_misspelt_attack_on_data_is_known_too() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'label_flip'"):
        attacks.make("label_flop")


def test_bit_flip_hits_a_tenth_of_the_coordinates_when_nothing_is_said() -> None:
    update = torch.ones(20_000)
    assert float((attacks.make("bit_flip")(update, 0) != update).float().mean()) == pytest.approx(
        0.1, abs=0.01
    )


def test_negated_copies_are_as_large_as_is_said() -> None:
    own = rows(2)
    assert torch.equal(
        attacks.make("negated_copies", 3.0).collude(rows(4), 2, own=own), -3 * own[0].repeat(2, 1)
    )


def test_mimic_copies_the_last_when_its_victim_is_gone() -> None:
    honest = rows(6)
    honest[5] += 30
    attacker_group = attacks.make("mimic")
    assert torch.equal(attacker_group.collude(honest, 1)[0], honest[5])
    assert torch.equal(attacker_group.collude(honest[:3], 1)[0], honest[2])


@pytest.mark.parametrize("name", ["min_max", "min_sum"])
def test_those_as_far_as_the_honest_from_each_other_go_against_the_deviation(name: str) -> None:
    honest = rows(7, 300)
    lie = attacks.make(name).collude(honest, 2)[0]
    assert torch.cosine_similarity(honest.mean(dim=0) - lie, honest.std(dim=0), dim=0) > 0.999


def test_who_has_heard_nobody_tells_a_copy() -> None:
    theirs, update = torch.ones(3), torch.zeros(3)
    attacks.make("dissensus").tell(update, 1, theirs).fill_(9.0)
    attacks.make("dissensus").tell(update, 1).fill_(9.0)
    assert (theirs.tolist(), update.tolist()) == ([1.0] * 3, [0.0] * 3)


# --- the search -----------------------------------------------------------------------------------


def crowd_of(damage: Callable[[float], float]) -> OmniscientView:
    """A rule whose result is as far from the mean, zero, as the lie's only number makes it."""
    return OmniscientView(
        torch.zeros(3, 1),
        torch.zeros(1, 1),
        torch.Generator(),
        torch.Generator(),
        lambda updates: torch.tensor([damage(float(updates[-1, 0]))]),
    )


@pytest.mark.parametrize(
    ("damage", "best"),
    [
        # what is farther out is dropped: best on the way from 1 up to 2
        (lambda t: t if t <= 1.95 else 0.0, 1.95),
        # what is nearer does nothing: best on the way from 1 down to 1/2
        (lambda t: 1 / t if t >= 0.52 else 0.0, 0.52),
        (lambda t: float(t == 2.0), 2.0),  # nothing around it does as much
    ],
    ids=["up", "down", "at once"],
)
def test_the_search_looks_as_far_as_the_neighbours_of_the_best_power(
    damage: Callable[[float], float], best: float
) -> None:
    crowd = crowd_of(damage)
    found = strongest(crowd, lambda t: crowd.all_alike(torch.tensor([t])))
    assert found.strength == pytest.approx(best, rel=0.1)
    assert found.damage == pytest.approx(damage(found.strength), rel=1e-6)


def test_a_rule_that_makes_nothing_finite_is_damaged_beyond_measure() -> None:
    crowd = crowd_of(lambda t: float("nan"))
    assert crowd.damage(crowd.all_alike(torch.ones(1))) == float("inf")


def test_the_unit_of_nothing_is_nothing() -> None:
    assert unit(torch.zeros(3)).tolist() == [0.0] * 3
    assert float(unit(torch.full((4,), 5.0)).norm()) == pytest.approx(1.0)
