"""Options that several commands share, in typer's form: one name, one help text."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

import typer

from .optional import optional

Json = Annotated[
    bool, optional("Print the summary as JSON, and nothing else, to stdout.", "--json")
]
Quiet = Annotated[bool, optional("Print only peers' output, and problems.", "--quiet", "-q")]


Output = Annotated[
    Literal["merged", "all"] | None,
    optional(
        "Peers' output: equal lines once (merged, the default on a terminal), or all lines (all)."
    ),
]


def _known_trackers(names: list[str] | None) -> list[str] | None:
    from gossip.run import (
        check_trackers,
        trackers_asked_for,
    )  # a local import: help does not need it

    if not names:
        return trackers_asked_for(os.environ) or None
    check_trackers(names)
    return names


Track = Annotated[
    list[str] | None,
    optional(
        "Send the run's records to a tracker: tensorboard, mlflow, wandb (offline), prometheus. "
        "Repeatable. Or GOSSIP_TRACK=tensorboard,mlflow.",
        metavar="TRACKER",
        callback=_known_trackers,
    ),
]
Advertise = Annotated[
    str, optional("Own address that other machines reach: a number, an interface or a network.")
]
Port = Annotated[
    int,
    typer.Option(min=0, max=65535, help="Port of this launcher's join server; 0: a free one."),
]
Module = Annotated[
    bool, optional("SCRIPT is the name of a module, as for python -m.", "-m", "--module")
]
Peers = Annotated[
    int | None, optional("How many peers to start; 4 by default (demo: 8).", "-n", "--peers")
]
Plan = Annotated[
    Path | None,
    optional("Spread a model over the peers by a plan of gossip plan, which determines -n."),
]
Audit = Annotated[
    float | None,
    optional(
        "With --plan: probability that another member of the stage recomputes a micro-batch, "
        "about 0.05; members with wrong results are put in quarantine."
    ),
]
LostStage = Annotated[
    str | None,
    optional(
        "With --plan: state of a stage after the loss of all its peers, once one is back: "
        "checkpoint (the default), neighbours, fresh, or stop."
    ),
]
Keys = Annotated[
    bool | None,
    optional(
        "Identify peers by keys, and encrypt: on by default, except on loopback addresses.",
        "--keys/--no-keys",
    ),
]
SwarmKey = Annotated[
    Path | None,
    optional("File of gossip keygen that admits newcomers; by default a new key."),
]
Allowed = Annotated[
    Path | None,
    optional("Only peers whose public keys are in this file take part; it may change at any time."),
]
Insecure = Annotated[
    bool,
    optional(
        "Listen beyond loopback without keys: any machine that reaches it can take part, read "
        "updates and send false ones.",
        "--insecure",
    ),
]
TaskOption = Annotated[
    str | None,
    optional(
        "Run one peer of a run in --run-dir: task I of N, as I/N, or a peer's name in --plan. "
        "Not needed under srun and gossip condor.",
        "--task",
    ),
]
Config = Annotated[
    Path | None, optional("Options from a TOML file; flags and GOSSIP_* override it.")
]
ShowConfig = Annotated[
    bool,
    optional("Print every option with its source, and start nothing.", "--show-config"),
]


Restarts = Annotated[
    int | None,
    optional("Maximum restarts of each peer that fails; 0 by default.", min=0),
]


def _setting(kind: Any, help: str, *names: str, **more: Any) -> Any:
    """Return the type of an option of a run; without the option, its value is None."""
    return Annotated[kind | None, optional(help, *names, **more)]


Settings: TypeAlias = Mapping[str, Any]
UNSET: Settings = MappingProxyType({})
DEMO_SETTINGS: dict[str, Any] = {
    "topology": _setting(
        str, "Which peers exchange updates: rolling (the default), random-k:k=3, ring, full."
    ),
    "aggregator": _setting(
        str,
        "Aggregation rule: its name, or file.py:rule; guarded_mean by default, "
        "judged_clipping with --reference, spectral_clipping with -f.",
    ),
    "sender": _setting(
        str, "Transforms of updates before sending: momentum:beta=0.9, clip:10, joined by +."
    ),
    "encoding": _setting(
        str,
        "Encoding of updates: float32 (the default), bf16, fp16, int8, int4, topk:0.01, "
        "powersgd:4.",
    ),
    "local_steps": _setting(
        int,
        "Local steps of each peer between two rounds, for slow links: 1 (the default), 30, 100.",
    ),
    "outer": _setting(
        str,
        "Outer optimizer after a round of local steps: nesterov:lr=0.7,momentum=0.9 (the default), "
        "heavy_ball, mean.",
    ),
    "fragments": _setting(
        int,
        "Parts of the model, of which each round of local steps exchanges one: 1 (the "
        "default), 4. Steps and bytes of a round are divided by this number.",
    ),
    "overlap": _setting(
        int,
        "1: peers compute the next update while a round runs, and apply its result one step "
        "later. 0 (the default): they wait for it.",
    ),
    "byzantine": _setting(
        int,
        "Byzantine peers to tolerate; by default as many as the rule can, up to a quarter of the "
        "peers (demo: the number of attackers).",
        "-f",
        "--byzantine",
    ),
    "fault": _setting(list[str], "Inject a fault: crash:3@50, sign_flip:5,6*10. Repeatable."),
    "faults": _setting(Path, "Inject the faults of a plan file (TOML)."),
    "rounds": _setting(int, "Rounds to train; by default the script decides (demo: 400)."),
    "seed": _setting(int, "Seed of servers, data order and attacks; 0 by default."),
    "run_dir": _setting(Path, "Folder of the run; runs/NAME by default."),
    "name": _setting(str, "Name of the run; drawn by default."),
    "quorum": _setting(str, "majority (the default), or available: any number of peers."),
    "reference": _setting(
        int,
        "Samples that the server of a round evaluates, for rules with a judge; 256 by "
        "default. Without --aggregator, the rule is judged_clipping.",
        min=1,
    ),
    "trust": _setting(
        bool,
        "Quarantine peers that repeatedly stand out (the default); --no-trust only reports them.",
        "--trust/--no-trust",
    ),
    "batch_policy": _setting(
        str,
        "Kept when the number of peers changes: fixed_local (the default), each peer's batch; "
        "fixed_global, the batch of a round.",
    ),
    "slices": _setting(
        str,
        "speed (the default): smaller batches, or fewer local steps, for peers that are much "
        "slower than most; or equal.",
    ),
    "server_weights": _setting(
        str,
        "How often peers serve rounds: 0:4,2:2 for four times and twice as often as the "
        "others, at most 10.",
    ),
}
"""Options of a run that the demo also has, and their types."""
SETTINGS = DEMO_SETTINGS | {
    "room": _setting(
        int,
        "Maximum number of peers, including those that gossip join adds; by default none can join.",
    ),
    "min_peers": _setting(
        int, "Start with this many peers after --patience s, without the others."
    ),
    "patience": _setting(float, "With --min-peers: seconds to wait for the others; 10 by default."),
    "on_minority": _setting(
        str,
        "pause (the default), or continue: peers without a quorum go on once they have declared "
        "the others dead.",
    ),
    "on_divergence": _setting(
        str,
        "Action of a peer whose replica differs from most: heal copies theirs; stop (the "
        "default) also copies theirs, but ends the peer if its replica differs again without a "
        "missed round; warn continues.",
    ),
    "start_timeout": _setting(float, "Seconds that peers wait for each other; 60 by default."),
    "round_timeout": _setting(float, "Maximum wait of a round, in seconds; 10 by default."),
    "resume": _setting(
        str,
        "Resume from a checkpoint: auto (the newest that the script has saved), a run, or a "
        "folder; with @STEP from that step.",
    ),
    "deterministic": _setting(
        bool,
        "Two runs with the same seed and peers give the same bits; a round waits for all live "
        "peers.",
        "--deterministic",
    ),
    "drills": _setting(
        bool, "Let gossip drill kill, stop and cut off peers of this run.", "--drills"
    ),
}
"""Options of a run that launchers of one machine and of many share."""
SETTING_OF = {
    "byzantine": "f",
    "patience": "patience_s",
    "reference": "reference_samples",
    "start_timeout": "start_timeout_s",
    "round_timeout": "round_timeout_s",
}
"""Settings whose name differs from that of their option."""


Command: TypeAlias = Callable[..., None]


def with_settings(shared: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Give a command these options instead of its parameter ``settings``, which receives them in
    the form of ``flags``."""

    def decorate(command: Command) -> Command:
        parameters: list[inspect.Parameter] = []
        for name, own in inspect.signature(command, eval_str=True).parameters.items():
            added = (
                own.replace(name=each, annotation=kind, default=None)
                for each, kind in shared.items()
            )
            parameters += added if name == "settings" else [own]

        @functools.wraps(command)
        def called(**typed: Any) -> None:
            settings = flags(**{name: typed.pop(name) for name in shared})
            command(**typed, settings=settings)

        # typer reads it, but its type does not show that.
        setattr(called, "__signature__", inspect.Signature(parameters))  # noqa: B010
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return decorate


def flags(
    *,
    fault: list[str] | None = None,
    faults: Path | None = None,
    run_dir: Path | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Return the options for ``gossip.config.resolve``; None if not given."""
    specs: list[str] | None = None
    if fault or faults is not None:
        from gossip.faults import plan as plans

        specs = [
            *(plans.load(faults).specs if faults is not None else ()),
            *plans.parse(fault or ()).specs,
        ]
    return {
        **{SETTING_OF.get(name, name): value for name, value in others.items()},
        "faults": specs,
        "run_dir": str(run_dir) if run_dir is not None else None,
    }
