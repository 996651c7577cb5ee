"""Files that somebody else has put there: no link is followed, nothing is waited for,
nothing large is read."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
from pathlib import Path

import pytest
import zygote

from gossip.errors import ConfigError
from gossip.launch.registry.registry_folder import RegistryFolder
from gossip.launch.report import run_logs, run_state
from gossip.launch.report.run_logs import Tail, peers_with_logs, show
from gossip.run import completion as aftermath, untrusted as careful
from gossip.run.rendezvous import claim_life, claims_in, peers_in, read_seed
from gossip.run.telemetry import read_json, read_lines

RUN = "from gossip.launch.cli import main; main()"


def test_a_plain_file_is_read_and_its_owner_known(tmp_path: Path) -> None:
    (tmp_path / "peer-0").mkdir()
    (tmp_path / "peer-0" / "a.json").write_text('{"a": 1}')
    with careful.open_in(tmp_path, "peer-0/a.json") as file:
        assert careful.owner_of(file.fileno()) == os.geteuid()
        assert file.read() == b'{"a": 1}'
    assert careful.read_object(tmp_path, "peer-0/a.json") == {"a": 1}
    assert careful.read_object(tmp_path, "none.json") is None
    assert careful.read_object(tmp_path, "none/none.json") is None


@pytest.mark.parametrize(
    "kind", ["pipe", "folder", "socket", "link", "dangling", "device", "linked folder"]
)
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "sub" / "file"
    path.parent.mkdir()
    other = tmp_path / "other"
    other.write_text("{}")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as end:
                end.bind(str(path))
        case "link":
            path.symlink_to(other)
        case "dangling":
            path.symlink_to(tmp_path / "nothing")
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.parent.rmdir()
            path.parent.symlink_to(tmp_path)
            (tmp_path / "file").write_text("{}")
    with pytest.raises(ConfigError, match=f"{path.name} (is|cannot)"):
        careful.open_in(tmp_path, "sub/file")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]",
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"a": ' * 50_000,
        b"\xff\xfe",
        b"1" * 5000,
        b'{"a": 1} x',
        b"null",
    ],
)
def test_what_is_no_json_object_is_an_error_of_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_json(tmp_path / "file")
    assert str(caught.value).isprintable()


def test_no_more_is_read_than_a_record_may_have(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**40)  # without a byte on the disk
    with pytest.raises(ConfigError, match="more than 2097152 bytes"):
        careful.read_object(tmp_path, "file")


def test_rows_behind_a_link_or_deep_in_brackets_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1}\n' + b"[" * 100_000 + b'\n{"a": 2}\n\xff{\n')
    assert [row["a"] for row in read_lines(tmp_path / "rows.jsonl")] == [1, 2]
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "rows.jsonl")
    with pytest.raises(ConfigError, match="links in a run's folder are not followed"):
        list(read_lines(tmp_path / "link.jsonl"))


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("plain äöü 日本", "plain äöü 日本"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\x9b2Jb\x7f\x00", "a\\x9b2Jb\\x7f\\x00"),
        ("abc\u202egpj.exe", "abc\\u202egpj.exe"),
        ("a\ttab\u00a0space", "a\ttab\u00a0space"),
        ("\ud800", "\\ud800"),
        ("two\nlines", "two\\nlines"),
    ],
)
def test_control_characters_are_spelt_out(raw: str, seen: str) -> None:
    assert careful.shown(raw) == seen


def test_the_colours_of_a_script_are_left_out_and_all_else_is_spelt_out() -> None:
    assert careful.shown_line("\x1b[1;31mred\x1b[0m \x1b[2J") == "red \\x1b[2J"


def test_a_log_that_is_a_link_is_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the password\n")
    for peer in (0, 1):
        (tmp_path / "run" / f"peer-{peer}").mkdir(parents=True)
    (tmp_path / "run" / "peer-0" / "out.log").symlink_to(secret)
    (tmp_path / "run" / "peer-1" / "out.log").write_text("mine\n")
    seen: list[tuple[int, str]] = []
    tails = show(
        tmp_path / "run",
        peers_with_logs(tmp_path / "run"),
        None,
        lambda peer, line: seen.append((peer, line)),
    )
    assert seen == [(1, "mine")]
    assert "links in a run's folder are not followed" in tails[0].why_not


def test_nothing_waits_for_a_writer(tmp_path: Path) -> None:
    """In a process of its own: one that waits would never end."""
    (tmp_path / "run" / "launchers").mkdir(parents=True)
    (tmp_path / "run" / "seeds").mkdir()
    (tmp_path / "run" / "peer-0").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    for name in (
        "summary.json",
        "launchers/1.json",
        "seeds/0.addr",
        "peer-0/out.log",
        "events.jsonl",
    ):
        os.mkfifo(tmp_path / "run" / name)
    for words, code in (
        (["ls", "--dir"], 0),
        (["logs", "run", "--dir"], 2),
        (["stop", "run", "--dir"], 0),
    ):
        done = zygote.run(
            [sys.executable, "-c", RUN, *words, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, done.stderr
        assert "is a pipe, where a file is expected" in done.stderr + done.stdout


TOOLS = """
import ctypes, os, sys
from gossip.launch.cli import main
os.chdir(sys.argv[1])
version, none = 0x20080522, (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(version, 0), none) == 0
for words in ("ls", "logs one", "logs -n 1 one", "stop one", "ls --dir runs/one"):
    sys.argv = ["gossip", *words.split()]
    try:
        main()
    except SystemExit as end:
        print(words, "ends with", end.code, flush=True)
