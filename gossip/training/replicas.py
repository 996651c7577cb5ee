"""Computes digests of this peer's replica. If the replica differs from those of most peers, names
the likely cause.

A replica is the state that is equal on all peers: the model's parameters, the optimizer's state for
these parameters, and the parameters of modules passed to ``Session.keep``. Buffers, such as the
statistics of a BatchNorm, are not part of a replica: they may differ between peers. So may the
state of other kept objects.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossip.core import DIGEST_BYTES
from gossip.ipc import DivergenceReport, clip
from gossip.vectors import payload_digest

TENSORS_MAX = 1000
"""Maximum number of tensors that have short digests of their own. The digest of all tensors also
covers the others."""
SHORT_BYTES = 2
TENSORS_NAMED_MAX = 8
"""Maximum number of differing tensors that a report names."""
SHARE = 0.005
"""Fraction of the training time that regular comparisons may use. Other comparisons may use the
same fraction again."""
PERIOD_MAX = 4096
LOOK_STEPS = 16
"""Maximum number of steps between two computations of the period."""
FIRST_STEPS = 3
"""In this number of first steps, changes of the replica by the script are detected."""


class Divergence(NamedTuple):
    """Difference between this peer's replica and those of most peers.

    Attributes:
        round_id: Round before which the replica differed.
        names: Names of the tensors that differ.
        cause, remedy: Likely cause and remedy, as sentences without a full stop.
    """

    round_id: int
    names: tuple[str, ...]
    cause: str
    remedy: str


def compare_replicas(run: Any, saves_at: Callable[[int], bool]) -> None:
    """Start to compare replicas, if the run's settings make replicas equal on all peers between two
    steps.

    Args:
        run: The ``PeerRun`` of this peer, with its prepared model.
        saves_at: Function that returns whether a checkpoint is made at a step.
    """
    config = run.config
    differ = config.has_local_steps or not config.is_rolling or config.pipeline is not None
    if config.peers_max > 1 and not differ:
        run.applied.replicas = ReplicaCheck(run, saves_at)


class ReplicaCheck:
    """Comparison of the replica with those of other peers. It decides when to compare, and computes
    the digests.

    Args:
        run: The ``PeerRun`` of this peer, with its prepared model.
        saves_at: Function that returns whether a checkpoint is made at a step.
    """

    def __init__(self, run: Any, saves_at: Callable[[int], bool]) -> None:
        trained = run.model.trained
        self._run, self._model, self._optimizer = run, trained.model, trained.optimizer
        self._kept, self._saves_at = run.model.extra.kept, saves_at
        model = trained.model
        # A divergence, and the values of the differing tensors before another peer's state replaces
        # them.
        self._diverged: tuple[Divergence, dict[str, Tensor]] | None = None
        self._has_warned = False
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._began_at, self._first_step = time.monotonic(), -1
        self._spent_s = self._cost_s = 0.0
        self._sent: tuple[tuple[str, ...], bytes] = (), b""
        # Last step that this peer made in ``optimizer.step()``, and the names and digests of the
        # tensors after that step.
        self._noted: tuple[int, tuple[str, ...], bytes] = -1, (), b""
        self._missed = self._missed_before = False
        self.period = 1
        """Number of steps between two regular comparisons. It is a power of two, so that peers with
        different measurements have steps in common at which all of them compare. It is 1 before the
        first measurement."""
        self.outside: tuple[str, ...] = ()
        """Names of tensors that the script has changed outside of ``optimizer.step()``."""

    # --- digests ----------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the replica; the key is the name. The tensors are sorted by
        name."""
        found: dict[str, Tensor] = dict(self._model.named_parameters())
        states = self._optimizer.state
        for state in states if isinstance(states, list) else [states]:
            for key, entry in state.items():
                owner = self._names.get(id(key), key if isinstance(key, str) else "")
                found.update(_tensors_in(entry, f"optimizer state of {owner}"))
        for name, thing in self._kept.items():
            if isinstance(thing, torch.nn.Module):
                parameters = thing.named_parameters()
                found.update({f"kept {name}: {key}": value for key, value in parameters})
        return {name: found[name].detach() for name in sorted(found)}

    def digest(self) -> bytes:
        """Return a digest of all tensors of the replica."""
        return digest_tensors(self.tensors().values())

    def _digest(self) -> tuple[tuple[str, ...], bytes]:
        """Return the names of the tensors, and their digests: ``DIGEST_BYTES`` for all tensors
        together, then ``SHORT_BYTES`` for each tensor."""
        began = time.perf_counter()
        tensors = self.tensors()
        digests = [_digest_of(tensor) for tensor in tensors.values()]
        short = [digest[:SHORT_BYTES] for digest in digests[:TENSORS_MAX]]
        whole = payload_digest(b"".join(digests))[:DIGEST_BYTES]
        took_s = time.perf_counter() - began
        self._cost_s = min(took_s, 2 * self._cost_s) if self._cost_s else took_s
        self._spent_s += took_s
        return tuple(tensors), whole + b"".join(short)

    # --- when -------------------------------------------------------------------------------------

    def compare(self, step: int, wanted: bool) -> bytes:
        """Return the digests to send with the update of ``step``; b"" if the replica is not
        compared at this step.

        Args:
            wanted: Whether the other peers compare their replicas at this step.
        """
        if self._first_step < 0:
            self._first_step, self._began_at = step, time.monotonic()
        is_first = 0 < step <= self._first_step + FIRST_STEPS
        is_due = is_first or self._saves_at(step)
        if step % min(self.period, LOOK_STEPS) and not is_due and not wanted:
            return b""
        elapsed_s, steps = time.monotonic() - self._began_at, step - self._first_step
        if steps > 0 and self._cost_s:
            needed = self._cost_s * steps / (SHARE * max(elapsed_s, 1e-9))
            self.period = min(PERIOD_MAX, 1 << int(needed).bit_length())
        affordable = self._spent_s + self._cost_s <= 2 * SHARE * elapsed_s
        regular = step > 0 and step % self.period == 0 and (affordable or self.period > 1)
        if not (regular or is_due or (wanted and affordable)):
            return b""
        self._sent = self._digest()
        self._missed_before, self._missed = self._missed, False
        at, names, before = self._noted
        if at == step and not self.outside:
            self.outside = _differing(names, before, *self._sent)
        return self._sent[1]

    def follow_step(self, step: int, is_own: bool) -> None:
        """Record that a step was applied, so that the parameters now contain ``step`` steps.
        ``is_own``: whether the step was applied during the script's own ``optimizer.step()``."""
        self._missed = self._missed or not is_own
        if not is_own:
            self._noted = -1, (), b""
        elif 0 <= step - self._first_step <= FIRST_STEPS:
            self._noted = (step, *self._digest())

    # --- what differs -----------------------------------------------------------------------------

    def explain(self, round_id: int, agreed: bytes) -> Divergence:
        """Explain why the digests that this peer sent last differ from ``agreed``, the digests of
        most peers."""
        names = _differing(*self._sent, self._sent[0], agreed)
        return Divergence(round_id, names, *self._cause(names))

    def _cause(self, names: Sequence[str]) -> tuple[str, str]:
        rescaled = [
            name
            for name, module in self._model.named_modules()
            if getattr(module, "max_norm", None) is not None
        ]
        each_step = "change them in a function passed to peer.each_step"
        if rescaled and not self._missed_before:
            return (
                f"{rescaled[0]} has max_norm: each forward pass rescales the rows that this peer's "
                "batch uses",
                "leave max_norm out, and rescale all rows in a function passed to peer.each_step",
            )
        if self.outside and self._missed_before:
            what = "objects of peer.keep" if _are_kept(self.outside) else "weights"
            return (
                f"{what} were changed outside of optimizer.step() while rounds were missed",
                each_step,
            )
        if self.outside:
            return (
                "weights are changed outside of optimizer.step(), by data that only this peer has",
                f"{each_step}, by data that all peers have",
            )
        if self._missed_before and _are_kept(names):
            return "the loop changed objects of peer.keep while rounds were missed", each_step
        if self._missed_before:
            return (
                "rounds were missed, and a step depends on something that is neither in the "
                "optimizer's settings or state nor passed to peer.keep",
                "pass it to peer.keep, or change it in a function passed to peer.each_step",
            )
        return (
            "this peer's memory or processor; a step that computes otherwise on this peer; or "
            "weights that only some peers have changed outside of optimizer.step()",
            "test the machine's memory; run the same torch on processors of the same kind; draw "
            f"from torch's own generators within step(); {each_step}",
        )

    # --- reports ----------------------------------------------------------------------------------

    def warn_of_changes(self) -> None:
        """Warn once, and only on the main peer, that the script changes the replica outside of
        ``optimizer.step()``."""
        run = self._run
        if self._has_warned or not self.outside or run.node.view.main != run.peer:
            return
        self._has_warned = True
        cause = "the script changes them outside of optimizer.step(), which a late peer misses"
        remedy = "change them in a function passed to peer.each_step"
        found = Divergence(run.applied.round_id, self.outside, cause, remedy)
        self._report(found, peers_differ=False)

    def note_difference(self, round_id: int, agreed: bytes) -> None:
        """Record that this replica differs from those of most peers. If the run only warns, report
        it now. Otherwise keep the differing tensors until another peer's state has replaced
        them."""
        found = self.explain(round_id, agreed)
        if self._run.config.on_divergence == "warn":
            self._report(found)
            return
        tensors = self.tensors()
        # Kept objects load their new state only later.
        known = [name for name in found.names if name in tensors and not _are_kept([name])]
        differing = {name: tensors[name].clone() for name in known}
        self._diverged = found, differing

    def note_replaced(self) -> None:
        """Record that the state of other peers was loaded."""
        self._noted = -1, (), b""  # loading a state is not a change by the script
        diverged, self._diverged = self._diverged, None
        if diverged is not None:
            found, before = diverged
            largest = largest_difference(before, self.tensors()) if before else -1.0
            self._report(found, largest, replaced=True)

    def _report(
        self,
        found: Divergence,
        largest: float = -1.0,
        *,
        replaced: bool = False,
        peers_differ: bool = True,
    ) -> None:
        self._run.node.link.send(
            DivergenceReport(
                found.round_id,
                peers_differ,
                replaced,
                tuple([clip(name) for name in found.names[:TENSORS_NAMED_MAX]]),
                len(found.names),
                min(largest, sys.float_info.max),
                clip(found.cause),
                clip(found.remedy),
            )
        )


