"""``gossip bench encodings``: what an encoding costs and what it is worth.

Bytes, time, and how well rules learn with it, also under an attack; in one process, as ``learning``
does it.
"""

from __future__ import annotations

import functools
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import prod
from multiprocessing import active_children
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gossip.errors import ConfigError, GossipError
from gossip.interpreter import spawn_context
from gossip.launch.optional import optional
from gossip.launch.report import counted

from .exchange import ended_by_signals
from .speed import environment
from .turns import as_json, draw, print_progress

if TYPE_CHECKING:
    from .data_sets import TrainingData

ENCODINGS = ["float32", "bf16", "fp16", "int8", "int4", "topk:0.1", "topk", "randomk"]
ENCODINGS += ["powersgd", "powersgd:1"]
LARGE = (1000, 1000)
"""The matrix that is timed."""
REPETITIONS = 15
BEGIN, END = "<!-- measured by gossip bench encodings -->", "<!-- end of what was measured -->"
CLEAN, ATTACKS = "none", ["sign_flip", "sign_flip*10"]
PEERS, LIARS = 11, 2
SEEDS, LONG_ROUNDS = 3, 150
"""Seeds and rounds of the trainings that compare encodings under the mean, without attack."""
TOLD_EVERY_S = 15.0

Cell = dict[str, Any]


class Training(NamedTuple):
    """Training that all cases share, in the terms of ``learning.Trial``."""

    data: str
    model: str
    lr: float
    test_samples: int


@dataclass(frozen=True, slots=True)
class Case:
    """One training: a rule behind an encoding, with liars or without."""

    rule: str
    encoding: str
    attack: str
    seed: int
    rounds: int
    of: Training

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def encodings(
    rules: Annotated[str, optional("Rules, separated by blanks; by default all.")] = "",
    encoding: Annotated[list[str], typer.Option(help="Encodings. Repeatable.")] = ENCODINGS,
    attack: Annotated[
        list[str], typer.Option(help="What two of eleven workers do. Repeatable.")
    ] = ATTACKS,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each rule.")] = SEEDS,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds of each.")] = 100,
    data: Annotated[
        str, typer.Option(help="digits, or what gossip bench robustness takes as --data.")
    ] = "digits",
    model: Annotated[
        str, typer.Option(help="mlp; for images of 28 by 28 small_cnn, fc_mnist or cnn_mnist.")
    ] = "mlp",
    lr: Annotated[float, typer.Option(min=1e-6, help="Learning rate of plain SGD.")] = 0.5,
    test_samples: Annotated[
        int, typer.Option(min=0, help="Test on so many samples, drawn once; 0: on all.")
    ] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    into: Annotated[
        Path | None, typer.Option(help="File that keeps what is done: the same command goes on.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Page whose measured part is written anew.")
    ] = None,
    as_json_only: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, to stdout.")
    ] = False,
) -> None:
    """Compare encodings of updates: bytes, milliseconds, and accuracy under each rule.

    The digits MLP (or --data and --model), eleven workers, in one process, as gossip bench
    robustness does it. Updates and results are as they are behind the encoding; honest workers keep
    what is lost for their next update.
    """
    from gossip.aggregators import registry
    from gossip.vectors import load_encoding

    from . import models

    for each in encoding:
        load_encoding(each)
    of = Training(data, model, lr, test_samples)
    models.check(model, _data(data).images.shape[1])
    wanted = rules.split() or [*registry.names(), "nnm+trimmed_mean", "nnm+krum"]
    for each in wanted:
        registry.load(each)
    if page is not None and not (page.exists() and BEGIN in page.read_text("utf-8")):
        raise ConfigError(f"{page} has no line {BEGIN}", "name docs/results/encodings.md")
    cases = [
        Case(rule, each, how, seed, rounds, of)
        for rule in wanted
        for each in encoding
        for how in (CLEAN, *attack)
        for seed in range(seeds)
    ]
    plain = [
        Case("mean", each, CLEAN, seed, LONG_ROUNDS, of)
        for each in encoding
        for seed in range(SEEDS)
    ]
    with ended_by_signals():
        found = run_cases([*plain, *cases], jobs, into)
    costs = [
        {
            **cost_of(each, PEERS),
            "accuracies": [found[c.key]["accuracy"] for c in plain if c.encoding == each],
        }
        for each in encoding
    ]
    cells = {
        (rule, each): cell_of(found, [c for c in cases if (c.rule, c.encoding) == (rule, each)])
        for rule in wanted
        for each in encoding
    }
    out = sys.stderr if as_json_only else sys.stdout
    _show(costs, cells, wanted, encoding, out)
    if page is not None:
        about = (
            f"{counted(seeds, 'seed')}, {rounds} rounds, {PEERS} workers of which {LIARS} lie: "
            f"{' or '.join(attack)}. Data {data}, model {model}. {environment()}."
        )
        write_page(page, measured(costs, cells, wanted, encoding, about))
    if as_json_only:
        rows = [{"rule": rule, "encoding": each, **cell} for (rule, each), cell in cells.items()]
        how = {"attack": attack, "seeds": seeds, "rounds": rounds, **of._asdict()}
        print(as_json("encodings", {**how, "costs": costs, "rows": rows}))


