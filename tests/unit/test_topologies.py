"""Topologies by name, and what each of them promises."""

import random
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from gossip.errors import BadTopology, ConfigError, UnknownName
from gossip.testing.topologies import check_topology
from gossip.topologies import Plan, Roster, finding, load, names, topology
from gossip.topologies.random_k import default_k
from gossip.topologies.weights import lots, pull_of, read_weights, write_weights

EIGHT = Roster(tuple(range(8)), b"lineage1")

STAR = """
from gossip.topologies import Plan, topology

@topology
def star(roster, round_id, seed, *, hub=0, label="x"):
    leaves = tuple(p for p in roster if p != hub)
    return Plan(pushes={p: (hub,) if p != hub else leaves for p in roster})

def plain(roster, round_id, seed):
    return Plan(pushes={})
"""


@pytest.fixture
def star_file(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.py"
    path.write_text(STAR)
    return path


# --- by name --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("rolling", "rolling:shards=3", "random-k", "random_k:k=2", "ring", "full"),
        *("static-regular", "static_regular:k=2", "static_regular:k=5"),
        *("exponential", "exponential:static=true"),
    ],
)
def test_our_own_topologies_keep_their_promises(name: str) -> None:
    check_topology(load(name))


def test_names_are_sorted_and_loadable() -> None:
    assert list(names()) == sorted({*finding.BUILT_IN, *names()})
    assert [name for name in names() if load(name).rolling] == ["rolling"]


def test_hyphens_are_underscores() -> None:
    assert load("random-k:k=3").name == "random_k"
    assert load(" random-k ")(EIGHT, 3, 1) == load("random_k")(EIGHT, 3, 1)


def test_options_are_bound_and_may_still_be_overruled_in_a_call() -> None:
    bound = load("rolling:shards=2")
    assert len(bound(EIGHT, 0, 1).servers) == 2
    assert len(bound(EIGHT, 0, 1, shards=3).servers) == 3
    assert repr(bound) == "<topology rolling shards=2>"


def test_a_misspelt_name_suggests_its_neighbour() -> None:
    with pytest.raises(
        UnknownName, match=r"unknown topology 'rollin'\. Did you mean 'rolling'\?"
    ) as caught:
        load("rollin")
    assert caught.value.hint.startswith("known: rolling, ")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("random_k:kk=3", r"unknown option of topology random_k 'kk'\. Did you mean 'k'\?"),
        ("ring:k=3", "unknown option of topology ring 'k'"),
        ("random_k:k=many", "topology random_k: k='many' is not none or a whole number"),
        ("random_k:k=", "option 'k=' has no value"),
        ("random_k:k=3,4", "topology random_k: k='3,4' is not none or a whole number"),
        ("random_k:k=3,k=4", "topology random_k: option 'k' is given twice"),
        ("random_k:k=0", None),
        ("static_regular:k=1", "at least 2, not 1"),
        ("rolling:shards=0", None),
        ("nowhere.py:star", "there is no file .*nowhere.py to take star from"),
        ("no.such.module:star", "module no.such.module cannot be imported"),
        ("math:floor", "math:floor is a builtin_function_or_method, not a topology"),
    ],
)
def test_misuse_says_what_is_wrong(spec: str, message: str | None) -> None:
    if message is None:
        with pytest.raises(ConfigError, match="at least 1, not 0"):
            load(spec)(EIGHT, 0, 1)
    else:
        with pytest.raises(ConfigError, match=message):
            load(spec)(EIGHT, 0, 1)


def test_a_topology_of_ones_own_comes_from_a_file(star_file: Path) -> None:
    star = load(f"{star_file}:star:hub=2,label=7")
    assert (star.name, dict(star.bound)) == ("star", {"hub": 2, "label": "7"})
    assert star(EIGHT, 0, 1).sources(2) == (0, 1, 3, 4, 5, 6, 7)


def test_options_have_types_though_a_parameter_is_annotated_for_type_checkers_only(
    star_file: Path,
) -> None:
    star_file.write_text(
        "from __future__ import annotations\n"
        "from gossip.topologies import topology\n"
        "@topology\n"
        "def mine(roster: Roster, round_id, seed, *, p: float = 1, k: int | None = 3): ..."
    )
    assert dict(load(f"{star_file}:mine:p=0.5,k=none").bound) == {"p": 0.5, "k": None}


