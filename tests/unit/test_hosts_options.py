from __future__ import annotations

import base64
import json
import os
import shlex
from pathlib import Path

import pytest

from gossip.config import resolve
from gossip.errors import ConfigError, Malformed
from gossip.launch.cli import app
from gossip.launch.local import Program
from gossip.launch.ssh import hostfacts, ssh
from gossip.launch.ssh.agent_program import AgentProgram
from gossip.launch.ssh.collecting import Collector, merge_events
from gossip.launch.ssh.command import check_list, environment, in_words, without_values
from gossip.launch.ssh.hostcheck import HostReport
from gossip.launch.ssh.hostlist import Host, parse_list
from gossip.launch.ssh.survey import HostSurvey, with_keys


def test_only_what_is_named_is_sent() -> None:
    assert environment(["A", "B=x=y", "C="], {"A": "1", "D": "2"}) == {
        "A": "1",
        "B": "x=y",
        "C": "",
    }


def test_a_host_may_be_told_where_it_keeps_its_peers_keys() -> None:
    assert environment(["GOSSIP_KEY=/keys/{peer}.key"], {}) == {"GOSSIP_KEY": "/keys/{peer}.key"}


def test_a_list_of_who_is_allowed_is_named_the_same_on_all_hosts(tmp_path: Path) -> None:
    config = resolve({"peers": 2, "keys": True, "allowed": "peers.txt"}).config
    with pytest.raises(ConfigError, match=r"'peers\.txt' .* b would read another file") as caught:
        check_list(config, parse_list("localhost,b"))
    assert "absolute path" in str(caught.value.hint)
    check_list(config, parse_list("localhost:2"))
    check_list(
        resolve({"peers": 2, "keys": True, "allowed": f"{tmp_path}/peers.txt"}).config,
        parse_list("a,b"),
    )
    check_list(resolve({"peers": 2}).config, parse_list("a,b"))


def test_gossip_hosts_looks_at_the_list_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOSSIP_ALLOWED", "peers.txt")
    with pytest.raises(ConfigError, match="would read another file"):
        app(["hosts", "-H", "a,b", "--dry-run", "--", "train.py"], standalone_mode=False)


def test_what_was_typed_is_kept_without_the_values_of_variables() -> None:
    ours = shlex.split("gossip hosts -H a --env KEY=a=b --env=TOKEN=c --env HOME --name x=y")
    theirs = ["train.py", "--env", "KEY=mine"]
    kept = shlex.split(
        "gossip hosts -H a --env 'KEY=(not shown)' '--env=TOKEN=(not shown)' --env HOME --name x=y"
    )
    assert without_values([*ours, "--", *theirs], "train.py") == [*kept, "--", *theirs]
    assert without_values([*ours, *theirs], "train.py") == [*kept, *theirs]


@pytest.mark.parametrize("word", ["MISSING", "GOSSIP_SEED=1", "A B=1", "=1", "$A"])
def test_a_variable_that_cannot_be_sent_is_told(word: str) -> None:
    with pytest.raises(ConfigError, match="--env"):
        environment([word], {})


def test_the_command_of_an_agent_asks_for_nothing_and_tells_no_secret() -> None:
    words = ssh.command(
        Host("b", user="me", port=2222, python="/my env/python"), ("ssh", "-F", "f"), "run-1"
    )
    assert words[:4] == ["ssh", "-F", "f", "-T"]
    assert "BatchMode=yes" in words
    assert words[-4:] == [
        "-p",
        "2222",
        "me@b",
        "exec '/my env/python' -P -m gossip.launch.ssh.agent run-1",
    ]


def test_this_machine_needs_no_ssh() -> None:
    assert ssh.command(Host("localhost", python="p"), ("ssh",), "r") == shlex.split(
        "p -P -m gossip.launch.ssh.agent r"
    )


def test_what_would_be_started_is_told_without_secrets() -> None:
    config = resolve({"peers": 3, "f": 0, "name": "x", "run_dir": "runs/x"}).config
    sent = {"DATA": "/data", "API_KEY": "hunter2"}
    program = Program("train.py", ("--lr", "a b"))
    told = "\n".join(
        in_words(
            config, AgentProgram(parse_list("a:2,b"), program, "/work", sent, run_dir="runs/x")
        )
    )
    for words in (
        "host    a: peers 0 1",
        "host    b: peers 2",
        "in /work: ",
        "train.py --lr 'a b'",
        "run folder runs/x/hosts/b",
    ):
        assert words in told
    module = AgentProgram(parse_list("a"), Program("lab.train", ("-x",), module=True), "/work")
    assert "-u -m lab.train -x" in "\n".join(in_words(config, module))
    assert "env     DATA=/data" in told
    assert "hunter2" not in told


def test_peers_beyond_loopback_have_keys_unless_somebody_says_otherwise() -> None:
    near, far = (
        HostSurvey(HostReport(), {"a": "127.0.0.1"}, []),
        HostSurvey(HostReport(), {"a": "10.0.0.1", "b": "127.0.0.1"}, []),
    )
    assert with_keys(resolve({}), near).config.keyed is False
    assert with_keys(resolve({}), far).config.keyed is True
    assert with_keys(resolve({"insecure": True}), far).config.keyed is False
    with pytest.raises(ConfigError, match="without keys"):
        with_keys(resolve({"keys": False}), far)


