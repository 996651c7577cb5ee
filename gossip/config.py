"""The settings of a run: read from flags, the environment, a file and defaults, in that order; the
same on every peer.

The launcher resolves them once (``resolve``), writes ``config.toml`` for people and a JSON file for
its peers, and every peer reads that file (``RunConfig.load``) and nothing else.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from gossip.aggregators import outer, senders
from gossip.core import (
    BatchPolicy,
    CoreSettings,
    GossipSettings,
    MembershipSettings,
    PipelineSettings,
    RoundSettings,
    Slices,
    TrustSettings,
)
from gossip.errors import ConfigError, UnknownName
from gossip.faults import FaultPlan, plan as fault_plans
from gossip.topologies import load as load_topology, read_weights, with_option, write_weights
from gossip.transport import is_loopback, is_one_host
from gossip.vectors import load_encoding

PEERS_MAX = 1024  # what a list in a message has room for
RESTARTS_MAX = 1_000_000
NEVER = -1.0  # a trust score is never below this
JUDGED = "judged_clipping"
"""The rule of a run with a reference, where nobody named one."""
WITH_REFERENCE = "reference_samples are given, and no aggregator"
"""The source of that rule."""
WITH_PLAN = "a plan is given, and no aggregator"
"""The source of the mean in a pipeline: with it a step equals that of one process."""
ROBUST = "spectral_clipping", "suspicion"
"""The rules of a run that is to bear adversaries, where nobody named one: in rolling rounds with f
of at most a quarter of the peers, and otherwise (docs/protection.md)."""
WITH_F = "f is given, and no aggregator"
WITHOUT_SERVERS = "the topology has no servers, and no aggregator is given"
"""The sources of that rule."""
NOT_OPTIONS = (
    "peer",
    "incarnation",
    "config",
    "status_fd",
    "node_fd",
    "launcher",
    "listen",
    "key",
    "test_data",
    "debug",
    "track",
    "prometheus_port",
    "stacks",
)
"""Names of GOSSIP_* variables that are no options of a run."""

Seconds = Annotated[float, Field(gt=0, le=86400 * 30)]


class StageConfig(BaseModel):
    """The layers ``layers[0]`` to ``layers[1]``, both included, on these peers.

    Attributes:
        pass_s: What each of the peers takes for a micro-batch, forward and backward, as the plan
            predicts it; empty where it does not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: tuple[int, int]
    peers: tuple[int, ...] = Field(min_length=1)
    pass_s: tuple[Annotated[float, Field(ge=0, le=86400)], ...] = ()


LostStage: TypeAlias = Literal["checkpoint", "neighbours", "fresh", "stop"]
"""Of what a stage goes on that has lost all its peers: of its newest checkpoint; of the layers of
the stages beside it; of weights as the script makes them. Each in place of the one before where
that is not there. ``stop``: the run ends."""


Activations = Literal["exact", "bf16"]


