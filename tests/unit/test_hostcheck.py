from __future__ import annotations

from typing import Any

import pytest

from gossip.launch.local.feasible import PEER_BYTES
from gossip.launch.local.program import Program
from gossip.launch.ssh.hostcheck import HostReport, choose, judge_hosts, judge_pairs
from gossip.launch.ssh.hostlist import Host, parse_list
from gossip.launch.ssh.ssh import Unreachable, explain
from gossip.launch.ssh.survey import HostsUnfit, HostSurvey, refuse

SCRIPT = Program("train.py")

A, B = "10.77.0.11", "10.77.0.12"


def facts(**other: Any) -> dict[str, Any]:
    found = {
        "python": "3.11.7",
        "executable": "/opt/bin/python",
        "packages": {"torch": "2.13.0+cpu", "gossip-train": "0.1.0", "pyzmq": "27.3.0"},
        "code": "c0de",
        "cores": 8,
        "memory_bytes": 16 * 2**30,
        "workdir": "/srv",
        "workdir_error": "",
        "script": {"path": "/srv/train.py", "digest": "d1"},
        "run_dir": "/srv/runs/x/hosts/a",
        "run_dir_error": "",
        "disk_bytes": 50 * 2**30,
        "addresses": [A],
        "address_error": "",
        "clock_s": 0.002,
    }
    packages = {**found["packages"], **other.pop("packages", {})}
    return {**found, **other, "packages": packages}


def judged(host: Host, program: Program = SCRIPT, **other: Any) -> list[str]:
    """The lines about a second host, after a first one with which all is well."""
    report = HostReport()
    judge_hosts(
        report, [Host("first"), host], {"first": facts(), host.name: facts(**other)}, program, "d1"
    )
    return [line for line in report.as_text() if not line.startswith("ok    first")]


def test_a_module_that_a_host_lacks_is_named_as_python_takes_it() -> None:
    module = Program.of(["-m", "lab.train"])
    assert judged(Host("b"), module, script=None)[1:] == [
        "fail  b      there is no -m lab.train in /srv",
        "             try: install or copy the same package of lab.train there",
    ]


