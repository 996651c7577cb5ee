"""What liars send who know what the others send: each attack by the property that defines it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gossip.aggregators import attacks, krum, median, outer, registry
from gossip.aggregators.attacks.adaptive import STRENGTHS, directions, strongest
from gossip.aggregators.attacks.crowd import OmniscientView
from gossip.aggregators.attacks.guessing import RESIDUALS_MAX, HonestEstimate
from gossip.aggregators.attacks.together import alie_z
from gossip.errors import ConfigError

TOGETHER = [name for name, kind in attacks.KINDS.items() if kind.shape == "together"]


def honest_rows(h: int = 8, d: int = 200, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(d, generator=generator) + torch.rand(d, generator=generator) * torch.randn(
        h, d, generator=generator
    )


HONEST = honest_rows()
MEAN, DEVIATION = HONEST.mean(dim=0), HONEST.std(dim=0)


def mean_rule(updates: Tensor) -> Tensor:
    return updates.mean(dim=0)


@pytest.mark.parametrize(
    "name", [name for name in attacks.names() if attacks.KINDS[name].shape != "apart"]
)
def test_a_crew_keeps_shape_dtype_and_what_it_sees(name: str) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        honest = HONEST.to(dtype)
        lies = attacks.make(name).collude(honest, 3, rule=mean_rule)
        assert (lies.shape, lies.dtype) == ((3, 200), dtype)
        assert torch.equal(honest, HONEST.to(dtype))
        lies.fill_(7.0)
        assert torch.equal(honest, HONEST.to(dtype))
        assert attacks.make(name).collude(honest, 0, rule=mean_rule).shape == (0, 200)


@pytest.mark.parametrize("name", TOGETHER)
def test_one_honest_peer_or_equal_updates_are_a_crowd_too(name: str) -> None:
    for honest in (HONEST[:1], HONEST[:1].repeat(4, 1), torch.zeros(4, 200)):
        assert bool(attacks.make(name).collude(honest, 2, rule=mean_rule).isfinite().all())


def test_ipm_sends_epsilon_times_the_negated_mean() -> None:
    lies = attacks.make("ipm", 0.5).collude(HONEST, 2)
    assert torch.allclose(lies, (-0.5 * MEAN).repeat(2, 1))


def test_drift_ip_goes_against_the_running_mean_and_is_shorter_than_the_honest() -> None:
    attack, expected = attacks.make("drift_ip", 0.5), torch.zeros(200)
    for round_id in range(4):
        honest = honest_rows(seed=round_id)
        expected = 0.9 * expected + 0.1 * honest.mean(dim=0) if round_id else honest.mean(dim=0)
        lies = attack.collude(honest, 2, round_id=round_id)
        assert torch.equal(lies[0], lies[1])
        assert float(torch.cosine_similarity(lies[0], -expected, dim=0)) > 0.99999
        typical = float(honest.norm(dim=1).median())
        assert float(lies[0].norm()) == pytest.approx(0.5 * typical, rel=1e-4)


def test_outer_momentum_adds_as_much_of_the_momentum_as_hides_among_the_honest() -> None:
    attack, momentum = attacks.make("outer_momentum"), torch.zeros(200)
    for round_id in range(4):
        honest = honest_rows(seed=round_id)
        momentum = 0.9 * momentum + honest.mean(dim=0)
        lies = attack.collude(honest, 2, round_id=round_id)
        assert torch.equal(lies[0], lies[1])
        added = lies[0] - honest.mean(dim=0)
        assert float(torch.cosine_similarity(added, momentum, dim=0)) > 0.999
        far = float(torch.cdist(honest, honest).max())
        assert float(torch.cdist(lies[:1], honest).max()) == pytest.approx(far, rel=1e-3)


def distance_kept(attack: str, spec: str) -> float:
    """From where the honest want to go, the lowest point of a bowl, over the last of 160 rounds
    with two liars of eight and the mean."""
    lies, step = attacks.make(attack), outer.load(spec)
    theta, memory, found = torch.ones(50), None, []
    for round_id in range(160):
        noise = torch.randn(6, 50, generator=torch.Generator().manual_seed(round_id))
        honest = 0.2 * theta + 0.2 * noise
        rows = torch.cat([honest, lies.collude(honest, 2, round_id=round_id)])
        move, memory = step.move(rows.mean(dim=0), memory)
        theta = theta - move
        found.append(float(theta.norm()))
    return sum(found[100:]) / len(found[100:])


@pytest.mark.parametrize(
    ("spec", "worse"), [("heavy_ball", True), ("nesterov", True), ("mean", False)]
)
def test_outer_momentum_does_more_than_min_max_where_the_outer_step_remembers(
    spec: str, worse: bool
) -> None:
    """Both hide as well."""
    far, usual = distance_kept("outer_momentum", spec), distance_kept("min_max", spec)
    assert (far > 1.2 * usual) is worse
    assert worse or far < 0.8 * usual


def test_framing_stands_opposite_of_one_honest_peer_until_that_one_is_in_quarantine() -> None:
    far = HONEST - MEAN
    first, second = far.norm(dim=1).argsort(descending=True)[:2].tolist()
    attack = attacks.make("framing", 0.25)
    for locked, victim in (((), first), ((first,), second), ((), second), ((second,), first)):
        lies = attack.collude(HONEST, 2, locked=locked)
        assert torch.allclose(lies, (MEAN - 0.25 * far[victim]).repeat(2, 1), atol=1e-6)
    everybody = attack.collude(HONEST, 2, locked=range(len(HONEST)))
    assert bool(everybody.isfinite().all())
    alone, framed = (
        registry.load("suspicion").explain(updates, f=2).outlyingness
        for updates in (HONEST, torch.cat([HONEST, attacks.make("framing").collude(HONEST, 2)]))
    )
    assert float(framed[first]) > float(alone[first]), "the victim stands out more for it"


def test_frame_rare_frames_with_every_second_liar_and_pulls_with_the_others() -> None:
    lies = attacks.make("frame_rare", 0.25).collude(HONEST, 3)
    assert torch.equal(lies[::2], attacks.make("framing", 0.25).collude(HONEST, 2))
    assert torch.equal(lies[1:2], attacks.make("drift_ip").collude(HONEST, 1))


@pytest.mark.parametrize("rule", [mean_rule, lambda rows: median(rows)])
def test_spread_match_hides_among_the_honest_and_leaves_the_least_of_the_mean(rule) -> None:
    honest = HONEST + 0.5  # peers that agree on something
    mean = honest.mean(dim=0)
    lies = attacks.make("spread_match").collude(honest, 2, rule=rule)
    assert float(torch.cdist(lies, honest).max()) <= 1.0001 * float(
        torch.cdist(honest, honest).max()
    )
    assert torch.equal(lies[0], lies[1])
    assert float(torch.cosine_similarity(mean - lies[0], mean, dim=0)) > 0.9999
    weaker = attacks.make("spread_match", 0.1).collude(honest, 2, rule=rule)
    left, more, without = (
        float(rule(torch.cat([honest, rows])) @ mean) for rows in (lies, weaker, mean.repeat(2, 1))
    )
    assert left < more < without


def test_spread_match_takes_the_multiple_that_a_rule_does_not_drop() -> None:
    honest = HONEST + 0.5
    mean = honest.mean(dim=0)

    def shortsighted(rows: Tensor) -> Tensor:
        """Drops what has less than half of the mean."""
        return rows[(rows @ mean) >= 0.5 * (mean @ mean)].mean(dim=0)

    lies = attacks.make("spread_match").collude(honest, 2, rule=shortsighted)
    assert 0.5 <= float(lies[0] @ mean) / float(mean @ mean) < 0.8


def test_momentum_push_is_honest_for_so_many_rounds_and_then_goes_against_the_momentum() -> None:
    attack, momentum = attacks.make("momentum_push", 3), torch.zeros(200)
    for round_id in range(6):
        honest = honest_rows(seed=round_id)
        momentum = 0.9 * momentum + honest.mean(dim=0) * (0.1 if round_id else 1.0)
        own = honest_rows(2, seed=100)
        lies = attack.collude(honest, 2, own=own, round_id=round_id)
        if round_id < 3:
            assert torch.equal(lies, own)
            continue
        assert float(torch.cosine_similarity(lies[0], -momentum, dim=0)) > 0.99999
        typical = float(honest.norm(dim=1).median())
        assert float(lies[0].norm()) == pytest.approx(typical, rel=1e-4)


def test_slow_drift_pushes_to_the_side_that_all_means_together_are_not_on() -> None:
    attack, total = attacks.make("slow_drift", 0.5), torch.zeros(200)
    for round_id in range(4):
        honest = honest_rows(seed=round_id)
        total = total + honest.mean(dim=0)
        lies = attack.collude(honest, 2, round_id=round_id)
        moved = (honest.mean(dim=0) - lies[0]) / honest.std(dim=0)
        assert torch.allclose(moved, 0.5 * total.sign(), atol=1e-3)


def test_few_coordinates_changes_the_last_tenth() -> None:
    lie = attacks.make("few_coordinates", 3)(MEAN, 0)
    assert torch.equal(lie[:180], MEAN[:180])
    assert torch.equal(lie[180:], -3 * MEAN[180:])


def test_inside_radius_is_as_long_as_the_honest_and_goes_the_same_way_all_the_time() -> None:
    attack, sides = attacks.make("inside_radius", 0.05), []
    for round_id in range(3):
        honest = honest_rows(seed=round_id)
        mean = honest.mean(dim=0)
        lie = attack.collude(honest, 2, round_id=round_id)[1]
        assert float(lie.norm()) == pytest.approx(float(honest.norm(dim=1).median()), rel=1e-4)
        assert float(torch.cosine_similarity(lie, mean, dim=0)) == pytest.approx(0.05, abs=1e-4)
        sides.append(lie)
    assert float(torch.cosine_similarity(sides[0], sides[2], dim=0)) > 0.9


def test_alie_stands_z_deviations_beside_the_mean() -> None:
    lies = attacks.make("alie", 1.5).collude(HONEST, 2)
    assert torch.allclose((MEAN - lies[0]) / DEVIATION, torch.full((200,), 1.5), atol=1e-3)
    assert torch.equal(lies[0], lies[1])


def test_alies_own_z_leaves_enough_honest_updates_beyond_it_to_win_a_majority() -> None:
    # Worked by hand from the paper's formula: n = 50, f = 24 needs s = 26 - 24 = 2 of 26 honest,
    # Phi(z) = 24 / 26.
    assert alie_z(50, 24) == pytest.approx(1.4261, abs=1e-4)
    assert alie_z(20, 4) == pytest.approx(0.1573, abs=1e-4)
    assert alie_z(10, 2) == alie_z(8, 2) == 0.0
    by_formula = attacks.make("alie").collude(honest_rows(16), 4)
    assert torch.allclose(
        by_formula, attacks.make("alie", 0.15731).collude(honest_rows(16), 4), atol=1e-4
    )


@pytest.mark.parametrize(
    ("n", "f", "z"),
    [
        # Phi^-1 of a table, to three digits: s and the quotient are worked by hand from the
        # paper's formula.
        (25, 5, 0.253),  # s = 8: 12 / 20
        (51, 24, 1.446),  # s = 2: 25 / 27, the odd number rounded down
        (20, 10, 1.282),  # n = 2 f: s = 1: 9 / 10
        (4, 2, 0.0),  # n = 2 f: s = 1: 1 / 2
        (3, 1, 0.0),  # s = 1: 1 / 2
        (10, 1, -0.140),  # s = 5: 4 / 9, one liar among an even number
        (4, 1, -0.431),  # s = 2: 1 / 3
        (20, 11, 1.593),  # s = 0: half of one of 9 lies beyond, 17 / 18
        (20, 15, 1.282),  # s = -4: 9 / 10
        (5, 3, 0.674),  # s = 0: 3 / 4
        (2, 1, 0.0),  # s = 1: 0 / 1, of which Phi^-1 is minus infinity: half of one is 1 / 2
        (7, 6, 0.0),  # s = -2 of one honest
    ],
)
def test_alies_own_z_at_the_edges_of_the_papers_formula(n: int, f: int, z: float) -> None:
    assert alie_z(n, f) == pytest.approx(z, abs=6e-4)
    honest = honest_rows(n - f)
    lies = attacks.make("alie").collude(honest, f)
    deviation = honest.std(dim=0) if n - f > 1 else torch.zeros(200)
    assert torch.allclose(
        lies, (honest.mean(dim=0) - alie_z(n, f) * deviation).repeat(f, 1), atol=1e-6
    )


def test_alie_has_no_z_without_liars_or_without_honest() -> None:
    for n, f in ((10, 0), (3, 3), (3, 4), (4, -1)):
        with pytest.raises(ConfigError, match=f"not {f} of {n}"):
            alie_z(n, f)


@pytest.mark.parametrize("seed", range(5))
def test_min_max_is_as_far_from_the_honest_as_they_are_from_each_other(seed: int) -> None:
    honest = honest_rows(7, 300, seed)
    lie = attacks.make("min_max").collude(honest, 2)[0]
    farthest = float(torch.linalg.vector_norm(honest - lie, dim=1).max())
    assert farthest == pytest.approx(float(torch.pdist(honest).max()), rel=1e-4)
    apart = honest.mean(dim=0) - lie
    assert float(torch.cosine_similarity(apart, honest.std(dim=0), dim=0)) == pytest.approx(
        1.0, abs=1e-5
    )
    assert float(apart.norm()) > 0.1


@pytest.mark.parametrize("seed", range(5))
def test_min_sum_has_the_largest_sum_of_squared_distances_of_an_honest_update(seed: int) -> None:
    honest = honest_rows(7, 300, seed)
    lie = attacks.make("min_sum").collude(honest, 2)[0]
    own = float((honest - lie).square().sum())
    allowed = torch.cdist(honest.double(), honest.double()).square().sum(dim=1).max()
    assert own == pytest.approx(float(allowed), rel=1e-4)


def test_mimic_copies_the_same_peer_all_through_the_run_the_one_farthest_out() -> None:
    outlier = HONEST.clone()
    outlier[5] += 30.0
    attacker_group = attacks.make("mimic")
    assert torch.equal(attacker_group.collude(outlier, 3), outlier[5].repeat(3, 1))
    assert torch.equal(attacker_group.collude(HONEST, 3), HONEST[5].repeat(3, 1)), (
        "its victim stays the same"
    )


def test_negated_copies_are_of_the_first_liars_own_update() -> None:
    own = honest_rows(3, 200, seed=9)
    lies = attacks.make("negated_copies").collude(HONEST, 3, own=own)
    assert torch.equal(lies, -own[0].repeat(3, 1))
    assert torch.equal(attacks.make("sign_flip").collude(HONEST, 3, own=own), -own), (
        "sign_flip negates each its own"
    )


def test_the_sacrificial_anchors_friends_stand_exactly_on_the_mean_of_everybody() -> None:
    lies = attacks.make("sacrificial_anchor", 100.0).collude(HONEST.double(), 3)
    everybody = torch.cat([HONEST.double(), lies]).mean(dim=0)
    assert torch.allclose(lies[1], everybody, atol=1e-9)
    assert torch.equal(lies[1], lies[2])
    assert float((lies[0] - HONEST.double().mean(dim=0)).norm()) == pytest.approx(
        100 * float(MEAN.norm()), rel=1e-4
    )


# --- those who know the rule ----------------------------------------------------------------------


def damage(rule: attacks.Aggregator, lies: Tensor, honest: Tensor = HONEST) -> float:
    return float((rule(torch.cat([honest, lies])) - honest.mean(dim=0)).norm())


@pytest.mark.parametrize("spec", ["median", "trimmed_mean", "krum", "multi_krum", "suspicion"])
def test_who_knows_the_rule_does_at_least_as_much_as_who_does_not(spec: str) -> None:
    bound = registry.load(spec)

    def rule(updates: Tensor) -> Tensor:
        return bound(updates, f=2)

    worst = damage(rule, attacks.make("adaptive").collude(HONEST, 2, rule=rule))
    by_formula = [damage(rule, attacks.make("alie", z).collude(HONEST, 2)) for z in (0.5, 1.0, 1.5)]
    by_formula += [
        damage(rule, attacks.make("ipm", epsilon).collude(HONEST, 2))
        for epsilon in (0.1, 0.5, 10.0)
    ]
    optimal = [
        damage(rule, attacks.make(name).collude(HONEST, 2, rule=rule))
        for name in ("optimal_alie", "optimal_ipm")
    ]
    assert max(optimal) >= 0.97 * max(by_formula)
    assert worst >= 0.97 * max(*by_formula, *optimal)


def test_the_search_finds_the_edge_at_which_krum_drops_the_liars() -> None:
    honest = honest_rows(10, 200, seed=3)

    def rule(updates: Tensor) -> Tensor:
        return krum(updates, f=3)

    crowd = OmniscientView(honest, honest[:3], torch.Generator(), torch.Generator(), rule)
    deviation = honest.std(dim=0)
    found = strongest(crowd, lambda z: crowd.all_alike(honest.mean(dim=0) - z * deviation))
    fine = [
        damage(rule, crowd.all_alike(honest.mean(dim=0) - z / 50 * deviation), honest)
        for z in range(1, 400)
    ]
    assert found.damage >= 0.9 * max(fine)
    assert STRENGTHS[0] < found.strength < STRENGTHS[-1]


@pytest.mark.parametrize("peak", [0.3, 1.7, 5.3, 40.0])
def test_the_search_closes_in_on_a_strength_between_the_powers_of_two(peak: float) -> None:
    """A rule that gives way the more, the nearer the lie's length is to the peak."""
    crowd = OmniscientView(
        torch.zeros(3, 1),
        torch.zeros(1, 1),
        torch.Generator(),
        torch.Generator(),
        lambda rows: 1 / (1 + (rows[-1] - peak) ** 2),
    )
    tried: list[float] = []
    found = strongest(crowd, lambda t: (tried.append(t), crowd.all_alike(torch.tensor([t])))[1])
    assert found.strength == pytest.approx(peak, rel=0.06)
    assert len(tried) == len(set(tried)) == 19


