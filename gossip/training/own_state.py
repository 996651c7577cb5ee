"""Per-peer state, saved in the folder of the run's checkpoints.

Per-peer state consists of the model's buffers, such as the running statistics of a BatchNorm, and
of the sender's memory. In gossip rounds, where replicas differ, it is the complete state of the
peer.

Each peer writes its own file: ``FOLDER/own/peer-2.step-000000500.DIGEST.safetensors``. The digest
in the name shows whether a file is damaged, so that it is not loaded.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossip.aggregators import Memory
from gossip.run import checkpoints

from .collectives import write_whole
from .state import (
    StateFile,
    StateMismatch,
    compare_model,
    load_document,
    load_model,
    load_optimizer,
    model_document,
    names_of,
    optimizer_document,
    read_optimizer,
    read_state_file,
)

FOLDER = "own"
DIGEST_BYTES = 16
_NAME = re.compile(
    rf"peer-(?P<peer>[0-9]+)\.step-(?P<step>[0-9]{{9,18}})\."
    rf"(?P<digest>[0-9a-f]{{{2 * DIGEST_BYTES}}})\.safetensors"
)


class OwnState(NamedTuple):
    """Per-peer state in addition to the model.

    Attributes:
        memory: Memory of the sender.
        residual: Accumulated encoding error of the updates.
        parameters: Local parameters, if a round exchanges only a fragment of the model: they
            contain steps that were not exchanged yet. None if all peers have the same parameters.
        optimizer: Optimizer of the local steps, to save.
        extra: Loaded state of the objects of ``Session.keep``, if this file contains it.
        why: Reason why nothing was loaded; "" if the state was loaded.
    """

    memory: Memory | None = None
    residual: Tensor | None = None
    parameters: Sequence[Tensor] | None = None
    optimizer: torch.optim.Optimizer | None = None
    extra: dict[str, Any] | None = None
    why: str = ""

    def document(self) -> dict[str, Any]:
        """Return this state as the nested dict that is saved."""
        local = {} if self.optimizer is None else optimizer_document(self.optimizer)
        return {
            "sender": None if self.memory is None else list(self.memory),
            **({} if self.residual is None else {"residual": self.residual}),
            **({} if self.parameters is None else {"parameters": list(self.parameters)}),
            **({"local": {"state": local.pop("optimizer"), **local}} if local else {}),
        }


def plan_own(model: torch.nn.Module, own: OwnState) -> StateFile | None:
    """Return the file of a peer's own state; None if the peer has no own state."""
    _, buffers = model_document(model)
    if not buffers and all(part is None for part in own[:4]):
        return None
    names = () if own.optimizer is None else names_of(model, own.optimizer)
    return StateFile({"buffers": buffers, **own.document()}, names)


def plan_whole(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Any],
    own: OwnState,
) -> StateFile:
    """Return the file of a peer's whole state, for rounds in which replicas differ."""
    parameters, buffers = model_document(model)
    return StateFile(
        {
            "model": {**parameters, **buffers},
            **optimizer_document(optimizer),
            "extra": dict(extra),
            **own.document(),
        },
        names_of(model, optimizer),
    )


def write_own(folder: Path, peer: int, step: int, data: bytes | memoryview, keep: int) -> None:
    """Write the peer's own state durably, and delete its older files. Raises OSError."""
    place = folder / FOLDER
    digest = blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
    name = f"peer-{peer}.step-{step:09d}.{digest}.safetensors"
    write_whole(place / name, data)
    known = [each for each in _of(place, peer) if each[0] <= step]
    for at, path in sorted(known)[: -max(1, keep)]:
        if (folder / checkpoints.name_of(at)).exists():
            continue  # a run may resume from the checkpoint of that step
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


