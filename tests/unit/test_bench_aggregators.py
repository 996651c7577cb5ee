"""``gossip bench aggregators``: what it prints, and what it says about what it cannot time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gossip.errors import ConfigError
from gossip.launch.cli import app
from gossip_lab.bench import byzfl_rules as bench_byzfl, speed as bench_aggregators

SMALL = ["bench", "aggregators", "--n", "7", "--d", "200", "--repetitions", "2"]


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, [*SMALL, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_has_a_row_for_each_rule_and_says_where_it_was_measured() -> None:
    text = invoke("--rules", "median krum", "--rules", "nnm+trimmed_mean", "--no-byzfl")
    assert text.startswith(f"torch {torch.__version__}")
    assert "kernels: " in text
    assert "n = 7, d = 200, f = 1" in text
    for rule in ("median", "krum", "nnm+trimmed_mean"):
        assert rule in text


def tables(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoke(*words, "--json"))["tables"]
    return found


def test_json_is_all_that_is_printed_and_holds_every_number() -> None:
    (table,) = tables("--rules", "mean trimmed_mean", "--f", "2", "--no-byzfl")
    assert (table["n"], table["d"], table["f"]) == (7, 200, 2)
    assert table["pass_ms"] > 0
    assert [cell["rule"] for cell in table["cells"]] == ["mean", "trimmed_mean"]
    for cell in table["cells"]:
        assert min(cell["ms"], cell["passes"]) > 0
        assert cell["byzfl_ms"] is cell["ratio"] is None


def test_a_rule_that_cannot_take_so_few_updates_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def mine(updates, *, f, round_id): return updates[0] + round_id\n")
    (table,) = tables("--rules", f"krum median {path}:mine", "--f", "3", "--no-byzfl")
    krum, median, mine = table["cells"]
    assert krum["ms"] is None
    assert "needs 9 updates" in krum["note"]
    assert min(median["ms"], mine["ms"]) > 0
    assert mine["note"] == "", "it is told the round"


@pytest.mark.parametrize("words", [["--rules", "zeno"], ["--rules", "krum bulyan", "--f", "4"]])
def test_where_no_rule_can_be_timed_the_table_says_why_and_fails(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*SMALL, *words, "--no-byzfl"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "none of the rules could be timed" in result.output
    assert re.search(r"one pass \d+\.\d\d ms", result.output), (
        "a pass is timed though nothing else is"
    )
    for rule in words[1].split():
        assert rule in result.output
    assert "needs" in result.output


def test_whatever_a_rule_raises_is_a_note_and_names_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "a_file_with_a_rather_long_name_as_they_are_found_in_laboratories.py"
    path.write_text("def my_own_rule_of_many_words(updates, *, f):\n    return {}['no such key']\n")
    spec = f"{path}:my_own_rule_of_many_words"
    text = invoke("--rules", f"{spec} median", "--no-byzfl")
    assert spec in text
    assert "KeyError: 'no such key'" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) < 250, "as wide as it must be"


def test_threads_are_set_and_explanations_are_timed() -> None:
    before = torch.get_num_threads()
    try:
        assert ", 2 threads," in invoke(
            "--rules", "median krum", "--threads", "2", "--explain", "--no-byzfl"
        )
    finally:
        torch.set_num_threads(before)


def test_every_rule_of_the_default_table_can_be_timed() -> None:
    (table,) = tables("--no-byzfl")
    assert [cell["rule"] for cell in table["cells"]] == list(bench_aggregators.RULES)
    assert not [cell for cell in table["cells"] if cell["ms"] is None]


SLOW = """
from gossip.errors import AggregationError
def slow(updates, *, f):
    raise AggregationError('was tried')
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--n", "7", "--n", "8", "--d", "5"], "2 numbers of updates"),
        (["--rules", "medain"], "median"),
        # before the rule is tried on as many updates
        (
            ["--rules", "slow.py:slow", "--n", "100", "--d", str(10**13)],
            "GiB of updates do not fit",
        ),
        (["--rules", "krum:f=0 mean"], "krum:f=0 tolerates f=0 Byzantine peers, and the run"),
        (["--rules", "zeno:b=1", "--f", "4"], "zeno leaves out b=1 updates, but f=4"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_starts(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(SLOW)
    sizes = [] if "--n" in words else ["--d", "5", "--n", "7"]
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, ["bench", "aggregators", *sizes, *words], catch_exceptions=False)
    assert told in f"{caught.value} {caught.value.hint}"


def test_byzfl_is_timed_beside_and_computes_the_same() -> None:
    x = torch.randn(12, 300, generator=torch.Generator().manual_seed(0))
    from gossip.aggregators import load

    for spec in ("mean", "median", "trimmed_mean", "meamed"):
        call, why = bench_byzfl.call(spec, x, 2)
        assert call is not None, why
        torch.testing.assert_close(call(), load(spec)(x, f=2))
    (table,) = tables("--rules", "median phocas")
    median, phocas = table["cells"]
    assert median["ratio"] == pytest.approx(median["byzfl_ms"] / median["ms"])
    assert phocas["byzfl_ms"] is None
