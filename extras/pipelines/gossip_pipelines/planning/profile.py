"""Measured times of one peer for each layer of a model and each link, in a TOML file that users can
read and correct."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from gossip.errors import ConfigError
from gossip.run import shown

from .files import CHECKED, ByteCount, Bytes, PeerName, as_toml, read_file
from .fits import CostLine

SCHEMA = "gossip.profile/1"
LAYERS_MAX, PEERS_MAX, BATCH_MAX = 512, 64, 2**20
COMMENTS = {
    "memory_bytes": "for layers, optimizer and activations",
    "batches": "samples, measured",
    "output_bytes": "a sample",
    "kept_bytes": "a sample",
    "forward": "seconds: fixed, and a sample",
    "links": "seconds: fixed, and a byte",
}
LayerName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(shown)]
Signature = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
Count = Annotated[int, Field(strict=True, ge=1, le=BATCH_MAX)]


@dataclass(frozen=True, slots=True, config=CHECKED)
class LayerProfile:
    """One layer on one peer.

    Attributes:
        signature: 16 hex digits, equal for layers that compute the same on inputs of one shape.
        output_bytes: Bytes of the output for each sample.
        kept_bytes: Bytes for each sample that the forward pass keeps for the backward pass.
        forward: Seconds for a number of samples, as is ``backward``.
    """

    name: LayerName
    signature: Signature
    parameter_bytes: ByteCount
    output_bytes: Bytes
    kept_bytes: Bytes
    forward: CostLine
    backward: CostLine


@dataclass(frozen=True, slots=True, config=CHECKED)
class PeerProfile:
    """Profile of one model on one peer.

    Attributes:
        memory_bytes: Limit of the layers with their optimizer and activations.
        batches: The two numbers of samples that were measured.
        links: Seconds for a number of bytes to each other peer, measured from this peer.
    """

    peer: PeerName
    memory_bytes: Annotated[ByteCount, Field(ge=1)]
    batches: tuple[Count, Count]
    layers: Annotated[tuple[LayerProfile, ...], Field(min_length=1, max_length=LAYERS_MAX)]
    links: Annotated[dict[PeerName, CostLine], Field(max_length=PEERS_MAX)] = Field(
        default_factory=dict
    )

    @property
    def model(self) -> str:
        """A hash of 16 hex digits, equal for peers that have measured the same layers."""
        return model_of([layer.signature for layer in self.layers])


def model_of(signatures: Sequence[str]) -> str:
    return blake2b(" ".join(signatures).encode(), digest_size=8).hexdigest()


def write_profile(profile: PeerProfile) -> str:
    """Return the profile as TOML, which ``read_profile`` reads back."""
    return as_toml(profile, SCHEMA, COMMENTS)


def read_profile(path: Path) -> PeerProfile:
    """Return the profile in a file.

    Raises: ConfigError: It is not a profile, or has an impossible value.
    """
    hint = "gossip plan profile FILE.py:FUNCTION makes one on each machine"
    profile = read_file(path, PeerProfile, SCHEMA, hint)
    if profile.peer in profile.links:
        raise ConfigError(f"{shown(path)}: a link leads to {profile.peer} itself")
    return profile