class PipelineConfig(BaseModel):
    """A pipeline's plan, its peers by their numbers.

    Attributes:
        model: What the layers of the model must be, as ``gossip_pipelines.planning.model_of`` makes
            it of them.
        micro_batches: Of a step.
        samples: Of a micro-batch.
        names: Of the peers, by their numbers, as the plan has them.
        activations: How a stage sends what it hands on, and the gradients of that: "exact", as the
            layers make them, or "bf16".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(pattern="^[0-9a-f]{16}$")
    micro_batches: int = Field(ge=1)
    samples: int = Field(ge=1)
    names: tuple[str, ...]
    activations: Activations = "exact"
    stages: tuple[StageConfig, ...] = Field(min_length=1)

    def stage_of(self, peer: int) -> int:
        """The number of its stage, from 0."""
        return next(at for at, stage in enumerate(self.stages) if peer in stage.peers)

    @property
    def cut(self) -> tuple[tuple[int, int], ...]:
        """First and last layer of each stage."""
        return tuple([stage.layers for stage in self.stages])

    @property
    def smallest(self) -> int:
        """Peers of the stage that has the fewest."""
        return min(len(stage.peers) for stage in self.stages)


class RunConfig(BaseModel):
    """Everything that the peers of a run agree on. Resolved, its ``run``, ``name``,
    ``run_dir``, ``f`` and ``peers_for_one`` are set."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    run: str = Field(
        default="",
        pattern=r"^([0-9a-f]{16})?$",
        description="id of the run, 8 bytes in hex; drawn when empty",
    )
    name: str = Field(default="", max_length=80, description="name of the run; drawn when empty")
    peers: int = Field(default=4, ge=1, le=PEERS_MAX, description="how many peers start")
    room: int = Field(
        default=0,
        ge=0,
        le=PEERS_MAX,
        description=(
            "most peers that the run has room for, with those that join later; 0: none join"
        ),
    )
    topology: str = Field(default="rolling", min_length=1, description="who exchanges with whom")
    aggregator: str = Field(
        default="guarded_mean", min_length=1, description="how updates become one"
    )
    f: int | None = Field(
        default=None,
        ge=0,
        description="Byzantine peers to tolerate; what rule and peers allow, at most a quarter",
    )
    peers_for_one: int | None = Field(
        default=None,
        ge=0,
        description="peers with which the rule would tolerate one liar, 0: never; found with f",
    )
    sender: str = Field(
        default="",
        max_length=200,
        description="what peers make of their updates before they send them",
    )
    encoding: str = Field(
        default="float32",
        max_length=200,
        description="how the numbers of updates and results travel, such as bf16 or topk:0.05",
    )
    local_steps: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="steps that each peer takes by itself between two rounds",
    )
    outer: str = Field(
        default="",
        max_length=200,
        description=(
            "what follows a round of local steps: mean, heavy_ball:lr=0.7,momentum=0.9 or "
            "nesterov:lr=0.7,momentum=0.9, which is the default with local steps"
        ),
    )
    fragments: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="parts of the model, of which each round of local steps exchanges one",
    )
    fragment_mixing: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        allow_inf_nan=False,
        description=(
            "share of its own parameters that a peer keeps of a fragment whose result comes a "
            "round later, with fragments and overlap; 0.5 when empty"
        ),
    )
    overlap: int = Field(
        default=0,
        ge=0,
        le=1,
        description="rounds that a peer computes beside: 1, the next update while a round runs",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of servers, data order and attacks")
    rounds: int | None = Field(
        default=None, ge=1, le=2**40, description="rounds to train; the script decides when empty"
    )
    run_dir: str = Field(default="", description="folder of the run; runs/NAME when empty")
    faults: tuple[str, ...] = Field(default=(), description="faults to inject, as for --fault")
    quorum: Literal["majority", "available"] = Field(
        default="majority", description="how many peers a round needs"
    )
    min_peers: int | None = Field(
        default=None,
        ge=1,
        le=PEERS_MAX,
        description="begin with so many, once the patience with the others is over",
    )
    patience_s: Seconds = Field(
        default=10.0, description="how long the others are waited for once min_peers are here"
    )
    on_minority: Literal["pause", "continue"] = Field(
        default="pause",
        description="what a part without a quorum does once the others are dead for it",
    )
    on_divergence: Literal["stop", "heal", "warn"] = Field(
        default="stop",
        description="what a peer does whose replica differs from that of most",
    )
    reference_samples: int = Field(
        default=256,
        ge=1,
        le=2**20,
        description="samples by which the server of a round judges, under rules with a judge",
    )
    batch_policy: BatchPolicy = Field(
        default="fixed_local",
        description="what stays when peers come and go: each peer's batch, or all peers' together",
    )
    slices: Slices = Field(
        default="speed",
        description=(
            "smaller batches, or fewer local steps, for peers that are much slower than most, or "
            "equal ones"
        ),
    )
    server_weights: str = Field(
        default="",
        max_length=16 * PEERS_MAX,
        description=(
            "how often peers serve rounds beside the others, as in 0:4,2:2; all others weigh 1"
        ),
    )
    round_timeout_s: Seconds = Field(default=10.0, description="how long a round may wait at most")
    start_timeout_s: Seconds = Field(
        default=60.0, description="how long peers wait for each other at the start"
    )
    quorum_timeout_s: Seconds = Field(
        default=60.0, description="how long a run without quorum waits for peers to come back"
    )
    begin_anew: bool = Field(
        default=False,
        description=(
            "begin again with fresh weights, when all peers that had the state of the run are lost"
        ),
    )
    resume: str = Field(
        default="",
        max_length=4096,
        description=("auto, a run, or a folder of checkpoints, with @STEP: goes on from there"),
    )
    deterministic: bool = Field(
        default=False,
        description=(
            "two runs with the same seed and peers give the same bits; a round waits for "
            "everybody who lives"
        ),
    )
    insecure: bool = Field(
        default=False,
        description=(
            "listen on other addresses than loopback, without keys: anybody who reaches them can "
            "take part"
        ),
    )
    keys: bool | None = Field(
        default=None,
        description=(
            "peers authenticate by keys and encrypt everything; on by default but for "
            "loopback addresses"
        ),
    )
    allowed: str = Field(
        default="",
        description=(
            "file of public keys, which alone take part: one a line, read again whenever it changes"
        ),
    )
    host: str = Field(
        default="127.0.0.1",
        description="address that the peers listen on; a peer's GOSSIP_LISTEN comes first",
    )
    warm: bool = Field(
        default=True,
        description="fork peers from a process that has imported torch, which takes milliseconds",
    )
    restarts: int = Field(
        default=0,
        ge=0,
        le=RESTARTS_MAX,
        description="how often a launcher starts each peer again that has died by itself",
    )
    drills: bool = Field(
        default=False,
        description="let gossip drill kill, stop, cut off, slow down and poison peers",
    )
    record: bool = Field(
        default=False,
        description="write down every event of the protocol, for gossip simulate --recording",
    )
    pipeline: PipelineConfig | None = Field(
        default=None, description="the plan of a pipeline, as --plan reads it"
    )
    audit: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "of a pipeline: with which probability another member of the stage computes a "
            "micro-batch again; 0: nobody does"
        ),
    )
    lost_stage: LostStage = Field(
        default="checkpoint",
        description=(
            "of what a stage of a plan goes on that has lost all its peers: checkpoint, "
            "neighbours, fresh, stop"
        ),
    )
    node: Literal["process", "thread"] = Field(
        default="process", description="where a peer's node runs"
    )
    trust: bool = Field(
        default=True,
        description="quarantine peers that keep standing out; without, they are only told of",
    )
    suspect_below: float = Field(
        default=TrustSettings().suspect_below,
        ge=0,
        le=1,
        description="trust below which a peer is suspected",
    )
    quarantine_below: float = Field(
        default=TrustSettings().quarantine_below,
        ge=0,
        le=1,
        description="trust below which it is left out",
    )
    mix_every: int = Field(
        default=GossipSettings().mix_every,
        ge=1,
        description="gossip: rounds between exchanges of parameters",
    )
    mixing: float = Field(
        default=GossipSettings().mixing,
        gt=0,
        le=1,
        description="gossip: how far to move towards the others",
    )
    staleness_max: int = Field(
        default=GossipSettings().staleness_max,
        ge=0,
        description="gossip: rounds; older updates are dropped",
    )
    probe_interval_s: Seconds = Field(
        default=MembershipSettings().probe_interval_s, description="between two probes of a peer"
    )
    probe_timeout_s: Seconds = Field(
        default=MembershipSettings().probe_timeout_s,
        description="a probe waits for its answer at least",
    )

    @field_validator("host")
    @classmethod
    def _safe_address(cls, value: str, info: ValidationInfo) -> str:
        host = value.strip("[]")
        if is_loopback(host):
            return value
        if not is_one_host(host):
            raise ValueError(
                "it should be the address of one host, such as 10.0.0.7, that other hosts can "
                "connect to"
            )
        if info.data.get("keys") is False and not info.data.get("insecure"):
            raise ValueError(
                "without keys anybody who reaches it could take part: leave out --no-keys, or add "
                "--insecure"
            )
        return value

    @field_validator("keys")
    @classmethod
    def _one_of_both(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("insecure"):
            raise ValueError("insecure means without keys: leave out one of both")
        return value

    @field_validator("sender")
    @classmethod
    def _known_sender(cls, value: str) -> str:
        senders.load(value)
        return value

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        load_encoding(value)
        return value

    @field_validator("outer")
    @classmethod
    def _known_outer(cls, value: str) -> str:
        return outer.load(value).spec if value else ""

    @field_validator("server_weights")
    @classmethod
    def _known_weights(cls, value: str) -> str:
        return write_weights(read_weights(value))

    @field_validator("faults", mode="before")
    @classmethod
    def _split_faults(cls, value: Any) -> Any:
        return tuple(value.split()) if isinstance(value, str) else value

    @property
    def run_id(self) -> bytes:
        """8 bytes."""
        return bytes.fromhex(self.run)

    @property
    def lineage(self) -> bytes:
        """8 bytes: the hash chain that the run starts with."""
        return blake2b(b"lineage" + self.run_id, digest_size=8).digest()

    @property
    def keyed(self) -> bool:
        """Whether its peers have keys. Where they listen decides when nobody has said it."""
        if self.keys is not None:
            return self.keys
        return not (self.insecure or is_loopback(self.host.strip("[]")))

    @property
    def is_rolling(self) -> bool:
        """Whether rounds have a server, and a commit that decides."""
        return load_topology(self.topology).rolling

    @property
    def has_local_steps(self) -> bool:
        """Whether updates are model differences, and not gradients."""
        return self.local_steps > 1 or bool(self.outer)

    @property
    def effective_slices(self) -> Slices:
        """``slices``, or "equal" where speed must not count, or is not known: how long local steps
        take that run beside a round does not show."""
        beside = self.overlap > 0 and self.has_local_steps
        return "equal" if self.deterministic or beside else self.slices

    @property
    def shortens_rounds(self) -> bool:
        """Whether a slow peer ends a round with fewer local steps than it has."""
        return self.has_local_steps and self.effective_slices == "speed"

    @property
    def steps_per_round(self) -> int:
        """Steps that each peer takes by itself between two rounds: of ``local_steps`` there are as
        many rounds as fragments."""
        return self.local_steps // self.fragments

    @property
    def own_share(self) -> float | None:
        """The share of its own parameters that a peer keeps of the fragment that a round is on: 0
        where the round is applied before it goes on. None: a round is on all parameters."""
        if self.fragments == 1:
            return None
        given = self.fragment_mixing
        return (0.5 if given is None else given) if self.overlap else 0.0

    @property
    def outer_step(self) -> str:
        """The spec of what follows a round of local steps."""
        return outer.load(self.outer or outer.NESTEROV).spec

    @property
    def needed_to_start(self) -> int:
        """Without so many no training begins."""
        quorum = 1 if self.quorum == "available" else self.peers // 2 + 1
        return max(quorum, self.min_peers or 0)

    @property
    def peers_max(self) -> int:
        """How many different ids there are, with those of peers that may join later."""
        return max(self.peers, self.room)

    def peers_alike(self, peer: int) -> int:
        """How many peers begin with the parameters that this one has: itself and those of its
        stage, or all."""
        if self.pipeline is None:
            return self.peers
        return len(self.pipeline.stages[self.pipeline.stage_of(peer)].peers)

    @property
    def weighted_topology(self) -> str:
        """The topology's spec, with the weights of servers in it."""
        return (
            with_option(self.topology, "weights", self.server_weights)
            if self.server_weights
            else self.topology
        )

    @property
    def plan(self) -> FaultPlan:
        """The fault plan, checked against peers and rounds."""
        return fault_plans.parse(self.faults).checked(self.peers, self.rounds)

    def settings(self) -> CoreSettings:
        """Return the settings of the core. Only of a resolved config: run id and f are set."""
        assert self.run, "a config has its run id once it is resolved"
        assert self.f is not None, "a config has its f once it is resolved"
        trust = TrustSettings(
            suspect_below=self.suspect_below,
            quarantine_below=self.quarantine_below if self.trust else NEVER,
        )
        return CoreSettings(
            run=self.run_id,
            lineage=self.lineage,
            seed=self.seed,
            peers=tuple(range(self.peers)),
            room=self.room if self.room > self.peers else 0,
            f=self.f,
            membership=MembershipSettings(
                probe_interval_s=self.probe_interval_s, probe_timeout_s=self.probe_timeout_s
            ),
            batch_policy=self.batch_policy,
            slices=self.effective_slices,
            local_steps=self.has_local_steps,
            begin_anew=self.begin_anew,
            rounds=RoundSettings(
                quorum=self.quorum,
                on_minority=self.on_minority,
                on_divergence=self.on_divergence,
                round_timeout_s=self.round_timeout_s,
                start_timeout_s=self.start_timeout_s,
                min_peers=self.min_peers or 0,
                patience_s=self.patience_s,
                quorum_timeout_s=self.quorum_timeout_s,
                # Nobody who lives is left out of a round for being late.
                grace_floor_s=self.round_timeout_s
                if self.deterministic
                else RoundSettings().grace_floor_s,
            ),
            gossip=GossipSettings(
                mix_every=self.mix_every, mixing=self.mixing, staleness_max=self.staleness_max
            ),
            trust=trust,
            pipeline=None
            if self.pipeline is None
            else _pipeline_settings(self.pipeline, self.audit, self.lost_stage),
        )

    def dump(self, path: Path | str) -> None:
        """Writes the JSON file that peers read, whole or not at all."""
        scratch = Path(f"{path}.new")
        scratch.write_text(self.model_dump_json(indent=1) + "\n", "utf-8")
        scratch.replace(path)

    @classmethod
    def load(cls, path: Path | str, data: bytes | None = None) -> RunConfig:
        """Reads what ``dump`` wrote. ``data``: the bytes of the file, where they were read before.

        Raises: ConfigError: It cannot be read, or something in it is wrong.
        """
        try:
            return cls.model_validate_json(Path(path).read_bytes() if data is None else data)
        except OSError as error:
            raise ConfigError(f"cannot read the run's settings {path}: {error}") from error
        except ValidationError as error:
            said = _explained(error, {})
            raise ConfigError(
                f"{path}: {said}",
                said.hint or "it was cut or changed: nothing can join this run by its folder",
            ) from error


def _pipeline_settings(
    plan: PipelineConfig, audit: float, lost_stage: LostStage
) -> PipelineSettings:
    stages = tuple(stage.peers for stage in plan.stages)
    pass_us = tuple(
        (peer, max(1, round(1e6 * pass_s)))
        for stage in plan.stages
        if stage.pass_s
        for peer, pass_s in zip(stage.peers, stage.pass_s, strict=True)
    )
    rebuilds = lost_stage != "stop"
    return PipelineSettings(
        stages, plan.micro_batches, pass_us=pass_us, audit=audit, rebuilds=rebuilds
    )


OPTIONS: tuple[str, ...] = tuple(RunConfig.model_fields)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A config, and where each of its values comes from: ``flag``, ``GOSSIP_X``, a file's path,
    ``default`` or a reason."""

    config: RunConfig
    sources: Mapping[str, str]

    @property
    def rule_named(self) -> bool:
        """Whether somebody has named the rule, and it does not follow from other options."""
        implied = "default", WITH_REFERENCE, WITH_PLAN, WITH_F, WITHOUT_SERVERS
        return self.sources["aggregator"] not in implied

    def with_values(self, source: str, **values: Any) -> Resolved:
        """The same with some values replaced (validated anew)."""
        sources = {**self.sources, **dict.fromkeys(values, source)}
        return Resolved(_validated({**self.config.model_dump(), **values}, sources), sources)

    def to_toml(self) -> str:
        """``config.toml``: one line a value, its source behind it.
        ``gossip run --config`` reads it back."""
        rows = []
        for key, value in self.config.model_dump().items():
            if key == "run":
                rows.append(f"# run {value}")  # the next run has an id of its own
            elif value is None:
                rows.append(f"# {key} is not set  # {RunConfig.model_fields[key].description}")
            else:
                rows.append(f"{key} = {_toml(value)}  # {self.sources.get(key, 'default')}")
        return "\n".join(rows) + "\n"


def resolve(
    flags: Mapping[str, Any],
    file: Path | str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Resolved:
    """Flag over ``GOSSIP_*`` variable over file over default. Nothing is checked here that needs
    torch or the machine.

    Args:
        flags: Option -> value; None when it was not given.
        file: A TOML file with options at its top level.
        defaults: Replace some of ``RunConfig``'s own.
    Raises: ConfigError: An unknown option, or a value that it cannot have, with where it came from.
    """
    values: dict[str, Any] = dict(defaults or {})
    sources: dict[str, str] = dict.fromkeys(OPTIONS, "default")
    from_file, from_environment = _outside(file)
    values.update(from_file)
    sources.update(dict.fromkeys(from_file, str(file)))
    values.update(from_environment)
    sources.update({key: f"GOSSIP_{key.upper()}" for key in from_environment})
    given = {key: value for key, value in flags.items() if value is not None}
    _check_names(given, "the command line")
    values.update(given)
    sources.update(dict.fromkeys(given, "flag"))
    return _implied(Resolved(_validated(values, sources), sources))


def _implied(resolved: Resolved) -> Resolved:
    """With what follows from options that were given. Raises: ConfigError: Another that was given
    contradicts it."""
    resolved = _with_judge(resolved)
    if resolved.sources["aggregator"] == "default":
        resolved = _with_rule(resolved)
    if not resolved.config.deterministic or resolved.config.slices == "equal":
        return resolved
    if (source := resolved.sources["slices"]) != "default":
        raise ConfigError(
            f"slices = {resolved.config.slices} ({source}): batches that depend on how fast peers "
            "are make no two runs alike, and deterministic is set "
            f"({resolved.sources['deterministic']})",
            "leave out one of both",
        )
    return resolved.with_values("deterministic", slices="equal")


def _with_rule(resolved: Resolved) -> Resolved:
    """The rule that follows from what the run is to bear: corruption, or -f adversaries."""
    config, sources = resolved.config, resolved.sources
    if config.pipeline is not None:
        return resolved.with_values(WITH_PLAN, aggregator="mean")
    rolling = config.topology.partition(":")[0] == "rolling"
    if sources["f"] != "default" and config.f:
        few = rolling and 4 * config.f <= config.peers
        return resolved.with_values(WITH_F, aggregator=ROBUST[not few])
    if not rolling:
        return resolved.with_values(WITHOUT_SERVERS, aggregator=ROBUST[1])
    return resolved


def _with_judge(resolved: Resolved) -> Resolved:
    """Return the settings with the rule that judges by a reference, where one was asked for and no
    rule was named.

    Only options decide: they are the same for all peers. Whether a script has a judge each peer
    would find out for itself, and rules must not differ.
    """
    config, sources = resolved.config, resolved.sources
    asked = sources["reference_samples"] != "default" and sources["aggregator"] == "default"
    rolling = config.topology.partition(":")[0] == "rolling"
    if not asked or not rolling or config.peers_max == 1:
        return resolved
    return resolved.with_values(WITH_REFERENCE, aggregator=JUDGED)


def _outside(file: Path | str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the file and those of the environment, both unchecked but for their
    names."""
    # Here and not at the top: it takes 0.3 s to import, and only launchers need it.
    from pydantic_settings import BaseSettings, EnvSettingsSource, TomlConfigSettingsSource

    fields: dict[str, Any] = {
        name: (info.annotation, info) for name, info in RunConfig.model_fields.items()
    }
    settings: type[BaseSettings] = create_model("Settings", __base__=BaseSettings, **fields)

    class Environment(EnvSettingsSource):
        def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
            return value  # a list is words, not JSON

    from_file: dict[str, Any] = {}
    if file is not None:
        try:
            from_file = TomlConfigSettingsSource(settings, toml_file=Path(file))()
            if not Path(file).is_file():
                raise FileNotFoundError(f"there is no file {file}")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the settings {file}: {error}") from error
        _check_names(from_file, str(file))
    for name in os.environ:
        key = name[len("GOSSIP_") :].lower()
        if name.startswith("GOSSIP_") and key not in OPTIONS and key not in NOT_OPTIONS:
            near = difflib.get_close_matches(key, OPTIONS, n=1, cutoff=0.8)
            if near:
                raise ConfigError(
                    f"unknown variable {name}. Did you mean GOSSIP_{near[0].upper()}?"
                )
    return from_file, Environment(settings, env_prefix="GOSSIP_")()


def _check_names(values: Mapping[str, Any], where: str) -> None:
    for key in values:
        if key not in OPTIONS:
            unknown = UnknownName("option", key, OPTIONS)
            raise ConfigError(f"{where}: {unknown}", unknown.hint)


def _validated(values: Mapping[str, Any], sources: Mapping[str, str]) -> RunConfig:
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise _explained(error, sources) from error


def _explained(error: ValidationError, sources: Mapping[str, str]) -> ConfigError:
    """The first thing that pydantic found wrong, in one line: option, value, source,
    what is allowed."""
    first = error.errors()[0]
    if not first["loc"]:
        return ConfigError(f"the run's settings are not readable: {first['msg']}")
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        unknown = UnknownName("option", key, OPTIONS)
        return ConfigError(str(unknown), unknown.hint)
    source = sources.get(key, "")
    where = f" (from {source})" if source and source != "flag" else ""
    message = re.sub(r"^Input should be", "it should be", first["msg"]).removeprefix(
        "Value error, "
    )
    about = RunConfig.model_fields[key].description if key in RunConfig.model_fields else None
    return ConfigError(
        f"{key} = {first['input']!r}{where}: {message}", f"{key}: {about}" if about else None
    )


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            escaped = "".join(
                f"\\u{ord(char):04x}"
                if char in '"\\' or (not char.isprintable() and ord(char) < 0x10000)
                else char
                for char in value
            )
            return f'"{escaped}"'
        case int() | float():
            return repr(value)
        case Mapping():
            rows = [f"{key} = {_toml(each)}" for key, each in value.items()]
            return "{" + ", ".join(rows) + "}"
        case Iterable():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            raise AssertionError(f"no option is a {type(value).__name__}")