"""


@pytest.mark.parametrize(
    "name",
    ["config.json", "summary.json", "launchers", "launchers/1.json", "events.jsonl", "peer-0", "."],
)
def test_what_this_user_may_not_read_is_told(tmp_path: Path, name: str) -> None:
    """In a process of its own, which gives up what root may more than others."""
    run = tmp_path / "runs" / "one"
    for folder in ("launchers", "peer-0"):
        (run / folder).mkdir(parents=True)
    for file in (
        "config.json",
        "summary.json",
        "launchers/1.json",
        "events.jsonl",
        "peer-0/out.log",
    ):
        (run / file).write_text("{}")
    (run / name).chmod(0)
    done = zygote.run(
        [sys.executable, "-c", TOOLS, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    run.chmod(0o700)
    (run / name).chmod(0o700)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ends with") == 5
    assert (
        name in ("peer-0", ".")
        or f"one/{name} cannot be read: Permission denied" in done.stderr + done.stdout
    ), done.stderr


def test_what_is_no_record_is_told_and_the_run_is_still_known(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    (run / "launchers").mkdir(parents=True)
    (run / "config.json").write_text('{"name": "one", "peers": 2}')
    (run / "summary.json").write_text("{")
    (run / "launchers" / "a.json").write_text('{"pid": 3}')
    (run / "launchers" / "b.json").write_text("[" * 100_000)
    (run / "events.jsonl").mkdir()
    seen = run_state.RunState(run)
    assert (seen.name, seen.peers, seen.state, seen.round) == ("one", 2, "not begun", None)
    assert [line.removeprefix(f"{run}/").split(":")[0] for line in seen.broken] == [
        "summary.json is not JSON",
        "launchers/a.json is not a launcher's record",
        "launchers/b.json is not JSON",
        "events.jsonl is a folder, where a file is expected",
    ]


@pytest.mark.parametrize("what", ["pipe", "link"])
def test_settings_that_are_no_file_are_told_and_not_waited_for(tmp_path: Path, what: str) -> None:
    run = tmp_path / "one"
    run.mkdir()
    os.mkfifo(run / "config.json") if what == "pipe" else (run / "config.json").symlink_to(
        "/dev/zero"
    )
    assert run_state.folders(tmp_path) == [run]
    assert f"config.json is a {what}" in run_state.RunState(run).broken[0]
    with pytest.raises(ConfigError, match=rf"config.json is a {what}"):
        run_state.find("one", tmp_path)


def test_a_hard_link_to_others_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only root may read, and somebody else has given a name in a folder of theirs."""
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").write_text("{}")
    os.link(tmp_path / "secret", tmp_path / "run" / "summary.json")
    assert careful.read_object(tmp_path / "run", "summary.json") == {}, (
        "of the own files any name will do"
    )
    monkeypatch.setattr(careful, "owner_of", lambda fd: os.fstat(fd).st_uid + 1)
    with pytest.raises(ConfigError, match=r"summary.json is a hard link to another user's file"):
        careful.read_object(tmp_path / "run", "summary.json")


def test_only_the_end_of_a_large_log_is_looked_at_for_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "peer-0").mkdir()
    with (tmp_path / "peer-0" / "out.log").open("wb") as file:
        file.truncate(2**40)
    with (tmp_path / "peer-0" / "out.log").open("rb") as file:
        begin = run_logs._begin_of_last(file, 3)
    assert 0 < 2**40 - begin <= 5 * run_logs.LINE_BYTES_MAX


