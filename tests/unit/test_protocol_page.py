"""The charts of docs/protocol.md are runs of the simulator: ``python
tests/unit/test_protocol_page.py`` plays the plans in docs/charts/ and draws them."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pytest
from effort import rotated

from gossip.faults import load
from gossip_lab.simulation import Chart, Schedule, SimulationResult, draw, run

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "charts"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is drawn of a run: from the first line that ``begins`` matches to the first behind it
    that ``ends`` matches, without those that ``leaves_out`` matches.

    Attributes:
        shows: What the page says that the chart shows, in this order.
    """

    begins: str
    ends: str
    shows: tuple[str, ...]
    leaves_out: str = r"Hello|reported (batch|joined|unskip|alive_again|woke|paused)"


CHARTS = {
    "round": Excerpt(
        r"-> \d +Update r6",
        r"peer 2 +committed round 6",
        (r"-> 3 +Update r6", r"peer 3 +aggregates round 6 of 0,1,2,3", r"peer 3 -> . +Commit r6"),
    ),
    "server-dies": Excerpt(
        r"-> \d +Update r5",
        r"peer 0 +committed round 5 ",
        (
            r"peer 2 +aggregates round 5",
            r"peer 2 +died",
            r"reported skip subject=2, round=5, reason=disconnected",
            r"reported attempt round=5, shard=0, attempt=1, server=1",
            r"-> 1 +Update r5 try 1",
            r"peer 1 +aggregates round 5 of 0,1,3",
        ),
    ),
    "refused-result": Excerpt(
        r"-> \d +Update r2",
        r"peer 0 <- 1 +Commit r2 try 1",
        (
            r"peer 0 -> 1 +lied Commit r2",
            r"reported attempt round=2, shard=0, attempt=1, server=1",
            r"-> 1 +Update r2 try 1",
            r"peer 1 +aggregates round 2 of 1,2,3",
        ),
    ),
    "hang": Excerpt(
        r"reported suspect subject=2",
        r"peer 2 +committed round 4 ",
        (
            r"reported skip subject=2",
            r"aggregates round 4 of 0,1,3",
            r"peer 2 +fault continues",
            r"peer 2 -> 1 +Update r4 try 6",
            r"peer 1 -> 2 +Commit r4 try 6",
            r"peer 2 +committed round 4 ",
        ),
    ),
    "partition": Excerpt(
        r"fault ends: partition",
        r"peer 3 <- \d +Commit r8",
        (
            r"peer 4 -> 0 +UpdateRequest r3",
            r"peer 0 -> 4 +Commit r3",
            r"-> 3 +Commit r4.*Commit r5.*Commit r6.*Commit r7.*Commit r8",
            r"peer 3 <- \d +Commit r8",
        ),
    ),
    "restart": Excerpt(
        r"peer 2 +started incarnation 1",
        r"peer 2 +committed round 6 ",
        (
            r"peer 2 -> 1 +StateRequest",
            r"peer 1 -> 2 +StateOffer r6",
            r"peer 2 +reported restored round=6",
            r"peer 2 +committed round 6 ",
        ),
    ),
    "gossip-round": Excerpt(
        r"-> \d +Push r6 gradient",
        r"-> \d +Push r7 gradient",
        (r"-> \d +Push r6 gradient", r"peer \d +aggregates round 6 of \d,\d,\d$"),
    ),
}


def played(name: str) -> tuple[SimulationResult, Chart]:
    """The run of a plan, and the lines of it that are drawn."""
    wanted, chart = CHARTS[name], Chart(None)
    outcome = run(Schedule(seed=0).with_plan(load(FOLDER / f"{name}.toml")), [chart])
    lines = [line for line in chart.lines if line.group != "membership"]
    lines = [line for line in lines if line.what not in ("lost", "altered")]
    first = next(at for at, line in enumerate(lines) if re.search(wanted.begins, str(line)))
    last = next(
        at for at, line in enumerate(lines) if at > first and re.search(wanted.ends, str(line))
    )
    shown = Chart(None)
    shown.lines = deque(
        line for line in lines[first : last + 1] if not re.search(wanted.leaves_out, str(line))
    )
    return outcome, shown


@pytest.mark.parametrize("name", rotated(CHARTS))
def test_a_chart_shows_what_the_page_says(name: str) -> None:
    outcome, chart = played(name)
    assert outcome.violation is None
    text = "\n".join(map(str, chart.lines))
    assert re.search(".*".join(CHARTS[name].shows), text, re.DOTALL | re.MULTILINE), text
    assert len(chart.lines) <= 70, "too long to be read"


def test_the_page_has_each_chart_and_each_chart_is_drawn() -> None:
    page = (DOCS / "protocol.md").read_text()
    assert re.findall(r"\(charts/([\w-]+)\.svg\)", page) == list(CHARTS)
    assert {path.stem for path in FOLDER.iterdir()} == set(CHARTS)
    assert len(list(FOLDER.iterdir())) == 2 * len(CHARTS)


def main() -> None:
    for name in CHARTS:
        (FOLDER / f"{name}.svg").write_text(draw(*played(name)))


if __name__ == "__main__":
    main()
