"""Description of a node, and functions that create its parts: keys, core and transport. Tests
replace some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gossip import aggregators, topologies
from gossip.aggregators import BoundRule
from gossip.config import RunConfig
from gossip.core import (
    CROSS_SHARD_PEERS_MAX,
    CoreSettings,
    NodeCore,
    Peer,
    PeerId,
)
from gossip.run import Journal, Keyring, SeedFolder, allow_list, listed_pair
from gossip.satellites import find_function
from gossip.topologies import Topology
from gossip.transport import (
    EncodedTransport,
    Keys,
    PayloadLimit,
    Transport,
    ZeroMQTransport,
    is_loopback,
)
from gossip.vectors import Float32, Shape, WireFormat, load_encoding, shard_sizes

if TYPE_CHECKING:
    from gossip.inject import FaultyNode


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Description of a node.

    Attributes:
        run_dir: Folder for the files of the run, in which peers find the addresses of other peers;
            None if the run has no folder.
        status_fd: Descriptor of a stream socket that is connected to the launcher, or None. The
            node duplicates the descriptor.
        listen: Address of this machine at which other peers reach the node; "" means the ``host``
            of the run.
        key_file: File of this peer's key, in a run with keys; "" if the node creates a key.
        keys: Keys of this peer and of the other peers, in a run with keys. The node sets them when
            it starts.
    """

    config: RunConfig
    peer: PeerId
    incarnation: int = 0
    run_dir: Path | None = None
    status_fd: int | None = None
    listen: str = ""
    key_file: str = ""
    keys: Keys | None = None


def spec_from(given: Mapping[str, str]) -> NodeSpec:
    """Return the description of a node from the ``GOSSIP_*`` environment variables of its
    process."""
    run_dir, status_fd = given.get("GOSSIP_RUN_DIR"), given.get("GOSSIP_STATUS_FD")
    return NodeSpec(
        RunConfig.load(given["GOSSIP_CONFIG"]),
        int(given["GOSSIP_PEER"]),
        int(given.get("GOSSIP_INCARNATION", "0")),
        Path(run_dir) if run_dir else None,
        int(status_fd) if status_fd else None,
        given.get("GOSSIP_LISTEN", ""),
        given.get("GOSSIP_KEY", ""),
    )


def wire_of(config: RunConfig, peer: PeerId) -> Callable[[int, int, tuple[Shape, ...]], WireFormat]:
    """Return the function that determines the wire format for the updates of a peer's model. Its
    arguments are the number of elements, the number of marks among them, and the shapes of the
    tensors. The trainer and every node compute the same format."""
    rule = aggregators.load(config.aggregator)
    rolling = topologies.load(config.weighted_topology).rolling
    encoding = load_encoding(config.encoding)
    whole = rule.whole_vector or not rolling
    together = shards_decide_together(config, rule, rolling=rolling)
    # A run without keys is on one host, unless it is explicitly insecure.
    one_host = not config.keyed and not config.insecure
    summed_here = one_host and isinstance(encoding, Float32) and rule.from_rows is not None

    def found(elements: int, marks: int, shapes: tuple[Shape, ...]) -> WireFormat:
        peers = config.peers_alike(peer)
        sizes = shard_sizes(elements, peers, whole, cross_shard=together, summed_here=summed_here)
        return WireFormat(encoding, config.seed, sizes, elements - marks, config.peers_max, shapes)

    return found


def shards_decide_together(config: RunConfig, rule: BoundRule, *, rolling: bool) -> bool:
    """Whether vectors are divided into shards although the rule decides on whole vectors. The
    servers of the shards then decide together."""
    together = rule.cross_shard and rolling and config.peers_max <= CROSS_SHARD_PEERS_MAX
    return together and config.pipeline is None


def keys_of(spec: NodeSpec, folder: SeedFolder) -> Keyring:
    """Return the keys of this peer and of the other peers, in a run with keys. Raises:
    ConfigError."""
    allowed = allow_list(spec.config.allowed)
    return Keyring(listed_pair(spec.key_file, spec.peer, allowed), folder, allowed)


CoreMaker: TypeAlias = Callable[[NodeSpec, CoreSettings, Topology, str, str], NodeCore]
TransportMaker: TypeAlias = Callable[[NodeSpec, Callable[[], int], PayloadLimit], Transport]
"""Function that creates a transport. Its arguments are the spec, a function that returns the
present incarnation, and a function that returns the size that a payload must have."""


def peer_class(settings: CoreSettings) -> type[Peer]:
    """Return the class of the core for a run. For a pipeline, the class is in the package
    gossip-pipelines."""
    if settings.pipeline is None:
        return Peer
    found: type[Peer] = find_function("StagePeer", "a run with a plan")
    return found


def real_core(
    spec: NodeSpec, settings: CoreSettings, topology: Topology, control: str, bulk: str
) -> NodeCore:
    """Return the core of a node. Only tests use another function."""
    kind = peer_class(settings)
    return kind(spec.peer, spec.incarnation, settings, topology, control=control, bulk=bulk)


def over_zeromq(
    spec: NodeSpec, incarnation: Callable[[], int], payload_limit: PayloadLimit
) -> Transport:
    """Return the ZeroMQ transport of a node."""
    config, host = spec.config, spec.listen or spec.config.host
    # Peers on one host read payloads in shared memory. Otherwise all payloads are sent over TCP.
    same_host = is_loopback(host.strip("[]"))
    return ZeroMQTransport(
        config.run_id,
        spec.peer,
        incarnation,
        payload_limit,
        host=host,
        same_host=same_host,
        insecure=config.insecure,
        keys=spec.keys,
    )


def with_encoding(
    config: RunConfig, transport: Transport, wire: Callable[[], WireFormat | None]
) -> Transport:
    """Return the transport. If the run has an encoding, wrap the transport so that it encodes
    payloads."""
    plain = isinstance(load_encoding(config.encoding), Float32)
    return transport if plain else EncodedTransport(transport, wire)


def faulty_node(
    spec: NodeSpec, journal: Journal, wire: Callable[[], WireFormat | None]
) -> FaultyNode | None:
    """Return the injector of this peer's faults; None if the run has no faults for this peer."""
    config = spec.config
    if not (config.drills or config.plan.disturbs(spec.peer)):
        return None
    from gossip.inject import FaultyNode, Site, rule_of  # most peers do not need it

    rolling = topologies.load(config.weighted_topology).rolling
    rule = rule_of(aggregators.load(config.aggregator), config.settings().f, centered=not rolling)
    site = Site(config, spec.peer, spec.incarnation, spec.run_dir, journal)
    return FaultyNode(site, rule, wire)
