"""The campaign of tampered run folders (``make folders``), short;
and that it finds what it is for."""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path

import jinja2
import pytest
import zygote
from effort import effort

from gossip.launch import hold
from gossip.launch.report import launchers, run_logs, stopping
from gossip.observe import fields
from gossip.run import untrusted as careful

sys.path.insert(0, str(Path(__file__).parents[1] / "folders"))

import mutate


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mutate.train(tmp_path_factory.mktemp("trained"), zygote.run)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run's folder for this test alone, as its launcher has left it."""
    return mutate.copy(trained, tmp_path)


def test_no_tampered_folder_hurts_who_reads_it(run: Path) -> None:
    folders = effort(150, 300)
    report = mutate.campaign(folders, 0, run)
    assert report.folders == folders
    assert report.findings == []
    assert report.signals == []
    assert report.grown_mb < mutate.GROWTH_MAX_MB
    assert {end.partition(":")[0] for end in report.ends} == set(mutate.tools(run))


def test_escapes_that_reach_the_screen_are_found(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(careful, "shown_line", lambda text: text)
    report = mutate.campaign(150, 0, run, commands=["logs"])
    assert any("writes" in finding.why for finding in report.findings)


def test_an_error_that_is_not_told_in_words_is_found(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: any text of the right name is a launcher's record."""

    def read(folder: Path, name: str) -> launchers.Launcher:
        with careful.open_in(folder, name) as file:
            fields = careful.parse_json(file.read())
        return launchers.Launcher(**{**fields, "peers": tuple(fields["peers"])})

    monkeypatch.setattr(launchers, "_read", read)
    report = mutate.campaign(150, 0, run, commands=["ls", "stop"])
    assert {finding.tool.split()[0] for finding in report.findings} >= {"ls", "stop"}


def test_a_signal_to_a_process_that_is_no_launcher_is_found(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pid and start are those of the record; that it leads no folder and is no launcher's is
    all that keeps it."""
    monkeypatch.setattr(launchers, "starts_peers", lambda command: True)
    monkeypatch.setattr(hold, "leads", lambda pid, folder: True)
    for name in ("NOW_S", "GUARDIAN_S"):
        monkeypatch.setattr(stopping, name, 0.01)
    report = mutate.campaign(150, 0, run, commands=["stop"])
    assert report.signals


def test_a_log_that_is_read_through_a_link_is_found(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(folder: Path, name: str) -> object:
        path = folder / name
        if path.is_symlink():
            raise AssertionError("reads what is behind a link")
        return careful.open_in(folder, name)

    monkeypatch.setattr(run_logs, "open_in", opened)
    report = mutate.campaign(300, 0, run, commands=["logs"])
    assert any("reads what is behind a link" in finding.why for finding in report.findings)


def test_rows_that_nobody_has_checked_are_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "find_problem", lambda row, types: "")
    monkeypatch.setattr(mutate, "ALARM_S", 1.0)
    report = mutate.campaign(600, 0, run, commands=["explain", "top"])
    assert report.findings


def test_html_that_reaches_the_page_is_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = json.loads((run / "events.jsonl").read_bytes().splitlines()[-1])
    row = {**last, "event": "notice", "peer": 0, "message": mutate.HTML, "hint": "none"}
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    mutate.report_on(run)
    assert html.escape(mutate.HTML) in (run.parent / "report.html").read_text()
    made = jinja2.Environment
    monkeypatch.setattr(
        jinja2, "Environment", lambda **options: made(**{**options, "autoescape": False})
    )
    with pytest.raises(AssertionError):
        mutate.report_on(run)
