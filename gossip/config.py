"""Settings of a run, the same on every peer. A value comes from a flag, else from the environment,
else from a file, else from the defaults.

The launcher resolves them once (``resolve``). The launcher writes ``config.toml`` for users and a
JSON file for its peers, which read only that JSON file (``RunConfig.load``).
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
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

PEERS_MAX = 1024  # maximum length of a list in a message
RESTARTS_MAX = 1_000_000
NEVER = -1.0  # a trust score is never below this
OWN_SHARE = 0.5
"""Weight of a peer's own parameters of a fragment if the result is applied one round later. With
weight 0, the steps that the peer has made since that round are lost (Douillard et al. 2025,
arXiv:2501.18512)."""
JUDGED = "judged_clipping"
"""Default rule if ``reference_samples`` is set."""
REFERENCE_SAMPLES = 256
"""Default number of reference samples."""
WITH_REFERENCE = "reference_samples are given, and no aggregator"
"""Text in ``Resolved.sources`` if the rule is ``JUDGED`` by default."""
WITH_PLAN = "a plan is given, and no aggregator"
"""Text in ``Resolved.sources`` for a pipeline's default rule. The rule is ``mean``, because a step
then equals the step of a single process."""
ROBUST = "spectral_clipping", "suspicion"
"""Default rules if ``f`` is set. The first is used in rolling rounds if f is at most a quarter of
the peers, the second otherwise (docs/protection.md)."""
WITH_F = "f is given, and no aggregator"
WITHOUT_SERVERS = "the topology has no servers, and no aggregator is given"
"""Texts in ``Resolved.sources`` if the rule is one of ``ROBUST`` by default."""
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
"""Names of GOSSIP_* variables that are not options of a run."""

Settings = TypeVar(
    "Settings", CoreSettings, GossipSettings, MembershipSettings, RoundSettings, TrustSettings
)
Seconds = Annotated[float, Field(gt=0, le=86400 * 30)]


class StageConfig(BaseModel):
    """A stage of a pipeline: ``peers`` hold the layers ``layers[0]`` to ``layers[1]``, both
    included.

    Attributes:
        pass_s: Predicted time that each of ``peers`` needs for the forward and backward pass of a
            micro-batch; empty without a prediction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: tuple[int, int]
    peers: tuple[int, ...] = Field(min_length=1)
    pass_s: tuple[Annotated[float, Field(ge=0, le=86400)], ...] = ()


LostStage: TypeAlias = Literal["checkpoint", "neighbours", "fresh", "stop"]
"""State with which a stage is rebuilt after the loss of all its peers: its newest checkpoint, the
layers of the neighbouring stages, or the script's initial weights. If a source is missing, the next
one is used. With ``stop`` the run ends."""


Activations = Literal["exact", "bf16"]


class PipelineConfig(BaseModel):
    """Plan of a pipeline. Peers are identified by number.

    Attributes:
        model: Digest of the model's layers, by ``gossip_pipelines.planning.model_of``.
        micro_batches: Number of micro-batches of a step.
        samples: Number of samples of a micro-batch.
        names: Name of each peer in the plan, in order of the peers' numbers.
        activations: Encoding of activations and of their gradients between stages: "exact" or
            "bf16".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(pattern="^[0-9a-f]{16}$")
    micro_batches: int = Field(ge=1)
    samples: int = Field(ge=1)
    names: tuple[str, ...]
    activations: Activations = "exact"
    stages: tuple[StageConfig, ...] = Field(min_length=1)

    def stage_of(self, peer: int) -> int:
        """Return the number of the peer's stage, from 0."""
        return next(at for at, stage in enumerate(self.stages) if peer in stage.peers)

    @property
    def cut(self) -> tuple[tuple[int, int], ...]:
        """First and last layer of each stage."""
        return tuple([stage.layers for stage in self.stages])

    @property
    def smallest(self) -> int:
        """Number of peers of the smallest stage."""
        return min(len(stage.peers) for stage in self.stages)


