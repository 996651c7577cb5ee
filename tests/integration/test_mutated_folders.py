"""The campaign of tampered run folders (``make folders``), short."""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path

import pytest
import zygote
from effort import effort

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
    folders = effort(50, 300)
    report = mutate.campaign(folders, 0, run)
    assert report.folders == folders
    assert report.findings == []
    assert report.signals == []
    assert report.grown_mb < mutate.GROWTH_MAX_MB
    assert {end.partition(":")[0] for end in report.ends} == set(mutate.tools(run))


def test_html_of_a_folder_is_escaped_in_the_page(run: Path) -> None:
    other = mutate.beside(run)
    settings = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**settings, "name": mutate.HTML}))
    started = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({**started, "command": [mutate.HTML]}))
    for folders in ((run,), (run, other), (other, run)):
        mutate.report_on(*folders)
        assert html.escape(mutate.HTML) in (run.parent / "report.html").read_text()
