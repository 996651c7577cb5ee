"""What was measured of a rule is not told of another one: whatever it is made of,
a change makes it another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from gossip.errors import ConfigError
from gossip_lab import rule_sources
from gossip_lab.bench import trial_store
from gossip_lab.bench.trials import Trial, TrialResult

RULE = "{first}\ndef mine(updates, *, f):\n    return updates.mean(0)\n"
POINTS = "[gossip.aggregators]\nfrom_elsewhere = pk_of_sources.mymod:mine\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package with a rule and what that imports; it has an entry point, too."""
    folder = tmp_path / "pk_of_sources"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "mymod.py").write_text(RULE.format(first="from .helper import half"))
    (folder / "helper.py").write_text(
        "def half(x):\n    from pk_of_sources import deeper\n    return deeper.HALF * x\n"
    )
    (folder / "deeper.py").write_text("import torch, json\nHALF = 0.5\n")
    about = tmp_path / "sources-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sources\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith("pk_of_sources")]:
        del sys.modules[name]


SPECS = ["pk_of_sources.mymod:mine", "from_elsewhere", "nnm+pk_of_sources.mymod:mine"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("changed", ["mymod.py", "helper.py", "deeper.py"])
def test_a_changed_module_or_one_that_it_imports_is_another_rule(
    spec: str, changed: str, package: Path, tmp_path: Path
) -> None:
    trial = Trial(spec)
    store = trial_store.store_of(tmp_path, "digits")
    store.write(trial, asdict(TrialResult(0.5)))
    assert store.read(trial) == TrialResult(0.5)
    file = package / changed
    file.write_text(f"{file.read_text()}# mended\n")
    assert trial_store.store_of(tmp_path, "digits").read(trial) is None


@pytest.mark.parametrize(
    "first",
    [
        "import helper_of_mine",
        "from helper_of_mine import half",
        "if 1:\n    import helper_of_mine",
    ],
)
def test_a_module_beside_a_rules_file_counts_with_it(first: str, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULE.format(first=first))
    (tmp_path / "helper_of_mine.py").write_text("half = 0.5\n")
    spec = f"{tmp_path / 'rules.py'}:mine"
    before = rule_sources.digest(spec)
    assert rule_sources.digest(spec) == before
    (tmp_path / "helper_of_mine.py").write_text("from deeper_of_mine import half\n")
    (tmp_path / "deeper_of_mine.py").write_text("half = 0.5\n")
    after = rule_sources.digest(spec)
    assert after != before
    (tmp_path / "deeper_of_mine.py").write_text("half = 0.25\n")
    assert rule_sources.digest(spec) != after


def test_the_rules_the_trust_table_the_encodings_and_the_digits_count_with_the_training() -> None:
    counted = {"/".join(path.parts[-2:]) for path in rule_sources.training_files()}
    assert counted >= {
        *("aggregators/base.py", "kernels/fast.py", "attacks/adaptive.py", "bench/trial_world.py"),
        *("ledger/trust.py", "core/settings.py", "vectors/wire.py", "training/feedback.py"),
        "demo/digits.py",
    }
    assert all(path.is_file() for path in rule_sources.training_files())


def test_data_of_another_content_are_other_data(tmp_path: Path) -> None:
    data, trial = tmp_path / "some.npz", Trial("median")
    data.write_bytes(b"first")
    store = trial_store.store_of(tmp_path, str(data))
    store.write(trial, asdict(TrialResult(0.5)))
    assert store.read(trial) == TrialResult(0.5)
    data.write_bytes(b"other ones")
    assert trial_store.store_of(tmp_path, str(data)).read(trial) is None


@pytest.mark.parametrize(
    "break_it",
    [
        lambda path: path.write_text("def mine(:\n"),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"\0"),
    ],
)
def test_what_is_no_python_has_a_digest_and_is_refused_by_who_loads_it(
    break_it: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "torn.py"
    path.write_text(RULE.format(first=""))
    before = rule_sources.digest(f"{path}:mine")
    break_it(path)
    assert rule_sources.digest(f"{path}:mine") != before
    from gossip.aggregators import load

    with pytest.raises(ConfigError):
        load(f"{path}:mine")
