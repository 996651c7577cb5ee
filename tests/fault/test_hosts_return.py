"""Hosts that go and come back while ``gossip hosts`` trains: late, and with another address."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hosts import hosts, ip, why_no_hosts
from hosts_run import hosts_run

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.skipif(bool(why := why_no_hosts()), reason=why),
]


def test_a_host_that_is_away_for_longer_than_its_restarts_take_comes_back(tmp_path: Path) -> None:
    with hosts(3) as on, hosts_run(on, tmp_path) as run:
        run.lose(2)
        run.wait(lambda: run.said("No route to host"))
        since = time.monotonic()
        run.wait(lambda: time.monotonic() > since + 15)  # 1 + 2 + 5 s are the first pauses
        run.reboot(2)
        run.wait(lambda: run.trains(2, 1))


def test_a_host_that_comes_back_with_another_address_takes_part(tmp_path: Path) -> None:
    with hosts(3) as on, hosts_run(on, tmp_path) as run:
        run.lose(2)
        ip("-n", run.on.names[2], "addr", "flush", "dev", "eth0")
        ip("-n", run.on.names[2], "addr", "add", "10.77.0.77/24", "dev", "eth0")
        run.reboot(2)
        run.wait(lambda: run.trains(2, 1))
        hosts_file = json.loads((tmp_path / "runs" / "run" / "hosts.json").read_text())
        assert hosts_file["hosts"][run.on.names[2]]["address"] == "10.77.0.77"