def test_lies_that_no_peer_would_show_its_rule_do_nothing() -> None:
    """Under the mean a swarm runs away with the liars, until their strongest lie overflows."""
    huge = torch.full((3, 2), 1e37)
    lies = attacks.make("adaptive").collude(huge, 1, rule=mean_rule)
    assert bool(lies.isfinite().all())
    crowd = OmniscientView(huge, huge[:1], torch.Generator(), torch.Generator(), mean_rule)
    assert crowd.damage(crowd.all_alike(torch.tensor([torch.inf, 0.0]))) == 0.0


def test_directions_of_the_adaptive_are_what_their_names_say() -> None:
    crowd = OmniscientView(HONEST, HONEST[:2], torch.Generator(), torch.Generator(), mean_rule)
    ways = directions(crowd)
    assert torch.allclose(ways["against the mean"], -MEAN)
    assert torch.allclose(ways["against the deviation"], -DEVIATION)
    assert torch.allclose(ways["with the deviation"], DEVIATION)
    assert torch.allclose(ways["against its sign"], -DEVIATION * MEAN.sign())
    lengths = [float(way.norm()) for name, way in ways.items() if name != "against the mean"]
    assert lengths == pytest.approx([float(DEVIATION.norm())] * 4, rel=1e-5)


@pytest.mark.parametrize(("name", "way"), [("optimal_alie", -DEVIATION), ("optimal_ipm", -MEAN)])
def test_the_optimal_ones_go_the_way_of_those_that_they_improve(name: str, way: Tensor) -> None:
    lie = attacks.make(name).collude(HONEST, 2, rule=lambda updates: median(updates, f=2))[0]
    start = MEAN if name == "optimal_alie" else torch.zeros_like(MEAN)
    assert torch.cosine_similarity(lie - start, way, dim=0) > 0.999