def test_a_host_with_which_all_is_well_is_one_line() -> None:
    assert judged(Host("b", 2)) == [
        (
            "ok    b      python 3.11.7  torch 2.13.0+cpu  gossip 0.1.0  clock +0.002 s  2 peers "
            "on 8 cores, 16.0 GiB free"
        )
    ]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (
            {"packages": {"torch": None}},
            [
                "fail  /opt/bin/python has no torch",
                "try: python=... of an environment with torch, after b in a host file",
            ],
        ),
        (
            {"packages": {"torch": "2.12.0"}},
            [
                "fail  torch is 2.12.0, but 2.13.0+cpu elsewhere",
                "try: install the same version on all hosts",
            ],
        ),
        (
            {"packages": {"torch": "2.13.0+cu126"}},
            [
                (
                    "warn  torch is 2.13.0+cu126, but 2.13.0+cpu elsewhere: results may differ in "
                    "their last bits"
                )
            ],
        ),
        (
            {"packages": {"gossip-train": "0.2.0"}},
            [
                "fail  gossip is 0.2.0, but 0.1.0 elsewhere",
                "try: install the same version on all hosts",
            ],
        ),
        (
            {"code": "other"},
            [
                "warn  gossip has the same version as elsewhere, but different code",
                "try: install the same code on all hosts",
            ],
        ),
        (
            {"python": "3.12.1"},
            [
                "fail  python is 3.12.1, but 3.11.7 elsewhere",
                "try: python=... after b in a host file",
            ],
        ),
        (
            {"clock_s": -7.25},
            [
                "warn  its clock is -7.2 s off: times in its logs are, too",
                "try: chronyc makestep, or ntpd -gq",
            ],
        ),
        ({"script": None}, ["fail  there is no train.py in /srv", "try: scp train.py b:/srv/"]),
        (
            {"script": {"path": "x", "digest": "d2"}},
            ["warn  its train.py differs from the one here", "try: scp train.py b:/srv/"],
        ),
        (
            {"workdir_error": "No such file or directory"},
            [
                "fail  cannot work in /srv: No such file or directory",
                "try: workdir=... after b in a host file, or: ssh b mkdir -p /srv",
            ],
        ),
        (
            {"memory_bytes": PEER_BYTES + 1},
            ["fail  2 peers need about 0.9 GiB, 0.4 GiB are free", "try: b slots=1"],
        ),
        ({"cores": 1}, ["warn  2 peers share 1 core", "try: b slots=1"]),
        (
            {"run_dir_error": "it already exists"},
            [
                "fail  the run folder /srv/runs/x/hosts/a: it already exists",
                "try: use another --name or --run-dir",
            ],
        ),
        ({"disk_bytes": 2**20}, ["warn  1 MiB are free on the disk of /srv/runs/x/hosts/a"]),
        (
            {"address_error": "no address here is in 10.0.0.0/8: lo 127.0.0.1"},
            [
                "fail  no address here is in 10.0.0.0/8: lo 127.0.0.1",
                "try: address=... after b in a host file",
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_host_is_told_with_what_to_do(
    other: dict[str, Any], expected: list[str]
) -> None:
    first, *rest = judged(Host("b", 2), **other)
    assert first[:4] == expected[0][:4], "the host's own line is as bad as the worst of it"
    assert [" ".join(line.replace("  b  ", "  ", 1).split()) for line in rest] == [
        " ".join(line.split()) for line in expected
    ]


def test_peers_of_a_plan_are_not_made_fewer_by_slots() -> None:
    told = judged(Host("b", 2, peers=("lab1", "lab2")), cores=1)
    assert told[-1].strip() == "try: move some of lab1, lab2 to another host, or plan without them"


# --- pairs ----------------------------------------------------------------------------------------

FINE = {"ms": 0.31, "seen": A}


def probed(**said: Any) -> dict[str, dict[tuple[str, str], dict[str, Any]]]:
    """By address, of a and b; each listens on its own and on loopback, which only it reaches."""
    here = {"error": "connection refused"}
    return {
        A: {("b", "a"): said.get("to_a", {"ms": 0.31, "seen": B})},
        B: {("a", "b"): said.get("to_b", {"ms": 0.30, "seen": A})},
        "127.0.0.1": {("a", "b"): said.get("local", here), ("b", "a"): said.get("local", here)},
    }


LISTENING = {"a": [A, "127.0.0.1"], "b": [B, "127.0.0.1"]}


def pairs(measured: dict[tuple[str, str], float] | None = None, **said: Any) -> list[str]:
    report, tried = HostReport(), probed(**said)
    judge_pairs(report, ["a", "b"], choose(["a", "b"], LISTENING, tried), tried, measured or {})
    return report.as_text()


def test_a_pair_that_reaches_each_other_is_one_line() -> None:
    rates = {("a", "b"): 941.0, ("b", "a"): 930.4}
    assert pairs(rates) == [
        "ok    a <-> b  10.77.0.11 <-> 10.77.0.12  0.30..0.31 ms  930..941 Mbit/s"
    ]


def test_what_a_short_measurement_finds_over_a_slow_link_is_told_to_be_the_least() -> None:
    slow = {"ms": 90.0, "seen": A}
    (line,) = pairs({("a", "b"): 4.0, ("b", "a"): 4.0}, to_b=slow)
    assert "at least 4 Mbit/s" in line


def test_a_way_on_which_words_pass_and_payloads_do_not_has_failed() -> None:
    line, *_ = pairs(to_b={**FINE, "stuck": "nothing has arrived"})
    assert line.startswith("fail  a -> b")
    assert "nothing has arrived" in line


def test_a_way_that_is_closed_is_told_with_both_addresses_and_what_came_back() -> None:
    assert pairs(to_b={"error": "no answer in 3 s"}) == [
        "fail  a -> b  no reply at 10.77.0.12 from 10.77.0.11: no answer in 3 s",
        (
            "              try: a firewall? Peers listen on ports that the system chooses; over "
            "another network: address=... after b in a host file"
        ),
    ]


def test_a_host_that_others_see_under_another_address_is_told() -> None:
    assert pairs(to_b={"ms": 1.0, "seen": "192.0.2.1"})[0] == (
        "warn  a -> b   b sees a as 192.0.2.1, not as 10.77.0.11: there is a NAT or another route "
        "between them"
    )


def test_hosts_that_reach_each_other_by_loopback_are_one_machine_and_need_no_other_address():
    assert choose(["a", "b"], LISTENING, probed(local={"ms": 0.1, "seen": "127.0.0.1"})) == {
        "a": "127.0.0.1",
        "b": "127.0.0.1",
    }


def test_of_the_addresses_of_a_host_that_is_taken_which_the_others_reach() -> None:
    listening = {"a": ["172.17.0.1", A], "b": ["172.17.0.1", B]}
    tried = {
        **probed(),
        "172.17.0.1": {
            way: {"error": "another host has this address, too"} for way in (("a", "b"), ("b", "a"))
        },
    }
    assert choose(["a", "b"], listening, tried) == {"a": A, "b": B}


def test_an_address_that_nobody_else_can_reach_is_refused() -> None:
    report = HostReport()
    judge_pairs(report, ["a", "b"], {"a": "127.0.0.1", "b": B}, {B: {("a", "b"): FINE}}, {})
    assert report.as_text() == [
        "fail  b -> a  a has only the address 127.0.0.1, which other machines cannot reach",
        (
            "              try: address=... after a in a host file: an interface, a network such "
            "as 10.0.0.0/8, or a number"
        ),
    ]


def test_many_pairs_share_a_line() -> None:
    names = [f"h{number}" for number in range(7)]
    chosen = {name: f"10.0.0.{number + 1}" for number, name in enumerate(names)}
    tried: dict[str, dict[tuple[str, str], dict[str, Any]]] = {
        chosen[target]: {
            (source, target): {"ms": 0.5, "seen": chosen[source]}
            for source in names
            if source != target
        }
        for target in names
    }
    report = HostReport()
    judge_pairs(report, names, chosen, tried, {})
    assert report.as_text() == ["ok    21 pairs  of 21 reach each other  0.50 ms"]


# --- ssh ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "said", "message", "hint"),
    [
        (
            255,
            ["me@nodeb: Permission denied (publickey)."],
            "ssh nodeb: Permission denied (publickey). gossip never asks for passwords",
            "ssh nodeb true     must work without typing; then run this again",
        ),
        (
            255,
            ["Host key verification failed."],
            "ssh nodeb: its key is not known here",
            "run once by hand, and compare its key: ssh nodeb true",
        ),
        (
            255,
            ["ssh: connect to host nodeb port 22: Connection refused"],
            "ssh nodeb: connect to host nodeb port 22: Connection refused",
            "ssh nodeb true     must work without typing; then run this again",
        ),
        (
            127,
            ["bash: line 1: /x/python: No such file or directory"],
            "ssh nodeb: there is no /x/python",
            "python=... after nodeb in a host file: one that has gossip",
        ),
        (
            1,
            [
                "/x/python: Error while finding module specification for 'gossip.launch.ssh.agent' "
                "(ModuleNotFoundError: No module named 'gossip')"
            ],
            "ssh nodeb: /x/python has no gossip there",
            "ssh nodeb /x/python -m pip install gossip-train; or python=... in a host file",
        ),
        (
            None,
            [],
            "ssh nodeb: no agent has replied",
            "ssh nodeb true     must work without typing; then run this again",
        ),
    ],
)
def test_why_there_is_no_agent_is_told_with_what_to_do(
    code: int | None, said: list[str], message: str, hint: str
) -> None:
    error = explain(Host("nodeb", python="/x/python"), code, said)
    assert (str(error), error.hint) == (message, hint)


def test_one_host_that_cannot_be_reached_is_the_error_and_the_others_are_told_to_be_fine() -> None:
    denied = Unreachable(
        "nodeb",
        "Permission denied (publickey). gossip never asks for passwords",
        "ssh nodeb true must work",
    )
    report = HostReport()
    report.add("fail", "nodeb", str(denied), denied.hint)
    judge_hosts(report, parse_list("nodea,nodeb"), {"nodea": facts()}, SCRIPT, "d1")
    with pytest.raises(Unreachable) as wrong:
        refuse(HostSurvey(report, {}, [denied]))
    assert (
        str(wrong.value)
        == "ssh nodeb: Permission denied (publickey). gossip never asks for passwords"
    )
    assert wrong.value.hint == "ssh nodeb true must work. nodea is fine, nothing was started"
    assert wrong.value.exit_code == 4


def test_what_only_a_person_can_mend_on_a_host_is_a_mistake_and_the_network_is_none() -> None:
    report = HostReport()
    judge_hosts(
        report, [Host("a"), Host("b")], {"a": facts(), "b": facts(script=None)}, SCRIPT, "d1"
    )
    with pytest.raises(HostsUnfit, match=r"^b: there is no train\.py in /srv$") as wrong:
        refuse(HostSurvey(report, {}, []))
    assert wrong.value.exit_code == 2
    report.add("fail", "a -> b", "nobody answered")
    with pytest.raises(HostsUnfit, match="2 problems on a, b") as wrong:
        refuse(HostSurvey(report, {}, []))
    assert wrong.value.exit_code == 4


def test_warnings_stop_nothing() -> None:
    report = HostReport()
    judge_hosts(report, [Host("a", 9)], {"a": facts()}, SCRIPT, "d1")
    refuse(HostSurvey(report, {}, []))
    assert [line.level for line in report.lines] == ["warn", "warn"]
