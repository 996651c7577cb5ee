"""Files of keys."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.launch.join import joining
from gossip.launch.local import Program
from gossip.run.keys import (
    AllowList,
    dump_pair,
    fingerprint,
    make_pair,
    parse_pair,
    read_pair,
    write_pair,
)
from gossip.transport.curve import is_key, new_pair


def test_a_key_file_is_read_back_and_nobody_else_can_read_it(tmp_path: Path):
    before = os.umask(0)
    try:
        pair = make_pair(tmp_path / "swarm.key")
    finally:
        os.umask(before)
    assert read_pair(tmp_path / "swarm.key") == pair
    assert stat.S_IMODE((tmp_path / "swarm.key").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["swarm.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_a_key_that_others_can_touch_is_refused(mode: int, tmp_path: Path):
    make_pair(tmp_path / "swarm.key")
    (tmp_path / "swarm.key").chmod(mode)
    with pytest.raises(ConfigError, match=f"others can read the key .*{mode:o}") as caught:
        read_pair(tmp_path / "swarm.key")
    assert "chmod 600" in str(caught.value.hint)


def give_to_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


def test_a_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_pair(tmp_path / "swarm.key")
    give_to_another_user(tmp_path / "swarm.key", monkeypatch)
    with pytest.raises(ConfigError, match="another user"):
        read_pair(tmp_path / "swarm.key")


def test_the_script_of_a_strangers_run_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = tmp_path / "train.py"
    script.write_text("")
    told = {"command": ["python", "-u", "train.py"], "folder": str(tmp_path)}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "command.json").write_text(json.dumps(told))
    place = joining.JoinableRun(tmp_path / "run", RunConfig(peers=2))
    assert joining.program(place, None)[0].script == str(script)
    give_to_another_user(tmp_path / "run", monkeypatch)
    with pytest.raises(ConfigError, match="would run as you"):
        joining.program(place, None)
    own = Program.of([str(script)])
    assert joining.program(place, own)[0] == own


def test_a_key_is_never_overwritten(tmp_path: Path):
    pair = make_pair(tmp_path / "swarm.key")
    with pytest.raises(ConfigError, match="already"):
        write_pair(tmp_path / "swarm.key", new_pair())
    assert read_pair(tmp_path / "swarm.key") == pair
    assert os.listdir(tmp_path) == ["swarm.key"]


PAIR = new_pair()
OTHER = new_pair()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no public"),
        ("\0\1\2", "not a key of gossip"),
        ("é", "not a key of gossip"),
        ("x" * 5000, "4096"),
        (f'public = "{PAIR.public}"', "no secret"),
        (f'public = "{PAIR.public}"\nsecret = 7', "no secret key of 40"),
        (f'public = "{PAIR.public}"\nsecret = "{PAIR.secret[:-1]}"', "no secret key of 40"),
        (f'public = "{PAIR.public}"\nsecret = "{PAIR.secret[:-1]}~"', "no secret key of 40"),
        (f'public = "{OTHER.public}"\nsecret = "{PAIR.secret}"', "do not belong together"),
    ],
    ids=range(9),
)
def test_what_is_no_key_is_refused_and_not_shown(text: str, what: str, tmp_path: Path):
    path = tmp_path / "swarm.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=what) as caught:
        read_pair(path)
    assert str(path) in str(caught.value)
    assert PAIR.secret[:8] not in f"{caught.value!r} {caught.value.hint} {caught.value.__cause__!r}"
    assert "gossip keygen" in str(caught.value.hint)


def test_what_is_no_file_is_refused(tmp_path: Path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            read_pair(path)


def test_a_pair_never_shows_its_secret():
    assert PAIR.secret not in f"{PAIR!r} {PAIR}"


def test_a_pair_goes_through_a_pipe():
    assert parse_pair(dump_pair(PAIR), "stdin") == PAIR


def test_fingerprints_differ_and_are_short():
    assert fingerprint(PAIR.public) != fingerprint(OTHER.public)
    assert len(fingerprint(PAIR.public)) == 24


@pytest.mark.parametrize(
    "text",
    ["", "x", PAIR.public[:-1], PAIR.public + "a", "é" * 40, "~" * 40, "%" * 40, 7, None],
    ids=range(9),
)
def test_what_cannot_be_a_key(text: object):
    assert not is_key(text)
    assert is_key(PAIR.public)


def test_an_allow_list_is_read_again_when_it_changes(tmp_path: Path):
    allowed = AllowList(tmp_path / "allowed")
    assert allowed.name_of(PAIR.public) is None  # there is no file yet
    (tmp_path / "allowed").write_text(f"# who may come\n\n{PAIR.public} alice\n")
    assert (allowed.name_of(PAIR.public), allowed.name_of(OTHER.public)) == ("alice", None)
    (tmp_path / "new").write_text(f"{OTHER.public}\n#remark\n")
    (tmp_path / "new").rename(tmp_path / "allowed")
    assert (allowed.name_of(PAIR.public), allowed.name_of(OTHER.public)) == (
        None,
        fingerprint(OTHER.public),
    )
    (tmp_path / "allowed").unlink()
    assert allowed.name_of(OTHER.public) is None


def test_a_wrong_line_of_an_allow_list_lets_nobody_in_and_is_named(tmp_path: Path):
    (tmp_path / "allowed").write_text(f"alice {PAIR.public}\n{OTHER.public} bob\n")
    allowed = AllowList(tmp_path / "allowed")
    assert allowed.keys() == {OTHER.public: "bob"}
    assert [line.partition(": ")[0] for line in allowed.wrong] == [f"{tmp_path}/allowed:1"]