def largest_difference(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """Return the largest absolute difference between elements of tensors with equal name and shape.
    Return inf if an element is NaN."""
    largest = 0.0
    for name, one in before.items():
        other = after.get(name)
        if other is None or other.shape != one.shape or not one.numel():
            continue
        difference = (one.double() - other.double()).abs().max().item()
        largest = max(largest, difference if difference == difference else float("inf"))
    return largest


def _are_kept(names: Sequence[str]) -> bool:
    return all(name.startswith("kept ") for name in names)


def _differing(
    names: Sequence[str], one: bytes, others: Sequence[str], other: bytes
) -> tuple[str, ...]:
    """Return the names of tensors with different short digests. If the lists of names differ,
    return the names that are in only one of the lists."""
    if len(one) != len(other) or tuple(names) != tuple(others):
        return tuple(sorted(set(names) ^ set(others))) or tuple(names)
    pairs = zip(names, _short_digests(one), _short_digests(other), strict=False)
    found = [name for name, a, b in pairs if a != b]
    if not found and one != other:
        found = list(names[TENSORS_MAX:]) or list(names)
    return tuple(found)


def _short_digests(data: bytes) -> list[bytes]:
    starts = range(DIGEST_BYTES, len(data), SHORT_BYTES)
    return [data[at : at + SHORT_BYTES] for at in starts]


def digest_tensors(tensors: Iterable[Tensor]) -> bytes:
    """Return a digest of the bits of all tensors."""
    return payload_digest(b"".join(map(_digest_of, tensors)))


def _digest_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return payload_digest(flat.view(torch.uint8).numpy() if flat.numel() else b"")


def _tensors_in(value: Any, where: str) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors and numbers in nested dicts, lists and tuples, each with its path. Numbers
    become tensors."""
    if isinstance(value, Tensor):
        yield where, value.detach()
    elif isinstance(value, int | float):
        yield where, torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors_in(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _tensors_in(item, f"{where}.{at}")
