"""Schedule of a simulated run as frozen data: its peers, its settings, and its faults with their
times. ``play.run`` plays it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from gossip import topologies
from gossip.core import MICRO_BATCHES_MAX, PIECE_BYTES, BatchPolicy, MembershipSettings, Quorum
from gossip.errors import ConfigError, UnknownName
from gossip.faults import Fault, FaultPlan, Flap, LateStart, NeverStarts, Ring, StartFault
from gossip.topologies import read_weights, write_weights

PROBE_INTERVAL_S = (0.05, 10.0)
COMMIT_LOG_MAX = 4096
# Sequential one-way messages of a round: update, request and reply between shard servers, result.
WAYS = 4
KINDS_MIN = 3  # minimum number of kinds of fault in a random schedule
PEERS_MAX = 64  # larger swarms would take too long


@dataclass(frozen=True, slots=True)
class Schedule:
    """All inputs of a simulated run. Equal schedules have equal traces.

    Attributes:
        seed: Seed of everything random that the schedule leaves open: delays, losses, targets of
            probes, servers.
        active_s: Duration of the phase with faults, in seconds. After it faults end, killed peers
            are restarted, and the calm phase begins.
        duration_s: Minimum duration of the run, in seconds. The run is longer if the calm phase has
            to wait for a deadline.
        rounds_min: Round that half of the peers must reach before the run ends. The run ends
            without it after twice ``duration_s``.
        f: Minimum f of the run. It is raised for the attackers in ``faults``, except with the mean.
        compute_s: Bounds of a trainer's compute time in a round, in seconds.
        rule_s: Time of a server's rule, in seconds; 0 means that it finishes at once.
        delay_s: Bounds of the delay of a message on an undisturbed link, in seconds.
        shards: Number of elements of each shard of the toy model.
        probe_interval_s: ``MembershipSettings.probe_interval_s``.
        round_timeout_s: ``RoundSettings.round_timeout_s``.
        start_timeout_s: ``RoundSettings.start_timeout_s``.
        min_peers: ``RoundSettings.min_peers``: number of peers that begin without the others; 0 if
            they wait for all peers.
        patience_s: ``RoundSettings.patience_s``: how long ``min_peers`` present peers wait for the
            others.
        apart: Whether each peer has different initial weights, as in scripts without a seed. All
            peers then begin with the weights of one peer.
        commit_log: ``RoundSettings.commit_log``: a peer that is more rounds behind has to restore a
            state.
        batch_policy: ``CoreSettings.batch_policy``.
        stable_addresses: Whether a restarted peer keeps its addresses.
        prepare_s: Time until the trainer of a restarted peer has its model, in seconds. Its node
            runs at once.
        server_weights: Relative frequencies with which peers serve, as in the settings of a run:
            ``0:4,2:2``.
        bytes_per_s: Bandwidth of each link for payloads, in each direction; 0 if payloads take no
            time. An element of the toy model has 4 bytes.
        link_timeout_s: ``MembershipSettings.link_timeout_s``, which is longer between hosts.
        queue_s: Maximum extra delay of other messages while payloads are in transit, because they
            share a cable, in seconds.
        copies_per_s: Speed at which a node copies received payloads, one after the other; 0 if
            copying takes no time.
        joins_s: Start times of newcomers, in seconds. Their ids follow those of the initial peers.
            A newcomer finds the other peers through the folder of addresses.
        told: Whether launchers report which peers have permanently ended and which are expected.
        piece_bytes: Size of a piece of the toy model's state, in bytes. A float32 element has 4
            bytes.
        quorum: ``RoundSettings.quorum``.
        local_steps: Number of local steps of an update of the toy model. With more than one step,
            an outer step with momentum applies the aggregate.
        fragments: Number of fragments of the toy model. A round exchanges one fragment, and each is
            as large as an update.
        further_every: Number of steps of the toy model's optimizer before each step of a second
            optimizer. The round of the second optimizer is not a step of the run. 0 if there is
            only one optimizer.
        overlap: If 1, trainers compute the next update during the round of the previous update.
        stages: Number of peers in each stage of a pipeline; the stages have consecutive ids. Empty
            if each peer has the whole model.
        micro_batches: Number of micro-batches per step of the pipeline.
        audit: ``PipelineSettings.audit``.
    """

    seed: int
    peers: int = 5
    topology: str = "rolling"
    aggregator: str = "mean"
    faults: tuple[Fault, ...] = ()
    active_s: float = 18.0
    duration_s: float = 30.0
    rounds_min: int = 0
    f: int = 0
    compute_s: tuple[float, float] = (0.35, 0.5)
    rule_s: float = 0.0001
    delay_s: tuple[float, float] = (0.0002, 0.001)
    shards: tuple[int, ...] = (8,)
    probe_interval_s: float = MembershipSettings().probe_interval_s
    round_timeout_s: float = 3.0
    start_timeout_s: float = 20.0
    min_peers: int = 0
    patience_s: float = 10.0
    apart: bool = False
    commit_log: int = 64
    batch_policy: BatchPolicy = "fixed_local"
    stable_addresses: bool = False
    prepare_s: float = 0.001
    piece_bytes: int = PIECE_BYTES
    server_weights: str = ""
    bytes_per_s: float = 0.0
    link_timeout_s: float = MembershipSettings().link_timeout_s
    queue_s: float = 0.0
    copies_per_s: float = 0.0
    joins_s: tuple[float, ...] = ()
    told: bool = False
    quorum: Quorum = "majority"
    local_steps: int = 1
    fragments: int = 1
    overlap: int = 0
    further_every: int = 0
    stages: tuple[int, ...] = ()
    micro_batches: int = 4
    audit: float = 0.0

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Ids of the peers of each stage. Without a pipeline, all peers are one stage."""
        edges = accumulate(self.stages or (self.peers,), initial=0)
        return tuple([tuple(range(*edge)) for edge in pairwise(edges)])

    @property
    def everybody(self) -> int:
        """Number of peers including newcomers."""
        return self.peers + len(self.joins_s)

    @property
    def absent(self) -> tuple[int, ...]:
        """Ids of the initial peers that are absent at the start of the run."""
        return tuple(
            sorted(
                {fault.peer for fault in self.faults if isinstance(fault, LateStart | NeverStarts)}
            )
        )

    @property
    def travel_s(self) -> float:
        """Maximum time until the updates and results of a round have been transferred and copied,
        in seconds."""
        nbytes = 4 * sum(self.shards)
        on_link_s = nbytes / self.bytes_per_s if self.bytes_per_s else 0.0
        taken_in_s = self.everybody * nbytes / self.copies_per_s if self.copies_per_s else 0.0
        return 2.0 * (on_link_s + taken_in_s) + WAYS * self.delay_s[1]

    @property
    def weighted_topology(self) -> str:
        """Spec of the topology, including the weights of servers."""
        weights = self.server_weights
        return (
            topologies.with_option(self.topology, "weights", weights) if weights else self.topology
        )

    @property
    def rolling(self) -> bool:
        """Whether the topology has rolling rounds."""
        return topologies.load(self.weighted_topology).rolling

    @property
    def plan(self) -> FaultPlan:
        """Fault plan with the faults of the schedule, and with its settings in the table
        ``[simulate]``. As TOML, it replays exactly this schedule."""
        world = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "faults"
        }
        return FaultPlan(self.faults, world)

    def with_plan(self, plan: FaultPlan) -> Schedule:
        """Return the schedule with the plan's faults, and with the settings of its ``[simulate]``
        table.

        Raises: ConfigError: The table has an unknown key or an invalid value, or a fault names an
        unknown peer.
        """
        _check_world(plan.simulate)
        return dataclasses.replace(self, **plan.simulate, faults=plan.faults).checked()

    def checked(self) -> Schedule:
        """Return the schedule itself. Raises: ConfigError: The schedule cannot be played."""
        for holds, *text in self._demands():
            if not holds:
                raise ConfigError(*text)
        plan = FaultPlan(self.faults).checked(self.everybody)
        plan.fits(self.topology, self.rolling, self.aggregator, idle=True)
        plan.fits_stages(bool(self.stages), "stages = [3, 3], in the table [simulate]")
        return self

    def _demands(self) -> Iterator[tuple[bool, *tuple[str, ...]]]:
        """Yield (whether it is met, error text, hint) for each requirement on a schedule."""
        yield (
            1 <= self.peers <= PEERS_MAX,
            f"peers = {self.peers}: a simulated swarm has 1 to {PEERS_MAX} peers",
        )
        yield self.everybody <= PEERS_MAX, f"joins_s: {self.everybody} peers, at most {PEERS_MAX}"
        yield (
            all(0 < at_s <= self.active_s for at_s in self.joins_s),
            f"joins_s = {list(self.joins_s)}: above 0, and no later than active_s = "
            f"{self.active_s:g}",
        )
        yield (
            0 <= self.active_s <= self.duration_s <= 86_400,
            f"active_s = {self.active_s:g}, duration_s = {self.duration_s:g}: 0 <= active_s "
            "<= duration_s <= 86400",
        )
        for name in ("compute_s", "delay_s"):
            least, most = getattr(self, name)
            yield (
                0 < least <= most,
                f"{name} = [{least:g}, {most:g}]: bounds above 0, the lower one first",
            )
        yield (
            0 <= self.rule_s <= self.round_timeout_s,
            f"rule_s = {self.rule_s:g}: at least 0, and no more than round_timeout_s = "
            f"{self.round_timeout_s:g}",
        )
        yield (
            0 < self.prepare_s <= self.start_timeout_s,
            f"prepare_s = {self.prepare_s:g}: above 0, no more than start_timeout_s = "
            f"{self.start_timeout_s:g}",
        )
        yield (
            PROBE_INTERVAL_S[0] <= self.probe_interval_s <= PROBE_INTERVAL_S[1],
            f"probe_interval_s = {self.probe_interval_s:g}: {PROBE_INTERVAL_S[0]:g} to "
            f"{PROBE_INTERVAL_S[1]:g}",
        )
        yield (
            0 <= self.min_peers <= self.peers,
            f"min_peers = {self.min_peers}: 0 to peers = {self.peers}",
        )
        yield (
            0 < self.patience_s <= self.start_timeout_s,
            f"patience_s = {self.patience_s:g}: above 0, no more than start_timeout_s = "
            f"{self.start_timeout_s:g}",
        )
        yield (
            1 <= self.commit_log <= COMMIT_LOG_MAX,
            f"commit_log = {self.commit_log}: 1 to {COMMIT_LOG_MAX} rounds",
        )
        yield (
            not self.stages
            or (sum(self.stages) == self.peers and min(self.stages) >= 1 and not self.joins_s),
            f"stages = {list(self.stages)}: each of the {self.peers} peers is in one, and nobody "
            "joins",
        )
        yield (
            1 <= self.micro_batches <= MICRO_BATCHES_MAX,
            f"micro_batches = {self.micro_batches}: 1 to {MICRO_BATCHES_MAX}",
        )
        rolling = self.rolling
        yield 0.0 <= self.audit <= 1.0, f"audit = {self.audit:g}: a probability, 0 to 1"
        yield (
            not self.stages or (rolling and len(self.shards) == 1),
            "stages need a topology with servers, and one shard",
        )
        yield self.local_steps >= 1, f"local_steps = {self.local_steps}: at least 1"
        yield self.piece_bytes >= 1, f"piece_bytes = {self.piece_bytes}: at least 1"
        yield (
            bool(self.shards) and min(self.shards) >= 1,
            f"shards = {list(self.shards)}: at least one, each with at least one element",
        )
        yield (
            rolling or len(self.shards) <= 1,
            f"shards = {list(self.shards)}: {self.topology} exchanges whole vectors",
            "shards = [8]",
        )
        yield (
            self.fragments == 1
            or (
                self.fragments > 1
                and self.local_steps % self.fragments == 0
                and rolling
                and not self.stages
            ),
            f"fragments = {self.fragments}: 1, or with rolling rounds a divisor of local_steps",
        )
        plain = self.overlap == 0 and self.local_steps == 1 and not self.stages
        yield (
            self.further_every == 0 or (self.further_every > 0 and rolling and plain),
            f"further_every = {self.further_every}: 0, or with rolling rounds of one step each, "
            "one after the other, at least 1",
        )
        yield (
            self.overlap in ((0, 1) if rolling else (0,)),
            f"overlap = {self.overlap}: 0, or with rolling rounds 1",
        )
        yield (
            max(read_weights(self.server_weights), default=0) < self.everybody,
            f"server_weights = {self.server_weights!r}: there are {self.everybody} peers",
        )
        yield (
            self.quorum in ("majority", "available"),
            f"quorum = {self.quorum!r}: majority or available",
        )
        yield (
            self.batch_policy in (("fixed_local", "fixed_global") if rolling else ("fixed_local",)),
            f"batch_policy = {self.batch_policy!r}: fixed_local, or with rolling rounds "
            "fixed_global",
        )