def test_a_log_that_is_followed_while_its_run_is_removed_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "one"
    (run / "peer-0").mkdir(parents=True)
    (run / "peer-07").mkdir()
    for name in ("peer-0", "peer-07"):
        (run / name / "out.log").write_text("hello\n")
    assert peers_with_logs(run) == [0], "no launcher of ours calls a folder peer-07"
    tails = show(run, [0], None, lambda peer, line: None)
    shutil.rmtree(run)
    turns = iter([True, False])
    monkeypatch.setattr(run_logs, "sleep", lambda seconds: None)
    run_logs.follow(run, tails, lambda peer: True, lambda: next(turns), lambda peer, line: None)
    assert tails[0].why_not.endswith("is gone")


def test_nodes_pass_over_what_is_no_seed_nor_event(tmp_path: Path) -> None:
    (tmp_path / "seeds").write_text("")
    assert (peers_in(tmp_path / "seeds"), claims_in(tmp_path / "seeds")) == ([], set())
    (tmp_path / "peer-1").mkdir()
    (tmp_path / "begun").touch()
    for last in ('"x"', "null", "1e999", "[1]", "true"):
        (tmp_path / "peer-1" / "events.jsonl").write_text(
            f'{{"event": "halted", "reason": "finished", "round": {last}}}\n'
        )
        assert (aftermath.over(tmp_path, ()), aftermath.had_round(tmp_path)) == ((), 1)


def test_a_seed_that_is_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "seed").write_text(
        '{"control": "tcp://1:1", "bulk": "tcp://1:2", "incarnation": 0}'
    )
    (tmp_path / "0.addr").symlink_to(tmp_path / "seed")
    assert read_seed(tmp_path, 0) is None


@pytest.mark.timeout(20)  # of a pipe a writer would be waited for
@pytest.mark.parametrize("what", ["pipe", "link", "long"])
def test_a_claim_and_a_doors_folder_number_are_read_with_care(tmp_path: Path, what: str) -> None:
    (tmp_path / "elsewhere").write_text("0123456789abcdef")
    (tmp_path / "join_servers").mkdir()
    for path in (tmp_path / "0.0.claim", tmp_path / "join_servers" / "place"):
        match what:
            case "pipe":
                os.mkfifo(path)
            case "link":
                path.symlink_to(tmp_path / "elsewhere")
            case _:
                path.touch()
                os.truncate(path, 2**40)
    said = {"pipe": "is a pipe", "link": "is a link", "long": "has more than"}[what]
    with pytest.raises(ConfigError, match=rf"0\.0\.claim {said}"):
        claim_life(tmp_path, 0)
    with pytest.raises(ConfigError, match=f"place {said}"):
        RegistryFolder(tmp_path, b"12345678").place()


@pytest.mark.parametrize("said", ["", "0123", "0123456789abcdex", "0123456789ab \xe9"])
def test_what_is_no_number_of_a_doors_folder_is_told(tmp_path: Path, said: str) -> None:
    (tmp_path / "join_servers").mkdir()
    (tmp_path / "join_servers" / "place").write_text(said)
    with pytest.raises(ConfigError, match="place does not have 16 hexadecimal digits") as caught:
        RegistryFolder(tmp_path, b"12345678").place()
    assert caught.value.hint == f"remove {tmp_path}/join_servers/place"


def test_doors_that_share_a_folder_have_its_number(tmp_path: Path) -> None:
    assert (
        RegistryFolder(tmp_path, b"12345678").place()
        == RegistryFolder(tmp_path, b"87654321").place()
    )


def test_wrong_types_in_a_summary_are_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text('{"name": 5, "peers": "many", "rounds": -3}')
    (folder / "environment.json").write_text('{"started": 1e999}')
    (folder / "summary.json").write_text(
        '{"rounds": "no", "accuracy": [1], "loss": true, "exit_code": {}, "status": ["x"]}'
    )
    seen = run_state.RunState(folder)
    assert (seen.name, seen.peers, seen.settings.rounds, seen.environment.started) == (
        "run",
        0,
        None,
        None,
    )
    assert (seen.round, seen.accuracy, seen.loss, seen.outcome.exit_code, seen.status) == (
        None,
        None,
        None,
        None,
        None,
    )


def test_an_open_file_is_a_plain_one_whatever_its_name_is_by_then(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    with careful.open_in(tmp_path, "a") as file:
        (tmp_path / "a").unlink()
        (tmp_path / "a").symlink_to("/dev/zero")
        assert stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    assert Tail(tmp_path, "a", None).why_not == ""
    assert list(Tail(tmp_path, "a", None).read()) == []
