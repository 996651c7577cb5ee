"""A plan for people: the ways of training as a table, stages and peers, and a step's time line."""

from __future__ import annotations

from collections.abc import Iterable
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
        DataParallel,
        Placement,
        PlanAnswer,
        PlanRequest,
        StageCosts,
        StagePart,
        StagePass,
    )

WIDTH = 72
"""Characters of a time line."""
FORWARD, BACKWARD, IDLE = "0123456789", "abcdefghij", "·"


def seconds_word(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms"


def print_answer(costs: Costs, request: PlanRequest, answer: PlanAnswer, out: Path) -> None:
    """Each way of training with its step, the fastest first."""
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
        work, groups = option.stage_costs.work, option.placement.groups
        name = (
            f"pipeline, {len(groups)} stages, {work.micro_batches} x {work.samples}"
            f"{', bf16' if work.activations == 'bf16' else ''}"
            f"{'' if option.exact else ' (searched)'}"
        )
        who = " | ".join(" ".join(costs.peers[peer] for peer in group) for group in groups)
        yield option.played_s, name, who
    for other in answer.others:
        yield other.step_s, other.name, " ".join(costs.peers[peer] for peer in other.peers)


def _conclusions(costs: Costs, answer: PlanAnswer, out: Path) -> Iterable[str]:
    if answer.others:
        left_out = [name for at, name in enumerate(costs.peers) if at not in answer.others[0].peers]
        if left_out:
            yield f"no room for the whole model and a round's updates: {', '.join(left_out)}"
    else:
        yield "the whole model fits no peer, so there is no data-parallel training"
    if not answer.pipelines:
        yield "no pipeline of two stages or more fits these peers"
        return
    best = answer.pipelines[0]
    yield f"{shown(out)}: the pipeline of {len(best.placement.groups)} stages"
    if same := _every_step(answer.others):
        ratio = same[0].step_s / best.played_s
        faster = "faster" if ratio >= 1 else "slower"
        yield (
            f"it is {max(ratio, 1 / ratio):.2f} times {faster} than {same[0].name} with an "
            "exchange each step"
        )


def _every_step(others: Iterable[DataParallel]) -> list[DataParallel]:
    """Those that train as a pipeline does: local steps are another algorithm."""
    return [other for other in others if "local steps" not in other.name]


def print_plan(stage_costs: StageCosts, placement: Placement) -> None:
    """Stages and peers, the bottleneck, and a step's time line."""
    parts, costs = parts_of(stage_costs, placement), stage_costs.costs
    slowest, on_link = bottleneck(parts)
    columns = ("stage", "layers", "peers", "compute", "link", "exchange", "memory", "")
    table = _table(columns, left=(1, 2, 7))
    for stage, part in enumerate(parts):
        begin, end = placement.cut.bounds[stage : stage + 2]
        table.add_row(
            str(stage),
            _layers_word(costs.layers, begin, end),
            _peers_word(costs, placement.groups[stage], part),
            seconds_word(part.compute_s),
            seconds_word(part.way_s) if part.way_s else "",
            seconds_word(part.exchange_s) if part.exchange_s else "",
            bytes_word(part.need_bytes),
            ("<- slowest: its link" if on_link else "<- slowest") if stage == slowest else "",
        )
    _print(table)
    tasks = play(stage_costs, placement)
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


def _time_line(tasks: Iterable[StagePass], played_s: float) -> Text:
    """Return a line with a peer's work in each part of a step. If several tasks share a part, the
    longest is shown."""
    cells = [IDLE] * WIDTH
    taken = [0.5 * played_s / WIDTH] * WIDTH
    for task in tasks:
        letters = BACKWARD if task.backward else FORWARD
        for at in range(WIDTH):
            begin, end = at * played_s / WIDTH, (at + 1) * played_s / WIDTH
            overlap = min(end, task.end_s) - max(begin, task.begin_s)
            if overlap > taken[at] or (cells[at] == IDLE and overlap >= taken[at]):
                cells[at], taken[at] = letters[task.micro_batch % len(letters)], overlap
    line = Text()
    for cell in cells:
        style = "dim" if cell == IDLE else "cyan" if cell in FORWARD else "magenta"
        line.append(cell, style)
    return line


def _layers_word(names: tuple[str, ...], begin: int, end: int) -> str:
    kinds = [name.partition(" ")[2] or name for name in (names[begin], names[end - 1])]
    if end - begin == 1:
        return f"{begin} {kinds[0]}"
    return f"{begin}-{end - 1} {kinds[0]}..{kinds[1]}"


def _peers_word(costs: Costs, group: tuple[int, ...], part: StagePart) -> str:
    if len(group) == 1:
        return costs.peers[group[0]]
    return ", ".join(
        f"{costs.peers[peer]} {100 * part.shares[peer]:.0f} %"
        if peer in part.shares
        else f"{costs.peers[peer]} spare"
        for peer in group
    )


def answer_json(
    costs: Costs, request: PlanRequest, answer: PlanAnswer, out: Path
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "batch": request.batch,
        "plan": str(out) if answer.pipelines else None,
        "pipelines": [
            {
                **plan_json(option.stage_costs, option.placement),
                "exact": option.exact,
            }
            for option in answer.pipelines
        ],
        "others": [
            {
                "way": other.name,
                "step_s": other.step_s,
                "compute_s": other.compute_s,
                "exchange_s": other.exchange_s,
                "peers": [costs.peers[peer] for peer in other.peers],
            }
            for other in answer.others
        ],
    }


def plan_json(stage_costs: StageCosts, placement: Placement) -> dict[str, Any]:
    """``step_s``: played out; ``formula_s``: by the formula that the search minimises."""
    parts, names = parts_of(stage_costs, placement), stage_costs.costs.peers
    slowest, on_link = bottleneck(parts)
    bounds = placement.cut.bounds
    return {
        "step_s": played_step_s(stage_costs, placement),
        "formula_s": placement.step_s,
        "micro_batches": stage_costs.work.micro_batches,
        "samples": stage_costs.work.samples,
        "activations": stage_costs.work.activations,
        "slowest": {"stage": slowest, "link": on_link},
        "stages": [
            {
                "layers": [bounds[stage], bounds[stage + 1] - 1],
                "peers": [names[peer] for peer in group],
                "compute_s": part.compute_s,
                "link_s": part.way_s,
                "exchange_s": part.exchange_s,
                "memory_bytes": part.need_bytes,
            }
            for stage, (group, part) in enumerate(zip(placement.groups, parts, strict=True))
        ],
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
    with console.capture() as told:
        console.print(what)
    print("\n".join(line.rstrip() for line in told.get().splitlines()))
