"""What belongs to one peer alone, beside the checkpoints of its run: buffers, such as the running
statistics of a BatchNorm, and the memory of its sender.

Each peer writes its own: ``FOLDER/own/peer-2.step-000000500.DIGEST.safetensors``. The name has the
digest, so that a file is whole or is not taken.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossip.aggregators import Memory
from gossip.run.checkpoints import name_of

from .state import StateFile, StateMismatch, read_state_file

FOLDER = "own"
DIGEST_BYTES = 16
_NAME = re.compile(
    rf"peer-(?P<peer>[0-9]+)\.step-(?P<step>[0-9]{{9,18}})\."
    rf"(?P<digest>[0-9a-f]{{{2 * DIGEST_BYTES}}})\.safetensors"
)


def plan_own(model: torch.nn.Module, memory: Memory | None) -> StateFile | None:
    """The file of a peer's own state as it is; None where there is nothing of that kind."""
    shared = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name: value for name, value in model.state_dict().items() if name not in shared}
    if not buffers and memory is None:
        return None
    return StateFile({"buffers": buffers, "sender": None if memory is None else list(memory)})


def write_own(folder: Path, peer: int, step: int, data: bytes | memoryview, keep: int) -> None:
    """Writes it, durable, and lets older ones of this peer go. Raises OSError."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    digest = blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
    name = f"peer-{peer}.step-{step:09d}.{digest}.safetensors"
    scratch = place / f".{name}.{os.getpid()}.incomplete"
    try:
        with open(scratch, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, place / name)
    finally:
        scratch.unlink(missing_ok=True)
    known = [each for each in _of(place, peer) if each[0] <= step]
    for at, path in sorted(known)[: -max(1, keep)]:
        if (folder / name_of(at)).exists():
            continue  # that checkpoint is there yet, and may be the one that is resumed from
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def load_own(
    folder: Path, peer: int, step: int, model: torch.nn.Module
) -> tuple[Memory | None, str]:
    """Loads the buffers of ``write_own`` into the model.

    Returns: the sender's memory, and why nothing was loaded ("": it was).
    """
    found = [path for at, path in _of(folder / FOLDER, peer) if at == step]
    why = "there is no such file"
    for path in found:
        try:
            data = path.read_bytes()
        except OSError as error:
            why = str(error)
            continue
        named = _NAME.fullmatch(path.name)
        assert named is not None
        if blake2b(data, digest_size=DIGEST_BYTES).hexdigest() != named["digest"]:
            why = f"{path} is damaged"
            continue
        try:
            return _taken(read_state_file(data), model), ""
        except StateMismatch as error:
            why = f"{path}: {error}"
    return None, why


def _taken(document: Mapping[str, Any], model: torch.nn.Module) -> Memory | None:
    """Raises StateMismatch, and then nothing was changed."""
    buffers, sender = document.get("buffers"), document.get("sender")
    own = model.state_dict()
    if not isinstance(buffers, dict) or not isinstance(sender, list | None):
        raise StateMismatch("it holds no buffers")
    for name, value in buffers.items():
        if name not in own or not _alike(own[name], value):
            raise StateMismatch(f"the model has no such buffer {name}")
    model.load_state_dict({**own, **buffers})
    return None if sender is None else tuple(sender)


def _alike(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, Tensor):
        return True  # a module's own extra state, which only the module understands
    return isinstance(theirs, Tensor) and (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


def _of(place: Path, peer: int) -> list[tuple[int, Path]]:
    """Steps and files of a peer."""
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return []
    found = [(named, place / name) for name in names if (named := _NAME.fullmatch(name))]
    return [(int(named["step"]), path) for named, path in found if int(named["peer"]) == peer]
