"""Measured times of each layer and each link of one peer, in a TOML file that users can edit."""

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
LAYERS_MAX = 512
PEERS_MAX = 64
BATCH_MAX = 2**20
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
    """Costs of one layer on one peer.

    Attributes:
        signature: 16 hex digits that are equal for layers with the same computation and input
            shape.
        output_bytes: Size of the output per sample.
        kept_bytes: Bytes per sample that the forward pass stores for the backward pass.
        forward: Time of the forward pass as a function of the number of samples.
        backward: Time of the backward pass as a function of the number of samples.
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
    """Measured costs of one model on one peer.

    Attributes:
        memory_bytes: Memory limit for the layers, their optimizer and their activations.
        batches: The two batch sizes with which layers were measured.
        links: Time of a message as a function of its bytes, measured at this peer. The key is the
            receiver.
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
        """A hash of 16 hex digits that is equal for profiles of the same layers."""
        return model_of([layer.signature for layer in self.layers])


def model_of(signatures: Sequence[str]) -> str:
    return blake2b(" ".join(signatures).encode(), digest_size=8).hexdigest()


def write_profile(profile: PeerProfile) -> str:
    """Return the profile as TOML text for ``read_profile``."""
    return as_toml(profile, SCHEMA, COMMENTS)


def read_profile(path: Path) -> PeerProfile:
    """Read a profile from a file.

    Raises: ConfigError: The file is not a profile, or a value is invalid.
    """
    hint = "gossip plan profile FILE.py:FUNCTION makes one on each machine"
    profile = read_file(path, PeerProfile, SCHEMA, hint)
    if profile.peer in profile.links:
        raise ConfigError(f"{shown(path)}: a link leads to {profile.peer} itself")
    return profile