def test_a_file_that_is_loaded_twice_is_one_module_and_hides_no_other(
    star_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(star_file.parent)
    assert load("shapes.py:star").function is load(f"{star_file}:star").function


def test_a_function_that_is_no_topology_or_not_there_is_refused(star_file: Path) -> None:
    with pytest.raises(ConfigError, match="a function, not a topology"):
        load(f"{star_file}:plain")
    with pytest.raises(UnknownName, match="Did you mean 'star'"):
        load(f"{star_file}:stra")


def test_a_file_that_raises_can_be_loaded_once_it_is_mended(star_file: Path) -> None:
    star_file.write_text("1 / 0")
    with pytest.raises(ConfigError, match="cannot be loaded: ZeroDivisionError"):
        load(f"{star_file}:star")
    star_file.write_text(STAR)
    assert load(f"{star_file}:star").name == "star"


def test_a_topology_of_ones_own_comes_from_a_module(
    star_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    star_file.rename(star_file.with_name("shapes_of_a_test.py"))
    monkeypatch.syspath_prepend(star_file.parent)
    assert load("shapes_of_a_test:star:hub=1").bound == {"hub": 1}


def test_a_module_whose_own_import_fails_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shapes_that_fail.py").write_text("import a_module_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="No module named 'a_module_that_nobody_has'"):
        load("shapes_that_fail:star")


def test_an_installed_package_brings_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("double-ring", "gossip.topologies.rings:ring", finding.GROUP)
    monkeypatch.setattr(
        finding, "entry_points", lambda group: [point] if group == finding.GROUP else []
    )
    assert "double_ring" in names()
    assert load("double-ring").name == "ring"


# --- what each does -------------------------------------------------------------------------------


def test_rolling_keeps_its_order_when_somebody_leaves() -> None:
    rolling = load("rolling")
    whole = rolling(EIGHT, 5, 1).servers[0]
    without = rolling(Roster(tuple(p for p in range(8) if p != 3), b"lineage1"), 5, 1).servers[0]
    assert without == tuple(peer for peer in whole if peer != 3)


def test_rolling_orders_differ_by_round_shard_seed_and_lineage() -> None:
    rolling = load("rolling:shards=2")
    first, second = rolling(EIGHT, 5, 1).servers
    others = [
        rolling(EIGHT, 6, 1),
        rolling(EIGHT, 5, 2),
        rolling(Roster(EIGHT.peers, b"lineage2"), 5, 1),
    ]
    assert len({first, second, *(plan.servers[0] for plan in others)}) == 5


SHARED_OUT = [
    ("0:4,1:4,2:4", (4, 4, 4, 1)),
    ("0:3,1:2", (3, 2, 1, 1)),
    ("0:10,1:10", (10, 10, 1, 1)),
    ("0:10", (3, 1, 1, 1)),  # no more than all others together
    ("0:4,1:4,2:4,3:4", (1, 1, 1, 1)),
    ("9:4", (1, 1, 1, 1)),  # nobody of that id is here
]


@pytest.mark.parametrize(("weights", "parts"), SHARED_OUT)
def test_rolling_lets_each_serve_by_its_weight(weights: str, parts: tuple[int, ...]) -> None:
    """Also whoever stands in when the first one fails: so the second places are compared as well,
    given the first."""
    rolling, rounds, four = (
        load(f"rolling:weights={weights}"),
        4000,
        Roster((0, 1, 2, 3), b"lineage1"),
    )
    orders = [rolling(four, round_id, 1).servers[0] for round_id in range(rounds)]
    for peer, part in enumerate(parts):
        expected = rounds * part / sum(parts)
        assert abs(sum(order[0] == peer for order in orders) - expected) < 5 * expected**0.5
    behind = [order[1] for order in orders if order[0] == 3]
    for peer, part in enumerate(parts[:3]):
        expected = len(behind) * part / sum(parts[:3])
        assert abs(behind.count(peer) - expected) < 5 * expected**0.5


def test_the_bounds_of_weights_are_those_that_are_promised() -> None:
    assert lots("0:10", (0, 1, 2, 3)) == (3, 1, 1, 1)
    assert lots("0:10", (0, 1)) == lots("0:10", (0,)) * 2 == (1, 1)
    assert lots("0:8,1:4", (0, 1, 7)) == (5, 4, 1)
    assert lots("0:8,1:4", (0, 1)) == (1, 1)


@pytest.mark.parametrize(
    "weights", ["0:11", "0:0", "0:4,0:2", "0", "a:1", "0:1.5", "0:4;1:2", "0:-1", "0:4,", "0:٣"]
)
def test_weights_that_cannot_be_are_refused(weights: str) -> None:
    with pytest.raises(ConfigError, match="weights of servers: "):
        load(f"rolling:weights={weights}")(EIGHT, 0, 1)


def test_weights_are_told_by_who_serves_alone() -> None:
    assert read_weights(" 3:2, 0 : 4,1:1 ") == {0: 4, 3: 2}
    assert read_weights("") == read_weights("0:1,1:1") == {}
    assert write_weights({3: 2, 0: 4, 1: 1}) == "0:4,3:2"
    with pytest.raises(ConfigError, match="unknown option of topology random_k 'weights'"):
        load("random-k:weights=0:4")


def test_weighted_rolling_keeps_its_order_when_somebody_leaves() -> None:
    rolling = load("rolling:weights=0:4,3:2,5:4")
    for round_id in range(50):
        whole = rolling(EIGHT, round_id, 1).servers[0]
        without = rolling(
            Roster(tuple(p for p in range(8) if p != 3), b"lineage1"), round_id, 1
        ).servers[0]
        assert without == tuple(peer for peer in whole if peer != 3)


def test_random_k_pushes_to_the_logarithm_by_default_and_never_to_more_than_there_are() -> None:
    assert [default_k(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17)] == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert {len(targets) for targets in (load("random_k")(EIGHT, 0, 1).pushes or {}).values()} == {
        3
    }
    assert {
        len(targets) for targets in (load("random_k:k=99")(EIGHT, 0, 1).pushes or {}).values()
    } == {7}


def test_random_k_is_drawn_afresh_every_round() -> None:
    plans = [load("random_k")(EIGHT, round_id, 1).sources(0) for round_id in range(50)]
    assert len(set(plans)) > 20


def test_random_k_is_no_fixed_pattern_by_number() -> None:
    pushes = load("random_k")(EIGHT, 0, 1).pushes or {}
    offsets = {
        tuple(sorted((target - peer) % 8 for target in targets)) for peer, targets in pushes.items()
    }
    assert len(offsets) > 1


def test_a_ring_of_two_is_one_push_each() -> None:
    assert load("ring")(Roster((4, 9)), 0, 1).pushes == {4: (9,), 9: (4,)}
    assert load("ring")(Roster((4,)), 0, 1).pushes == {4: ()}
    assert load("ring")(Roster((1, 5, 7, 9)), 0, 1).sources(1) == (5, 9)


@pytest.mark.parametrize(
    ("n", "k", "degree"), [(12, 3, 3), (12, 11, 11), (12, 50, 11), (9, 4, 4), (9, 3, 4), (2, 5, 1)]
)
def test_static_regular_gives_each_peer_k_neighbours(n: int, k: int, degree: int) -> None:
    regular, roster = load(f"static_regular:k={k}"), Roster(tuple(range(5, 5 + n)))
    plan = regular(roster, 0, 1)
    assert plan == regular(roster, 77, 1)
    assert {len(targets) for targets in (plan.pushes or {}).values()} == {degree}
    assert all(plan.sources(peer) == (plan.pushes or {})[peer] for peer in roster)


def test_static_regular_is_another_graph_for_another_seed_and_has_no_pattern() -> None:
    roster = Roster(tuple(range(64)))
    plans = [load("static_regular:k=7")(roster, 0, seed).pushes or {} for seed in (1, 2)]
    assert plans[0] != plans[1]
    ring = {frozenset((peer, (peer + hop) % 64)) for peer in range(64) for hop in (1, 2, 3, 32)}
    edges = {frozenset((peer, other)) for peer, found in plans[0].items() for other in found}
    assert len(edges & ring) < len(edges) / 3


def test_exponential_meets_every_power_of_two_once_in_a_cycle() -> None:
    ten = Roster(tuple(range(10)))
    for cycle in range(20):
        hops = [
            ((load("exponential")(ten, 4 * cycle + at, 1).pushes or {})[3][0] - 3) % 10
            for at in range(4)
        ]
        assert sorted(hops) == [1, 2, 4, 8]
    every_fourth = {(load("exponential")(ten, 4 * at + 3, 1).pushes or {})[3] for at in range(20)}
    assert len(every_fourth) == 4, "rounds that mix every fourth time would meet one peer only"
    assert (load("exponential:static=true")(ten, 0, 1).pushes or {})[3] == (1, 4, 5, 7)


# --- the kit tells --------------------------------------------------------------------------------


def everybody_else(roster: Roster, peer: int) -> tuple[int, ...]:
    return tuple(other for other in roster if other != peer)


def unpure(roster: Roster, round_id: int, seed: int) -> Plan:
    return Plan(
        pushes={
            p: tuple(random.sample(everybody_else(roster, p), min(2, len(roster) - 1)))
            for p in roster
        }
    )


def by_place(roster: Roster, round_id: int, seed: int) -> Plan:
    ring = list(roster.peers)
    return Plan(
        pushes={
            p: (ring[(at + 1) % len(ring)],) if len(ring) > 1 else () for at, p in enumerate(ring)
        }
    )


def silent(roster: Roster, round_id: int, seed: int) -> Plan:
    return Plan(pushes={p: everybody_else(roster, p) for p in roster if p != 2})


def two_halves(roster: Roster, round_id: int, seed: int) -> Plan:
    return Plan(
        pushes={p: tuple(q for q in everybody_else(roster, p) if q % 2 == p % 2) for p in roster}
    )


def star(roster: Roster, round_id: int, seed: int) -> Plan:
    hub = min(roster.peers)
    return Plan(pushes={p: everybody_else(roster, p) if p == hub else (hub,) for p in roster})


def to_itself(roster: Roster, round_id: int, seed: int) -> Plan:
    return Plan(pushes={p: (p,) for p in roster})


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (unpure, "must be a pure function"),
        (by_place, "must be a pure function"),
        (silent, r"has no entry for \[2\]"),
        (two_halves, "never lets peer 0 receive from"),
        (star, "is unfair: peer 0"),
        (to_itself, "cannot push to"),
    ],
)
def test_the_kit_names_the_broken_promise(function: object, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_topology(topology(function))  # type: ignore[call-overload]


def test_the_kit_allows_weights_when_it_is_told_and_finds_them_otherwise() -> None:
    check_topology(load("rolling:weights=0:4,2:10"), balanced=False)
    with pytest.raises(AssertionError, match="is unfair: peer 1 of 3 serves"):
        check_topology(load("rolling:weights=0:4,2:10"))


def test_the_kit_allows_a_star_when_it_is_told() -> None:
    check_topology(topology(star), balanced=False)


def test_a_rolling_topology_without_shards_is_refused_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from gossip.topologies import Plan, topology\n"
        "@topology(rolling=True)\n"
        "def first(roster, round_id, seed):\n"
        "    return Plan(servers=(tuple(roster),))\n"
    )
    with pytest.raises(BadTopology, match="first has no option shards") as refused:
        load(f"{tmp_path}/mine.py:first")
    assert str(refused.value.hint).startswith("add shards: int = 1 to its parameters")


