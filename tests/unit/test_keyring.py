"""Seed files are the list of who is let in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from node_fakes import FakeCore, NodeRig

from gossip.errors import ConfigError
from gossip.run.keyring import ALLOWED_S, LOOK_S, Keyring, allow_list, own_pair
from gossip.run.keys import make_pair
from gossip.run.rendezvous import SeedFolder, announce_end
from gossip.transport.curve import new_pair

ONE, OTHER = new_pair(), new_pair()


class ManualClock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 2 * LOOK_S
        return self.now


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(OTHER, SeedFolder(tmp_path, 1, 4), clock=ManualClock())


def announce(tmp_path: Path, key: str, peer: int = 0, incarnation: int = 0) -> None:
    SeedFolder(tmp_path, peer, 4).announce("tcp://a:1", "tcp://a:2", incarnation, key)


def test_a_seed_file_lets_its_peer_in(ring: Keyring, tmp_path: Path):
    assert ring.peer_of(ONE.public) is None
    announce(tmp_path, ONE.public)
    before = ring.version
    ring.refresh()
    assert ring.version != before
    assert (ring.peer_of(ONE.public), ring.key_of(0)) == (0, ONE.public)
    assert (ring.peer_of(OTHER.public), ring.key_of(1)) == (None, None)


def test_who_names_anothers_key_as_its_own_neither_speaks_for_it_nor_silences_it(
    ring: Keyring, tmp_path: Path
):
    announce(tmp_path, ONE.public)
    ring.refresh()
    assert ring.peer_of(ONE.public) == 0
    for attacker in (2, 3):
        announce(tmp_path, ONE.public, peer=attacker)
    ring.refresh()
    assert ring.peer_of(ONE.public) == 0
    late = Keyring(OTHER, SeedFolder(tmp_path, 1, 4), clock=ManualClock())
    late.refresh()
    assert late.peer_of(ONE.public) is None, "who comes later cannot tell whose it is"


def test_what_a_look_finds_is_told_to_the_node_too(tmp_path: Path):
    folder = SeedFolder(tmp_path, 1, 4)
    folder.poll_seeds(0.0, True)
    announce(tmp_path, ONE.public)
    Keyring(OTHER, folder, clock=ManualClock()).refresh()
    assert [seed.peer for seed in folder.poll_seeds(0.1, True)] == [0], (
        "it is not the time for a look, but there is news"
    )
    assert folder.poll_seeds(0.2, True) == []


def test_another_life_has_another_key_and_the_former_one_is_nobodys(ring: Keyring, tmp_path: Path):
    announce(tmp_path, ONE.public)
    ring.refresh()
    new = new_pair()
    announce(tmp_path, new.public, incarnation=1)
    ring.refresh()
    assert (ring.peer_of(ONE.public), ring.peer_of(new.public), ring.key_of(0)) == (
        None,
        0,
        new.public,
    )


@pytest.mark.parametrize("how", ["ended", "deleted", "no key", "broken"])
def test_who_has_ended_or_was_struck_off_is_not_let_in(ring: Keyring, tmp_path: Path, how: str):
    announce(tmp_path, ONE.public)
    ring.refresh()
    before = ring.version
    match how:
        case "ended":
            announce_end(tmp_path, 0)
        case "deleted":
            (tmp_path / "0.addr").unlink()
        case "no key":
            announce(tmp_path, "", incarnation=1)
        case _:
            (tmp_path / "0.addr").write_text("{")
    ring.refresh()
    assert ring.version != before
    assert (ring.peer_of(ONE.public), ring.key_of(0)) == (None, None)


@pytest.mark.parametrize("key", ["short", "~" * 40, "x" * 41])
def test_what_is_no_key_is_never_given_to_zeromq(ring: Keyring, tmp_path: Path, key: str):
    announce(tmp_path, key)
    ring.refresh()
    assert ring.key_of(0) is None


def test_strangers_cannot_make_us_read_the_folder_all_the_time(tmp_path: Path):
    folder = SeedFolder(tmp_path, 1, 4)
    ring = Keyring(OTHER, folder, clock=lambda: 7.0)
    ring.refresh()
    announce(tmp_path, ONE.public)
    ring.refresh()
    assert ring.peer_of(ONE.public) is None


def test_a_peers_key_is_new_in_every_life_unless_there_is_a_file(tmp_path: Path):
    assert own_pair("", 3) != own_pair("", 3)
    pair = make_pair(tmp_path / "3.key")
    assert own_pair(f"{tmp_path}/{{peer}}.key", 3) == own_pair(f"{tmp_path}/3.key", 3) == pair
    (tmp_path / "3.key").chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        own_pair(f"{tmp_path}/3.key", 3)


def test_with_a_list_of_who_is_allowed_a_seed_file_is_not_enough(tmp_path: Path):
    path = tmp_path / "allowed"
    path.write_text(f"{OTHER.public} somebody else\n")
    clock = ManualClock()
    ring = Keyring(OTHER, SeedFolder(tmp_path, 1, 4), allow_list(str(path)), clock)
    announce(tmp_path, ONE.public)
    ring.refresh()
    assert (ring.peer_of(ONE.public), ring.key_of(0)) == (None, None)
    before = ring.version
    path.write_text(f"{OTHER.public} somebody else\n{ONE.public} alice\n")
    clock.now += ALLOWED_S
    assert ring.version != before
    assert (ring.peer_of(ONE.public), ring.key_of(0)) == (0, ONE.public)
    path.unlink()
    before = ring.version
    clock.now += ALLOWED_S
    assert ring.version != before
    assert (ring.peer_of(ONE.public), ring.key_of(0)) == (None, None)


def test_a_list_that_is_none_is_found_at_the_start(tmp_path: Path):
    assert allow_list("") is None
    with pytest.raises(ConfigError, match="there is no file"):
        allow_list(str(tmp_path / "allowed"))
    (tmp_path / "allowed").write_text("alice\n")
    with pytest.raises(ConfigError, match="allowed:1: 'alice'"):
        allow_list(str(tmp_path / "allowed"))


def test_a_node_whose_own_key_is_not_on_the_list_does_not_start(tmp_path: Path):
    path = tmp_path / "allowed"
    path.write_text(f"{OTHER.public} somebody else\n")
    with NodeRig(
        FakeCore(), run_dir=tmp_path / "run", peers=2, keys=True, allowed=str(path)
    ) as stage:
        assert stage.join() == 2
        error = json.loads((tmp_path / "run" / "peer-0" / "node_error.json").read_text())
        assert f"cannot be on the allow-list {path}" in error["message"]
        assert "GOSSIP_KEY" in error["hint"]
        assert not (tmp_path / "run" / "seeds" / "0.addr").exists(), "nobody is told of it"
