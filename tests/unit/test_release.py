"""The release check: licences that Apache-2.0 can stand beside, and links of published READMEs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["licences", "packages", "check"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT / "tests" / "release")
    yield import_module(request.param)
    for name in ("licences", "packages", "check"):
        sys.modules.pop(name, None)


licences = pytest.mark.parametrize("module", ["licences"], indirect=True)
packages = pytest.mark.parametrize("module", ["packages"], indirect=True)
check = pytest.mark.parametrize("module", ["check"], indirect=True)


@licences
@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 OR BSD-3-Clause", True),
        ("GPL-3.0-only OR MIT", True),
        ("BSD-2-Clause AND Apache-2.0 WITH LLVM-exception", True),
        ("Mozilla Public License 2.0 (MPL 2.0)", True),
        ("GPL-3.0-or-later", False),
        ("MIT AND LGPL-2.1-only", False),
        ("GNU Affero General Public License v3", False),
        ("Other/Proprietary License", False),
        ("unknown", False),
    ],
)
def test_a_licence_is_allowed_beside_apache(module: Any, licence: str, allowed: bool) -> None:
    assert module.is_allowed(licence) == allowed
    assert (module.problems({"some": licence}) == []) == allowed


@licences
@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        ("License-Expression: MIT\nLicense: GPL", "MIT"),
        ("License: long\nClassifier: License :: OSI Approved :: ISC License", "ISC License"),
        ("License: BSD\n    more of it", "BSD"),
        ("Classifier: License :: OSI Approved", "unknown"),
    ],
)
def test_a_licence_is_read_from_the_metadata(
    module: Any, lines: str, licence: str, tmp_path: Path
) -> None:
    (tmp_path / "METADATA").write_text(f"Metadata-Version: 2.4\nName: some\n{lines}\n\n")
    assert module.licence_of(Distribution.at(tmp_path)) == licence


@packages
def test_links_of_a_published_readme_lead_to_the_repository(module: Any, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2"\n')
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "plan.md").touch()
    (tmp_path / "demo.png").touch()
    text = "[a](docs/plan.md#b) [d](docs) ![c](demo.png) [web](https://a.org) [none](none.txt)"
    assert module.make_links_absolute(text, tmp_path, tmp_path, "https://h/g") == (
        "[a](https://h/g/blob/v1.2/docs/plan.md#b) [d](https://h/g/tree/v1.2/docs) "
        "![c](https://h/g/raw/v1.2/demo.png) [web](https://a.org) [none](none.txt)"
    )
    inner = tmp_path / "docs"
    assert module.make_links_absolute("[a](../docs/plan.md)", inner, tmp_path, "https://h/g") == (
        "[a](https://h/g/blob/v1.2/docs/plan.md)"
    )


@check
def test_the_quick_tests_of_a_release_are_those_of_make(module: Any) -> None:
    words = ["make", "-s", "-C", str(ROOT), "--eval", "print:; @echo $(QUICK)", "print"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    chosen = [str(Path(path).relative_to(ROOT)) for path in module.quick_tests(ROOT)]
    assert chosen == sorted(printed)
    assert len(chosen) > 50
