"""A trace and a picture say what the nemesis does, and when: else nobody can read a failure."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from gossip.faults.kinds import Hang, Restart
from gossip.faults.world import Partition
from gossip_lab.simulation.campaign.chart import Chart
from gossip_lab.simulation.campaign.picture import draw
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules.schedule import Schedule

FAULTS = (
    Hang(1, None, 0.6, 1.0),
    Partition(((0, 1), (2, 3)), 2.0, 0.3),
    Restart(2, None, 0.2, 2.5),
)


def test_every_fault_stands_in_the_trace_and_in_the_picture_where_it_begins_and_ends() -> None:
    chart = Chart(None)
    outcome = run(
        Schedule(3, peers=4, active_s=3.0, duration_s=3.2, compute_s=(0.1, 0.2), faults=FAULTS),
        [chart],
    )
    told = [(line.t, line.peer, line.text) for line in chart.lines if line.what == "fault"]
    assert told == [
        (1.0, 1, str(FAULTS[0])),
        (1.6, 1, "goes on after 0.600 s"),
        (2.0, -1, f"begins: {FAULTS[1]}"),
        (2.3, -1, f"ends: {FAULTS[1]}"),
        (2.5, 2, str(FAULTS[2])),
        (3.0, -1, "all faults are over"),
    ]
    assert "2.000000  network       fault begins: partition:0,1|2,3@2s+300ms" in "\n".join(
        map(str, chart.lines)
    )
    drawing = ET.fromstring(draw(outcome, chart, rows=10_000))
    words = ["".join(node.itertext()) for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
    for _, peer, text in told:
        assert (text if peer < 0 else f"fault {text}") in words
    assert "peer -1" not in words
