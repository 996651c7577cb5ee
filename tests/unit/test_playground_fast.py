"""The fast engine of the playground: who takes part, who is in time, attacks, trust, mixing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossip.core import CoreSettings, GossipSettings
from gossip.core.rounds import pushes as core_pushes
from gossip.core.rounds.mixing import MixingController
from gossip.core.rounds.sketch import consensus
from gossip.core.rounds.timeouts import Deadline
from gossip.errors import ConfigError
from gossip.topologies import Plan, Roster, topology
from gossip.vectors import sketch
from gossip_lab.playground import Moment, World, judging
from gossip_lab.playground.attacking import Attackers
from gossip_lab.playground.consensus import MixingStrength, estimate_ratios
from gossip_lab.playground.fast_gossip import GossipWorld
from gossip_lab.playground.fast_rolling import RollingWorld
from gossip_lab.playground.graces import Graces
from gossip_lab.playground.parts import Parts
from gossip_lab.playground.pushing import PUSH, Pushes, PushStore
from gossip_lab.playground.schedule import Schedule
from gossip_lab.playground.world import play_moments

SMALL = World(peers=6, model="linear", batch=4, compute="constant:0.05")
FLIPPED = "sign_flip:5*10"


def play(rounds: int, **fields: Any) -> list[Moment]:
    return play_parts(build(**fields), rounds)


def build(**fields: Any) -> Parts:
    return SMALL.replace(**fields).build()


def play_parts(parts: Parts, rounds: int) -> list[Moment]:
    moments = itertools.islice(play_moments("fast", parts), rounds)
    return [replace(moment, parameters=moment.parameters.clone()) for moment in moments]


def samples_by_round(moments: list[Moment]) -> list[int]:
    """Updates that each round has used."""
    totals = [moment.samples // SMALL.batch for moment in moments]
    return [after - before for before, after in itertools.pairwise([0, *totals])]


# --- arithmetic -----------------------------------------------------------------------------------


def test_rolling_rounds_are_sgd_on_the_mean_of_all_updates() -> None:
    parts = build()
    here, peers = parts.task.cohort.initial, np.arange(6)
    for moment in play_parts(parts, 3):
        updates = parts.task.compute_updates(here.expand(6, -1), peers, moment.rounds - 1)
        here = here - parts.task.lr * updates.mean(dim=0)
        assert torch.equal(moment.parameters[5], here)


def test_gossip_rounds_are_sgd_on_the_mean_of_the_neighbourhood() -> None:
    parts = build(topology="ring")
    first = play_parts(parts, 1)[0]
    initial = parts.task.cohort.initial
    updates = parts.task.compute_updates(initial.expand(6, -1), np.arange(6), 0)
    expected = initial - parts.task.lr * updates[[1, 2, 3]].mean(dim=0)
    torch.testing.assert_close(first.parameters[2], expected)


def test_gossip_rounds_with_adamw_step_as_torch_does() -> None:
    parts = build(topology="full", optimizer="adamw")
    here = torch.nn.Parameter(parts.task.cohort.initial.clone())
    optimizer = torch.optim.AdamW([here], lr=parts.task.lr)
    for moment in play_parts(parts, 3):
        before = here.detach().expand(6, -1)
        updates = parts.task.compute_updates(before, np.arange(6), moment.rounds - 1)
        here.grad = updates.mean(dim=0)
        optimizer.step()
        torch.testing.assert_close(moment.parameters[2], here.detach(), atol=1e-5, rtol=1e-4)


def test_exchanges_mix_both_moments_of_adamw() -> None:
    fields = {"topology": "ring", "mix_every": 1}
    alone, mixed = (GossipWorld(build(**fields, optimizer=o)) for o in ("adamw", "adamw-mixed"))
    last = {}
    for world in (alone, mixed):
        for _ in range(4):
            last[world] = world.play_round()
    assert last[mixed].bytes_sent == 2 * last[alone].bytes_sent
    for moment in ("first", "second"):
        apart = [getattr(each._adamw, moment).var(dim=0).sum() for each in (mixed, alone)]
        assert apart[0] < 0.8 * apart[1]


def test_false_second_moments_make_no_negative_ones() -> None:
    fields = {"topology": "full", "mix_every": 1, "optimizer": "adamw-mixed"}
    world = GossipWorld(build(faults=("sign_flip:5*99",), **fields))
    for _ in range(3):
        world.play_round()
    assert bool((world._adamw.second >= 0).all())


@pytest.mark.parametrize("fields", [{}, {"topology": "ring", "local_steps": 2}])
def test_adamw_is_for_gossip_rounds_without_local_steps(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="adamw is for gossip rounds"):
        build(optimizer="adamw", **fields)


@topology
def star(roster: Roster, round_id: int, seed: int, *, metropolis: bool = False) -> Plan:
    hub, *others = roster
    pushes = {hub: tuple(others), **dict.fromkeys(others, (hub,))}
    return Plan(pushes=pushes, metropolis=metropolis)


@pytest.mark.parametrize("local_steps", [1, 3])
def test_with_metropolis_weights_the_mean_of_all_peers_steps_by_the_mean_of_all_updates(
    local_steps: int,
) -> None:
    apart = []
    for metropolis in (False, True):
        parts = build(local_steps=local_steps, outer="mean" if local_steps > 1 else "")
        parts = replace(
            parts,
            topology=star.bind(metropolis=metropolis),
            settings=replace(parts.settings, gossip=GossipSettings(mix_every=1)),
        )
        initial = parts.task.cohort.initial
        expected = initial.clone()
        first, second = play_parts(parts, 2)
        for round_id, before in ((0, initial.expand(6, -1)), (1, first.parameters)):
            updates = parts.task.compute_updates(before, np.arange(6), round_id)
            expected -= (1.0 if parts.task.outer else parts.task.lr) * updates.mean(dim=0)
        moved = (expected - initial).norm()
        apart.append(float((second.parameters.mean(dim=0) - expected).norm() / moved))
    assert apart[1] < 1e-5
    assert apart[0] > 0.1, "the hub counts more than the others"


def test_with_local_steps_half_of_a_gossip_step_is_the_peers_own() -> None:
    parts = build(topology="ring", local_steps=2, outer="mean")
    first = play_parts(parts, 1)[0]
    initial = parts.task.cohort.initial
    updates = parts.task.compute_updates(initial.expand(6, -1), np.arange(6), 0)
    expected = initial - (updates[[1, 2, 3]].mean(dim=0) + updates[2]) / 2
    torch.testing.assert_close(first.parameters[2], expected)


def test_mixing_brings_the_replicas_together() -> None:
    mixed, apart = (
        play(4, topology="ring", mix_every=every)[-1].parameters.var(dim=0).sum()
        for every in (4, 5)
    )
    assert mixed < 0.8 * apart


@pytest.mark.parametrize("topology", ["rolling", "random-k"])
@pytest.mark.parametrize("peers", [1, 2])
def test_a_world_of_one_or_two_peers_learns(topology: str, peers: int) -> None:
    first, *_, last = play(5, topology=topology, peers=peers)
    assert not torch.equal(first.parameters, last.parameters)
    assert last.samples == 5 * peers * 4
    assert (last.bytes_sent > 0) == (peers > 1)


@pytest.mark.parametrize("topology", ["rolling", "random-k"])
def test_the_same_world_plays_the_same_and_another_seed_does_not(topology: str) -> None:
    faults = ("gaussian:5*2", "crash:1@2", "slow:2*4")
    once, again, other = (
        [(m.digest(), m.virtual_s, m.bytes_sent) for m in play(6, **fields)]
        for fields in (
            {"topology": topology, "faults": faults},
            {"topology": topology, "faults": faults},
            {"topology": topology, "faults": faults, "seed": 1},
        )
    )
    assert once == again
    assert once[-1] != other[-1]


# --- who takes part, and who is in time -----------------------------------------------------------


@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_a_crashed_peer_is_missing_from_its_round_on(topology: str) -> None:
    moments = play(5, topology=topology, faults=("crash:3@2",))
    assert samples_by_round(moments) == [6, 6, 5, 5, 5]
    assert [bool(moment.present[3]) for moment in moments] == [True, True, False, False, False]
    assert moments[-1].present.sum() == 5


def test_a_restarted_peer_takes_part_again() -> None:
    moments = play(12, faults=("restart:3@2+0.2s",))
    assert samples_by_round(moments)[:3] == [6, 6, 5]
    assert samples_by_round(moments)[-1] == 6


def test_a_restarted_peer_of_gossip_rounds_adopts_the_state_of_another() -> None:
    faults = ("crash:0@1", "restart:3@2+0.1s")
    moments = play(8, topology="full", faults=faults, local_steps=2, compute="constant:0.1")
    back = next(m.rounds for m in moments if m.rounds > 2 and m.present[3])
    # It steps from where peer 1 was, and so ends nearer to it than its old state does.
    before, after = moments[back - 2], moments[back - 1]
    old, new = before.parameters[3], after.parameters[3]
    there = before.parameters[1]
    assert (new - there).norm() < (new - old).norm()


def test_a_server_waits_for_a_hanging_peer_until_its_links_time_out() -> None:
    calm, hung = (play(3, faults=faults)[-1].virtual_s for faults in ((), ("hang:3@2+9s",)))
    assert hung - calm == pytest.approx(0.3, abs=0.06)


def test_a_short_hang_delays_the_round_and_no_more() -> None:
    calm, hung = (play(3, faults=faults)[-1] for faults in ((), ("hang:3@2+200ms",)))
    assert hung.virtual_s - calm.virtual_s == pytest.approx(0.2, abs=0.01)
    assert hung.samples == calm.samples


@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_a_peer_that_is_much_too_slow_is_out_of_time(topology: str) -> None:
    moments = play(12, topology=topology, faults=("slow:3*1000",))
    assert moments[-1].present.all()
    assert samples_by_round(moments)[-1] == 5
    # Once it is known as slow, only the shortest grace is spent on it.
    assert moments[-1].virtual_s - moments[-2].virtual_s < 0.12


def test_a_late_push_is_used_in_a_later_round() -> None:
    parts = build(topology="full", faults=("slow:3*5",))
    gossip = replace(parts.settings.gossip, staleness_max=0)
    impatient = replace(parts, settings=replace(parts.settings, gossip=gossip))
    used, dropped = (play_parts(each, 8)[-1].parameters[0] for each in (parts, impatient))
    assert not torch.equal(used, dropped)


@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_peers_take_part_while_they_are_available(topology: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    there = [f"{peer},0,1000" for peer in range(4)] + ["4,0,0.22", "4,0.52,1000", "5,0.12,1000"]
    trace.write_text("\n".join(["peer,from_s,to_s", *there]) + "\n")
    used = samples_by_round(play(14, topology=topology, availability=str(trace)))
    assert used[0] == 5  # peer 5 comes later
    assert used[3] == 6
    assert used[6] == 5  # peer 4 is away
    assert used[-1] == 6


def test_too_few_peers_for_a_round_are_an_error() -> None:
    with pytest.raises(ConfigError, match="needs updates of 4 peers, and 3 of 6 are left"):
        play(4, faults=("crash:0-2@2",))


def test_a_round_waits_for_the_return_of_peers() -> None:
    moments = play(4, faults=tuple(f"restart:{peer}@2+3s" for peer in range(3)))
    assert moments[2].virtual_s > 3.0
    assert moments[3].present.all()


@pytest.mark.parametrize("error", ["RuntimeError", "AggregationError"])
def test_an_exception_of_the_rule_costs_the_round(error: str, tmp_path: Path) -> None:
    rule = tmp_path / "refusing.py"
    rule.write_text(
        "from gossip.errors import AggregationError\n"
        "def refuse(updates, *, f, round_id):\n"
        f"    if round_id == 1:\n        raise {error}('no')\n"
        "    return updates.mean(0)\n"
    )
    moments = play(3, aggregator=f"{rule}:refuse")
    assert [moment.lost for moment in moments] == [False, True, False]
    assert torch.equal(moments[0].parameters, moments[1].parameters)


# --- attacks and trust ----------------------------------------------------------------------------


def test_attacks_are_those_of_their_peers_alone() -> None:
    faults = ("sign_flip:1,4*10", "ipm:2", "label_flip:0", "equivocation:5")
    attackers = Attackers(build(topology="full", faults=faults))
    truth = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    sent = truth.clone()
    attackers.falsify(sent, np.arange(6), np.arange(6), 0)
    assert torch.equal(sent[[1, 4]], -10 * truth[[1, 4]])
    torch.testing.assert_close(sent[2], -0.1 * truth[3])  # the only honest one
    assert torch.equal(sent[[0, 3, 5]], truth[[0, 3, 5]])
    assert np.flatnonzero(attackers.flipped).tolist() == [0]
    assert torch.equal(attackers.falsify_for(truth[5], 5, 1, truth), -truth[5])


def test_each_attacker_draws_and_remembers_on_its_own() -> None:
    attackers = Attackers(build(faults=("gaussian:1,2*1", "stale:3,4*1")))
    peers, rounds = np.arange(6), torch.randn(2, 6, 8)
    sent = rounds.clone()
    for round_id in range(2):
        attackers.falsify(sent[round_id], peers, peers, round_id)
    noise = (sent - rounds)[:, [1, 2]]
    assert not torch.allclose(noise[:, 0], noise[:, 1]), "one noise, and not independent ones"
    assert torch.equal(sent[1, [3, 4]], rounds[0, [3, 4]]), "each sends its own last update"


def test_an_attack_on_single_receivers_is_refused_in_rolling_rounds() -> None:
    with pytest.raises(ConfigError, match=r"dissensus.*rolling rounds"):
        play(1, faults=("dissensus:5",))


def test_no_peer_counts_as_an_observer_of_itself() -> None:
    world = RollingWorld(build(faults=(FLIPPED,)))
    world._trust.quarantined = lambda: frozenset([0, 1, 5])  # type: ignore[method-assign]
    assert world._count_quarantined().tolist() == [4, 4, 0, 0, 0, 5]


def test_a_peer_that_flips_labels_learns_from_others() -> None:
    honest, flipped = (play(1, faults=faults)[-1] for faults in ((), ("label_flip:1",)))
    assert not torch.equal(honest.parameters, flipped.parameters)


def test_an_equivocating_peer_sends_each_neighbour_another_update() -> None:
    honest, attacked = (
        play(1, topology="full", faults=faults)[-1].parameters
        for faults in ((), ("equivocation:5*3",))
    )
    gain = honest - attacked  # the step that the lie adds
    torch.testing.assert_close(gain[0], gain[2])
    assert float(gain[0] @ gain[1]) < 0
    torch.testing.assert_close(gain[5], torch.zeros_like(gain[5]))  # it uses its true update


def test_a_byzantine_peer_sends_false_parameters_and_keeps_its_own() -> None:
    initial = build().task.cohort.initial
    fields = {"topology": "full", "mix_every": 1, "lr": 1e-9}
    last = play(1, faults=("sign_flip:5*3",), **fields)[-1].parameters
    # the mean difference from five equal models and one of -3 times these; models so far apart
    # move as much as they can
    torch.testing.assert_close(last[0], initial - initial * 4 / 6 * 5 / 6)
    torch.testing.assert_close(last[5], initial)


@pytest.mark.parametrize("rule", ["trimmed_mean", "guarded_mean"])
def test_trust_quarantines_a_sign_flipper_in_rolling_rounds(rule: str) -> None:
    moments = play(25, aggregator=rule, f=1, faults=(FLIPPED,))
    assert moments[-1].quarantined.tolist() == [0, 0, 0, 0, 0, 5]
    assert samples_by_round(moments)[0] == 6
    assert samples_by_round(moments)[-1] == 5  # its update is not used


def test_each_peer_quarantines_for_itself_in_gossip_rounds() -> None:
    moments = play(25, topology="ring", aggregator="guarded_mean", f=1, faults=(FLIPPED,), peers=7)
    assert moments[-1].quarantined.tolist() == [0, 0, 0, 0, 0, 2, 0]  # its two neighbours


def test_tables_of_many_peers_forget_only_ordinary_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"topology": "full", "aggregator": "trimmed_mean", "f": 1, "faults": (FLIPPED,)}
    whole = play(20, **fields)[-1].quarantined.tolist()
    monkeypatch.setattr(judging, "SPARSE_FROM", 0)
    assert play(20, **fields)[-1].quarantined.tolist() == whole == [0, 0, 0, 0, 0, 5]


@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_updates_that_are_not_finite_are_not_used(topology: str) -> None:
    moments = play(3, topology=topology, aggregator="trimmed_mean", f=1, faults=("nan:5",))
    assert bool(moments[-1].parameters.isfinite().all())
    assert not any(moment.lost for moment in moments)


def test_moments_are_not_mixed_by_a_loss() -> None:
    mixed = {"topology": "ring", "optimizer": "adamw-mixed"}
    with pytest.raises(ConfigError, match="differences of moments are no steps"):
        build(aggregator="judged_clipping", **mixed)
    assert build(**mixed)


def test_a_rule_that_rescales_to_the_gradient_is_no_rule_for_local_steps() -> None:
    with pytest.raises(ConfigError, match="gradient"):
        build(aggregator="fltrust", f=1, local_steps=5)
    assert build(aggregator="fltrust:lengths=updates", f=1, local_steps=5).rule.needs_trainer


# --- as the core does it --------------------------------------------------------------------------


def test_graces_are_those_of_the_core() -> None:
    settings = CoreSettings(b"", b"", 0, (0, 1, 2))
    rounds, generator = settings.rounds, np.random.default_rng(3)
    plain = [
        Deadline(rounds.grace_mads, rounds.grace_floor_s, rounds.round_timeout_s) for _ in range(3)
    ]
    graces = Graces(settings)
    for _ in range(40):
        peers = np.sort(generator.integers(0, 3, 5))
        lags_s = generator.exponential(0.1, 5) - 0.01
        graces.observe(peers, lags_s)
        for peer, lag_s in zip(peers.tolist(), lags_s.tolist(), strict=True):
            plain[peer].observe(lag_s)
        assert graces.grace_s() == pytest.approx([each.grace_s() for each in plain])


@pytest.mark.parametrize("f", [0, 1])
def test_consensus_ratios_are_those_of_the_core(f: int) -> None:
    generator = np.random.default_rng(5)
    sketches = generator.normal(size=(4, 5, 8))
    sketches[0, 1] *= 50.0
    there = generator.random((4, 5)) < 0.8
    there[3] = [True, False, False, False, False]
    ratios = estimate_ratios(sketches, there, f)
    for row, mask, ratio in zip(sketches, there, ratios, strict=True):
        known = [each.tolist() for each in row[mask]]
        found = consensus(known, min(f, (len(known) - 1) // 2))
        assert np.isnan(ratio) if found is None else ratio == pytest.approx(found.ratio)


def draw_pushes(generator: np.random.Generator, n: int, round_id: int) -> Pushes:
    """Return pushes of a round between drawn peers, which come up to two rounds late."""
    pairs = np.argwhere((generator.random((n, n)) < 0.5) & ~np.eye(n, dtype=bool))
    pushes = np.zeros(len(pairs), PUSH)
    pushes["sender"], pushes["receiver"] = pairs.T
    pushes["round"], pushes["row"] = round_id, pairs[:, 0]
    pushes["arrives_s"] = round_id + generator.uniform(0, 2.5, len(pairs))
    return pushes


def test_mixing_is_raised_when_the_core_raises_it() -> None:
    parts = build(topology="full", aggregator="trimmed_mean", f=1, mix_every=1)
    n, gossip, generator = parts.peers, parts.settings.gossip, np.random.default_rng(2)
    judges, locked = judging.Judges(parts, torch.empty(0)), dict.fromkeys(range(3), frozenset({3}))
    judges._locked = locked
    mixing = MixingStrength(parts.settings, judges)
    plain = [MixingController(peer, gossip, parts.settings.f) for peer in range(n)]
    raised, coming = [], []
    for round_id in range(40):
        apart = generator.exponential(0.1, (n, 1)) * generator.normal(size=(n, 50))
        parameters = torch.from_numpy(1 + apart).float()
        parameters[3] *= -1
        packed = [sketch(row.numpy(), parts.settings.seed) for row in parameters]
        pushes = draw_pushes(generator, n, round_id)
        mixing.learn(round_id, np.arange(n), parameters, np.arange(n), pushes)
        coming += [(each, packed[each["sender"]]) for each in pushes]
        closing = np.flatnonzero(generator.random(n) < 0.9)
        mixing.measure(round_id, closing, np.full(n, round_id + 1.0))
        for peer in closing.tolist():
            plain[peer].learn(peer, round_id, packed[peer])
            for push, numbers in coming:
                if push["receiver"] == peer and push["arrives_s"] <= round_id + 1:
                    plain[peer].learn(int(push["sender"]), int(push["round"]), numbers)
            plain[peer].measure(round_id, locked.get(peer, ()))
        raised.append([each.raised for each in plain])
        assert mixing.raised.tolist() == raised[-1]
    assert 0.2 < np.mean(raised) < 0.8


def test_a_round_uses_the_pushes_that_the_core_uses() -> None:
    n, generator, ahead = 5, np.random.default_rng(3), 0
    store, plain = PushStore(n, 2), [core_pushes.PushStore(2) for _ in range(n)]
    coming: list[Any] = []
    rounds = np.zeros(n, np.int64)  # of each peer, which is up to 4 behind
    for now in range(120):
        pushes = draw_pushes(generator, n, now)
        pushes["arrives_s"] = now + generator.uniform(0, 0.9)  # in the order of the rounds
        store.add(pushes)
        coming += list(pushes)
        rounds = np.maximum(rounds, now - 4)
        closing = np.flatnonzero(generator.random(n) < 0.7)
        for peer in closing.tolist():
            round_id, here = int(rounds[peer]), np.array([peer])
            expected = [each for each in range(n) if each != peer and generator.random() < 0.5]
            for push in [each for each in coming if each["receiver"] == peer]:
                pushed = core_pushes.Pushed(int(push["round"]), 1, None)
                plain[peer].add("gradient", int(push["sender"]), pushed)
            coming = [each for each in coming if each["receiver"] != peer]
            pairs = np.array(expected, np.int64) + peer * n
            found = store.pop_pushes(here, round_id, np.full(n, now + 1.0), pairs)
            used = plain[peer].pop_pushes("gradient", round_id, expected)
            wanted = {sender: each.round_id for sender, each in used.items()}
            assert (
                dict(zip(found["sender"].tolist(), found["round"].tolist(), strict=True)) == wanted
            )
            ahead += sum(each > round_id for each in wanted.values())
            rounds[peer] += 1
    assert ahead > 20


def test_peers_plan_a_round_with_those_that_they_know_dead_as_they_begin_it() -> None:
    parts = World(peers=8, topology="random-k", faults=("crash:0,1@10",)).build()
    rosters: dict[int, set[int]] = {}

    def spied(roster: Roster, round_id: int, seed: int) -> Plan:
        rosters.setdefault(round_id, set()).add(len(roster))
        return parts.topology(roster, round_id, seed)

    schedule = Schedule(
        replace(parts, topology=topology(spied)), lambda receivers, senders: receivers < 0
    )
    for _ in range(40):
        while not schedule.is_over():
            schedule.next_wave()
        schedule.end_round()
    assert rosters[20] == {8}
    assert rosters[35] == {6}
    assert any(len(sizes) > 1 for sizes in rosters.values())


def test_degrees_are_those_of_the_last_plan_of_a_round() -> None:
    parts = World(peers=6, topology="dumbbell:metropolis=true").build()
    schedule = Schedule(parts, lambda receivers, senders: receivers < 0)
    whole, part = (Roster(tuple(range(n)), parts.settings.lineage) for n in (6, 4))
    for roster, degrees in ((whole, [2, 2, 3, 3, 2, 2]), (part, [1, 2, 2, 1, 0, 0])) * 2:
        schedule._edges_of(0, roster)
        found = schedule.degrees(0)
        assert (schedule.roster(0), found.tolist()) == (roster.peers, degrees)
