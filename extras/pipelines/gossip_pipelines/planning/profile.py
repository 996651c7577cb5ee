"""Times of one peer for each layer of a model, and for bytes to others: measured once, kept in a
TOML file that a person can read and correct."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from gossip.errors import ConfigError
from gossip.run import shown

from .fits import CostLine
from .tables import (
    BYTES_MAX,
    SECONDS_MAX,
    Fields,
    check_name,
    check_schema,
    read_toml,
)

SCHEMA = "gossip.profile/1"
LAYERS_MAX, PEERS_MAX, BATCH_MAX = 512, 64, 2**20
_HEAD = ("schema", "peer", "memory_bytes", "batches", "layers_r2", "layer", "link")
_LAYER = (
    *("name", "signature", "parameter_bytes", "output_bytes", "kept_bytes"),
    *("forward_s", "backward_s"),
)
_LINK = ("to", "seconds", "r2")


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One layer on one peer.

    Attributes:
        signature: 16 hex digits, equal for layers that compute the same on inputs of one shape.
        output_bytes: Of a sample, handed to the next layer.
        kept_bytes: Of a sample, kept from the forward pass for the backward pass.
        forward: Seconds for a number of samples; ``backward`` alike.
    """

    name: str
    signature: str
    parameter_bytes: int
    output_bytes: float
    kept_bytes: float
    forward: CostLine
    backward: CostLine


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """Seconds for a number of bytes to the peer ``to``, measured from here. ``r2``: how much of the
    variance of what was measured the line explains."""

    to: str
    line: CostLine
    r2: float


@dataclass(frozen=True, slots=True)
class PeerProfile:
    """One peer, and one model on it.

    Attributes:
        memory_bytes: What layers, their optimizer and their activations may take.
        batches: The two numbers of samples that lines were laid through.
        layers_r2: Of the times at a third number of samples, as the lines predict them.
    """

    peer: str
    memory_bytes: int
    batches: tuple[int, int]
    layers_r2: float
    layers: tuple[LayerProfile, ...]
    links: tuple[LinkProfile, ...] = ()

    @property
    def model(self) -> str:
        """16 hex digits, equal for peers that have measured the same layers."""
        return model_of([layer.signature for layer in self.layers])

    def with_link(self, link: LinkProfile) -> PeerProfile:
        """With this one in place of what there was to the same peer."""
        others = [known for known in self.links if known.to != link.to]
        return replace(self, links=tuple(sorted([*others, link], key=lambda one: one.to)))


def model_of(signatures: Sequence[str]) -> str:
    return blake2b(" ".join(signatures).encode(), digest_size=8).hexdigest()


def write_profile(profile: PeerProfile) -> str:
    """The profile as TOML, which ``read_profile`` reads back."""
    return "\n".join(_lines(profile)) + "\n"


def _lines(profile: PeerProfile) -> Iterator[str]:
    yield f'schema = "{SCHEMA}"'
    yield f'peer = "{profile.peer}"'
    yield f"memory_bytes = {profile.memory_bytes}  # for layers, optimizer and activations"
    yield f"batches = [{profile.batches[0]}, {profile.batches[1]}]  # samples, measured"
    yield f"layers_r2 = {max(0.0, profile.layers_r2):.4f}  # of times at a third number of samples"
    for layer in profile.layers:
        yield "\n[[layer]]"
        yield f'name = "{layer.name}"'
        yield f'signature = "{layer.signature}"'
        yield f"parameter_bytes = {layer.parameter_bytes}"
        yield f"output_bytes = {layer.output_bytes:.10g}  # a sample"
        yield f"kept_bytes = {layer.kept_bytes:.10g}  # a sample"
        yield f"forward_s = {_line(layer.forward)}  # fixed, and a sample"
        yield f"backward_s = {_line(layer.backward)}"
    for link in profile.links:
        yield "\n[[link]]"
        yield f'to = "{link.to}"'
        yield f"seconds = {_line(link.line)}  # fixed, and a byte"
        yield f"r2 = {max(0.0, link.r2):.5f}"


def _line(line: CostLine) -> str:
    return f"[{line.fixed_s:.6g}, {line.each_s:.6g}]"


def read_profile(path: Path) -> PeerProfile:
    """The profile in that file.

    Raises: ConfigError: It is no profile, or has a value that nobody can have measured.
    """
    where = shown(path)
    said = read_toml(path, "gossip plan profile FILE.py:FUNCTION makes one on each machine")
    check_schema(where, said, SCHEMA)
    fields = Fields.of(where, said, _HEAD)
    peer = check_name(fields.values.get("peer"), where)
    layers = tuple(_layer(each) for each in fields.tables("layer", _LAYER, LAYERS_MAX))
    if not layers:
        raise ConfigError(f"{where}: it has no layer", "gossip plan profile measures them")
    links = tuple(_link(each) for each in fields.tables("link", _LINK, PEERS_MAX))
    names = [link.to for link in links]
    if peer in names or len(set(names)) < len(names):
        raise ConfigError(f"{where}: a link leads to {peer} itself, or two to the same peer")
    small, large = fields.numbers("batches", 2, BATCH_MAX, "samples")
    return PeerProfile(
        peer,
        fields.count("memory_bytes", 1, BYTES_MAX),
        (int(small), int(large)),
        fields.number("layers_r2", 1.0, "a part"),
        layers,
        links,
    )


def _layer(fields: Fields) -> LayerProfile:
    name = fields.values.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 64 or '"' in name or "\\" in name:
        raise fields.wrong("name", "1 to 64 characters, without quotes and backslashes")
    return LayerProfile(
        shown(name),
        fields.text("signature", "[0-9a-f]{16}", "16 hexadecimal digits"),
        fields.count("parameter_bytes", 0, BYTES_MAX),
        fields.number("output_bytes", BYTES_MAX, "bytes"),
        fields.number("kept_bytes", BYTES_MAX, "bytes"),
        CostLine(*fields.numbers("forward_s", 2, SECONDS_MAX, "seconds")),
        CostLine(*fields.numbers("backward_s", 2, SECONDS_MAX, "seconds")),
    )


def _link(fields: Fields) -> LinkProfile:
    return LinkProfile(
        check_name(fields.values.get("to"), fields.where),
        CostLine(*fields.numbers("seconds", 2, SECONDS_MAX, "seconds")),
        fields.number("r2", 1.0, "a part"),
    )
