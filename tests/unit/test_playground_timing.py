"""Times of a world: of computing, and of links."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossip.errors import ConfigError
from gossip_lab.playground import World
from gossip_lab.playground.timing import (
    JITTER,
    PRESETS,
    LinkTimes,
    read_compute,
    read_duration,
    read_links,
)
from gossip_pipelines.planning import CostLine, LayerProfile, PeerProfile, write_profile

PEERS = np.arange(2000)


def write_peer(folder: Path, name: str, each_s: float, links: dict[str, CostLine]) -> Path:
    layer = LayerProfile(
        "linear", "0" * 16, 400, 40.0, 40.0, CostLine(0.01, each_s), CostLine(0.02, 2 * each_s)
    )
    path = folder / f"{name}.toml"
    path.write_text(write_profile(PeerProfile(name, 2**30, (2, 16), (layer, layer), links)))
    return path


# --- of computing ---------------------------------------------------------------------------------


def test_durations_have_units() -> None:
    found = [read_duration(text) for text in ("0.5", "500ms", "2s", "10m", "2h")]
    assert found == [0.5, 0.5, 2, 600, 7200]


def test_constant_and_uniform_times_are_within_their_bounds() -> None:
    assert (read_compute("constant:50ms", 0)(PEERS, 3) == 0.05).all()
    drawn = read_compute("uniform:40ms:0.06", 0)(PEERS, 3)
    assert 0.04 <= drawn.min() < 0.041
    assert 0.059 < drawn.max() <= 0.06


def test_lognormal_peers_keep_their_factor_and_vary_a_little() -> None:
    compute = read_compute("lognormal:0.3:100ms", 1)
    logs = np.log([compute(PEERS, round_id) / 0.1 for round_id in range(30)])
    assert logs.mean(axis=0).std() == pytest.approx(0.3, rel=0.05)
    assert logs.std(axis=0).mean() == pytest.approx(JITTER, rel=0.05)
    assert np.median(logs) == pytest.approx(0, abs=0.02)
    assert read_compute("lognormal:0.3", 1)(PEERS, 0) == pytest.approx(compute(PEERS, 0) / 2)


@pytest.mark.parametrize("spec", ["uniform:0.1:0.2", "lognormal:0.5", "constant:1"])
def test_times_of_a_peer_do_not_depend_on_who_else_is_drawn(spec: str) -> None:
    compute = read_compute(spec, 7)
    assert compute(PEERS, 5)[[3, 9]].tolist() == compute(np.array([3, 9]), 5).tolist()


def test_measured_times_are_drawn_from_those_of_one_peer_each(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("peer,seconds\n4,1.5\n0, 0.1\n0,0.2\n\n0,0.3\n")
    compute = read_compute(f"measured:{path}", 0)
    found = np.array([compute(PEERS, round_id) for round_id in range(5)])
    assert set(found[:, 0::2].ravel()) == {0.1, 0.2, 0.3}
    assert (found[:, 1::2] == 1.5).all()
    assert found[:, 0::2].mean() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("peer,s\n0,1\n", "line 1: the columns are not peer,seconds"),
        ("peer,seconds\n0,1\n0,x\n", "line 3: '0,x' is not a peer and a time"),
        ("peer,seconds\n0,0\n", "line 2: '0,0'"),
        ("peer,seconds\n0,1,2\n", "line 2: '0,1,2'"),
        ("peer,seconds\n-1,2\n", "line 2: '-1,2'"),
        ("peer,seconds\n", "has no times"),
    ],
)
def test_an_invalid_line_of_times_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_compute(f"measured:{path}", 0)


def test_a_profile_of_gossip_plan_gives_the_time_of_a_batch(tmp_path: Path) -> None:
    fast, slow = (
        write_peer(tmp_path, name, each, {}) for name, each in (("a", 0.001), ("b", 0.01))
    )
    compute = read_compute(f"measured:{fast}, {slow}", 0, batch=16, local_steps=3)
    expected = [3 * 2 * (0.03 + 16 * 3 * each) for each in (0.001, 0.01)]
    assert compute(np.arange(4), 9) == pytest.approx(expected * 2)
    parts = World(peers=2, batch=8, local_steps=2, compute=f"measured:{fast}").build()
    assert parts.compute(np.arange(2), 0) == pytest.approx([2 * 2 * (0.03 + 8 * 0.003)] * 2)


@pytest.mark.parametrize(
    "spec",
    [
        *("constant", "constant:0", "constant:5x", "uniform:2:1", "uniform:1", "lognormal"),
        *("lognormal:1s", "lognormal:-1", "lognormal:1:2:3", "gamma:1", "measured", ""),
    ],
)
def test_other_times_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="there are no compute times"):
        read_compute(spec, 0)


def test_files_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read nowhere\.csv"):
        read_compute("measured:nowhere.csv", 0)
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.toml"):
        read_compute("measured:nowhere.toml", 0)


# --- of links -------------------------------------------------------------------------------------


def test_links_are_presets_or_in_words_or_both() -> None:
    assert read_links("wan") is PRESETS["wan"]
    assert read_links("delay:20ms-50ms,bytes:12.5MB") == PRESETS["wan"]
    assert read_links("delay:5ms") == LinkTimes((0.005, 0.005))
    assert read_links("mobile, uplink:8Mbit") == LinkTimes((0.035, 0.035), 1.5e6, 1e6)
    assert read_links("lan,delay:1ms,bytes:1Gbit") == LinkTimes((0.001, 0.001), 125e6)


@pytest.mark.parametrize(
    "spec",
    [
        *("wa", "", "wan,bytes:0", "wan,bytes:x", "delay:50ms-20ms", "delay:1ms,speed:1MB"),
        *("bytes:1MB", "delay:x", "delay:1ms,bytes:1TB", "wan,", "delay:1ms,bytes:"),
    ],
)
def test_other_links_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="links"):
        read_links(spec)


def test_a_payload_takes_its_time_on_the_link_and_on_the_shared_uplink() -> None:
    assert LinkTimes((0, 0)).transfer_s(1e6, 9) == 0
    assert LinkTimes((0, 0), 1e6).transfer_s(2e6, 9) == 2
    shared = LinkTimes((0, 0), 1e6, 4e6)
    assert [shared.transfer_s(2e6, receivers) for receivers in (1, 4, 8)] == [2, 2, 4]
    assert LinkTimes((0, 0), None, 1e6).transfer_s(1e6, 3) == 3


def test_measured_links_of_gossip_plan_are_summed_up(tmp_path: Path) -> None:
    a = write_peer(tmp_path, "a", 0.1, {"b": CostLine(0.001, 1e-6), "c": CostLine(0.004, 4e-6)})
    b = write_peer(tmp_path, "b", 0.1, {"c": CostLine(0.002, 2e-6)})
    assert read_links(f"measured:{a},{b}") == LinkTimes((0.001, 0.004), 5e5)
    alone = write_peer(tmp_path, "d", 0.1, {})
    with pytest.raises(ConfigError, match="has no measured links"):
        read_links(f"measured:{alone}")


@pytest.mark.parametrize("topology", ["rolling", "random-k:k=3"])
def test_a_shared_uplink_makes_rounds_longer_and_changes_nothing_else(topology: str) -> None:
    world = World(peers=6, model="linear", compute="constant:0.05", topology=topology)
    free, shared = (
        world.replace(links=f"delay:1ms,bytes:1MB{more}").play(2, every=2)
        for more in ("", ",uplink:100kB")
    )
    assert free.curve("loss", by="bytes") == shared.curve("loss", by="bytes")
    nbytes = 4 * (64 + 1) * 10
    counts = (1, 5) if topology == "rolling" else (3,)  # of the receivers of each transfer
    longer_s = 2 * sum(count * nbytes / 1e5 - nbytes / 1e6 for count in counts)
    assert shared.rows[-1].virtual_s - free.rows[-1].virtual_s == pytest.approx(longer_s, rel=0.05)


def test_the_exact_engine_refuses_a_shared_uplink_by_name() -> None:
    with pytest.raises(ConfigError, match="shared uplink"):
        World(links="wan,uplink:1MB", engine="exact").play(1)
