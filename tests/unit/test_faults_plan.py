from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from gossip.errors import BadFault
from gossip.faults import plan as faults
from gossip.faults.activations import (
    FalseAudits,
    NegatedActivations,
    NegatedGradients,
    ScaledGradients,
    corrupt_pass_result,
)
from gossip.faults.declare import KINDS, Fault, Kind
from gossip.faults.kinds import ATTACKS, ByzantineFault, Crash, Hang, Restart, Slow
from gossip.faults.plan import FaultPlan
from gossip.faults.units import Duration, PeerList
from gossip.faults.world import RESULT_ATTACKS, NodeAttack


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("crash:3@50", (Crash(3, 50),)),
        ("crash:server@50", (Crash("server", 50),)),
        ("crash:1,2@5", (Crash(1, 5), Crash(2, 5))),
        ("restart:3@50+2s", (Restart(3, 50, 2.0),)),
        ("hang:3@50+500ms", (Hang(3, 50, 0.5),)),
        ("hang:3@50+1.5s", (Hang(3, 50, 1.5),)),
        ("hang:3@50+1m", (Hang(3, 50, 60.0),)),
        ("slow:2*4", (Slow(2, 4.0),)),
        ("slow:2*4@20s", (Slow(2, 4.0, 20.0),)),
        ("slow:2*4@20s+30s", (Slow(2, 4.0, 20.0, 30.0),)),
        ("sign_flip:5,6*10", (ByzantineFault("sign_flip", (5, 6), 10.0),)),
        ("sign-flip:5,6*10", (ByzantineFault("sign_flip", (5, 6), 10.0),)),
        ("sign_flip:5", (ByzantineFault("sign_flip", (5,), 1.0),)),
        ("bit_flip:5", (ByzantineFault("bit_flip", (5,), 0.1),)),
        ("bit_flip:5*0.5", (ByzantineFault("bit_flip", (5,), 0.5),)),
        ("alie:5,6", (ByzantineFault("alie", (5, 6), None),)),
        ("adaptive:5", (ByzantineFault("adaptive", (5,), 10.0),)),
        ("gaussian:5*200", (ByzantineFault("gaussian", (5,), 200.0),)),
        ("scale:5*1e3", (ByzantineFault("scale", (5,), 1000.0),)),
        ("nan:5", (ByzantineFault("nan", (5,), 1.0),)),
        ("label_flip:5", (ByzantineFault("label_flip", (5,), 1.0),)),
        ("stale:5*10", (ByzantineFault("stale", (5,), 10.0),)),
        ("zero:5", (ByzantineFault("zero", (5,), 1.0),)),
        ("wrong_results:5-7", (NodeAttack("wrong_results", (5, 6, 7)),)),
        ("kept-states:5", (NodeAttack("kept_states", (5,)),)),
        ("negated_activations:2,5*0.1", (NegatedActivations((2, 5), 0.1),)),
        ("negated-gradients:2", (NegatedGradients((2,)),)),
        ("scaled_gradients:2", (ScaledGradients((2,)),)),
        ("false_audits:2*0.5", (FalseAudits((2,), 0.5),)),
    ],
)
def test_every_kind_is_read_as_typed(spec: str, expected: tuple[faults.Fault, ...]) -> None:
    assert faults.parse(spec).faults == expected


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("crash:3", "expected '@' and a round, found the end"),
        ("crash:9#50", "found '#50' at position 7"),
        ("crash:x@50", "expected a peer's number or 'server', found 'x@50' at position 6"),
        ("crash:servers@50", "found 's@50' at position 12"),
        ("crash:3@50+2s", "expected nothing more"),
        ("restart:server@5+1s", "expected a peer's number"),
        ("restart:3@50", "expected '+' and a duration"),
        ("hang:3@50+2", "expected a unit of time"),
        ("hang:3@50+2sec", "expected a unit of time"),
        ("slow:2*0.5", "would be faster"),
        ("slow:2", "expected '*' and a factor"),
        ("slow:2*4+30s", "expected '@' and a time"),
        ("sign_flip:5,5", "named twice"),
        ("sign_flip:5*-1", "strength -1"),
        ("nan:5*3", "expected nothing more"),
        ("stale:5*1.5", "whole number of rounds"),
        ("wrong_results:5*2", "expected nothing more, found '*2'"),
        ("wrong_result:5", "Did you mean 'wrong_results'?"),
        ("false_deaths:5", "unknown kind 'false_deaths'"),
        ("sign_flop:5", "Did you mean 'sign_flip'?"),
        ("crush:3@50", "Did you mean 'crash'?"),
        ("", "expected the kind of a fault"),
        ("3@50", "expected the kind of a fault"),
    ],
)
def test_a_bad_word_is_refused_with_the_place_and_what_was_expected(spec: str, says: str) -> None:
    with pytest.raises(BadFault) as caught:
        faults.parse(spec)
    assert says in str(caught.value)
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_an_unknown_kind_lists_the_most_similar_ones() -> None:
    with pytest.raises(BadFault, match="Did you mean 'delay'") as caught:
        faults.parse("dellay:3")
    listed = str(caught.value.hint).removeprefix("known: ").partition(" and ")[0].split(", ")
    assert listed[0] == "delay"
    assert len(listed) == 5
    others = sum(kind.real for kind in KINDS.values()) - 5
    assert str(caught.value.hint).endswith(f" and {others} more: docs/faults.md")


