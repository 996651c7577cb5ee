"""``gossip ray`` as far as it needs no Ray: what is refused, and what its register knows."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from gossip.config import resolve
from gossip.errors import ConfigError
from gossip.launch.cli import commands as cli
from gossip.launch.schedulers import ray_command as on_ray
from gossip.launch.schedulers.ray_peer import RayRegistry, newer
from gossip.run.rendezvous import Seed, read_seed, write_seed


def seed(peer: int, incarnation: int = 0, ended: bool = False) -> Seed:
    return Seed(
        peer,
        "" if ended else f"tcp://h:{peer}{incarnation}",
        "" if ended else "tcp://h:9",
        incarnation,
        ended,
        "" if ended else "k" * 40,
    )


def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(sys, "argv", ["gossip", "ray", "-n", "2", "train.py"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "pip install 'gossip-train[ray]'" in capsys.readouterr().err


def test_the_number_of_actors_is_the_number_of_peers() -> None:
    resolved = on_ray._with_peers(resolve({"rounds": 9}), 8)
    assert (resolved.config.peers, resolved.config.rounds, resolved.sources["rounds"]) == (
        8,
        9,
        "flag",
    )
    with pytest.raises(ConfigError, match=r"-n 8, but 4 peers \(flag\)"):
        on_ray._with_peers(resolve({"peers": 4}), 8)


def test_of_two_seeds_the_later_life_counts_and_its_end_more() -> None:
    assert newer(seed(1), None)
    assert newer(seed(1, 1), seed(1, 0, ended=True))
    assert newer(seed(1, 1, ended=True), seed(1, 1))
    assert not newer(seed(1, 1), seed(1, 1))
    assert not newer(seed(1, 0, ended=True), seed(1, 1))


def test_a_register_tells_each_what_all_know() -> None:
    register = RayRegistry()
    assert register.exchange(0, [asdict(seed(0))]) == ([asdict(seed(0))], False)
    known, stop = register.exchange(1, [asdict(seed(1)), asdict(seed(0, 0))])
    assert [fields["peer"] for fields in known] == [0, 1]
    assert not stop
    register.stop()
    assert register.exchange(1, [])[1]
    assert register.find_active_peers(60.0) == [0, 1]
    assert register.find_active_peers(-1.0) == []


def test_every_life_has_an_incarnation_of_its_own() -> None:
    register = RayRegistry()
    assert [register.begin(2), register.begin(2)] == [0, 1], (
        "one that died before anybody knew where it was"
    )
    register.exchange(0, [asdict(seed(2, 5)), asdict(seed(0))])
    assert register.begin(2) == 6
    fresh = RayRegistry()  # Ray has started it again: it knows what it is told
    fresh.exchange(0, [asdict(seed(2, 6)), asdict(seed(0))])
    assert fresh.begin(2) == 7


def test_who_comes_back_when_all_others_have_ended_comes_too_late() -> None:
    register = RayRegistry()
    register.exchange(0, [asdict(seed(0, 0, ended=True)), asdict(seed(1)), asdict(seed(2))])
    assert register.begin(2) == 1
    register.exchange(1, [asdict(seed(1, 0, ended=True))])
    assert register.begin(2) is None


def test_seeds_keep_their_keys_on_the_way(tmp_path: Path) -> None:
    register = RayRegistry()
    register.exchange(0, [asdict(seed(0))])
    (fields,), _ = register.exchange(1, [])
    write_seed(tmp_path, Seed(**fields))
    assert read_seed(tmp_path, 0) == seed(0)