def _check_world(world: Mapping[str, Any]) -> None:
    examples = {
        field.name: getattr(Schedule(0), field.name)
        for field in dataclasses.fields(Schedule)
        if field.name != "faults"
    }
    for key, value in world.items():
        if key not in examples:
            unknown = UnknownName("key of [simulate]", key, examples)
            raise ConfigError(str(unknown), unknown.hint)
        if not _alike(value, examples[key]):
            raise ConfigError(f"[simulate] {key} = {value!r} is not like {examples[key]!r}")


def _alike(value: object, example: object) -> bool:
    match example:
        case bool():
            return isinstance(value, bool)
        case float():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case int():
            return isinstance(value, int) and not isinstance(value, bool)
        case (float(), float()):
            return (
                isinstance(value, tuple)
                and len(value) == 2
                and all(_alike(each, example[0]) for each in value)
            )
        case tuple():
            return isinstance(value, tuple) and all(
                _alike(each, example[0] if example else 0.0) for each in value
            )
        case _:
            return type(value) is type(example)


PEERS_NEEDED: Mapping[type, int] = {Flap: 2, Ring: 4}
"""Kind of fault -> minimum number of its peers. In a ring of three, for example, each peer would
still reach both others."""


def without_peer(schedule: Schedule, gone: int) -> Schedule:
    """Return the schedule without the peer ``gone``. Higher ids decrease by one, and faults that
    need the peer are removed."""
    faults = tuple(kept for fault in schedule.faults if (kept := _without(fault, gone)) is not None)
    weights = {
        _moved(peer, gone): weight
        for peer, weight in read_weights(schedule.server_weights).items()
        if peer != gone
    }
    schedule = dataclasses.replace(schedule, server_weights=write_weights(weights))
    if gone < schedule.peers:
        late = any(
            isinstance(fault, StartFault) and fault.peer == gone for fault in schedule.faults
        )
        stages = tuple(
            [sum(p != gone for p in members) for members in schedule.members if members != (gone,)]
        )
        schedule = dataclasses.replace(schedule, stages=stages if schedule.stages else ())
        # This keeps the number of late peers, for which the others do not wait.
        least = max(0, min(schedule.min_peers - (not late), schedule.peers - 1))
        return dataclasses.replace(
            schedule, peers=schedule.peers - 1, min_peers=least, faults=faults
        )
    joins_s = tuple(
        at_s for number, at_s in enumerate(schedule.joins_s) if number != gone - schedule.peers
    )
    return dataclasses.replace(schedule, joins_s=joins_s, faults=faults)


def _without(fault: Fault, gone: int) -> Fault | None:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(fault):
        value = getattr(fault, field.name)
        if field.name == "peer" and value == gone:
            return None
        if field.name == "peer" and isinstance(value, int):
            value = _moved(value, gone)
        elif field.name == "peers" and value:
            left = tuple(_moved(peer, gone) for peer in value if peer != gone)
            if len(left) < PEERS_NEEDED.get(type(fault), 1):
                return None
            value = left
        elif field.name == "sides":
            sides = tuple(
                tuple(_moved(peer, gone) for peer in side if peer != gone) for side in value
            )
            value = tuple(side for side in sides if side)
            if len(value) < 2:
                return None
        values[field.name] = value
    return type(fault)(**values)


def _moved(peer: int, gone: int) -> int:
    return peer - (peer > gone)