def test_a_peer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadFault, match="there is no peer 9") as caught:
        faults.parse("crash:9@50").checked(peers=8)
    assert "0 to 7" in str(caught.value.hint)
    faults.parse("crash:7@50").checked(peers=8)


def test_a_round_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadFault, match="there is no round 50"):
        faults.parse("crash:server@50").checked(peers=8, rounds=50)
    faults.parse("crash:server@49").checked(peers=8, rounds=50)


def test_a_peer_that_crashed_can_do_nothing_more() -> None:
    with pytest.raises(BadFault, match="dead since crash:3@50"):
        faults.parse(["hang:3@60+1s", "crash:3@50"]).checked(peers=8)
    faults.parse(["hang:3@40+1s", "crash:3@50"]).checked(peers=8)
    faults.parse(["restart:3@40+1s", "crash:3@50"]).checked(peers=8)


def test_a_peer_tells_one_kind_of_lie() -> None:
    with pytest.raises(BadFault, match="already has an attack"):
        faults.parse(["nan:3", "zero:3"]).checked(peers=8)


def test_who_lies_about_updates_may_lie_about_results_and_states_too_and_all_who_lie_are_counted():
    plan = faults.parse(
        ["sign_flip:3*10", "wrong_results:3,4", "kept_states:4,5", "kept_states:4"]
    ).checked(peers=8)
    assert plan.byzantine == {3, 4, 5}
    assert set(plan.attackers) == {3}
    assert plan.lies_of(4) == ("wrong_results", "kept_states")
    assert plan.lies_of(0) == ()


@pytest.mark.parametrize("lie", RESULT_ATTACKS)
def test_lies_of_servers_are_refused_where_nobody_serves(lie: str) -> None:
    plan = faults.parse(f"{lie}:3")
    with pytest.raises(BadFault, match="random-k rounds have no server") as caught:
        plan.fits("random-k", False, "median")
    assert "rolling" in str(caught.value.hint)
    assert plan.fits("rolling", True, "median") is plan
    about_states = faults.parse("wrong_states:3")
    assert about_states.fits("random-k", False, "median") is about_states


def test_each_peer_gets_its_own_faults_and_those_of_whoever_serves() -> None:
    plan = faults.parse(["crash:server@9", "hang:3@5+1s", "sign_flip:3,4*10"])
    assert plan.for_peer(3) == (
        Crash("server", 9),
        Hang(3, 5, 1.0),
        ByzantineFault("sign_flip", (3, 4), 10.0),
    )
    assert plan.for_peer(4) == (Crash("server", 9), ByzantineFault("sign_flip", (3, 4), 10.0))
    assert plan.for_peer(0) == (Crash("server", 9),)
    assert set(plan.byzantine) == {3, 4}


def test_an_attack_that_does_nothing_without_a_strength_is_refused() -> None:
    with pytest.raises(BadFault, match="has no effect if 2 of 8 attack") as caught:
        faults.parse("alie:5,6").checked(peers=8)
    assert "alie:5,6*1.5" in str(caught.value.hint)
    faults.parse("alie:5,6*1.5").checked(peers=8)
    faults.parse("alie:0-3").checked(peers=20)  # the paper's z is 0.16


ALL = [
    "crash:3@50",
    "crash:server@60",
    "restart:2@50+2s",
    "hang:1@50+500ms",
    "slow:2*4",
    "sign_flip:5,6*10",
    "nan:7",
]
ALL += ["two_results:7", "wrong_states:1,2"]


