"""Attacks of a pipeline peer on its results for micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from .declare import Fault, declared
from .units import Number, PeerNumbers

Values = TypeVar("Values", bound=Any)
PassResult: TypeAlias = Literal["output", "gradient", "audit"]
"""Result that an attack falsifies: the output of a forward pass, the gradient of a backward pass,
or the audit of another peer."""


@dataclass(frozen=True, slots=True)
class ActivationFault(Fault):
    """Base of the attacks on micro-batches.

    Attributes:
        lies_about: Kind of result that the attack falsifies.
        factor: The false result is the true result times this factor.
        peers: Peers that attack during the whole run.
        share: Share of the micro-batches that each peer attacks, from 0 to 1; None means all.
    """

    lies_about: ClassVar[PassResult]
    factor: ClassVar[float] = -1.0

    peers: PeerNumbers
    share: Annotated[float, Number("SHARE", "a share", least=0.0, most=1.0)] | None = None

    def strikes(self, peer: int, round_id: int, micro_batch: int) -> bool:
        """Whether the peer attacks the micro-batch. All processes compute the same result."""
        if peer not in self.peers:
            return False
        name = f"{self.kind}/{peer}/{round_id}/{micro_batch}".encode()
        draw = int.from_bytes(blake2b(name, digest_size=7).digest(), "little") / 2.0**56
        return self.share is None or draw < self.share

    def corrupt(self, truth: Values) -> Values:
        """Return the array or tensor to send instead of ``truth``."""
        false: Values = truth * self.factor
        return false


def corrupt_pass_result(
    lies: Iterable[ActivationFault],
    about: PassResult,
    where: tuple[int, int, int],
    truth: Values,
) -> Values:
    """Return the payload that a peer with these attacks sends. If no attack applies, it is
    ``truth``. ``where``: the peer, the round and the micro-batch."""
    for lie in lies:
        if lie.lies_about == about and lie.strikes(*where):
            truth = lie.corrupt(truth)
    return truth


@declared("{peers}[*{share}]", "2,5*0.1", real=True)
@dataclass(frozen=True, slots=True)
class NegatedActivations(ActivationFault):
    """The peers of a pipeline send the negated output of their layers, for all micro-batches or a
    share of them."""

    lies_about = "output"


@declared("{peers}[*{share}]", "2,5*0.1", real=True)
@dataclass(frozen=True, slots=True)
class NegatedGradients(ActivationFault):
    """The peers of a pipeline return the negated gradient of their stage's input, for all
    micro-batches or a share of them."""

    lies_about = "gradient"


@declared("{peers}[*{share}]", "2,5*0.1", real=True)
@dataclass(frozen=True, slots=True)
class ScaledGradients(ActivationFault):
    """The peers of a pipeline return a hundred times the gradient of their stage's input, for all
    micro-batches or a share of them."""

    lies_about = "gradient"
    factor = 100.0


@declared("{peers}[*{share}]", "2,5*0.1", real=True)
@dataclass(frozen=True, slots=True)
class FalseAudits(ActivationFault):
    """The peers of a pipeline falsely accuse the peers that they audit, in all audits or a share of
    them."""

    lies_about = "audit"
