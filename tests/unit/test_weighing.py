"""Weights of servers: from what hosts carry, from the settings; and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from node_fakes import FakeCore, NodeRig

from gossip.config import Resolved, RunConfig, resolve
from gossip.errors import ConfigError
from gossip.launch.local import Program
from gossip.launch.ssh.agent_program import AgentProgram
from gossip.launch.ssh.command import in_words
from gossip.launch.ssh.hostcheck import HostReport
from gossip.launch.ssh.hostlist import parse_list
from gossip.launch.ssh.weighing import by_bandwidth, describe_weights, speeds, weights_of
from gossip.run import fitting
from gossip.topologies import load
from gossip.topologies.weights import lots

FAR = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
ABC = parse_list("a:2,b,c")


def access(
    up: Mapping[str, float], down: Mapping[str, float] | None = None
) -> dict[tuple[str, str], float]:
    """Between hosts of which each has a link of its own: a way is as slow as the slower end."""
    return {(a, b): min(up[a], (down or up)[b]) for a in up for b in up if a != b}


def weighed(
    measured: Mapping[tuple[str, str], float], resolved: Resolved | None = None, **other: Any
) -> tuple[Resolved, list[str]]:
    report = HostReport()
    found = by_bandwidth(
        resolved or resolve({"peers": 4}), ABC, other.get("addresses", FAR), measured, report
    )
    return found, report.as_text()


def test_a_slow_host_is_told_from_those_that_are_slow_to_it() -> None:
    assert speeds(list("abc"), access({"a": 940, "b": 930, "c": 210})) == {
        "a": 930,
        "b": 930,
        "c": 210,
    }
    most_are_slow = access({"a": 900, "b": 900, "c": 100, "d": 90, "e": 80})
    assert speeds(list("abcde"), most_are_slow) == {"a": 900, "b": 900, "c": 100, "d": 90, "e": 80}


def test_the_slower_direction_counts() -> None:
    up, down = {"a": 900.0, "b": 900.0, "c": 40.0}, {"a": 900.0, "b": 900.0, "c": 600.0}
    assert speeds(list("abc"), access(up, down))["c"] == 40
    assert speeds(list("abc"), access(down, up))["c"] == 40


def test_who_was_not_measured_both_ways_leaves_all_alike() -> None:
    for unknown in ((("c", "a"), ("c", "b")), (("a", "c"), ("b", "c"))):
        measured = {
            way: rate
            for way, rate in access({"a": 900, "b": 900, "c": 100}).items()
            if way not in unknown
        }
        assert speeds(list("abc"), measured) == {}
        assert weighed(measured)[0].config.server_weights == ""
    assert speeds(["a"], {}) == {}


@pytest.mark.parametrize(
    ("carried", "weights"),
    [
        ((940, 930, 470), {}),  # not more than twice as fast
        ((940, 930, 450), (2, 2, 1)),
        ((940, 700, 210), (4, 4, 1)),
        ((940, 400, 210), (4, 2, 1)),
        ((10_000, 9_000, 10), (8, 8, 1)),  # no less than an eighth
        ((10_000, 1_000, 10), (8, 1, 1)),
        ((1, 1, 1), {}),
    ],
)
def test_weights_are_powers_of_two_and_none_where_hosts_are_much_alike(
    carried: tuple[float, ...], weights: Any
) -> None:
    assert weights_of(dict(zip("abc", carried, strict=True))) == (
        dict(zip("abc", weights, strict=True)) if weights else {}
    )


def test_noise_changes_no_weights() -> None:
    for noise in (0.8, 0.9, 1.1, 1.2):
        assert weights_of({"a": 900 * noise, "b": 900, "c": 220}) == {"a": 4, "b": 4, "c": 1}


def test_a_slow_host_serves_less_often_and_the_report_says_so() -> None:
    found, lines = weighed(access({"a": 940, "b": 900, "c": 210}))
    assert found.config.server_weights == "0:4,1:4,2:4", "each peer has the weight of its host"
    assert found.sources["server_weights"] == "the speeds of the hosts"
    assert lines == [
        "ok    servers  each peer of a, b serves 4 times as often as each of c (900 / 210 Mbit/s)"
    ]
    fitting.check(found.config)


def test_the_line_names_every_step_and_not_a_hundred_hosts() -> None:
    carried = {"a": 940.0, "b": 400.0, "c": 210.0}
    assert describe_weights(weights_of(carried), carried) == (
        "each peer of a serves 4 times as often as each of c, of b 2 times (940 / 400 / 210 Mbit/s)"
    )
    many = {f"h{number}": 900.0 for number in range(9)} | {"slow": 100.0}
    assert describe_weights(weights_of(many), many).startswith(
        "each peer of h0, h1, h2, h3 and 5 more serves 8 times as often as each of slow ("
    )


def test_what_is_told_is_what_counts_where_nobody_may_serve_more_than_half() -> None:
    measured: dict[tuple[str, str], float] = {
        **access(dict.fromkeys("abc", 100.0)),
        ("a", "b"): 900.0,
        ("c", "a"): 900.0,
    }
    report = HostReport()
    found = by_bandwidth(resolve({"peers": 3}), parse_list("a,b,c"), FAR, measured, report)
    assert found.config.server_weights == "0:2"
    assert report.as_text() == [
        "ok    servers  each peer of a serves 2 times as often as each of b, c (900 / 100 Mbit/s)"
    ]
    assert lots(found.config.server_weights, (0, 1, 2)) == (2, 1, 1)


def test_a_slow_host_with_half_of_the_peers_is_not_spared_as_it_carries_as_much_whoever_serves():
    report = HostReport()
    found = by_bandwidth(
        resolve({"peers": 4}),
        parse_list("a,b:2,c"),
        FAR,
        access({"a": 900, "b": 100, "c": 900}),
        report,
    )
    assert found.config.server_weights == ""
    assert report.as_text() == [
        (
            "ok    servers  b, with 100 of 900 Mbit/s, has 2 of 4 peers: equal load for "
            "any choice of server"
        )
    ]
    rates = {"a": 900.0, "b": 100.0, "c": 100.0, "d": 900.0}
    found = by_bandwidth(
        resolve({"peers": 6}),
        parse_list("a,b:3,c,d"),
        {**FAR, "d": "10.0.0.4"},
        access(rates),
        report,
    )
    assert found.config.server_weights == "0:8,1:8,2:8,3:8,5:8"


@pytest.mark.parametrize(
    "flags",
    [{"server_weights": "0:2"}, {"server_weights": "0:1"}, {"topology": "rolling:weights=0:2"}],
    ids=str,
)
def test_what_the_user_says_is_not_measured_over(flags: dict[str, Any]) -> None:
    given = resolve({"peers": 4, **flags})
    found, lines = weighed(access({"a": 940, "b": 900, "c": 210}), given)
    assert found == given
    assert lines == []


def test_hosts_that_are_one_machine_are_alike() -> None:
    near = dict.fromkeys("abc", "127.0.0.1")
    assert weighed(access({"a": 940, "b": 900, "c": 210}), addresses=near) == (
        resolve({"peers": 4}),
        [],
    )


def test_where_nobody_serves_the_slow_host_is_named_and_nothing_is_changed() -> None:
    given = resolve({"peers": 4, "topology": "random-k"})
    found, lines = weighed(access({"a": 940, "b": 900, "c": 210}), given)
    assert found == given
    assert lines == [
        (
            "ok    servers  random-k has no servers: c, with 210 of 900 Mbit/s, has as much "
            "load as the others"
        )
    ]


# --- what the user says ---------------------------------------------------------------------------


def test_weights_are_shown_before_anything_starts() -> None:
    given = resolve({"peers": 4, "server_weights": "0:4,1:4"})
    settled = given.with_values("x", run_dir="runs/x", f=0).config
    told = "\n".join(in_words(settled, AgentProgram(parse_list("a:2,b:2"), Program("train.py"))))
    assert "serve   0:4,1:4, others 1" in told


def test_settings_hold_weights_in_one_way_of_writing_them() -> None:
    """Tasks of a scheduler compare theirs with those of the run."""
    assert resolve({"server_weights": " 2:4, 0:2 ,1:1"}).config.server_weights == "0:2,2:4"
    spec = resolve(
        {"server_weights": "0:4", "topology": "rolling:shards=2"}
    ).config.weighted_topology
    assert spec == "rolling:shards=2,weights=0:4"
    assert load(spec).bound == {"shards": 2, "weights": "0:4"}
    assert RunConfig().weighted_topology == "rolling"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"server_weights": "0:11"}, "a weight must be 1 to 10"),
        ({"server_weights": "a:4"}, "is not peer:weight"),
        ({"server_weights": "0:4,4:2"}, "there is no peer 4 of 4"),
        (
            {"topology": "rolling:weights=7:2"},
            "topology rolling:weights=7:2: weights = '7:2': there is no peer 7 of 4",
        ),
        ({"server_weights": "0:4", "topology": "random-k"}, "random-k rounds have no server"),
        ({"server_weights": "0:4", "topology": "rolling:weights=1:2"}, "'weights' is given twice"),
    ],
)
def test_weights_that_mean_nothing_are_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        fitting.check(resolve({"peers": 4, **flags}).config)


def test_those_who_join_may_have_a_weight() -> None:
    fitting.check(resolve({"peers": 4, "room": 6, "server_weights": "5:2"}).config)


def test_a_topology_of_ones_own_may_take_weights(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from gossip.topologies import Plan, topology\n"
        "@topology(rolling=True)\n"
        "def heavy(roster, round_id, seed, *, weights='', shards=1):\n"
        "    return Plan(servers=(tuple(roster),) * shards)\n"
        "@topology(rolling=True)\n"
        "def plain(roster, round_id, seed, *, shards=1):\n"
        "    return Plan(servers=(tuple(roster),) * shards)\n"
    )
    fitting.check(
        resolve({"server_weights": "0:2", "topology": f"{tmp_path}/mine.py:heavy"}).config
    )
    with pytest.raises(ConfigError, match="unknown option of topology plain 'weights'"):
        fitting.check(
            resolve({"server_weights": "0:2", "topology": f"{tmp_path}/mine.py:plain"}).config
        )


def test_a_node_serves_by_the_weights_of_its_run() -> None:
    with NodeRig(FakeCore(), server_weights="0:4") as stage:
        stage.prepare()
        topology = stage.made_of[2]
    assert topology.bound == {"weights": "0:4"}
