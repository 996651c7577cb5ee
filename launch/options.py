"""Options that several commands share, as types for typer. An option has the same name and the same
help text in all commands."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from gossip.satellites import find_function

from .optional import optional

if TYPE_CHECKING:
    from gossip.config import Resolved

Json = Annotated[
    bool, optional("Print the summary as JSON, and nothing else, to stdout.", "--json")
]
Quiet = Annotated[bool, optional("Print only the output of peers, and problems.", "--quiet", "-q")]


Output = Annotated[
    Literal["merged", "all"] | None,
    optional(
        "Output of peers: merged (equal lines once, the default on a terminal), or all lines (all)."
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
        "Repeatable. Or set GOSSIP_TRACK=tensorboard,mlflow.",
        metavar="TRACKER",
        callback=_known_trackers,
    ),
]
Advertise = Annotated[
    str, optional("Address of this machine for others: an IP address, interface or network.")
]
Port = Annotated[
    int,
    typer.Option(
        min=0, max=65535, help="Port of this launcher's join server; 0 means any free port."
    ),
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")
]
Module = Annotated[
    bool, optional("SCRIPT is the name of a module, as for python -m.", "-m", "--module")
]
Peers = Annotated[
    int | None, optional("How many peers to start; 4 by default (demo: 8).", "-n", "--peers")
]
Plan = Annotated[
    Path | None,
    optional(
        "Train a pipeline: a plan of gossip plan distributes the model over the peers, and sets -n."
    ),
]
Keys = Annotated[
    bool | None,
    optional(
        "Authenticate peers by keys, and encrypt: on by default, except on loopback addresses.",
        "--keys/--no-keys",
    ),
]
SwarmKey = Annotated[
    Path | None,
    optional("File with the key that admits newcomers, from gossip keygen; a new key by default."),
]
TaskOption = Annotated[
    str | None,
    optional(
        "Run one peer of the run in --run-dir: I/N for task I of N, or a peer's name in --plan. "
        "Not needed under srun and gossip condor.",
        "--task",
    ),
]
Config = Annotated[
    Path | None, optional("TOML file with options; flags and GOSSIP_* variables override it.")
]
ShowConfig = Annotated[
    bool,
    optional("Print every option with its source, and start nothing.", "--show-config"),
]


def _setting(kind: Any, help: str, *names: str, **more: Any) -> Any:
    """Return the type of an option of a run. If the option is absent, its value is None."""
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
        "judged_clipping with --reference, spectral_clipping or suspicion with -f.",
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
        "Number of parts of the model; a round of local steps exchanges one part: 1 (the "
        "default), 4. Steps and bytes of a round are divided by this number.",
    ),
    "overlap": _setting(
        int,
        "1: while a round runs, peers compute the next update; they apply the round's result one "
        "step later. 0 (the default): peers wait for the result.",
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
    "name": _setting(str, "Name of the run; a random name by default."),
    "quorum": _setting(
        str, "Peers that a round needs: majority (the default), or available (any number)."
    ),
    "reference": _setting(
        int,
        "Number of samples on which the server of a round evaluates updates, for rules with a "
        "judge; 256 by default. If --aggregator is absent, the rule is judged_clipping.",
        min=1,
    ),
    "trust": _setting(
        bool,
        "Quarantine peers that repeatedly stand out (the default); --no-trust only reports them.",
        "--trust/--no-trust",
    ),
    "batch_policy": _setting(
        str,
        "Batch size that stays the same when the number of peers changes: fixed_local (the "
        "default), that of each peer; fixed_global, that of a round.",
    ),
    "slices": _setting(
        str,
        "Work of a peer: speed (the default) reduces the batches, or local steps, of peers that "
        "are much slower than most; equal is the same for all peers.",
    ),
    "server_weights": _setting(
        str,
        "How often peers serve rounds: with 0:4,2:2, peer 0 serves four times and peer 2 twice "
        "as often as each other peer. At most 10.",
    ),
}
"""Options of a run that the demo also has, and their types."""
SETTINGS = DEMO_SETTINGS | {
    "room": _setting(
        int,
        "Maximum number of peers, including those that gossip join adds; by default none can join.",
    ),
    "min_peers": _setting(
        int, "After --patience seconds, start without the missing peers if this many are there."
    ),
    "patience": _setting(
        float, "With --min-peers: seconds to wait for the missing peers; 10 by default."
    ),
    "on_minority": _setting(
        str,
        "Action of peers without a quorum: pause (the default), or continue once they have "
        "declared the other peers dead.",
    ),
    "on_divergence": _setting(
        str,
        "Action of a peer whose replica differs from the majority's: heal copies the majority's; "
        "stop (the default) also does so, but ends the peer if its replica differs again without "
        "a missed round; warn continues.",
    ),
    "start_timeout": _setting(float, "Seconds that peers wait for each other; 60 by default."),
    "round_timeout": _setting(float, "Maximum time that a round waits, in seconds; 10 by default."),
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
    "audit": _setting(
        float,
        "With --plan: probability that another member of the stage recomputes a micro-batch, "
        "such as 0.05; 0 by default. Members with wrong results are put in quarantine.",
    ),
    "lost_stage": _setting(
        str,
        "With --plan: source of a stage's state when all its peers were lost and one returns: "
        "checkpoint (the default), neighbours or fresh. With stop, the run ends.",
    ),
    "keys": Keys,
    "insecure": _setting(
        bool,
        "Listen on other addresses than loopback without keys: any machine that reaches them can "
        "take part, read updates and send false updates.",
        "--insecure",
    ),
}
"""Options that ``gossip run`` and ``gossip hosts`` share."""
RUN_SETTINGS = SETTINGS | {
    "peers": Peers,
    "plan": Plan,
    "restarts": _setting(int, "Maximum restarts of each peer that fails; 0 by default.", min=0),
    "allowed": _setting(
        Path,
        "Only peers whose public keys are in this file take part; it may change at any time.",
    ),
    "advertise": Advertise,
}
"""Options of ``gossip run`` that determine its settings."""
SETTING_OF = {
    "byzantine": "f",
    "patience": "patience_s",
    "reference": "reference_samples",
    "start_timeout": "start_timeout_s",
    "round_timeout": "round_timeout_s",
}
"""Setting of each option for which the two names differ."""


Command: TypeAlias = Callable[..., None]


def with_settings(shared: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Replace the parameter ``settings`` of a command by these options on the command line. The
    command receives their values in ``settings``, in the form that ``flags`` returns."""

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

        # typer reads ``__signature__``; the type of a function does not declare it.
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
    """Return the options for ``gossip.config.resolve``. The value of an absent option is None."""
    if advertise := others.pop("advertise", None):
        from gossip.launch.local import resolve_advertised

        others["host"] = resolve_advertised(advertise)
    if (plan := others.pop("plan", None)) is not None:
        others |= find_function("plan_options", "--plan")(plan, others["peers"])
    if (allowed := others.get("allowed")) is not None:
        others["allowed"] = str(allowed.resolve())
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


def resolve_settings(settings: Settings, key: Path | None, config: Path | None) -> Resolved:
    """Return the settings of a run. A key file or a list of allowed peers implies ``keys``, unless
    the user has set ``keys``.

    Args:
        settings: Result of ``flags``.
        key: File with the swarm key.
        config: TOML file with options.
    """
    from gossip.config import resolve

    keys = settings["keys"]
    if keys is None and (key is not None or settings.get("allowed") is not None):
        keys = True
    return resolve({**settings, "keys": keys}, config)