def test_the_address_that_ssh_came_by_is_the_first_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    found = hostfacts.addresses()
    assert found[-1] == "127.0.0.1"
    beyond = [address for address in found[:-1] if ":" not in address]
    if beyond:
        monkeypatch.setenv("SSH_CONNECTION", f"192.0.2.9 40000 {beyond[-1]} 22")
        assert hostfacts.addresses()[0] == beyond[-1]
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.9 40000 203.0.113.77 22")
    assert "203.0.113.77" not in hostfacts.addresses(), (
        "it is not this host's: something stands between"
    )


def test_an_address_may_be_wanted_by_number_network_or_interface() -> None:
    assert hostfacts.addresses("127.0.0.0/8") == hostfacts.addresses("127.0.0.1") == ["127.0.0.1"]
    assert "127.0.0.1" in hostfacts.addresses("lo")
    with pytest.raises(
        ConfigError, match=r"no address here is in 203\.0\.113\.0/24: .*lo 127\.0\.0\.1"
    ):
        hostfacts.addresses("203.0.113.0/24")
    with pytest.raises(ConfigError, match="'eht0' is not an address, network or interface here"):
        hostfacts.addresses("eht0")


def test_facts_of_a_folder_that_is_not_there_stop_at_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {
        "workdir": str(tmp_path / "none"),
        "program": ["t.py"],
        "run_dir": "runs/x",
        "run": "aa",
        "address": "",
    }
    assert hostfacts.collect_facts(asked)["workdir_error"] == "No such file or directory"
    (tmp_path / "t.py").write_text("pass\n")
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "config.json").write_text(json.dumps({"run": "aa"}))
    found = hostfacts.collect_facts({**asked, "workdir": str(tmp_path)})
    assert (found["script"]["digest"], found["run_dir_error"]) == (
        hostfacts.digest(tmp_path / "t.py"),
        "",
    )
    assert (
        hostfacts.collect_facts({**asked, "workdir": str(tmp_path), "run": "bb"})["run_dir_error"]
        == "it already exists"
    )
    assert os.getcwd() == str(tmp_path)


# --- what is collected ----------------------------------------------------------------------------


def pieces(path: str, *data: bytes) -> list[dict[str, object]]:
    return [
        {"path": path, "data": base64.b64encode(piece).decode(), "left_out": 0}
        for piece in (*data, b"")
    ]


def test_files_of_peers_lie_where_they_always_do_and_those_of_a_host_apart(tmp_path: Path) -> None:
    collector = Collector(tmp_path, "b", range(2, 4))
    for frame in pieces("peer-2/out.log", b"one", b"two") + pieces("events.jsonl", b"x\n"):
        collector.write_piece(frame)
    assert (tmp_path / "peer-2" / "out.log").read_bytes() == b"onetwo"
    assert (tmp_path / "fetched" / "b" / "events.jsonl").read_bytes() == b"x\n"


@pytest.mark.parametrize("path", ["../x", "peer-2/../../x", "/x", "", "peer-2/../../../x"])
def test_a_host_cannot_write_elsewhere(path: str, tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="does not belong to the run"):
        Collector(tmp_path / "run", "b", range(2, 4)).write_piece(
            pieces(f"{tmp_path}/x" if path == "/x" else path, b"x")[0]
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "path",
    ["peer-1/error.json", "peer-x/out.log", "peer-/out.log", "peer--2/out.log", "peer-4/out.log"],
)
def test_a_host_writes_nothing_about_peers_of_others(path: str, tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="of a peer that does not exist"):
        Collector(tmp_path / "run", "b", range(2, 4)).write_piece(pieces(path, b"x")[0])
    assert not list(tmp_path.iterdir())


def test_times_are_moved_to_our_clock(tmp_path: Path) -> None:
    collector = Collector(tmp_path, "b", range(2, 4))
    rows = b'{"schema":"gossip.commits/2"}\n{"t":5.0,"round":1}\n{"round":2}\n{"t":7.0,"rou'
    for frame in pieces("peer-2/commits.jsonl", rows) + pieces("peer-2/out.log", b'{"t":1}\n'):
        collector.write_piece(frame)
    collector.to_our_clock(-1.5)
    lines = (tmp_path / "peer-2" / "commits.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"schema": "gossip.commits/2"},
        {"t": 3.5, "round": 1},
        {"round": 2},
    ]
    assert (tmp_path / "peer-2" / "out.log").read_text() == '{"t":1}\n'


def test_events_are_those_of_the_hosts_own_files_or_what_they_sent(tmp_path: Path) -> None:
    head = '{"schema":"gossip.events/2"}\n'
    sent = (
        '{"t":2,"peer":0,"host":"a"}\n{"t":1,"peer":1,"host":"b"}\n'
        '{"t":9,"peer":null,"event":"stopping"}\n'
    )
    (tmp_path / "events.jsonl").write_text(head + sent)
    (tmp_path / "fetched" / "a").mkdir(parents=True)
    (tmp_path / "fetched" / "a" / "events.jsonl").write_text(
        head + '{"t":2,"peer":0}\n{"t":3,"peer":0}\n'
    )
    merge_events(tmp_path, ["a", "b"])
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert rows == [
        {"schema": "gossip.events/2"},
        {"t": 1, "peer": 1, "host": "b"},
        {"t": 2, "peer": 0, "host": "a"},
        {"t": 3, "peer": 0, "host": "a"},
        {"t": 9, "peer": None, "event": "stopping"},
    ]
