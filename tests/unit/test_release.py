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
def test_a_licence_is_allowed_if_apache_can_stand_beside_it(
    module: Any, licence: str, allowed: bool
) -> None:
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


@check
def test_a_python_that_is_not_there_is_named(module: Any) -> None:
    assert [*module.interpreters(["2.1"])] == ["2.1"]
    (own,) = module.interpreters(["{}.{}".format(*sys.version_info)])
    assert own.path == Path(sys.executable)


@check
def test_a_check_without_any_python_fails(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OF_THE_PACKAGES", ())
    rows, succeeded = module.play(None, ["2.1", "2.2"])
    assert not succeeded
    assert [row.split()[0] for row in rows] == ["skip", "skip", "FAIL"]


@check
def test_the_first_step_that_fails_ends_the_check(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(release: Any) -> str:
        raise module.Failure("no wheel")

    monkeypatch.setattr(module, "OF_THE_PACKAGES", (lambda release: "fine", fails, fails))
    monkeypatch.setattr(
        module, "steps", lambda wanted: zip("abc", module.OF_THE_PACKAGES, strict=True)
    )
    rows, succeeded = module.play(None, [])
    assert not succeeded
    assert [row.split()[0] for row in rows] == ["ok", "FAIL"]
    assert "no wheel" in capsys.readouterr().out


@check
def test_an_sdist_that_installs_other_files_than_the_wheel_fails(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = iter([{"a", "b"}, {"a"}])
    monkeypatch.setattr(module, "files_of", lambda binaries: next(files))
    monkeypatch.setattr(module, "environment", lambda *_: tmp_path)
    monkeypatch.setattr(module, "install", lambda *_: None)
    monkeypatch.setattr(module.Release, "built", lambda *_: tmp_path)
    release = module.Release(tmp_path, tmp_path, "", "")
    with pytest.raises(module.Failure, match=r"other files: \['b'\]"):
        module.sdists(release, module.Interpreter("3.11", tmp_path))
