"""Runs over wide area links: slow ones, and ones that drop large packets without a message."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from effort import effort
from hosts import why_no_hosts
from hosts_run import WAIT_S, check_pairs, hosts_run
from wan import wan

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(why := why_no_hosts()), reason=why),
]
ROUNDS = effort(30, 500)
ONE_WAY_S = effort([0.1], [0.01, 0.05, 0.1, 0.2])
JITTERS = effort([0.3], [0.0, 0.3])
JUMBO = 9000
DOUBTS = ("suspect", "skip", "attempt", "dead")


@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize("one_way_s", ONE_WAY_S)
def test_over_slow_links_nobody_is_suspect(tmp_path: Path, one_way_s: float, jitter: float) -> None:
    with (
        wan(4, delay_s=one_way_s, jitter_s=jitter * one_way_s) as on,
        hosts_run(on, tmp_path) as run,
    ):
        within_s = WAIT_S + 10 * ROUNDS * one_way_s
        run.wait(lambda: len(run.rows(event="round", peer=0)) >= ROUNDS, within_s)
        found = Counter(row.get("event") for row in run.rows())
        assert not [event for event in DOUBTS if found[event]], found


def test_a_path_that_drops_every_payload_is_named_before_the_run(tmp_path: Path) -> None:
    with wan(2, mtu=1000) as on:
        code, pairs = check_pairs(on, tmp_path)
    assert code != 0
    assert len(pairs) == 2
    assert {line["level"] for line in pairs} == {"fail"}


def test_a_path_that_carries_less_than_the_devices_send_is_measured(tmp_path: Path) -> None:
    with wan(2, device_mtu=JUMBO, mtu=1500) as on:
        code, pairs = check_pairs(on, tmp_path)
    assert code == 0
    assert [line["level"] for line in pairs] == ["ok"]
    assert "Mbit/s" in pairs[0]["text"]


def test_a_path_that_comes_to_drop_large_packets_holds_up_no_round(tmp_path: Path) -> None:
    with wan(3, device_mtu=JUMBO) as on, hosts_run(on, tmp_path) as run:
        on.rule(mtu=1500)
        before = len(run.rows(event="round", peer=2))
        run.wait(lambda: len(run.rows(event="round", peer=2)) >= before + ROUNDS)
        found = Counter(row.get("event") for row in run.rows())
        assert not [event for event in DOUBTS if found[event]], found


def test_payloads_come_about_as_fast_as_over_one_stream_of_tcp() -> None:
    """Where a connection must hold 2.5 MB at a time. With buffers of a fixed 512 KiB: 0.3."""
    script = Path(__file__).parents[2] / "benchmarks" / "distant_payloads.py"
    options = ["--round-trips", "100", "--mbit", "200", "--turns", "1", "--seconds", "4"]
    said = subprocess.run([sys.executable, script, *options], capture_output=True, check=True)
    *_, ratio, _ = said.stdout.decode().splitlines()[-1].split("|")
    assert float(ratio) >= 0.8, said.stdout.decode()
