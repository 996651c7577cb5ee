"""``gossip bench aggregators``: time of each rule, relative to the time of one sum over the updates
and to byzfl."""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from gossip.errors import ConfigError, GossipError
from gossip.launch.optional import optional
from gossip.launch.report import counted

from .exchange import Json
from .turns import draw, environment, progress

if TYPE_CHECKING:
    from torch import Tensor

RULES = (
    "mean",
    "median",
    "trimmed_mean",
    "meamed",
    "phocas",
    "krum",
    "multi_krum",
    "geometric_median",
    "centered_clipping:steps=1",
    "centered_clipping:steps=5",
    "nnm+trimmed_mean",
)
SLOW_S = 0.3  # rules that take longer are repeated less often
SLOW_REPETITIONS = 3
NOTE_CHARS = 200


def aggregators(
    n: Annotated[
        list[int],
        typer.Option("--n", min=1, help="Number of updates. Repeatable, together with --d."),
    ] = [20, 64, 20],  # noqa: B006
    d: Annotated[
        list[int], typer.Option("--d", min=1, help="Number of coordinates of an update.")
    ] = [1_000_000, 1_000_000, 25_000_000],  # noqa: B006
    f: Annotated[
        int | None, optional("Byzantine peers to tolerate; a fifth of n by default.", "--f", min=0)
    ] = None,
    rules: Annotated[
        list[str] | None,
        optional("Rules, separated by blanks; by default eleven common rules. Repeatable."),
    ] = None,
    repetitions: Annotated[
        int, typer.Option(min=1, help="Repetitions of each measurement; the median is shown.")
    ] = 15,
    threads: Annotated[
        int | None, optional("Number of threads; by default torch's default.", min=1)
    ] = None,
    byzfl: Annotated[bool, typer.Option(help="Measure byzfl, too, when it is installed.")] = True,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also time the calls that return weights and outlyingness."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Time rules: milliseconds, passes over the updates, and speed relative to byzfl.

    One pass is torch.sum over the updates, timed right before every repetition; the repetitions of
    all rules alternate.
    """
    import torch

    from gossip.aggregators import load

    if len(n) != len(d):
        raise ConfigError(
            f"{counted(len(n), 'number')} of updates and {len(d)} of coordinates",
            "set as many --n as --d",
        )
    specs = [word for text in rules for word in text.split()] if rules else list(RULES)
    loaded = [load(spec) for spec in specs]
    _check_memory(n, d)
    for rule in loaded:
        for count in n if rules else ():
            attackers = count // 5 if f is None else f
            # if n is too small for a rule, its note shows that
            rule.check(attackers, max(count, rule.at_least(attackers)))
    if threads is not None:
        torch.set_num_threads(threads)
    out = sys.stderr if as_json else sys.stdout
    print(environment(), file=out)
    tables: list[TimingTable] = []
    try:
        for count, length in zip(n, d, strict=True):
            tolerated = count // 5 if f is None else f
            table = measure(count, length, tolerated, specs, repetitions, byzfl, explain)
            tables.append(table)
            print_table(table, out)
    except KeyboardInterrupt:
        print(
            f"interrupted; complete: {len(tables)} of {counted(len(n), 'table')}", file=sys.stderr
        )
        if as_json:
            print(_json(tables))
        raise typer.Exit(130) from None
    if as_json:
        print(_json(tables))
    if not any(cell.ms is not None for table in tables for cell in table.cells):
        print(
            "error: none of the rules could be timed; see the notes for the reasons",
            file=sys.stderr,
        )
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class TimingCell:
    """Timing of one rule for one n, d and f. Milliseconds are medians. ``note`` is the reason if
    the rule has no timing.

    Attributes:
        passes: Median, over the repetitions, of the rule's time divided by the time of the pass
            right before it.
        byzfl_ms: Milliseconds of byzfl's version of the rule, if byzfl has one.
        ratio: Time of byzfl as a multiple of the rule's time.
    """

    rule: str
    ms: float | None
    passes: float | None
    byzfl_ms: float | None
    note: str
    ratio: float | None


@dataclass(frozen=True, slots=True)
class TimingTable:
    """Timings of all rules on n updates of d coordinates."""

    n: int
    d: int
    f: int
    pass_ms: float
    cells: list[TimingCell] = field(default_factory=list)


@dataclass(slots=True)
class _Timed:
    """A function to time. ``took`` has the times of its calls, and ``passes`` the times of the
    passes right before them, in seconds."""

    name: str
    call: Callable[[], Any] | None
    took: list[float] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def ms(self) -> float | None:
        return 1e3 * statistics.median(self.took) if self.took else None

    def is_due(self, turn: int) -> bool:
        """Whether the function is called in this turn. Functions that raised an exception are not
        called again, and slow functions are called less often."""
        slow = bool(self.took) and min(self.took) > SLOW_S and turn >= SLOW_REPETITIONS
        return not (self.call is None or self.failed or slow)

    def run_once(self, pass_s: float, is_counted: bool) -> None:
        """Time one call. If the call raises, record the reason in ``failed``."""
        assert self.call is not None
        try:
            began = time.perf_counter()
            self.call()
            took = time.perf_counter() - began
        except Exception as error:  # noqa: BLE001 - a rule may raise anything
            words = " ".join(str(error).split())
            kind = "" if isinstance(error, GossipError) else f"{type(error).__name__}: "
            self.failed = f"{kind}{words}"[:NOTE_CHARS]
            return
        if is_counted or took > SLOW_S:
            self.took.append(took)
            self.passes.append(pass_s)


def measure(
    n: int, d: int, f: int, specs: Sequence[str], repetitions: int, byzfl: bool, explain: bool
) -> TimingTable:
    """Time every rule on the same updates. The first call of each rule is not part of the timing,
    because it may compile."""
    import torch

    from gossip.aggregators import load

    from . import byzfl_rules as bench_byzfl

    updates = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    total = torch.empty(d)
    passes: list[float] = []
    pairs: list[tuple[_Timed, _Timed]] = []
    for spec in specs:
        call, why = bench_byzfl.call(spec, updates, f) if byzfl else (None, "")
        own = _Timed(spec, _call(load(spec), updates, f, explain))
        pairs.append((own, _Timed(f"byzfl {spec}", call, failed=why)))
    gc.collect()
    for turn in range(repetitions + 1):
        for one in itertools.chain.from_iterable(pairs):
            if one.is_due(turn):
                progress(f"n={n} d={d:,} f={f}: turn {turn} of {repetitions}, {one.name}")
                began = time.perf_counter()
                torch.sum(updates, 0, out=total)
                passes.append(time.perf_counter() - began)
                one.run_once(passes[-1], is_counted=turn > 0)
    progress("")
    cells = []
    for own, other in pairs:
        over = [took / one for took, one in zip(own.took, own.passes, strict=True)]
        note = f"byzfl: {other.failed}" if other.failed else ""
        in_passes = statistics.median(over) if over else None
        ratio = other.ms / own.ms if own.ms and other.ms else None
        cells.append(TimingCell(own.name, own.ms, in_passes, other.ms, own.failed or note, ratio))
    return TimingTable(n, d, f, 1e3 * statistics.median(passes), cells)


def _call(rule: Any, updates: Tensor, f: int, explain: bool) -> Callable[[], Any]:
    rounds = itertools.count()
    call = rule.explain if explain else rule
    return lambda: call(updates, f=f, round_id=next(rounds))


def _check_memory(n: Sequence[int], d: Sequence[int]) -> None:
    import psutil

    free = psutil.virtual_memory().available
    need = max(4 * count * length for count, length in zip(n, d, strict=True))
    if need * 1.3 > free:
        raise ConfigError(
            f"{need / 2**30:.1f} GiB of updates do not fit into {free / 2**30:.1f} GiB",
            "use a smaller --n or --d",
        )


def print_table(table: TimingTable, out: TextIO) -> None:
    title = f"n = {table.n}, d = {table.d:,}, f = {table.f}; one pass {table.pass_ms:.2f} ms"
    with_notes = any(cell.note for cell in table.cells)
    rows = [
        (
            cell.rule,
            _show(cell.ms, 2),
            _show(cell.passes, 2),
            _show(cell.byzfl_ms, 2),
            _show(cell.ratio, 1),
            *([cell.note] if with_notes else []),
        )
        for cell in table.cells
    ]
    columns = ("rule", "ms", "passes", "byzfl ms", "times faster")
    draw(title, (*columns, "note") if with_notes else columns, rows, out)


def _show(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _json(tables: Sequence[TimingTable]) -> str:
    return json.dumps({"environment": environment(), "tables": list(map(asdict, tables))})