class Loaded(NamedTuple):
    """Objects into which a state is loaded. ``local``: the optimizer of local steps."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    local: torch.optim.Optimizer | None = None


def load_own(folder: Path, peer: int, step: int, into: Loaded) -> OwnState:
    """Load all parts of a peer's own state from a file that ``write_own`` has written."""
    why = "there is no such file"
    for document, wrong in _documents(folder, peer, step):
        why = wrong
        if document is None:
            continue
        try:
            return _load_document(document, into)
        except StateMismatch as error:
            why = str(error)
    return OwnState(why=why)


def mean_of(folder: Path, step: int, peers: Iterable[int]) -> tuple[dict[str, Any], list[int]]:
    """Return the mean of the models that ``peers`` have saved at ``step`` (``plan_whole``). Also
    return the peers that the mean includes, because their models were readable. Values that cannot
    be averaged are taken from the first of these peers."""
    mean: dict[str, Any] = {}
    of: list[int] = []
    for peer in sorted(peers):
        found = [document for document, _ in _documents(folder, peer, step) if document]
        model = found[0].get("model") if found else None
        if not isinstance(model, dict) or (of and model.keys() != mean.keys()):
            continue
        of.append(peer)
        for name, value in model.items():
            if name not in mean:
                mean[name] = value.clone() if isinstance(value, Tensor) else value
            elif _has_mean(value, mean[name]):
                mean[name] += (value - mean[name]) / len(of)
    return mean, of


def _has_mean(one: Any, other: Any) -> bool:
    both = isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape
    return both and one.is_floating_point()


def has_own(folder: Path, peer: int, step: int) -> bool:
    """Whether the peer has saved its own state at this step."""
    return any(at == step for at, _ in _of(folder / FOLDER, peer))


def _documents(folder: Path, peer: int, step: int) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Yield, for each file of this peer and step, its document and "". If the file is unreadable,
    yield None and the reason."""
    for at, path in _of(folder / FOLDER, peer):
        if at != step:
            continue
        named = _NAME.fullmatch(path.name)
        assert named is not None
        try:
            data = path.read_bytes()
            if blake2b(data, digest_size=DIGEST_BYTES).hexdigest() != named["digest"]:
                yield None, f"{path} is damaged"
            else:
                yield read_state_file(data), ""
        except (OSError, StateMismatch) as error:
            yield None, f"{path}: {error}"


def _load_document(document: dict[str, Any], into: Loaded) -> OwnState:
    """Load a document. Raises StateMismatch: The document does not fit."""
    sender, extra = document.get("sender"), document.get("extra")
    residual, parameters = document.get("residual"), document.get("parameters", [])
    if (
        not isinstance(sender, list | None)
        or not isinstance(parameters, list)
        or not all(isinstance(each, Tensor) for each in parameters)
        or not isinstance(extra, dict | None)
        or not isinstance(residual, Tensor | None)
    ):
        raise StateMismatch("it contains no state of a peer")
    if into.local is not None:
        _load_local(document.get("local"), into.local)
    if "model" in document:
        load_document(document, into.model, into.optimizer)
    else:
        _load_buffers(document.get("buffers"), into.model)
    memory = None if sender is None else tuple(sender)
    return OwnState(memory, residual, tuple(parameters), extra=extra)


def _load_local(saved: Any, optimizer: torch.optim.Optimizer) -> None:
    try:
        state = read_optimizer({**saved, "optimizer": saved["state"]})
    except (KeyError, TypeError, ValueError) as error:
        raise StateMismatch("it contains no optimizer of local steps") from error
    load_optimizer(state, optimizer)


def _load_buffers(buffers: Any, model: torch.nn.Module) -> None:
    if not isinstance(buffers, dict):
        raise StateMismatch("it contains no buffers")
    parameters, own = model_document(model)
    compare_model({**parameters, **own, **buffers}, model)
    load_model(buffers, model)


def _of(place: Path, peer: int) -> list[tuple[int, Path]]:
    """Return the steps at which a peer has saved its own state, and the files."""
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return []
    found = [(named, place / name) for name in names if (named := _NAME.fullmatch(name))]
    return [(int(named["step"]), path) for named, path in found if int(named["peer"]) == peer]