# --- bytes and time -------------------------------------------------------------------------------


def cost_of(encoding: str, peers: int) -> dict[str, Any]:
    """Measure an encoding on an update of a million numbers in one matrix: bytes a number, and
    milliseconds on one thread."""
    import numpy as np
    import torch

    from gossip.vectors import WireFormat, load_encoding

    torch.set_num_threads(1)
    numbers = prod(LARGE)
    wire = WireFormat(load_encoding(encoding), 0, (numbers,), numbers, peers, (LARGE,))
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


# --- trainings ------------------------------------------------------------------------------------


def run_cases(cases: Sequence[Case], jobs: int, into: Path | None) -> dict[str, Cell]:
    """Run the cases and return their results by key. A case whose result is in the file ``into`` is
    not run again."""
    found = _recalled(into)
    missing = [case for case in cases if case.key not in found]
    began = last = time.monotonic()
    print_progress(f"{len(missing)} trainings to run, {len(cases) - len(missing)} are known")
    with _pool(jobs) as pool:
        running = {pool.submit(run_case, case): case for case in missing}
        for number, done in enumerate(as_completed(running), 1):
            case, cell = running[done], done.result()
            found[case.key] = cell
            if into is not None:
                with into.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": case.key, "cell": cell}) + "\n")
            now = time.monotonic()
            if now - last > TOLD_EVERY_S or number == len(missing):
                last = now
                left_s = (now - began) / number * (len(missing) - number)
                print_progress(f"{number} of {len(missing)} trainings, {left_s:.0f} s to go")
    return found


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    others = set(active_children())
    with spawn_context() as context:
        pool = ProcessPoolExecutor(jobs, context, _begin)
        try:
            yield pool
        except BaseException:
            workers = set(active_children()) - others
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()
            print_progress("stopped; with --into the same command goes on")
            raise
        pool.shutdown()


