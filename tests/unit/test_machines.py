"""How the machines of a run do, from what peers tell of them."""

from typing import Any

import pytest

from gossip.launch.report.machines import Machines
from gossip.observe import documents, events


def told(host: str, machines: Machines, load: float, **more: Any) -> None:
    machines.record_usage(host, usage(load=load, **more))


def usage(**fields: Any) -> events.Usage:
    return events.Usage(peer=0, cpu_s=1.0, memory=1, sent_bytes=0, received_bytes=0, **fields)


def test_of_several_machines_the_busiest_is_told_of_or_the_first_in_trouble() -> None:
    machines = Machines()
    for host, load in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        told(host, machines, load)
    assert machines.line(over=False) == ("b: load 3.0; of 3 machines this is the busiest", False)
    told("c", machines, 0.1, disk_free=5 << 20)
    line = "c: load 0.1, disk 5.0M (low); of 3 machines 1 in trouble"
    assert machines.line(over=False) == (line, True)


def test_a_peer_without_a_host_is_on_that_of_the_run() -> None:
    machines = Machines(documents.RunEnvironment(host="lab", hardware={"usable_cores": 2}))
    told("", machines, 1.0)
    told("lab", machines, 5.0)
    assert machines.line(over=True) == ("lab at worst: load 5.0 on 2 cores (high)", True)


def test_what_is_no_figure_is_left_out() -> None:
    machines = Machines(documents.RunEnvironment.pick({"hardware": "much"}))
    machines.record_usage("a", usage(disk_free=None))
    assert machines.line(over=False) == ("", False)


@pytest.mark.parametrize("started", [-1e20, -5.0, "now"])
def test_a_start_that_is_no_time_is_none(started: object) -> None:
    assert documents.RunEnvironment.pick({"started": started}).started is None


def test_gpus_are_told_of_where_peers_use_some() -> None:
    machines = Machines()
    one = {"index": 0.0, "busy": 0.9, "memory": 70 << 30, "memory_total": 80 << 30, "celsius": 61.0}
    two = {**one, "index": 1.0, "busy": 0.5, "memory": 20 << 30, "celsius": 93.0}
    told("a", machines, 1.0, gpus=[one, two])
    line = "a: load 1.0, 2 GPUs 70% busy, GPU memory 70G of 80G, 93 C (hot)"
    assert machines.line(over=False) == (line, True)
    told("a", machines, 1.0, gpus=[{**one, "busy": 1.0}, {**two, "celsius": 60.0}])
    assert machines.line(over=False)[0].endswith("75% busy, GPU memory 70G of 80G, 61 C")
    assert machines.line(over=True)[0].endswith("70% busy, GPU memory 70G of 80G, 93 C (hot)")
    machines.record_usage("a", usage(gpus=[{"index": None}, {"busy": 1.0}]))
    assert len(machines.found["a"].gpus) == 2
