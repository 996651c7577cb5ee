from __future__ import annotations

import contextlib

from hypothesis import given, strategies as st

from gossip.aggregators.numbers import FRACTION
from gossip.errors import BadFault
from gossip.faults import plan as faults
from gossip.faults.declare import Fault
from gossip.faults.kinds import ATTACKS, ByzantineFault, Crash, Hang, Restart, Slow
from gossip.faults.plan import FaultPlan
from gossip.faults.world import REAL_ATTACKS, NodeAttack

peer = st.integers(0, 4095)
round_id = st.integers(0, 10**9)
seconds = st.integers(0, 10**7).map(lambda milliseconds: milliseconds / 1000)
strength = st.integers(1, 10**5).map(float)


def attacker(attack: str) -> st.SearchStrategy[Fault]:
    peers = st.lists(peer, min_size=1, max_size=5, unique=True).map(tuple)
    if not ATTACKS[attack].meaning:
        allowed: st.SearchStrategy[float | None] = st.just(1.0)
    elif ATTACKS[attack].allowed is FRACTION:
        allowed = strength.map(lambda whole: whole / 10**5)
    else:
        allowed = strength
    if ATTACKS[attack].strength is None and ATTACKS[attack].meaning:
        allowed |= st.none()
    return st.builds(ByzantineFault, st.just(attack), peers, allowed)


fault = st.one_of(
    st.builds(Crash, peer | st.just("server"), round_id),
    st.builds(Restart, peer, round_id, seconds),
    st.builds(Hang, peer, round_id, seconds),
    st.builds(Slow, peer, strength),
    *map(attacker, ATTACKS),
    st.builds(
        ByzantineFault,
        st.sampled_from(["my_attacks.py:mine", "a/b-c.py:mine2", "package.module:mine"]),
        st.lists(peer, min_size=1, max_size=5, unique=True).map(tuple),
        strength | st.none(),
    ),
    st.builds(
        NodeAttack,
        st.sampled_from(REAL_ATTACKS),
        st.lists(peer, min_size=1, max_size=5, unique=True).map(tuple),
    ),
)


@given(st.lists(fault, max_size=5))
def test_any_plan_survives_toml_and_words(plan_faults: list[Fault]) -> None:
    plan = FaultPlan(tuple(plan_faults))
    assert faults.from_toml(plan.to_toml()) == plan
    assert faults.parse([str(each) for each in plan]) == plan


@given(st.text(max_size=30))
def test_any_text_is_a_plan_or_a_bad_fault(text: str) -> None:
    with contextlib.suppress(BadFault):  # any other exception fails
        faults.parse(text)
