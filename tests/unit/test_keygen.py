"""``gossip keygen``, and what ``gossip run`` makes of keys."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gossip.config import RunConfig, resolve
from gossip.errors import ConfigError
from gossip.launch import options
from gossip.launch.cli import app
from gossip.launch.local import runs
from gossip.launch.local.swarm_keys import check_listed, keygen, own_key
from gossip.run.keys import fingerprint, make_pair, read_pair
from gossip.transport.curve import new_pair


def test_a_key_is_made_and_shown_without_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    keygen(tmp_path / "swarm.key")
    pair = read_pair(tmp_path / "swarm.key")
    made = capsys.readouterr().out
    keygen(tmp_path / "swarm.key", show=True)
    shown = capsys.readouterr().out
    for text in (made, shown):
        assert pair.public in text
        assert fingerprint(pair.public) in text
        assert pair.secret not in text
    with pytest.raises(ConfigError, match="already"):
        keygen(tmp_path / "swarm.key")


@pytest.mark.parametrize(
    ("keys", "key", "allowed", "means"),
    [
        (None, None, None, None),
        (False, None, None, False),
        (True, None, None, True),
        (None, Path("k"), None, True),
        (None, None, Path("a"), True),
        (False, Path("k"), None, False),
    ],
)
def test_who_names_a_key_wants_keys(
    keys: bool | None, key: Path | None, allowed: Path | None, means: bool | None
):
    config = options.resolve_settings(options.flags(keys=keys, allowed=allowed), key, None).config
    assert config.keys is means


def test_a_key_without_keys_is_refused(tmp_path: Path):
    keygen(tmp_path / "swarm.key")
    with pytest.raises(ConfigError, match="no effect in a run without keys"):
        own_key(tmp_path / "swarm.key", RunConfig(keys=False))
    with pytest.raises(ConfigError, match="no effect in a run without keys"):
        own_key(None, RunConfig(allowed=str(tmp_path / "peers.txt")))


def test_a_list_that_is_none_is_refused_before_anything_starts(tmp_path: Path):
    (tmp_path / "peers.txt").write_text("nobody\n")
    with pytest.raises(ConfigError, match=r"peers.txt:1"):
        own_key(None, RunConfig(keys=True, allowed=str(tmp_path / "peers.txt")))


def test_peers_whose_keys_the_list_does_not_have_are_refused_before_anything_starts(tmp_path: Path):
    path = tmp_path / "peers.txt"
    pairs = [make_pair(tmp_path / f"{peer}.key") for peer in range(2)]
    path.write_text("".join(f"{pair.public} peer\n" for pair in pairs))
    config = RunConfig(peers=2, keys=True, allowed=str(path))
    files = f"{tmp_path}/{{peer}}.key"
    check_listed(config, files)
    check_listed(RunConfig(peers=2, keys=True), "")
    path.write_text(f"{pairs[0].public} peer\n")
    with pytest.raises(
        ConfigError, match=r"the key of peer 1 is not on the allow-list .*peers\.txt"
    ) as caught:
        check_listed(config, files)
    assert (
        pairs[1].public in str(caught.value),
        fingerprint(pairs[1].public) in str(caught.value),
    ) == (True, True)
    assert f"add the line: {pairs[1].public} peer-1" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="peer 0 has no key file") as caught:
        check_listed(config, "")
    assert "GOSSIP_KEY" in str(caught.value.hint)


@pytest.mark.parametrize("peers", [1, 2])
def test_one_key_is_not_for_several_peers(tmp_path: Path, peers: int):
    pair = make_pair(tmp_path / "k.key")
    (tmp_path / "peers.txt").write_text(f"{pair.public} everybody\n")
    for allowed in ("", str(tmp_path / "peers.txt")):
        config = RunConfig(peers=peers, keys=True, allowed=allowed)
        if peers == 1:
            check_listed(config, f"{tmp_path}/k.key")
            continue
        with pytest.raises(ConfigError, match="one file for 2 peers"):
            check_listed(config, f"{tmp_path}/k.key")


def test_gossip_run_looks_for_peers_on_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOSSIP_KEY", raising=False)
    Path("train.py").write_text("")
    Path("peers.txt").write_text(f"{new_pair().public}\n")
    with pytest.raises(ConfigError, match="peer 0 has no key file"):
        app(["run", "--allowed", "peers.txt", "train.py"], standalone_mode=False)
    assert not Path("runs").exists()


@pytest.mark.parametrize("given", [True, False])
def test_a_run_with_keys_has_a_swarm_key_for_its_owner_only(tmp_path: Path, given: bool):
    pair = new_pair() if given else None
    resolved = resolve({"keys": True, "run_dir": str(tmp_path / "run"), "name": "t"}).with_values(
        "drawn", run="0" * 16, f=0
    )
    folder = runs.begin(resolved, ["gossip"], None, pair)
    assert stat.S_IMODE((folder / "swarm.key").stat().st_mode) == 0o600
    made = read_pair(folder / "swarm.key")
    assert made == pair or not given
    for file in ("config.json", "config.toml", "environment.json"):
        assert made.secret not in (folder / file).read_text()


def test_a_run_without_keys_has_none(tmp_path: Path):
    resolved = resolve({"run_dir": str(tmp_path / "run"), "name": "t"}).with_values(
        "drawn", run="0" * 16, f=0
    )
    assert not (runs.begin(resolved, ["gossip"], None) / "swarm.key").exists()
