"""Why a swarm refuses this peer's model: each peer leaves word of its own in the run's folder, and
the refused one compares."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gossip.errors import ModelDiffers, Refused
from gossip.run import read_json, write_json

from .layout import Layout

logger = logging.getLogger(__name__)

FILE = "model.json"
Tensors = Sequence[tuple[str, str]]
"""Names, and shapes with what is not float32."""


@contextlib.contextmanager
def compared(run_dir: Path | None, peer: int, layout: Layout) -> Iterator[None]:
    """Turn a refusal of this peer's model into an error that shows where the models differ.

    The body presents the model of this ``layout`` to the swarm. A description of the model is
    written to the run's folder first, for the comparison.

    Raises: ModelDiffers: In place of Refused,
        if a peer of the swarm has written a description of its model.
    """
    if run_dir is None:
        yield
        return
    own = _described(layout)
    folder = run_dir / f"peer-{peer}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, own)
    except OSError as error:  # a refusal elsewhere then does not show where models differ
        logger.warning("peer=%d cannot write %s: %s", peer, folder / FILE, error)
    try:
        yield
    except Refused as refused:
        others = _others(run_dir, peer, str(refused))
        if others is None:
            raise
        raise ModelDiffers(*difference(others, own)) from None


def _described(layout: Layout) -> dict[str, Any]:
    tensors = []
    for name, parameter in zip(layout.names, layout.parameters, strict=True):
        kind = str(parameter.dtype).removeprefix("torch.")
        tensors.append([name, f"{tuple(parameter.shape)}{'' if kind == 'float32' else f' {kind}'}"])
    return {"layout": layout.digest.hex(), "elements": layout.trained, "tensors": tensors}


def _others(run_dir: Path, peer: int, reason: str) -> dict[str, Any] | None:
    """Return the description of the model that the swarm trains: that of another peer, whose layout
    the refusal names. None: there is none."""
    for path in sorted(run_dir.glob(f"peer-*/{FILE}")):
        if path.parent.name == f"peer-{peer}":
            continue
        with contextlib.suppress(ValueError, OSError):
            found = read_json(path)
            if (
                found is not None
                and isinstance(found.get("layout"), str)
                and found["layout"]
                and found["layout"] in reason
            ):
                return found
    return None


def difference(swarm: dict[str, Any], own: dict[str, Any]) -> tuple[str, str]:
    """A line for each of the two: how many parameters, the digest,
    and the first tensor that is not the same."""
    theirs, ours = swarm["tensors"], own["tensors"]
    at = next(
        (
            at
            for at, (one, other) in enumerate(zip(theirs, ours, strict=False))
            if list(one) != list(other)
        ),
        None,
    )
    first = at if at is not None else min(len(theirs), len(ours))

    def line(described: dict[str, Any], tensors: Tensors) -> str:
        tensor = (
            " ".join(tensors[first])
            if first < len(tensors)
            else f"no more than {len(tensors)} tensors"
        )
        return f"{described['elements']:,} parameters  layout {described['layout'][:8]}  {tensor}"

    return line(swarm, theirs), line(own, ours)
