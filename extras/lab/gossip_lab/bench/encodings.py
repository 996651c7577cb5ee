"""``gossip bench encodings``: the cost of an encoding and its effect on training.

The cost is bytes and time. The effect is the accuracy of each rule on encoded updates, without and
under attacks. All runs in one process, see ``trial_world``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gossip.launch.optional import optional
from gossip.launch.report import counted
from gossip_lab.pages import markdown_table, replace_between, split_at

from .exchange import Json, ended_by_signals
from .turns import as_json, draw, environment

if TYPE_CHECKING:
    from .trials import TrialResult

ENCODINGS = ["float32", "bf16", "fp16", "int8", "int4", "topk:0.1", "topk"]
ENCODINGS += ["powersgd", "powersgd:1"]
LARGE = (1000, 1000)
"""Shape of the matrix on which encodings are timed."""
REPETITIONS = 15
MARK = "measured by gossip bench encodings"
CLEAN, ATTACKS = "none", ["sign_flip", "sign_flip*10"]
PEERS, LIARS = 11, 2
SEEDS, LONG_ROUNDS = 3, 150
"""Number of seeds, and number of rounds, of the runs with the mean and without attack."""

Cell = dict[str, Any]


def encodings(
    rules: Annotated[str, optional("Rules, separated by blanks; by default all.")] = "",
    encoding: Annotated[list[str], typer.Option(help="Encodings. Repeatable.")] = ENCODINGS,
    attack: Annotated[
        list[str], typer.Option(help="Attack by two of the eleven workers. Repeatable.")
    ] = ATTACKS,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs for each rule.")] = SEEDS,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds of each run.")] = 100,
    data: Annotated[
        str, typer.Option(help="Data set, as for --data of gossip bench robustness.")
    ] = "digits",
    model: Annotated[
        str, typer.Option(help="mlp; for images of 28 by 28 small_cnn, fc_mnist or cnn_mnist.")
    ] = "mlp",
    lr: Annotated[float, typer.Option(min=1e-6, help="Learning rate of plain SGD.")] = 0.5,
    test_samples: Annotated[
        int, typer.Option(min=0, help="Number of test samples, the same in all runs; 0 means all.")
    ] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    into: Annotated[
        Path, typer.Option(help="Folder for finished runs; the same command continues.")
    ] = Path("runs/encodings"),
    page: Annotated[Path | None, typer.Option(help="Page to update with the results.")] = None,
    as_json_only: Json = False,
) -> None:
    """Compare encodings of updates: bytes, milliseconds, and accuracy under each rule.

    Eleven workers train the digits MLP (or --data and --model) in one process, as in gossip bench
    robustness. Updates and results are encoded and decoded before use. Honest workers add the
    encoding error to their next update.
    """
    from gossip.aggregators import registry
    from gossip.vectors import load_encoding
    from gossip_lab import data_sets

    from .trial_store import check_model, run_all
    from .trials import Trial

    for each in encoding:
        load_encoding(each)
    check_model(model, data_sets.load(data))
    wanted = rules.split() or [*registry.names(), "nnm+trimmed_mean", "nnm+krum"]
    for each in wanted:
        registry.load(each)
    if page is not None:
        split_at(page, MARK)
    shared: dict[str, Any] = {"lr": lr, "model": model, "test_samples": test_samples}
    cases = [
        Trial(rule, how, PEERS, LIARS, seed, rounds, encoding=each, **shared)
        for rule in wanted
        for each in encoding
        for how in (CLEAN, *attack)
        for seed in range(seeds)
    ]
    plain = [
        Trial("mean", CLEAN, PEERS, LIARS, seed, LONG_ROUNDS, encoding=each, **shared)
        for each in encoding
        for seed in range(SEEDS)
    ]
    with ended_by_signals():
        found = run_all([*plain, *cases], into, data, jobs)
    costs = [
        {
            **cost_of(each),
            "accuracies": [found[c].accuracy or 0.0 for c in plain if c.encoding == each],
        }
        for each in encoding
    ]
    cells = {
        (rule, each): cell_of(
            [found[c] for c in cases if (c.rule, c.encoding, c.attack) == (rule, each, CLEAN)],
            [found[c] for c in cases if (c.rule, c.encoding) == (rule, each) and c.attack != CLEAN],
        )
        for rule in wanted
        for each in encoding
    }
    out = sys.stderr if as_json_only else sys.stdout
    cost_rows, accuracy_columns = _costs(costs), ("rule", *encoding)
    accuracy_rows = _accuracies(cells, wanted, encoding)
    draw("encodings", COST_COLUMNS, cost_rows, out)
    title = "accuracy in percent: mean without attack / lowest of all seeds under attack"
    draw(title, accuracy_columns, accuracy_rows, out)
    if page is not None:
        about = (
            f"{counted(seeds, 'seed')}, {rounds} rounds, {PEERS} workers, {LIARS} Byzantine: "
            f"{' or '.join(attack)}. Data {data}, model {model}. {environment()}."
        )
        lines = [
            f"Accuracies: {SEEDS} seeds, {LONG_ROUNDS} rounds, no attack, the rule is the mean.",
            "",
            *markdown_table(COST_COLUMNS, cost_rows),
            "",
            about,
            "Accuracy in percent: without attack (mean) / lowest of all seeds and attacks:",
            "",
            *markdown_table(accuracy_columns, accuracy_rows),
        ]
        replace_between(page, MARK, ["", *lines, ""])
    if as_json_only:
        rows = [{"rule": rule, "encoding": each, **cell} for (rule, each), cell in cells.items()]
        how = {"attack": attack, "seeds": seeds, "rounds": rounds, "data": data, **shared}
        print(as_json("encodings", {**how, "costs": costs, "rows": rows}))


# --- bytes and time -------------------------------------------------------------------------------


def cost_of(encoding: str) -> dict[str, Any]:
    """Measure an encoding on an update that is one matrix of a million elements: bytes per element,
    and milliseconds on one thread."""
    import numpy as np
    import torch

    from gossip.vectors import WireFormat, load_encoding

    torch.set_num_threads(1)
    numbers = prod(LARGE)
    wire = WireFormat(load_encoding(encoding), 0, (numbers,), numbers, PEERS, (LARGE,))
    vector = np.random.default_rng(0).standard_normal(numbers).astype(np.float32)
    encode_s, decode_s = [], []
    for turn in range(REPETITIONS + 1):
        began = time.perf_counter()
        raw = wire.encode(vector, "update", turn, 0)
        between = time.perf_counter()
        wire.decode(raw, "update", turn, 0)
        if turn:
            encode_s.append(between - began)
            decode_s.append(time.perf_counter() - between)
    return {
        "encoding": encoding,
        "update_bytes": wire.update_bytes[0] / numbers,
        "result_bytes": wire.result_bytes[0] / numbers,
        "encode_ms": 1e3 * statistics.median(encode_s),
        "decode_ms": 1e3 * statistics.median(decode_s),
        "feedback": wire.encoding.feedback,
    }


def cell_of(clean: Sequence[TrialResult], attacked: Sequence[TrialResult]) -> Cell:
    """Return the accuracies of one rule and encoding: the mean without attack, and the lowest under
    any attack."""
    refused = next((one.refused for one in clean if one.refused), "")
    if refused:
        return {"clean": None, "attacked": None, "refused": refused}
    return {
        "clean": statistics.mean(one.accuracy or 0.0 for one in clean),
        "attacked": min(one.accuracy or 0.0 for one in attacked),
        "refused": "",
    }


# --- tables ---------------------------------------------------------------------------------------


def _costs(costs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    plain = next((cost["accuracies"] for cost in costs if cost["encoding"] == "float32"), None)
    for cost in costs:
        accuracy = f"{100 * statistics.mean(cost['accuracies']):.1f}"
        if plain is not None:
            pairs = zip(cost["accuracies"], plain, strict=True)
            accuracy += f" ({100 * statistics.mean([a - b for a, b in pairs]):+.1f})"
        rows.append(
            [
                cost["encoding"],
                f"{cost['update_bytes']:.3g}",
                f"{cost['result_bytes']:.3g}",
                f"{cost['encode_ms']:.2f}",
                f"{cost['decode_ms']:.2f}",
                "yes" if cost["feedback"] else "no",
                accuracy,
            ]
        )
    return rows


COST_COLUMNS = (
    "encoding",
    "bytes a number, update",
    "result",
    "ms to encode a million",
    "to decode",
    "feedback",
    "accuracy, mean (to float32)",
)


def _accuracies(
    cells: Mapping[tuple[str, str], Cell], rules: Sequence[str], encodings: Sequence[str]
) -> list[list[str]]:
    def shown(cell: Cell) -> str:
        if cell["refused"]:
            return "refused"
        return f"{100 * cell['clean']:.0f} / {100 * cell['attacked']:.0f}"

    return [
        [rule, *[shown(cells[rule, each]) for each in encodings]]
        for rule in rules
        if any(not cells[rule, each]["refused"] for each in encodings)
    ]
