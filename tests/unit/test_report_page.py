"""The page of ``gossip report``: what is on it, for whoever sees it and whoever does not, and what
it never has."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_up_run import MadeUp, write
from parsed_html import Parsed
from recorded_run import RecordedRun

from gossip.errors import ConfigError
from gossip.launch.report.html import (
    comparing,
    curves,
    learning,
    page,
    participation,
    recorded,
    svg,
)
from gossip.launch.report.html.charts import Chart, LaneChart, Line, LineChart, TextTable

RUN = MadeUp(rounds=600, peers=8, pace=25.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "made-up"
    write(RUN, folder)
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> page.RunReport:
    return page.make(folder)


@pytest.fixture(scope="module")
def text(report: page.RunReport) -> str:
    return page.render(report)


@pytest.fixture(scope="module")
def parsed(text: str) -> Parsed:
    return Parsed(text)


def rows(report: page.RunReport, name: str) -> list[tuple[str, ...]]:
    """Of the first table of a section."""
    (section,) = [each for each in report.sections if each.name == name]
    tables = [each for each in section.parts if isinstance(each, TextTable)]
    return list(tables[0].rows)


# --- what happened --------------------------------------------------------------------------------


def test_every_fault_is_a_row_with_its_time_and_effect(report: page.RunReport) -> None:
    found = rows(report, "incidents")
    told = {row[4]: row for row in found}
    _liars, crash, hang, cut, restart = RUN.faults
    assert len(found) == 5
    for fault in (crash, hang, cut, restart):
        assert any(f"(fault: {fault})" in what for what in told), fault
    (lies,) = [row for row in found if "sign_flip" in row[4]]
    assert lies[3] == str(RUN.liars[0])
    assert "suspected at 0:00.4 (round 10)" in lies[5]
    assert "100 % of updates got no weight" in lies[7]
    (killed,) = [row for row in found if crash in row[4]]
    assert killed[1:4] == ("0:04.8", "120", "1")
    assert killed[5:7] == ("skipped by all after 40 ms; declared dead by all after 1.0 s", "never")
    (stopped,) = [row for row in found if hang in row[4]]
    assert "woken after 3.0 s" in stopped[6]
    (parted,) = [row for row in found if cut in row[4]]
    assert parted[6].startswith("repaired after 4.0 s")
    (back,) = [row for row in found if restart in row[4]]
    assert "after its death" in back[6]


def charts_of(report: page.RunReport) -> list[tuple[str, Chart]]:
    return [
        (chart.name.removeprefix("chart-"), chart)
        for section in report.sections
        for chart in section.parts
        if not isinstance(chart, TextTable)
    ]


def test_each_picture_over_time_has_the_marks_of_the_incidents(report: page.RunReport) -> None:
    for name, chart in charts_of(report):
        if isinstance(chart, LineChart) and chart.over != "time":
            continue
        assert isinstance(chart, LineChart | LaneChart)
        drawn = svg.draw(chart)
        assert [badge.text for badge in drawn.badges] == ["1", "2", "3", "4", "5"], name
        by_number = {badge.text: badge.at for badge in drawn.badges}
        assert by_number["2"] == pytest.approx(100 * 4.8 / chart.x_max, abs=0.01)


def test_a_run_of_which_only_the_commits_can_be_read_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "lost"
    write(MadeUp(rounds=20, peers=4, pace=25.0), folder)
    (folder / "config.json").write_text("{}")
    (folder / "events.jsonl").write_text('{"schema": "gossip.events/2"}\n')
    made = page.make(folder)
    assert page.render(made)


def test_what_is_asked_for_is_on_the_page(report: page.RunReport) -> None:
    names = {name for name, _ in charts_of(report)}
    assert names >= {"loss", "speed", "lanes", "trust", "rounds", "contributors"}
    sections = [each.name for each in report.sections]
    assert (sections[0], sections[-1]) == ("incidents", "configuration")


def test_a_peer_that_was_killed_is_gone_in_its_lane_and_one_that_hung_was_stopped(
    report: page.RunReport,
) -> None:
    (lanes,) = [chart for _, chart in charts_of(report) if isinstance(chart, LaneChart)]
    spans = {name: {span.state: span for span in each} for name, each in lanes.lanes}
    assert spans["peer 1"]["gone"].start == pytest.approx(4.8, abs=0.1)
    assert spans["peer 2"]["stopped"].stop - spans["peer 2"]["stopped"].start == pytest.approx(3.0)
    assert "quarantined" in spans[f"peer {RUN.liars[0]} (Byzantine)"]


def test_each_round_has_as_many_contributors_as_were_there(report: page.RunReport) -> None:
    chart = dict(charts_of(report))["contributors"]
    assert isinstance(chart, LineChart)
    (line,) = chart.lines
    found = line.y.tolist()
    early, killed, stopped = (int(len(found) * share) for share in (0.1, 0.5, 0.8))
    assert (found[early], found[killed], found[stopped]) == (8.0, 7.0, 6.0)
    assert (line.low.min(), line.high.max()) == (6.0, 8.0)
    assert (chart.bottom, chart.x_max) == (0.0, report.run.duration_s)


def test_without_commits_there_are_no_contributors_to_draw(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(MadeUp(rounds=20, peers=4, pace=25.0), folder)
    (folder / "commits.jsonl").write_text('{"schema": "gossip.commits/2"}\n')
    assert "contributors" not in dict(charts_of(page.make(folder)))


# --- for everybody --------------------------------------------------------------------------------


def test_the_page_needs_nothing_but_itself(text: str, parsed: Parsed) -> None:
    assert re.findall(r"(?:https?:)?//[\w.]", text) == []
    for attributes in parsed.of("a", "link", "img", "script", "iframe", "use"):
        target = attributes.get("href") or attributes.get("src") or ""
        assert target.startswith(("#", "data:")), attributes
    assert not parsed.of("script")
    assert "@import" not in text
    assert "url(" not in text
    (policy,) = [each for each in parsed.of("meta") if "http-equiv" in each]
    assert policy["content"].startswith("default-src 'none'")


def test_every_picture_has_words_in_its_place(parsed: Parsed, report: page.RunReport) -> None:
    pictures = parsed.of("svg")
    assert len(pictures) == len(charts_of(report))
    for picture in pictures:
        assert picture["role"] == "img"
        assert len(picture["aria-label"]) > 40
        assert ".." not in picture["aria-label"]
    loss = next(each["aria-label"] for each in pictures if each["aria-label"].startswith("Loss."))
    words = r"mean of up to 7 honest peers; .*: from [\d.]+ to [\d.]+, lowest [\d.]+, highest "
    assert re.search(words, loss)


def test_a_value_of_each_curve_is_shown_under_the_pointer(report: page.RunReport) -> None:
    charts = dict(charts_of(report))
    hovers = [words for words in svg.draw(charts["loss"]).hovers if words]
    assert 20 < len(hovers) <= svg.HOVERS_MAX
    value = r"mean of up to 7 honest peers: [\d.]+ \([\d.]+ to [\d.]+\)"
    assert re.fullmatch(rf"0:\d\d\.\d\n{value}", hovers[3])
    by_round = [words for words in svg.draw(charts["loss-by-round"]).hovers if words]
    assert re.fullmatch(rf"round \d+\n{value}", by_round[3])


def test_the_x_axis_of_a_metric_is_chosen_by_time_or_by_round(text: str, parsed: Parsed) -> None:
    by_time, by_round = parsed.of("input")
    assert by_time["name"] == by_round["name"]
    assert ("checked" in by_time, "checked" in by_round) == (True, False)
    assert [each["for"] for each in parsed.of("label")] == [by_time["id"], by_round["id"]]
    figures = {each["id"]: each["class"].split() for each in parsed.of("figure")}
    assert [name for name, classes in figures.items() if by_round["class"] in classes] == [
        "chart-loss-by-round"
    ]
    before = list(figures)[list(figures).index("chart-loss-by-round") - 1]
    assert before == "chart-loss"
    assert "input.by-time:checked ~ .by-round:not(input)" in text


def test_a_band_that_reaches_zero_has_a_linear_axis() -> None:
    mean = np.geomspace(2.0, 1e-3, 30)
    line = Line("a", np.arange(30.0), mean, low=np.append(mean[:-1], 0.0), high=mean)
    assert learning.wants_log((replace(line, low=None),))
    assert not learning.wants_log((line,))


def test_tables_are_tables_with_captions_and_heads(parsed: Parsed) -> None:
    tags = Counter(tag for tag, _ in parsed.elements)
    assert tags["table"] == tags["caption"] == tags["thead"] > 5
    assert all(each.get("scope") in ("col", "row") for each in parsed.of("th"))
    for region in parsed.of("div"):
        if region.get("class") == "scroll":
            assert region["tabindex"] == "0"
            assert region["aria-label"]


def test_headings_go_down_one_level_at_a_time_and_anchors_are_there(parsed: Parsed) -> None:
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [each["id"] for _, each in parsed.elements if "id" in each]
    assert len(ids) == len(set(ids))
    for link in parsed.of("a"):
        assert link["href"].removeprefix("#") in ids


def test_the_first_link_leads_past_the_others(parsed: Parsed) -> None:
    assert parsed.of("a")[0] == {"class": "skip", "href": "#content"}


def test_dark_screens_and_narrow_ones_have_rules_of_their_own(text: str) -> None:
    assert "prefers-color-scheme: dark" in text
    assert "max-width: 640px" in text


def test_colours_of_lines_and_text_stand_out_from_what_is_behind_them(text: str) -> None:
    """Contrast as WCAG 2 has it: 4.5 for text, 3 for lines."""
    light, dark = text.split("@media (prefers-color-scheme: dark)", 1)
    for part in (light, dark.split("* {", 1)[0]):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
        for back in ("back", "panel"):
            for name in ("ink", "soft", "link"):
                assert contrast(colours[name], colours[back]) >= 4.5, (name, back)
            for at in range(8):
                assert contrast(colours[f"c{at}"], colours[back]) >= 3, (at, back)
        assert contrast(colours["mark"], colours["mark-back"]) >= 4.5


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_what_somebody_has_written_into_a_run_is_text_on_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(MadeUp(rounds=40, peers=3, pace=10.0), folder)
    evil = "<script>alert(1)</script>\"'><img src=x onerror=y>"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "name": evil}))
    with (folder / "events.jsonl").open("a") as file:
        row = {"t": 1002.0, "wall": 1_760_000_002.0, "peer": 0, "event": "error", "message": evil}
        file.write(json.dumps(row) + "\n")
    metrics = folder / "peer-0" / "metrics.jsonl"
    with metrics.open("a") as file:
        row = {"t": 1.0, "wall": 1_760_000_002.0, "peer": 0, "round": 1, evil: 1.0}
        file.write(json.dumps(row) + "\n")

    text = page.render(page.make(folder))

    tags = Counter(tag for tag, _ in Parsed(text).elements)
    assert tags["script"] == tags["img"] == 0
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


# --- sizes ----------------------------------------------------------------------------------------


def test_a_page_of_a_hundred_peers_is_no_larger_than_one_of_twelve(tmp_path: Path) -> None:
    sizes, kinds = {}, {}
    for peers in (12, 100):
        folder = tmp_path / f"of-{peers}"
        write(MadeUp(rounds=20, peers=peers, pace=10.0), folder)
        made = page.make(folder)
        sizes[peers] = len(page.render(made))
        for _, chart in charts_of(made):
            match chart:
                case LineChart():
                    assert len(chart.lines) <= curves.LISTED_MAX
                case LaneChart():
                    assert len(chart.lanes) <= curves.LISTED_MAX
        kinds[peers] = rows(made, "incidents")
    assert sizes[100] < 1.3 * sizes[12]
    assert len(kinds[100]) <= len(kinds[12])


def test_three_times_as_many_rounds_make_no_larger_page(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "long"
    write(MadeUp(rounds=1800, peers=8, pace=25.0), folder)
    assert len(page.render(page.make(folder))) < 2 * len(text)


# --- several runs ---------------------------------------------------------------------------------


def test_several_runs_are_compared_with_results_curves_and_what_differs(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write(MadeUp(rounds=300, peers=8, pace=25.0, seed=5), other)
    settings = (other / "config.toml").read_text()
    changed = settings.replace('aggregator = "spectral_clipping"', 'aggregator = "mean"')
    (other / "config.toml").write_text(changed)
    (other / "events.jsonl").open("a").write("[]\n")
    runs = {"a": recorded.RecordedRun(folder), "<b>": recorded.RecordedRun(other)}
    results, training, differences = comparing.compare(runs)
    assert runs["<b>"].broken
    assert results.text == [f"<b>: {line}" for line in runs["<b>"].broken]
    (table,) = [part for part in results.parts if isinstance(part, TextTable)]
    assert table.head == ("What", "a", "<b>")
    assert ("Steps", "599", "299") in table.rows
    assert [row[1].partition(" ")[0] for row in table.rows if row[0] == "Result"] == ["Loss"]
    (loss,) = [part for part in training.parts if isinstance(part, LineChart)]
    assert (loss.name, loss.over, loss.x_max) == ("chart-loss-by-round", "round", 599.0)
    assert [(line.name, line.style, line.low) for line in loss.lines] == [
        ("a", 0, None),
        ("<b>", 1, None),
    ]
    last = [float(line.x[np.isfinite(line.y)].max()) for line in loss.lines]
    assert last == pytest.approx([599, 299], abs=10)
    (table,) = [part for part in differences.parts if isinstance(part, TextTable)]
    assert ("aggregator", '"spectral_clipping"', '"mean"') in table.rows
    assert not {row[0] for row in table.rows} & {"quorum", "name", "run_dir", "Folder"}
    assert not training.text + differences.text


def test_a_comparison_of_runs_without_settings_and_values_says_so(tmp_path: Path) -> None:
    folder = RecordedRun(tmp_path / "run").folder
    runs = {name: recorded.RecordedRun(folder) for name in "ab"}
    _, training, differences = comparing.compare(runs)
    assert training.text == ["No script logged a value by round."]
    assert differences.text == [f"{name}: config.toml has no settings." for name in "ab"]


def test_the_page_of_several_runs_has_its_own_file_and_says_when_nothing_differs(
    folder: Path, tmp_path: Path
) -> None:
    same = tmp_path / "same"
    write(RUN, same)
    page.write([folder, same], None)
    text = (folder / "comparison.html").read_text()
    parsed = Parsed(text)
    assert not (folder / "report.html").exists()
    assert "nothing: settings, versions and code are equal" in "".join(parsed.text)
    ids = [each["id"] for _, each in parsed.elements if "id" in each]
    assert len(ids) == len(set(ids))
    assert [each["href"] for each in parsed.of("a")][1:] == [
        "#results",
        "#training",
        "#differences",
    ]


def test_without_jinja2_it_says_what_to_install(
    report: page.RunReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match="jinja2") as missing:
        page.render(report)
    assert missing.value.hint == "pip install 'gossip-train[report]'"


def test_of_how_many_peers_nothing_is_known_of_what_they_sent_is_said(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run")
    run.rounds(0, 5)
    path = run.folder / "events.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(row for row in rows if '"peer": 3, "event": "usage"' not in row))
    (sent,) = [
        text
        for text in participation.section(recorded.RecordedRun(run.folder), (), []).text
        if text.startswith("Sent in all")
    ]
    assert sent.endswith(" It is unknown for 1 peer.")
