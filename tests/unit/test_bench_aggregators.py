"""``gossip bench aggregators``: what it prints, and what it says about what it cannot time."""

from __future__ import annotations

import json
import re
from pathlib import Path

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


def test_json_is_all_that_is_printed_and_holds_every_number() -> None:
    found = json.loads(invoke("--rules", "mean trimmed_mean", "--f", "2", "--no-byzfl", "--json"))
    (table,) = found["tables"]
    assert (table["n"], table["d"], table["f"]) == (7, 200, 2)
    assert table["pass_ms"] > 0
    assert [cell["rule"] for cell in table["cells"]] == ["mean", "trimmed_mean"]
    for cell in table["cells"]:
        assert cell["ms"] > 0
        assert cell["passes"] > 0
        assert cell["byzfl_ms"] is cell["ratio"] is None


def test_a_rule_that_cannot_take_so_few_updates_says_so_and_the_others_are_timed() -> None:
    (table,) = json.loads(invoke("--rules", "krum median", "--f", "3", "--no-byzfl", "--json"))[
        "tables"
    ]
    krum, median = table["cells"]
    assert krum["ms"] is None
    assert "needs 9 updates" in krum["note"]
    assert median["ms"] > 0


def test_a_rule_that_asks_for_the_round_is_timed(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def mine(updates, *, f, round_id): return updates[0] + round_id\n")
    (table,) = json.loads(invoke("--rules", f"{path}:mine", "--no-byzfl", "--json"))["tables"]
    assert table["cells"][0]["note"] == ""
    assert table["cells"][0]["ms"] > 0


@pytest.mark.parametrize("words", [["--rules", "zeno"], ["--rules", "krum bulyan", "--f", "4"]])
def test_where_no_rule_can_be_timed_the_table_says_why_and_the_command_fails(
    words: list[str],
) -> None:
    result = CliRunner().invoke(app, [*SMALL, *words, "--no-byzfl"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "none of the rules could be timed" in result.output
    assert re.search(r"one pass \d+\.\d\d ms", result.output), (
        "a pass is timed though nothing else is"
    )
    for rule in words[1].split():
        assert rule in result.output
    assert "needs" in result.output


def test_whatever_a_rule_raises_is_a_note_and_names_are_whole_where_nobody_looks(
    tmp_path: Path,
) -> None:
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
    (table,) = json.loads(invoke("--no-byzfl", "--json"))["tables"]
    assert [cell["rule"] for cell in table["cells"]] == list(bench_aggregators.RULES)
    assert not [cell for cell in table["cells"] if cell["ms"] is None]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--n", "7", "--n", "8", "--d", "5"], "2 numbers of updates"),
        (["--rules", "medain"], "median"),
        (["--n", "1000000", "--d", "1000000"], "do not fit"),
        (
            ["--rules", "krum:f=0 mean"],
            "krum:f=0 tolerates f=0 Byzantine peers, and f=1 may be there",
        ),
        (["--rules", "zeno:b=1", "--f", "4"], "zeno leaves out b=1 updates, but f=4"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_starts(
    words: list[str], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(
            app,
            [
                "bench",
                "aggregators",
                *(["--d", "5", "--n", "7"] if "--n" not in words else []),
                *words,
            ],
            catch_exceptions=False,
        )
    assert told in f"{caught.value} {caught.value.hint}"


def test_what_does_not_fit_is_refused_before_a_rule_is_tried_on_as_many_updates(
    tmp_path: Path,
) -> None:
    lines = [
        "from gossip.errors import AggregationError",
        "def slow(updates, *, f):",
        "    raise AggregationError('was tried')",
    ]
    (tmp_path / "slow.py").write_text("\n".join(lines) + "\n")
    words = [
        "bench",
        "aggregators",
        "--rules",
        f"{tmp_path / 'slow.py'}:slow",
        "--n",
        "100",
        "--d",
        str(10**13),
    ]
    with pytest.raises(ConfigError, match="GiB of updates do not fit"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_byzfl_is_timed_beside_and_computes_the_same() -> None:
    x = torch.randn(12, 300, generator=torch.Generator().manual_seed(0))
    from gossip.aggregators import load

    for spec in ("mean", "median", "trimmed_mean", "meamed"):
        call, why = bench_byzfl.call(spec, x, 2)
        assert call is not None, why
        torch.testing.assert_close(call(), load(spec)(x, f=2))
    (table,) = json.loads(invoke("--rules", "median phocas", "--json"))["tables"]
    median, phocas = table["cells"]
    assert median["ratio"] == pytest.approx(median["byzfl_ms"] / median["ms"])
    assert phocas["byzfl_ms"] is None