def test_a_plan_file_is_read(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "plan.toml"
    crash = '[[fault]]\nkind = "crash"\npeer = 3\nround = 50\n'
    path.write_text(crash + '[[fault]]\nkind = "sign-flip"\npeers = [5, 6]\nstrength = 10\n')
    assert faults.load(path) == FaultPlan((Crash(3, 50), ByzantineFault("sign_flip", (5, 6), 10.0)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[fault]]\nkind = "crash"\npeer = 3\nrond = 50\n', "Did you mean 'round'?"),
        ('[[fault]]\nkind = "crash"\npeer = 3\n', "crash needs 'round'"),
        ('[[fault]]\nkind = "crash"\npeer = "x"\nround = 5\n', "'x' is not a peer"),
        ('[[fault]]\nkind = "crash"\npeer = true\nround = 5\n', "True is not a peer"),
        ('[[fault]]\nkind = "crash"\npeer = 1\nround = -5\n', "-5 is not a round"),
        (
            '[[fault]]\nkind = "slow"\npeer = 1\nfactor = "much"\n',
            "factor = 'much' is not a number",
        ),
        ('[[fault]]\nkind = "zero"\npeers = []\n', "is not a list of peers"),
        ('[[fault]]\nkind = "zero"\npeers = [1]\nstrength = 3\n', "zero has no 'strength'"),
        ('[[fault]]\nkind = "crush"\n', "Did you mean 'crash'?"),
        ("[[fault]]\npeer = 3\n", "the kind is missing"),
        ("[[faults]]\n", "unknown key 'faults'"),
        ("fault = 3\n", "array of tables"),
        ("[[fault\n", "is not TOML"),
    ],
)
def test_a_bad_plan_file_is_refused_with_the_table_at_fault(text: str, says: str) -> None:
    with pytest.raises(BadFault) as caught:
        faults.from_toml(text, "plan.toml")
    assert says in str(caught.value)
    assert "plan.toml" in str(caught.value)


def test_a_plan_file_that_is_not_there_is_the_users_error(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadFault, match="cannot read the fault plan"):
        faults.load(tmp_path / "none.toml")


@dataclass(frozen=True, slots=True)
class Toy(Fault):
    """The clock of the peers stands still for a while."""

    peers: PeerList
    for_s: Duration


def test_a_new_kind_has_its_words_from_its_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "toy", Kind("toy", Toy, "{peers}*{for_s}", "5*2s", real=True))
    plan = faults.parse("toy:1-3*500ms")
    assert plan.faults == (Toy((1, 2, 3), 0.5),)
    assert str(plan.faults[0]) == "toy:1-3*500ms"
    assert faults.from_toml(plan.to_toml()) == plan
    assert plan.faults[0].victims == (1, 2, 3)
    with pytest.raises(BadFault, match=r"expected '\*' and a duration, found the end") as caught:
        faults.parse("toy:1")
    assert caught.value.hint == "toy:PEERS*DURATION, for example toy:5*2s"
    with pytest.raises(BadFault, match=r"toy has no 'for'\. Did you mean 'for_s'\?"):
        faults.from_toml('[[fault]]\nkind = "toy"\npeers = [1]\nfor = 1\n')


def test_every_attack_has_a_word_for_what_it_does() -> None:
    assert all(attack.does for attack in ATTACKS.values())


def test_reading_faults_needs_no_torch() -> None:
    code = (
        "import sys, gossip.faults.plan; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_lie_about_micro_batches_strikes_its_share_of_them_and_needs_stages() -> None:
    lie = NegatedActivations((2, 5), 0.1)
    struck = [lie.strikes(2, at, b) for at in range(1000) for b in range(10)]
    assert 900 < sum(struck) < 1100
    assert struck == [lie.strikes(2, at, b) for at in range(1000) for b in range(10)]
    assert struck != [lie.strikes(5, at, b) for at in range(1000) for b in range(10)]
    assert not any(lie.strikes(1, at, 0) for at in range(100))
    assert all(NegatedActivations((2,)).strikes(2, at, 0) for at in range(100))
    plan = FaultPlan((lie,))
    assert plan.fits_stages(stages=True, hint="") is plan
    assert (plan.byzantine, plan.attack_kinds(5)) == ({2, 5}, ("negated_activations",))
    with pytest.raises(BadFault, match="needs a pipeline"):
        plan.fits_stages(stages=False, hint="--plan plan.toml")
    with pytest.raises(BadFault, match="share of 2 is not from 0 to 1"):
        faults.parse("negated_activations:2*2")


def test_each_lie_about_micro_batches_is_about_one_kind_of_result() -> None:
    lies = (NegatedActivations((1,)), ScaledGradients((1,)), FalseAudits((2,)))
    said = [
        corrupt_pass_result(lies, about, (1, 0, 0), 3.0)
        for about in ("output", "gradient", "audit")
    ]
    assert said == [-3.0, 300.0, 3.0]
    assert corrupt_pass_result((NegatedGradients((1,)),), "gradient", (1, 0, 0), 3.0) == -3.0
