"""Plans as text: a table of the kinds of training, the stages with their peers, and a time line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gossip.launch.report import bytes_word, counted
from gossip.run import shown
from gossip_pipelines.planning import bottleneck, parts_of, play, played_step_s

if TYPE_CHECKING:
    from gossip_pipelines.planning import (
        Costs,
        Placement,
        PlanAnswer,
        PlanRequest,
        StagePart,
        StagePass,
    )

WIDTH = 72
"""Number of characters of a time line."""
FORWARD = "0123456789"
BACKWARD = "abcdefghij"
IDLE = "·"


def seconds_word(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms"


def print_answer(costs: Costs, request: PlanRequest, answer: PlanAnswer, out: Path) -> None:
    """Print each kind of training with the time of a step, the fastest first."""
    print(
        f"a step of {counted(request.batch, 'sample')} on {counted(len(costs.peers), 'peer')}, as "
        "predicted from the profiles:"
    )
    table = _table(("way", "step", "samples/s", "peers"), left=(0, 3))
    for step_s, name, peers in sorted(_rows(costs, answer)):
        table.add_row(name, seconds_word(step_s), f"{request.batch / step_s:,.0f}", peers)
    _print(table)
    for line in _conclusions(costs, answer, out):
        print(line)


def _rows(costs: Costs, answer: PlanAnswer) -> Iterable[tuple[float, str, str]]:
    for option in answer.pipelines:
        work, groups = option.placement.stage_costs.work, option.placement.groups
        name = (
            f"pipeline, {len(groups)} stages, {work.micro_batches} x {work.samples}"
            f"{', bf16' if work.activations == 'bf16' else ''}"
            f"{'' if option.exact else ' (searched)'}"
        )
        peers = " | ".join(" ".join(costs.peers[peer] for peer in group) for group in groups)
        yield option.played_s, name, peers
    for other in answer.others:
        yield other.step_s, other.name, " ".join(costs.peers[peer] for peer in other.peers)


def _conclusions(costs: Costs, answer: PlanAnswer, out: Path) -> Iterable[str]:
    if answer.others:
        left_out = [name for at, name in enumerate(costs.peers) if at not in answer.others[0].peers]
        if left_out:
            yield (
                "too little memory for the whole model and a round's updates: "
                f"{', '.join(left_out)}"
            )
    else:
        yield "the whole model fits into no peer's memory, so there is no data-parallel training"
    if not answer.pipelines:
        yield "no pipeline of two stages or more fits these peers"
        return
    best = answer.pipelines[0]
    yield f"{shown(out)}: the pipeline of {len(best.placement.groups)} stages"
    # Training with local steps is another algorithm, so it is not compared.
    same = next((other for other in answer.others if "local steps" not in other.name), None)
    if same is not None:
        ratio = same.step_s / best.played_s
        faster = "faster" if ratio >= 1 else "slower"
        yield (
            f"it is {max(ratio, 1 / ratio):.2f} times {faster} than {same.name} with an "
            "exchange each step"
        )


def print_plan(placement: Placement) -> None:
    """Print the stages with their peers, the bottleneck, and the time line of a step."""
    parts, costs = parts_of(placement), placement.stage_costs.costs
    slowest, on_link = bottleneck(parts)
    columns = ("stage", "layers", "peers", "compute", "link", "exchange", "memory", "")
    table = _table(columns, left=(1, 2, 7))
    for stage, part in enumerate(parts):
        table.add_row(
            str(stage),
            _layers_word(costs.layers, *part.layers),
            _peers_word(part),
            seconds_word(part.compute_s),
            seconds_word(part.link_s) if part.link_s else "",
            seconds_word(part.exchange_s) if part.exchange_s else "",
            bytes_word(part.memory_bytes),
            ("<- slowest: its link" if on_link else "<- slowest") if stage == slowest else "",
        )
    _print(table)
    tasks = play(placement)
    played = max(task.end_s for task in tasks)
    print(
        f"\none step, {seconds_word(played)}: digits are forward passes of micro-batches, letters "
        "backward passes"
    )
    names = max(len(name) for name in costs.peers)
    for group in placement.groups:
        for peer in group:
            own = [task for task in tasks if task.peer == peer]
            busy = sum(task.end_s - task.begin_s for task in own) / played
            line = Text(f"{costs.peers[peer]:>{names}} ")
            line.append_text(_time_line(own, played)).append(f" {100 * busy:.0f} %")
            _print(line)
    if exchange_s := placement.cut.exchange_s:
        print(f"and {seconds_word(exchange_s)} for the exchange within the slowest group")


def _time_line(tasks: Sequence[StagePass], played_s: float) -> Text:
    """Return the time line of a peer. Each character covers an interval of time, and shows the pass
    at the middle of that interval."""
    line = Text()
    for at in range(WIDTH):
        middle = (at + 0.5) * played_s / WIDTH
        task = next((each for each in tasks if each.begin_s <= middle < each.end_s), None)
        if task is None:
            line.append(IDLE, "dim")
        elif task.backward:
            line.append(BACKWARD[task.micro_batch % len(BACKWARD)], "magenta")
        else:
            line.append(FORWARD[task.micro_batch % len(FORWARD)], "cyan")
    return line


def _layers_word(names: tuple[str, ...], first: int, last: int) -> str:
    kinds = [name.partition(" ")[2] or name for name in (names[first], names[last])]
    return f"{first} {kinds[0]}" if first == last else f"{first}-{last} {kinds[0]}..{kinds[1]}"


def _peers_word(part: StagePart) -> str:
    if len(part.peers) == 1:
        return part.peers[0]
    return ", ".join(f"{peer} {100 * part.shares[peer]:.0f} %" for peer in part.peers)


def answer_json(costs: Costs, answer: PlanAnswer, out: Path) -> dict[str, Any]:
    """Return the contents of ``print_answer`` as a JSON object."""
    return {
        "plan": str(out) if answer.pipelines else None,
        "pipelines": [
            {**plan_json(option.placement), "exact": option.exact} for option in answer.pipelines
        ],
        "others": [
            {
                **asdict(other),
                "step_s": other.step_s,
                "peers": [costs.peers[peer] for peer in other.peers],
            }
            for other in answer.others
        ],
    }


def plan_json(placement: Placement) -> dict[str, Any]:
    """Return a plan as a JSON object. ``step_s`` is the simulated time of a step. ``formula_s`` is
    the value that the search minimizes."""
    parts = parts_of(placement)
    slowest, on_link = bottleneck(parts)
    return {
        **asdict(placement.stage_costs.work),
        "step_s": played_step_s(placement),
        "formula_s": placement.step_s,
        "slowest": {"stage": slowest, "link": on_link},
        "stages": [asdict(part) for part in parts],
    }


def _table(columns: tuple[str, ...], left: tuple[int, ...]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for at, name in enumerate(columns):
        made.add_column(name, justify="left" if at in left else "right", overflow="fold")
    return made


def _print(what: Table | Text) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    with console.capture() as captured:
        console.print(what)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