def _begin() -> None:
    """In a new worker. Ctrl-C is for the one who started us."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


@functools.cache
def _data(name: str) -> TrainingData:
    from . import data_sets

    return data_sets.load(name)


def _recalled(into: Path | None) -> dict[str, Cell]:
    if into is None or not into.exists():
        return {}
    rows = [json.loads(line) for line in into.read_text("utf-8").splitlines()]
    return {row["key"]: row["cell"] for row in rows}


def run_case(case: Case) -> Cell:
    """The accuracy, or why a run refuses it."""
    from gossip.aggregators import registry
    from gossip.run import fitting

    from .learning import Trial, train

    rule = registry.load(case.rule)
    try:
        fitting.check_encoding(case.encoding, rule, rolling=True)
        trial = Trial(
            case.rule,
            case.attack,
            n=PEERS,
            f=LIARS,
            seed=case.seed,
            rounds=case.rounds,
            lr=case.of.lr,
            model=case.of.model,
            test_samples=case.of.test_samples,
        )
        result = train(trial, _data(case.of.data), encoded_run(case.encoding))
    except GossipError as error:
        return {"accuracy": None, "refused": str(error)}
    return {"accuracy": result.accuracy, "refused": result.refused}


def cell_of(found: Mapping[str, Cell], cases: Sequence[Case]) -> Cell:
    """Return the accuracies of one rule and encoding: the mean without attack, and the lowest under
    any attack."""
    results = {
        how: [found[c.key] for c in cases if (c.attack == CLEAN) is how] for how in (True, False)
    }
    refused = next((one["refused"] for one in results[True] if one["refused"]), "")
    if refused:
        return {"clean": None, "attacked": None, "refused": refused}
    clean = [one["accuracy"] for one in results[True]]
    attacked = [one["accuracy"] or 0.0 for one in results[False]]
    return {"clean": statistics.mean(clean), "attacked": min(attacked), "refused": ""}


def encoded_run(encoding: str) -> Any:
    """A kind of run (``learning.train``) in which updates and results are as they are behind that
    encoding."""
    import numpy as np
    import torch
    from torch import Tensor

    from gossip.aggregators import BoundRule, Verdict
    from gossip.errors import Malformed
    from gossip.training import UpdateEncoder
    from gossip.vectors import WireFormat, load_encoding

    from .learning import Trial, _Run

    class EncodedRun(_Run):
        """Honest workers keep what their updates lose; liars send what they like, encoded."""

        def __init__(self, trial: Trial, rule: BoundRule, data: TrainingData) -> None:
            super().__init__(trial, rule, data)
            d = len(self.model.parameters)
            how = load_encoding(encoding)
            self.wire = WireFormat(how, trial.seed, (d,), d, trial.n, self.model.shapes)
            self.encoders = [UpdateEncoder(self.wire) for _ in range(trial.n)]
            self.memory = np.empty(self.wire.update_bytes[0], np.uint8)

        def _offered(self, round_id: int) -> Tensor:
            updates = super()._offered(round_id).numpy().copy()
            for encoder, update in zip(self.encoders[: self.honest], updates, strict=False):
                encoder.encode(update, self.memory, round_id)
            for lie in updates[self.honest :]:
                raw = self.wire.encode(lie, "update", round_id, 0)
                try:
                    lie[:] = self.wire.decode(raw, "update", round_id, 0)
                except Malformed:
                    lie[:] = np.nan
            return torch.from_numpy(updates)

        def _aggregate(self, updates: Tensor, f: int, round_id: int) -> Verdict | None:
            verdict = super()._aggregate(updates, f, round_id)
            if verdict is None:
                return None
            raw = self.wire.encode(verdict.aggregate.numpy(), "result", round_id, 0)
            decoded = self.wire.decode(raw.copy(), "result", round_id, 0)
            return replace(verdict, aggregate=torch.from_numpy(decoded))

        def _judge(
            self, round_id: int, taken: list[int], verdict: Verdict | None, faulty: list[int]
        ) -> None:
            super()._judge(round_id, taken, verdict, faulty)
            for worker, encoder in enumerate(self.encoders):
                encoder.settle(round_id, (verdict is not None and worker in taken,))

    return EncodedRun


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


def _grid(
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


def _show(
    costs: Sequence[Mapping[str, Any]],
    cells: Mapping[tuple[str, str], Cell],
    rules: Sequence[str],
    encodings: Sequence[str],
    out: Any,
) -> None:
    draw("encodings", COST_COLUMNS, _costs(costs), out)
    title = "accuracy in per cent: mean without liars / least of all seeds with them"
    draw(title, ("rule", *encodings), _grid(cells, rules, encodings), out)


def measured(
    costs: Sequence[Mapping[str, Any]],
    cells: Mapping[tuple[str, str], Cell],
    rules: Sequence[str],
    encodings: Sequence[str],
    about: str,
) -> str:
    """The measured part of the page."""
    lines = [
        f"Accuracies: {SEEDS} seeds, {LONG_ROUNDS} rounds, nobody lies, the rule is the mean.",
        "",
        *_markdown(COST_COLUMNS, _costs(costs)),
        "",
        about,
    ]
    lines += [
        "Accuracy in per cent, without liars (mean) / with them (least of all seeds and attacks):",
        "",
    ]
    lines += _markdown(("rule", *encodings), _grid(cells, rules, encodings))
    return "\n".join(lines)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |",
        f"|---{'|---:' * (len(columns) - 1)}|",
        *[f"| {' | '.join(row)} |" for row in rows],
    ]


def write_page(page: Path, content: str) -> None:
    """Puts it between the two marks of the page."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, behind = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{content}\n\n{END}{behind}", "utf-8")