class RunConfig(BaseModel):
    """All settings that the peers of a run have in common. In a resolved config, ``run``, ``name``,
    ``run_dir``, ``f`` and ``peers_for_one`` are set."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    run: str = Field(
        default="",
        pattern=r"^([0-9a-f]{16})?$",
        description="id of the run, 8 bytes in hex; random if empty",
    )
    name: str = Field(default="", max_length=80, description="name of the run; random if empty")
    peers: int = Field(default=4, ge=1, le=PEERS_MAX, description="number of peers that start")
    room: int = Field(
        default=0,
        ge=0,
        le=PEERS_MAX,
        description=("maximum number of peers, including peers that join later; 0: none join"),
    )
    topology: str = Field(
        default="rolling",
        min_length=1,
        description="rule that selects which peers exchange updates in a round",
    )
    aggregator: str = Field(
        default="guarded_mean",
        min_length=1,
        description="rule that aggregates the updates of a round",
    )
    f: int | None = Field(
        default=None,
        ge=0,
        description="Byzantine peers to tolerate; by default what the rule allows, at most 1/4",
    )
    peers_for_one: int | None = Field(
        default=None,
        ge=0,
        description="peers with which the rule tolerates one Byzantine peer, 0: never; set with f",
    )
    sender: str = Field(
        default="",
        max_length=200,
        description="steps applied to updates before they are sent",
    )
    encoding: str = Field(
        default="float32",
        max_length=200,
        description="encoding of updates and results on the wire, such as bf16 or topk:0.05",
    )
    local_steps: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="local steps of each peer between two rounds",
    )
    outer: str = Field(
        default="",
        max_length=200,
        description=(
            "outer optimizer after a round of local steps: mean, heavy_ball:lr=0.7,momentum=0.9 or "
            "nesterov:lr=0.7,momentum=0.9, which is the default with local steps"
        ),
    )
    fragments: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="number of parts of the model; each round of local steps exchanges one part",
    )
    overlap: int = Field(
        default=0,
        ge=0,
        le=1,
        description="rounds computed ahead; 1: compute the next update while a round runs",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="seed of servers, data order and attacks"
    )
    rounds: int | None = Field(
        default=None, ge=1, le=2**40, description="rounds to train; by default the script decides"
    )
    run_dir: str = Field(default="", description="folder of the run; runs/NAME if empty")
    faults: tuple[str, ...] = Field(
        default=(), description="faults to inject, in the form of --fault"
    )
    quorum: Literal["majority", "available"] = Field(
        default="majority", description="number of peers that a round needs"
    )
    min_peers: int | None = Field(
        default=None,
        ge=1,
        le=PEERS_MAX,
        description="number of peers to begin with, if the others do not start within patience_s",
    )
    patience_s: Seconds = Field(
        default=10.0, description="time to wait for the other peers once min_peers have started"
    )
    on_minority: Literal["pause", "continue"] = Field(
        default="pause",
        description="action of a minority without a quorum once it considers the others dead",
    )
    on_divergence: Literal["stop", "heal", "warn"] = Field(
        default="stop",
        description="action of a peer with a replica that differs from the majority",
    )
    reference_samples: int = Field(
        default=REFERENCE_SAMPLES,
        ge=1,
        le=2**20,
        description="number of samples by which a server judges updates, for rules with a judge",
    )
    batch_policy: BatchPolicy = Field(
        default="fixed_local",
        description="batch size that stays equal when peers join or leave: each peer's, or the sum",
    )
    slices: Slices = Field(
        default="speed",
        description=(
            "speed: smaller batches, or fewer local steps, for peers much slower than most; equal: "
            "the same for all"
        ),
    )
    server_weights: str = Field(
        default="",
        max_length=16 * PEERS_MAX,
        description=("weights of peers as servers, such as 0:4,2:2; all other peers have weight 1"),
    )
    round_timeout_s: Seconds = Field(default=10.0, description="maximum wait of a round")
    start_timeout_s: Seconds = Field(
        default=60.0, description="maximum wait for other peers at the start"
    )
    quorum_timeout_s: Seconds = Field(
        default=60.0, description="maximum wait of a run without quorum for peers to return"
    )
    resume: str = Field(
        default="",
        max_length=4096,
        description=(
            "checkpoint to resume from: auto, or a run or a folder of checkpoints, with @STEP"
        ),
    )
    deterministic: bool = Field(
        default=False,
        description=(
            "two runs with the same seed and peers give the same bits; a round waits for "
            "all live peers"
        ),
    )
    insecure: bool = Field(
        default=False,
        description=(
            "listen on other addresses than loopback, without keys: any process that reaches them "
            "can take part"
        ),
    )
    keys: bool | None = Field(
        default=None,
        description=(
            "peers authenticate by keys and encrypt everything; on by default except for "
            "loopback addresses"
        ),
    )
    allowed: str = Field(
        default="",
        description=(
            "file with the admitted public keys: one per line, read again when it changes"
        ),
    )
    host: str = Field(
        default="127.0.0.1",
        description="address that the peers listen on; a peer's GOSSIP_LISTEN has priority",
    )
    warm: bool = Field(
        default=True,
        description="fork peers from a process that has imported torch, which takes milliseconds",
    )
    restarts: int = Field(
        default=0,
        ge=0,
        le=RESTARTS_MAX,
        description="maximum number of restarts of each peer that dies by itself",
    )
    drills: bool = Field(
        default=False,
        description="let gossip drill kill, stop, cut off, slow down and poison peers",
    )
    pipeline: PipelineConfig | None = Field(
        default=None, description="plan of a pipeline, as --plan reads it"
    )
    audit: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "in a pipeline: probability that another member of the stage recomputes a "
            "micro-batch; 0: no audits"
        ),
    )
    lost_stage: LostStage = Field(
        default="checkpoint",
        description=(
            "origin of the state of a stage of a plan that has lost all its peers: checkpoint, "
            "neighbours, fresh, stop"
        ),
    )
    node: Literal["process", "thread"] = Field(
        default="process", description="where a peer's node runs"
    )
    trust: bool = Field(
        default=True,
        description="quarantine peers that keep standing out; otherwise they are only reported",
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
        description="gossip: share of the way to move towards the others",
    )
    probe_interval_s: Seconds = Field(
        default=MembershipSettings().probe_interval_s,
        description="time between two probes of a peer",
    )

    @field_validator("host")
    @classmethod
    def _safe_address(cls, value: str, info: ValidationInfo) -> str:
        host = value.strip("[]")
        if is_loopback(host):
            return value
        if not is_one_host(host):
            raise ValueError(
                "it should be the address of one host that other hosts can reach, such as 10.0.0.7"
            )
        if info.data.get("keys") is False and not info.data.get("insecure"):
            raise ValueError(
                "without keys, any process that reaches it could join: leave out --no-keys, "
                "or add --insecure"
            )
        return value

    @field_validator("keys")
    @classmethod
    def _one_of_both(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("insecure"):
            raise ValueError("insecure means without keys: leave one of them out")
        return value

    @field_validator("sender", "encoding", "outer", "server_weights")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        match info.field_name:
            case "sender":
                senders.load(value)
            case "encoding":
                load_encoding(value)
            case "outer" if value:
                return outer.load(value).spec
            case "server_weights":
                return write_weights(read_weights(value))
        return value

    @field_validator("faults", mode="before")
    @classmethod
    def _split_faults(cls, value: Any) -> Any:
        return tuple(value.split()) if isinstance(value, str) else value

    @property
    def run_id(self) -> bytes:
        """Id of the run, 8 bytes."""
        return bytes.fromhex(self.run)

    @property
    def lineage(self) -> bytes:
        """Id of the hash chain that the run starts with, 8 bytes."""
        return blake2b(b"lineage" + self.run_id, digest_size=8).digest()

    @property
    def keyed(self) -> bool:
        """Whether peers have keys. By default they have keys unless they listen on a loopback
        address or ``insecure`` is set."""
        if self.keys is not None:
            return self.keys
        return not (self.insecure or is_loopback(self.host.strip("[]")))

    @property
    def is_rolling(self) -> bool:
        """Whether each round has a server. The server's commit is the result of the round."""
        return load_topology(self.topology).rolling

    @property
    def has_local_steps(self) -> bool:
        """Whether updates are model differences, not gradients."""
        return self.local_steps > 1 or bool(self.outer)

    @property
    def effective_slices(self) -> Slices:
        """``slices``, but "equal" if results must not depend on the speed of peers, or if the speed
        is unknown. The speed is unknown if local steps overlap with a round."""
        beside = self.overlap > 0 and self.has_local_steps
        return "equal" if self.deterministic or beside else self.slices

    @property
    def shortens_rounds(self) -> bool:
        """Whether a slow peer makes fewer local steps in a round."""
        return self.has_local_steps and self.effective_slices == "speed"

    @property
    def steps_per_round(self) -> int:
        """Steps of each peer between two rounds: ``local_steps`` are divided by the number of
        fragments."""
        return self.local_steps // self.fragments

    @property
    def own_share(self) -> float | None:
        """Weight of a peer's own parameters when the round's fragment is applied. The weight is 0
        if the peer waits for the result before it continues. The weight is None if a round
        exchanges all parameters."""
        if self.fragments == 1:
            return None
        return OWN_SHARE if self.overlap else 0.0

    @property
    def outer_step(self) -> str:
        """Spec of the outer optimizer after a round of local steps."""
        return outer.load(self.outer or outer.NESTEROV).spec

    @property
    def kind_of_rounds(self) -> dict[str, int | str]:
        """Options that must be equal in a run and in the checkpoint from which it resumes."""
        after = self.outer_step if self.has_local_steps else ""
        return {"local_steps": self.local_steps, "fragments": self.fragments, "outer": after}

    @property
    def needed_to_start(self) -> int:
        """Number of peers that must be present before training begins."""
        quorum = 1 if self.quorum == "available" else self.peers // 2 + 1
        return max(quorum, self.min_peers or 0)

    @property
    def peers_max(self) -> int:
        """Number of ids, including those of peers that may join later."""
        return max(self.peers, self.room)

    def peers_alike(self, peer: int) -> int:
        """Return the number of peers that begin with the same parameters: those of this peer's
        stage, or all peers."""
        if self.pipeline is None:
            return self.peers
        return len(self.pipeline.stages[self.pipeline.stage_of(peer)].peers)

    @property
    def weighted_topology(self) -> str:
        """Spec of the topology, including ``server_weights``."""
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
        """Return the settings of the core. The config must be resolved."""
        assert self.run, "a config has its run id once it is resolved"
        assert self.f is not None, "a config has its f once it is resolved"
        patient = {"grace_floor_s": self.round_timeout_s}  # a round must wait for late peers
        rounds = patient if self.deterministic else {}
        trust = {} if self.trust else {"quarantine_below": NEVER}
        plan = self.pipeline
        return self._fill(
            CoreSettings,
            run=self.run_id,
            lineage=self.lineage,
            peers=tuple(range(self.peers)),
            room=self.room if self.room > self.peers else 0,
            slices=self.effective_slices,
            local_steps=self.has_local_steps,
            membership=self._fill(MembershipSettings),
            rounds=self._fill(RoundSettings, min_peers=self.min_peers or 0, **rounds),
            gossip=self._fill(GossipSettings),
            trust=self._fill(TrustSettings, **trust),
            pipeline=plan and _pipeline_settings(plan, self.audit, self.lost_stage),
        )

    def _fill(self, kind: type[Settings], **others: Any) -> Settings:
        """Return settings of the core. A field has the value in ``others``, if any, else the value
        of the option of the same name."""
        known = {
            each.name: getattr(self, each.name) for each in fields(kind) if each.name in OPTIONS
        }
        return kind(**(known | others))

    def dump(self, path: Path | str) -> None:
        """Write the JSON file that peers read. A crash cannot leave a partial file."""
        scratch = Path(f"{path}.new")
        scratch.write_text(self.model_dump_json(indent=1) + "\n", "utf-8")
        scratch.replace(path)

    @classmethod
    def load(cls, path: Path | str, data: bytes | None = None) -> RunConfig:
        """Read the file that ``dump`` has written. ``data``: bytes of the file, if the caller has
        already read it.

        Raises: ConfigError: The file cannot be read, or has an invalid value.
        """
        try:
            return cls.model_validate_json(Path(path).read_bytes() if data is None else data)
        except OSError as error:
            raise ConfigError(f"cannot read the run's settings {path}: {error}") from error
        except ValidationError as error:
            explained = _explained(error, {})
            raise ConfigError(
                f"{path}: {explained}",
                explained.hint or "it was cut or changed: nothing can join this run by its folder",
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
    """A config, and the source of each value: ``flag``, ``GOSSIP_X``, a file's path, ``default``,
    or the setting that implies the value."""

    config: RunConfig
    sources: Mapping[str, str]

    @property
    def rule_named(self) -> bool:
        """Whether the user named the rule, so that it does not follow from other options."""
        implied = "default", WITH_REFERENCE, WITH_PLAN, WITH_F, WITHOUT_SERVERS
        return self.sources["aggregator"] not in implied

    def with_values(self, source: str, **values: Any) -> Resolved:
        """Return a copy with some values replaced. The result is validated."""
        sources = {**self.sources, **dict.fromkeys(values, source)}
        return Resolved(_validated({**self.config.model_dump(), **values}, sources), sources)

    def to_toml(self) -> str:
        """Return the text of ``config.toml``: one line for each value, with its source after it.
        ``gossip run --config`` reads it."""
        rows = []
        for key, value in self.config.model_dump().items():
            if key == "run":
                rows.append(f"# run {value}")  # a comment, because the next run gets another id
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
    """Resolve the settings. A flag has precedence over a ``GOSSIP_*`` variable, which has
    precedence over the file and the defaults. Checks that need torch or the machine are in other
    modules.

    Args:
        flags: Values of options, by name; None if an option is not given.
        file: A TOML file with options at its top level.
        defaults: Values that replace defaults of ``RunConfig``.
    Raises: ConfigError: An unknown option, or an invalid value, with its source.
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
    """Return the settings, with defaults that follow from other settings. Raises: ConfigError: An
    option was set to a value that contradicts such a default."""
    resolved = _with_judge(resolved)
    if resolved.sources["aggregator"] == "default":
        resolved = _with_rule(resolved)
    if not resolved.config.deterministic or resolved.config.slices == "equal":
        return resolved
    if (source := resolved.sources["slices"]) != "default":
        raise ConfigError(
            f"slices = {resolved.config.slices} ({source}): batches then depend on the speed of "
            "peers, so no two runs are equal, and deterministic is set "
            f"({resolved.sources['deterministic']})",
            "leave one of them out",
        )
    return resolved.with_values("deterministic", slices="equal")


def _with_rule(resolved: Resolved) -> Resolved:
    """Return the settings with the default rule for the expected faults: f Byzantine peers if ``f``
    is set, otherwise only corrupt updates."""
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
    """Return the settings with the default rule for reference samples, if ``reference_samples`` is
    set and no rule is.

    Only options decide, because they are the same for all peers. A script could set a judge on some
    peers only, but the rule must be the same on all.
    """
    config, sources = resolved.config, resolved.sources
    asked = sources["reference_samples"] != "default" and sources["aggregator"] == "default"
    rolling = config.topology.partition(":")[0] == "rolling"
    if not asked or not rolling or config.peers_max == 1:
        return resolved
    return resolved.with_values(WITH_REFERENCE, aggregator=JUDGED)


def _outside(file: Path | str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the file and of the environment. Their names are checked, their values
    are not."""
    from_file: dict[str, Any] = {}
    if file is not None:
        try:
            from_file = tomllib.loads(Path(file).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the settings {file}: {error}") from error
        _check_names(from_file, str(file))
    variables = {f"GOSSIP_{key.upper()}": key for key in OPTIONS}
    for name in os.environ:
        key = name[len("GOSSIP_") :].lower()
        is_ours = name.upper().startswith("GOSSIP_")
        if is_ours and name not in variables and key not in NOT_OPTIONS:
            near = difflib.get_close_matches(key, OPTIONS, n=1, cutoff=0.8)
            if near:
                raise ConfigError(
                    f"unknown variable {name}. Did you mean GOSSIP_{near[0].upper()}?"
                )
    found = {key: os.environ[name] for name, key in variables.items() if name in os.environ}
    return from_file, found


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
    """Return the first error that pydantic found, in one line: option, value, source, and the
    allowed values."""
    first = error.errors()[0]
    if not first["loc"]:
        return ConfigError(f"the run's settings are not readable: {first['msg']}")
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return UnknownName("option", key, OPTIONS)
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
            raise AssertionError(f"no option has the type {type(value).__name__}")
