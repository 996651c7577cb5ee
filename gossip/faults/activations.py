"""Attacks of a member of a stage of a pipeline on its results of micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from .declare import Fault, declared
from .units import Number, Peers, of

Values = TypeVar("Values", bound=Any)
PassResult: TypeAlias = Literal["output", "gradient", "audit"]
"""Output of a forward pass, gradient from a backward pass, or result of an audit of another
member."""


@dataclass(frozen=True, slots=True)
class ActivationFault(Fault):
    """Base of the attacks on micro-batches.

    Attributes:
        lies_about: The result of a pass that is false.
        factor: Factor of the true result.
        peers: Byzantine peers during the whole run.
        share: Share of their micro-batches, 0 to 1; None means all of them.
    """

    lies_about: ClassVar[PassResult]
    factor: ClassVar[float] = -1.0

    peers: tuple[int, ...] = of(Peers(rows=False))
    share: float | None = of(Number("SHARE", "a share", least=0.0, most=1.0), None)

    def strikes(self, peer: int, round_id: int, micro_batch: int) -> bool:
        """Whether the peer attacks the micro-batch. The result is the same for every caller."""
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
    """Return the payload that a peer with these attacks sends instead of ``truth``, which may be
    ``truth``.
    ``where``: the peer, the round and the micro-batch."""
    for lie in lies:
        if lie.lies_about == about and lie.strikes(*where):
            truth = lie.corrupt(truth)
    return truth


@declared("{peers}[*{share}]", "2,5*0.1", real=True)
@dataclass(frozen=True, slots=True)
class NegatedActivations(ActivationFault):
    """The peers of a pipeline send the negated output of their layers, for all micro-batches or for
    this share of them."""

    lies_about = "output"


@declared("{peers}[*{share}]", "2,5*0.1", real=True)
@dataclass(frozen=True, slots=True)
class NegatedGradients(ActivationFault):
    """The peers of a pipeline return the negated gradient of their stage's input, for all
    micro-batches or for this share of them."""

    lies_about = "gradient"


@declared("{peers}[*{share}]", "2,5*0.1", real=True)
@dataclass(frozen=True, slots=True)
class ScaledGradients(ActivationFault):
    """The peers of a pipeline return a hundred times the gradient of their stage's input, for all
    micro-batches or for this share of them."""

    lies_about = "gradient"
    factor = 100.0


@declared("{peers}[*{share}]", "2,5*0.1", real=True)
@dataclass(frozen=True, slots=True)
class FalseAudits(ActivationFault):
    """The peers of a pipeline with audits compute other results than the peers that they audit, and
    accuse them, in all of their audits or in this share of them."""

    lies_about = "audit"
