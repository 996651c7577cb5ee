"""Trials of ``gossip hosts`` between network namespaces: NAT, a firewall in one direction, unequal
links, IPv6 alone, a misleading host name. The table of all trials is in docs/testing.md."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from effort import effort
from hosts import Hosts, hosts, ip, why_no_hosts
from hosts_run import check_pairs, command_in
from trial import RUN_OPTIONS, Trial, make_script, start_trial
from wan import wan

no_nft = "" if shutil.which("nft") else "a firewall needs nft (the package nftables)"
pytestmark = [
    pytest.mark.ssh,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why := why_no_hosts() or no_nft), reason=why),
]
DOUBTS = ("suspect", "skip", "attempt", "dead")
INSIDE = "192.168.77"


@contextmanager
def start_trial_on(
    on: Hosts, folder: Path, text: str = "", before: Sequence[str] = ()
) -> Iterator[Trial]:
    """Start a run with a peer on each host."""
    text = text or make_script()
    command = command_in(on, folder, *RUN_OPTIONS, script=text)
    count = len(on.names)
    with start_trial(folder, [*before, *command], text, peers=count, start=subprocess.Popen) as run:
        yield run


def set_rules(host: str, *lines: str) -> None:
    """Replace the rules of a host."""
    rules = "\n".join(("flush ruleset", *lines))
    words = ["nsenter", f"--net=/run/netns/{host}", "nft", "-f", "-"]
    subprocess.run(words, input=rules, text=True, check=True)


# --- NAT ------------------------------------------------------------------------------------------


@contextmanager
def set_up_nat(is_routed: bool) -> Iterator[Hosts]:
    """Make two hosts with NAT between them.

    The second host has an address of an inner network. A router puts its own address into all
    packets that the second host sends (MASQUERADE).

    Args:
        is_routed: Whether the first host has a route into the inner network.
    """
    with hosts(3) as on:
        outside, router, inside = on.names
        ip("-n", router, "addr", "add", f"{INSIDE}.1/24", "dev", "eth0")
        # The router would advise the host to send directly, as all are on one switch.
        settings = "echo 1 > ip_forward; echo 0 > conf/all/send_redirects"
        settings += "; echo 0 > conf/eth0/send_redirects"
        enter = ["nsenter", f"--net=/run/netns/{router}", "sh", "-c"]
        subprocess.run([*enter, f"cd /proc/sys/net/ipv4; {settings}"], check=True)
        set_rules(
            router,
            "table ip nat {",
            "chain out { type nat hook postrouting priority 100;",
            f"ip saddr {INSIDE}.0/24 ip daddr 10.77.0.0/24 masquerade",
            "}",
            "}",
        )
        ip("-n", inside, "addr", "flush", "dev", "eth0")
        ip("-n", inside, "addr", "add", f"{INSIDE}.2/24", "dev", "eth0")
        ip("-n", inside, "route", "add", "default", "via", f"{INSIDE}.1")
        if is_routed:
            via = on.addresses[1]
            ip("-n", outside, "route", "add", f"{INSIDE}.0/24", "via", via)
        on.names.remove(router)
        try:
            yield on
        finally:
            on.names.append(router)


@pytest.mark.parametrize("is_routed", [False, True], ids=["one way", "both ways"])
def test_a_host_behind_nat_is_named_before_the_run(tmp_path: Path, is_routed: bool) -> None:
    with set_up_nat(is_routed) as on:
        code, pairs = check_pairs(on, tmp_path)
        outside, inside = on.names
    by_level = {line["level"]: line for line in pairs}
    if is_routed:
        assert code == 0
        assert by_level["warn"]["about"] == f"{inside} -> {outside}"
        assert "NAT" in by_level["warn"]["text"]
    else:
        assert code != 0
        assert by_level["fail"]["about"] == f"{outside} -> {inside}"
        assert f"{INSIDE}.2" in by_level["fail"]["text"]


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", effort([10], [10, 60]))
@pytest.mark.parametrize("direction", ["input", "output"])
def test_a_host_whose_packets_are_dropped_one_way_takes_part_again(
    tmp_path: Path, direction: str, seconds: int
) -> None:
    with hosts(3) as on, start_trial_on(on, tmp_path) as run:
        run.wait_for_rounds(10)
        device = {"input": "iif", "output": "oif"}[direction]
        set_rules(
            on.names[2],
            "table ip trial {",
            f"chain trial {{ type filter hook {direction} priority 0; {device} eth0 drop",
            "}",
            "}",
        )
        since = time.monotonic()
        run.wait_for_rounds(20, 0, 1)
        run.wait(lambda: time.monotonic() > since + seconds, "the end of the drop")
        set_rules(on.names[2])
        run.wait_for_life(2, 0)
        run.wait_for_rounds(10)
        summary = run.finish()
    assert summary["restarts"] == []
    assert {row["incarnation"] for row in run.rows("spawned")} == {0}


def test_over_links_that_are_slow_one_way_nobody_is_suspected(tmp_path: Path) -> None:
    """An update has 100 kB: the slow way carries it in 0.2 s, and each packet 0.1 s later."""
    with wan(3) as on:
        on.rule("2>*", delay_s=0.1, rate_bytes_s=500_000)
        with start_trial_on(on, tmp_path, make_script(begin="width = 5_000")) as run:
            run.wait_for_rounds(30)
            assert run.rows(*DOUBTS) == []
            run.finish()


# --- addresses and names --------------------------------------------------------------------------


def test_hosts_with_ipv6_addresses_alone_train(tmp_path: Path) -> None:
    with hosts(2) as on:
        for number, name in enumerate(on.names):
            ip("-n", name, "addr", "flush", "dev", "eth0")
            ip("-n", name, "addr", "add", f"fd77::{number + 1}/64", "dev", "eth0", "nodad")
        with start_trial_on(on, tmp_path) as run:
            run.wait_for_rounds(10)
            listens = {row["control"] for row in run.rows("started")}
            run.finish()
    assert len(listens) == 2
    assert all(address.startswith("tcp://[fd77::") for address in listens), listens


OWN_NAME = (
    "printf '127.0.0.1 localhost\\n127.0.1.1 trialbox\\n' > hosts.tmp"
    " && mount --bind hosts.tmp /etc/hosts && hostname trialbox"
    ' && getent hosts trialbox >resolved && exec "$@"'
)


def test_hosts_whose_own_name_is_a_loopback_address_train(tmp_path: Path) -> None:
    """As Debian installs them: the name of each host resolves to 127.0.1.1."""
    before = ["unshare", "-mu", "sh", "-c", OWN_NAME, "sh"]
    with hosts(2) as on, start_trial_on(on, tmp_path, before=before) as run:
        run.wait_for_rounds(10)
        run.finish()
    assert (tmp_path / "resolved").read_text().split()[0] == "127.0.1.1"
