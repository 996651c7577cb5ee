from __future__ import annotations

from pathlib import Path

import pytest

from gossip.errors import ConfigError
from gossip.launch.ssh.hostlist import Host, load, parse_file, parse_list, place


def test_a_list_names_hosts_and_how_many_peers_each_gets() -> None:
    assert parse_list("a,b:2, me@c.d-e.example:3") == (
        Host("a"),
        Host("b", 2),
        Host("c.d-e.example", 3, "me"),
    )


def test_a_file_is_in_the_syntax_of_deepspeed_and_may_say_more() -> None:
    text = """
    # two lab machines
    nodea slots=2            # the first
    user@nodeb:2222 slots=1 python=/opt/bin/python workdir='/scratch/my runs' address=10.0.0.0/8
    [fd00::7]
    """
    assert parse_file(text, "hosts.txt") == (
        Host("nodea", 2),
        Host("nodeb", 1, "user", 2222, "/opt/bin/python", "/scratch/my runs", "10.0.0.0/8"),
        Host("fd00::7"),
    )


def test_what_is_given_is_a_file_if_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab").write_text("a slots=3\n")
    monkeypatch.chdir(tmp_path)
    assert load("lab") == (Host("a", 3),)
    assert load("other") == (Host("other"),)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("a slots=0", "hosts.txt:1: a: 0 is not a number of peers", None),
        ("a slots=two", "hosts.txt:1: a: two is not a number of peers", None),
        (
            "a\nb slot=2",
            "hosts.txt:2: unknown option 'slot'. Did you mean 'slots'?",
            "known: slots, peers, python, workdir, address",
        ),
        ("a 2", "hosts.txt:1: '2' is not an option", "options follow the name: a slots=2"),
        ("a slots=1 slots=2", "hosts.txt:1: slots is given twice", None),
        ("a python=", "hosts.txt:1: python is given no value", None),
        ("a workdir='/b", "hosts.txt:1: No closing quotation", None),
        ("a:70000", "hosts.txt:1: there is no port 70000", "a slots=70000 starts that many peers"),
        ("a\nx@a", "hosts.txt: a is listed twice", "more peers on one host: a slots=2"),
        ("# nobody", "hosts.txt: there is no host in it", None),
        (
            "-oProxyCommand=x",
            "hosts.txt:1: '-oProxyCommand=x' is neither a host nor a file",
            "as in: -H nodea,user@nodeb:2",
        ),
        (
            "-l@a",
            "hosts.txt:1: '-l@a' is neither a host nor a file",
            "as in: -H nodea,user@nodeb:2 or -H hosts.txt",
        ),
    ],
)
def test_an_error_in_a_file_is_told_with_its_line(text: str, says: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_file(text, "hosts.txt")
    assert str(wrong.value) == says
    assert (wrong.value.hint or "").startswith(hint or "")


@pytest.mark.parametrize("text", ["", "a,,b", "a b", "hosts.txt/", "a;b", "$(id)", "a:2:3"])
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="neither a host nor a file"):
        parse_list(text)


def test_a_port_on_the_command_line_is_not_taken_for_a_number_of_peers() -> None:
    with pytest.raises(ConfigError, match="means 2222 peers on one host") as wrong:
        parse_list("a:2222")
    assert wrong.value.hint == "the port of ssh belongs in a host file: a:2222 slots=1"


def test_peers_are_numbered_in_the_order_of_the_hosts() -> None:
    assert place(parse_list("b:2,a,c:3")) == {"b": range(2), "a": range(2, 3), "c": range(3, 6)}


def test_only_localhost_itself_needs_no_ssh() -> None:
    assert Host("localhost").is_local
    assert not Host("localhost", user="me").is_local
    assert not Host("localhost", port=2222).is_local
    assert not Host("a").is_local
    assert Host("a", user="me").target == "me@a"


@pytest.mark.parametrize("given", ["hosts.txt", "my/hosts"])
def test_a_host_file_that_is_not_there_is_not_taken_for_a_host(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^there is no host file {given}$"):
        load(given)
