"""``gossip plan``: commands that profile peers, make a plan and show a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gossip.errors import ConfigError
from gossip.launch.optional import group_with_default, optional
from gossip.run import shown

HOW_TO_RUN = "gossip run --plan PLAN SCRIPT runs a plan."


app = typer.Typer(
    cls=group_with_default("make"),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help=(
        "Find the fastest way to train on these peers, a pipeline or data-parallel training: "
        f"gossip plan lab1.toml lab2.toml --show. {HOW_TO_RUN}"
    ),
)

Profiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="PROFILE...",
        help="Files of gossip plan profile, one for each peer.",
        show_default=False,
    ),
]
Mbit = Annotated[
    float | None,
    optional("Bandwidth of links that were not measured, in Mbit/s.", "--mbit", min=0.001),
]
DelayMs = Annotated[
    float, typer.Option("--delay-ms", help="With --mbit: additional time of each message.", min=0.0)
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON to stdout.")]
Repeats = Annotated[
    int, typer.Option(min=1, max=1000, help="Number of repetitions. The median is used.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Overwrite an existing plan.")]


@app.command()
def make(
    profiles: Profiles,
    batch: Annotated[
        int, typer.Option(min=1, help="Number of samples of a step on all peers together.")
    ] = 32,
    samples: Annotated[
        int | None, optional("Samples per micro-batch; by default the best number.", min=1)
    ] = None,
    stages: Annotated[
        int | None, optional("Number of stages; by default the best number.", min=2)
    ] = None,
    crashes: Annotated[
        int,
        typer.Option(
            min=0, max=31, help="f; each stage gets at least f + 1 peers, so f peers may crash."
        ),
    ] = 0,
    liars: Annotated[
        int,
        typer.Option(
            min=0,
            max=31,
            help="f; each stage gets at least 2f + 1 peers, so f peers may be Byzantine.",
        ),
    ] = 0,
    copies: Annotated[
        float,
        typer.Option(
            min=2.0,
            max=16.0,
            help="Stored values per parameter: 4 with Adam, 3 with momentum, 2 with SGD.",
        ),
    ] = 4.0,
    local_steps: Annotated[
        int,
        typer.Option(
            min=1,
            help="Steps of each peer between two rounds, for the comparison with local steps.",
        ),
    ] = 30,
    activations: Annotated[
        Literal["exact", "bf16"],  # gossip.config.Activations takes too long to import for --help
        typer.Option(
            help="Format of activations sent to other stages: that of the layers, or bf16."
        ),
    ] = "exact",
    mbit: Mbit = None,
    delay_ms: DelayMs = 1.0,
    out: Annotated[Path, typer.Option(help="File for the best pipeline.")] = Path("plan.toml"),
    replace: Replace = False,
    show: Annotated[
        bool, typer.Option("--show", help="Draw the plan's stages, time line and bottleneck.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the fastest training on these peers, and write the best pipeline to a file."""
    from gossip_pipelines.planning import PlanRequest, make_plan, plan_of, write_plan, write_text

    from . import picture

    if out.exists() and not replace:
        raise ConfigError(
            f"{shown(out)} exists", "--replace overwrites it, --out names another file"
        )
    if crashes and liars:
        raise ConfigError("--crashes and --liars: set only the option that needs more peers")
    costs = _costs(profiles, mbit, delay_ms)
    least = max(crashes + 1, 2 * liars + 1)
    request = PlanRequest(
        batch,
        samples,
        stages,
        least,
        copies,
        local_steps,
        activations,
    )
    answer = make_plan(costs, request)
    best = answer.pipelines[0] if answer.pipelines else None
    if best is not None:
        plan = plan_of(best.placement, best.played_s)
        write_text(out, write_plan(plan))
    if as_json:
        print(json.dumps(picture.answer_json(costs, answer, out)))
        return
    picture.print_answer(costs, request, answer, out)
    if show and best is not None:
        picture.print_plan(best.placement)
    print(HOW_TO_RUN)


@app.command()
def show(
    plan: Annotated[
        Path, typer.Argument(help="File of a plan, which may be edited.", show_default=False)
    ],
    profiles: Profiles,
    mbit: Mbit = None,
    delay_ms: DelayMs = 1.0,
    as_json: Json = False,
) -> None:
    """Check a plan against profiles, and draw its stages, peers, time line and bottleneck."""
    from gossip_pipelines.planning import check_plan, played_step_s, read_plan

    from . import picture

    found = read_plan(plan)
    placement = check_plan(found, _costs(profiles, mbit, delay_ms))
    if as_json:
        print(json.dumps(picture.plan_json(placement)))
        return
    now = played_step_s(placement)
    print(
        f"{shown(plan)}: {picture.seconds_word(now)} per step according to these profiles "
        f"({picture.seconds_word(found.predicted_step_s)} when the plan was made)"
    )
    picture.print_plan(placement)
    print(HOW_TO_RUN)


@app.command()
def profile(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="Function that returns (layers, samples): a list of modules, or of functions that "
            "each build a module; and a tensor with one sample per row. Or module:function.",
            show_default=False,
        ),
    ],
    name: Annotated[str, optional("Name of this peer; by default its host name.")] = "",
    out: Annotated[Path | None, optional("File for the profile; by default NAME.toml.")] = None,
    batches: Annotated[
        str, typer.Option(help="Two batch sizes to measure, below and above the micro-batches.")
    ] = "2,16",
    repeats: Repeats = 11,
    memory: Annotated[
        str,
        optional(
            "Memory for layers, optimizer and activations, such as 2GiB; by default the "
            "memory that is free now."
        ),
    ] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Measure layers again that are already in the file.")
    ] = False,
) -> None:
    """Measure the time of each layer of a model on this machine, and write the times to a file.

    Layers that are already in the file, from this or another model, are not measured again.
    """
    from .profiling import ProfileRequest, profile_here

    request = ProfileRequest(model, name, out, _pair(batches), repeats, memory, again)
    print(profile_here(request))


@app.command()
def link(
    profile: Annotated[
        Path,
        typer.Argument(help="Profile of this peer. The link is added to it.", show_default=False),
    ],
    to: Annotated[str, typer.Argument(metavar="PEER", help="Name of the other peer.")],
    host: Annotated[str, typer.Option(help="Address of this end.")] = "127.0.0.1",
    other_host: Annotated[
        str, typer.Option(help="Address of the other end; by default the address of this end.")
    ] = "",
    via: Annotated[
        str,
        typer.Option(
            help="Prefix that runs a command at the other end: 'ssh lab2', 'ip netns exec b'."
        ),
    ] = "",
    repeats: Repeats = 7,
) -> None:
    """Measure the link to another peer with gossip's transport: seconds per message and seconds per
    byte."""
    from .linking import link_from

    print(link_from(profile, to, (host, other_host or host, via), repeats))


def _costs(paths: list[Path], mbit: float | None, delay_ms: float) -> Any:
    from gossip_pipelines.planning import CostLine, costs_of, read_profile

    assumed = None if mbit is None else CostLine(delay_ms / 1e3, 8e-6 / mbit)
    return costs_of([read_profile(path) for path in paths], assumed)


def _pair(text: str) -> tuple[int, int]:
    try:
        small, large = (int(word) for word in text.split(","))
    except ValueError:
        small = large = 0
    if not 0 < small < large <= 2**20 or large < small + 3:
        raise ConfigError(
            f"--batches {shown(text)}: two numbers of samples are needed, at least 3 apart",
            "for example --batches 2,16",
        )
    return small, large