def test_the_kit_wants_every_peer_able_to_serve() -> None:
    def one_server(roster: Roster, round_id: int, seed: int, *, shards: int = 1) -> Plan:
        return Plan(servers=((min(roster.peers),),) * shards)

    with pytest.raises(AssertionError, match=r"leaves out \[1\] as servers"):
        check_topology(topology(rolling=True)(one_server))
    with pytest.raises(AssertionError, match="not declared rolling"):
        check_topology(topology(one_server))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(servers=((0,),), pushes={0: ()}),
        Plan(servers=((0, 0),)),
        Plan(servers=((9,),)),
        Plan(servers=((),)),
        Plan(pushes={9: ()}),
        Plan(pushes={0: (9,)}),
        Plan(pushes={0: (1, 1)}),
        Plan(pushes={0: (0,)}),
    ],
)
def test_what_is_no_plan_is_refused(plan: Plan) -> None:
    with pytest.raises(BadTopology, match="topology odd"):
        topology(name="odd")(lambda roster, round_id, seed: plan)(EIGHT, 0, 1)


@pytest.mark.parametrize("found", [[(0, 1)], None, Plan(pushes=[(0, 1)])])  # type: ignore[arg-type]
def test_another_type_than_a_plan_is_refused(found: Any) -> None:
    with pytest.raises(BadTopology, match=r"returned a (list|NoneType), not a plan") as refused:
        topology(name="odd")(lambda roster, round_id, seed: found)(EIGHT, 0, 1)
    assert "Plan(pushes=" in str(refused.value.hint)


def test_metropolis_weights_need_pushes_in_both_directions() -> None:
    one_way = Plan(pushes={0: (1, 2), 1: (0,), 2: ()}, metropolis=True)
    with pytest.raises(BadTopology, match="both directions, and peer 2 does not push to 0"):
        topology(name="odd")(lambda roster, round_id, seed: one_way)(EIGHT, 0, 1)


def test_metropolis_weights_are_those_of_the_larger_degree() -> None:
    pushes = {0: (1, 2, 3), 1: (0,), 2: (0, 3), 3: (0, 2)}
    plan = Plan(pushes=pushes, metropolis=True)
    for receiver, senders in pushes.items():
        for sender in senders:
            weight = pull_of(plan, receiver, sender) / (1 + len(senders))
            assert weight == 1 / (1 + max(len(senders), len(pushes[sender])))
    assert pull_of(Plan(pushes=pushes), 1, 0) == 1.0
