"""``gossip plan``: the commands that profile peers, make a plan and show it."""

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
        metavar="PROFILE...", help="Files of gossip plan profile, one a peer.", show_default=False
    ),
]
Mbit = Annotated[
    float | None, optional("Mbit/s of links that nobody has measured.", "--mbit", min=0.001)
]
DelayMs = Annotated[
    float, typer.Option("--delay-ms", help="With --mbit: what a message takes besides.", min=0.0)
]
Json = Annotated[
    bool, typer.Option("--json", help="Print all as JSON, and nothing else, to stdout.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Write over the plan that is there.")]


@app.command()
def make(
    profiles: Profiles,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step, of all peers.")] = 32,
    samples: Annotated[
        int | None, optional("Of a micro-batch; by default what is best.", min=1)
    ] = None,
    stages: Annotated[int | None, optional("How many; by default what is best.", min=2)] = None,
    crashes: Annotated[
        int, typer.Option(min=0, max=31, help="f + 1 peers in each stage, of which f may crash.")
    ] = 0,
    liars: Annotated[
        int, typer.Option(min=0, max=31, help="2f + 1 peers in each stage, of which f may lie.")
    ] = 0,
    copies: Annotated[
        float,
        typer.Option(
            min=2.0,
            max=16.0,
            help="Numbers kept for each parameter: 4 with Adam, 3 with momentum, 2 with SGD.",
        ),
    ] = 4.0,
    local_steps: Annotated[
        int, typer.Option(min=1, help="Of each peer between two rounds, where these are compared.")
    ] = 30,
    activations: Annotated[
        Literal["exact", "bf16"],  # gossip.config.Activations takes too long to import for --help
        typer.Option(help="What stages send each other: as the layers make it, or half of that."),
    ] = "exact",
    mbit: Mbit = None,
    delay_ms: DelayMs = 1.0,
    out: Annotated[Path, typer.Option(help="Where the best pipeline goes.")] = Path("plan.toml"),
    replace: Replace = False,
    show: Annotated[
        bool, typer.Option("--show", help="Draw its stages, peers, time line and bottleneck.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the fastest way to train on these peers, and write the best pipeline to a file."""
    from gossip_pipelines.planning import PlanRequest, make_plan, plan_of, write_plan, write_text

    from . import picture

    if out.exists() and not replace:
        raise ConfigError(
            f"{shown(out)} exists", "--replace overwrites it, --out names another file"
        )
    if crashes and liars:
        raise ConfigError("--crashes and --liars: set only the one that needs more peers")
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
        plan = plan_of(costs, best.stage_costs.work, best.placement, best.played_s)
        write_text(out, write_plan(plan))
    if as_json:
        print(json.dumps(picture.answer_json(costs, answer, out)))
        return
    picture.print_answer(costs, request, answer, out)
    if show and best is not None:
        picture.print_plan(best.stage_costs, best.placement)
    print(HOW_TO_RUN)


@app.command()
def show(
    plan: Annotated[Path, typer.Argument(help="A plan, edited or not.", show_default=False)],
    profiles: Profiles,
    mbit: Mbit = None,
    delay_ms: DelayMs = 1.0,
    as_json: Json = False,
) -> None:
    """Check a plan against profiles, and draw its stages, peers, time line and bottleneck."""
    from gossip_pipelines.planning import check_plan, played_step_s, read_plan

    from . import picture

    found = read_plan(plan)
    stage_costs, placement = check_plan(found, _costs(profiles, mbit, delay_ms))
    if as_json:
        print(json.dumps(picture.plan_json(stage_costs, placement)))
        return
    now = played_step_s(stage_costs, placement)
    print(
        f"{shown(plan)}: {picture.seconds_word(now)} a step by these profiles "
        f"({picture.seconds_word(found.predicted_step_s)} when it was made)"
    )
    picture.print_plan(stage_costs, placement)
    print(HOW_TO_RUN)


@app.command()
def profile(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="Or module:function. It returns (layers, samples): a list of modules, or "
            "of functions that make one each, and a tensor with a sample in each row.",
            show_default=False,
        ),
    ],
    name: Annotated[str, optional("Of this peer; its host name by default.")] = "",
    out: Annotated[Path | None, optional("NAME.toml by default.")] = None,
    batches: Annotated[
        str, typer.Option(help="Two numbers of samples, between which micro-batches will be.")
    ] = "2,16",
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Turns, of which medians count.")
    ] = 11,
    memory: Annotated[
        str,
        optional(
            "What layers, optimizer and activations may take, such as 2GiB; by default what "
            "is free now."
        ),
    ] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Measure layers anew that the file has already.")
    ] = False,
) -> None:
    """Time each layer of a model on this machine, forward and backward, and store the times in a
    file.

    Layers that the file has already, of this or another model, are not timed again.
    """
    from .profiling import ProfileRequest, profile_here

    request = ProfileRequest(model, name, out, _pair(batches), repeats, memory, again)
    print(profile_here(request))


@app.command()
def link(
    profile: Annotated[
        Path, typer.Argument(help="This peer's profile; it gets the link.", show_default=False)
    ],
    to: Annotated[str, typer.Argument(metavar="PEER", help="Name of the other.")],
    host: Annotated[str, typer.Option(help="Address of this end.")] = "127.0.0.1",
    other_host: Annotated[
        str, typer.Option(help="Address of the other end; this host's by default.")
    ] = "",
    via: Annotated[
        str,
        typer.Option(help="What starts a command at the other end: 'ssh lab2', 'ip netns exec b'."),
    ] = "",
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Turns, of which medians count.")
    ] = 7,
) -> None:
    """Measure the link to another peer: fixed seconds, and seconds a byte, over gossip's own
    transport."""
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