def test_an_adaptive_crew_searches_only_so_often_and_follows_the_mean_between() -> None:
    calls = 0

    def rule(updates: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return median(updates, f=2)

    attacker_group = attacks.make("adaptive", 3)
    attacker_group.collude(HONEST, 2, rule=rule, round_id=0)
    searched = calls
    assert searched == 95
    moved = attacker_group.collude(HONEST + 1, 2, rule=rule, round_id=1)
    assert calls == searched
    assert float((moved - MEAN - 1).mean().abs()) < 1
    attacker_group.collude(HONEST, 2, rule=rule, round_id=2)
    attacker_group.collude(HONEST, 2, rule=rule, round_id=3)
    assert calls == 2 * searched


def test_the_optimal_ones_search_in_each_round() -> None:
    calls = 0

    def rule(updates: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return median(updates, f=2)

    for name, trials in (("optimal_alie", 19), ("optimal_ipm", 19), ("optimal_inner_product", 38)):
        attacker_group = attacks.make(name)
        for round_id in range(3):
            calls = 0
            attacker_group.collude(HONEST, 2, rule=rule, round_id=round_id)
            assert calls == trials


@pytest.mark.parametrize("spec", ["median", "trimmed_mean", "krum", "suspicion"])
def test_the_least_inner_product_is_no_more_than_others_leave(spec: str) -> None:
    bound = registry.load(spec)

    def rule(updates: Tensor) -> Tensor:
        return bound(updates, f=2)

    def left(name: str, *strength: float) -> float:
        lies = attacks.make(name, *strength).collude(HONEST, 2, rule=rule)
        return float(rule(torch.cat([HONEST, lies])) @ MEAN)

    others = [left("alie", z) for z in (0.5, 1.0, 1.5, 4.0)]
    others += [left("ipm", epsilon) for epsilon in (0.1, 0.5, 1.0, 10.0)]
    others += [left("optimal_alie"), left("optimal_ipm")]
    assert left("optimal_inner_product") <= min(others) + 0.03 * abs(min(others))


def test_the_least_inner_product_of_a_rule_that_overflows_is_sent_as_numbers() -> None:
    huge = torch.full((3, 2), 1e37)
    lies = attacks.make("optimal_inner_product").collude(huge, 1, rule=mean_rule)
    assert bool(lies.isfinite().all())


def test_a_rule_that_is_not_known_cannot_be_attacked_by_name() -> None:
    with pytest.raises(ConfigError, match="needs the rule as an argument"):
        attacks.make("adaptive").collude(HONEST, 2)


# --- alone, by a guess ----------------------------------------------------------------------------


def test_a_guess_finds_the_mean_and_the_deviation_of_the_honest_from_results_alone() -> None:
    generator = torch.Generator().manual_seed(5)
    mean, deviation = (
        torch.randn(400, generator=generator),
        torch.rand(400, generator=generator) + 0.5,
    )
    guess = HonestEstimate()
    update = mean
    for round_id in range(20):
        update = mean + deviation * torch.randn(400, generator=generator)
        others = mean + deviation * torch.randn(7, 400, generator=generator)
        guess.sends(update, round_id)
        guess.saw(torch.cat([update[None], others]).mean(dim=0), round_id)
    rows = guess.honest(update, 6)
    assert rows.shape == (6, 400)
    assert float((rows.mean(dim=0) - mean).norm()) < 0.6 * float(deviation.norm())
    ratio = float(guess.honest(update, RESIDUALS_MAX).std(dim=0).norm() / deviation.norm())
    assert 0.7 < ratio < 1.2, ratio


def test_before_there_is_a_result_the_own_update_stands_for_the_others() -> None:
    lie = attacks.make("ipm", 2.0, attacker_group=attacks.AttackerGroup(honest=4, attackers=2))(
        MEAN, 0
    )
    assert torch.allclose(lie, -2 * MEAN)
    assert torch.allclose(
        attacks.make("alie", 1.5, attacker_group=attacks.AttackerGroup(honest=4))(MEAN, 0), MEAN
    )


def test_liars_apart_agree_on_the_last_result_and_each_tells_its_own_part() -> None:
    attacker_group = [
        attacks.make(
            "sacrificial_anchor",
            10.0,
            seed=rank,
            attacker_group=attacks.AttackerGroup(honest=5, attackers=3, rank=rank, seed=77),
        )
        for rank in range(3)
    ]
    for rank, attacker in enumerate(attacker_group):
        attacker(HONEST[rank], 0)
        attacker.saw(MEAN, 0)
    lies = torch.stack([attacker(HONEST[rank], 1) for rank, attacker in enumerate(attacker_group)])
    assert torch.allclose(lies[1], lies[2])
    assert torch.allclose(torch.cat([MEAN.repeat(5, 1), lies]).mean(dim=0), lies[1], atol=1e-4)
    assert float((lies[0] - MEAN).norm()) > 5 * float((lies[1] - MEAN).norm())


def test_what_takes_another_peers_update_is_refused_alone_and_says_where_it_works() -> None:
    assert set(attacks.names()) - set(attacks.names(lonely=True)) == {
        "frame_rare",
        "framing",
        "mimic",
        "negated_copies",
    }
    for name in ("frame_rare", "framing", "mimic", "negated_copies"):
        with pytest.raises(ConfigError, match="gossip bench robustness") as caught:
            attacks.make(name)(MEAN, 0)
        assert caught.value.hint == "call collude"


# --- to each another ------------------------------------------------------------------------------


def test_dissensus_pushes_each_receiver_away_from_the_others() -> None:
    attacker = attacks.make("dissensus", 1.5)
    lie = attacker.tell(MEAN, 3, HONEST[0], list(HONEST[1:]))
    away = (HONEST[0] - HONEST[1:]).sum(dim=0)
    assert torch.allclose(lie - HONEST[0], 1.5 * away, atol=1e-4)
    assert torch.equal(attacker.tell(MEAN, 3), MEAN)


def test_dissensus_of_all_liars_undoes_what_the_honest_neighbours_do() -> None:
    """As in the paper and its authors' code: the mean of all that a receiver hears and holds
    is what it holds."""
    honest, attackers = len(HONEST), 2
    attacker_group = [
        attacks.make("dissensus", attacker_group=attacks.AttackerGroup(honest, attackers, rank))
        for rank in range(attackers)
    ]
    for heard in (HONEST[1:], HONEST[1::2]):  # who has not heard all takes those for the rest
        told = torch.stack(
            [attacker.tell(MEAN, 0, HONEST[0], list(heard)) for attacker in attacker_group]
        )
        pull = (honest - 1) * (heard.mean(dim=0) - HONEST[0])
        assert torch.allclose(
            (told - HONEST[0]).sum(dim=0) + pull, torch.zeros_like(MEAN), atol=1e-3
        )
    three = [torch.full((2,), 1.0), torch.full((2,), 2.0), torch.full((2,), 3.0)]
    assert attacks.make("dissensus").tell(torch.zeros(2), 0, torch.zeros(2), three).tolist() == [
        -6.0,
        -6.0,
    ]


def test_the_shapes_are_not_mixed_up() -> None:
    with pytest.raises(ConfigError, match="only in gossip rounds"):
        attacks.make("dissensus").collude(HONEST, 2)
    with pytest.raises(ConfigError, match="each receiver"):
        attacks.make("equivocation")(MEAN, 0)
    with pytest.raises(ConfigError, match="all receivers the same"):
        attacks.make("alie").tell(MEAN, 0)
    for name, strength in (
        ("ipm", float("nan")),
        ("alie", -1),
        ("adaptive", 0.5),
        ("sacrificial_anchor", 0),
    ):
        with pytest.raises(ConfigError, match=rf"{name}\*.*must be"):
            attacks.make(name, strength)
    with pytest.raises(ConfigError, match="min_max has no strength"):
        attacks.make("min_max", 2)
