"""Explains why a swarm rejects this peer's model. Each peer writes a description of its model to
the run's folder. A rejected peer compares its description with that of another peer."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gossip.errors import ModelDiffers, Refused
from gossip.run import read_json, write_json

from .layout import Layout

logger = logging.getLogger(__name__)

FILE = "model.json"


@contextlib.contextmanager
def compared(run_dir: Path | None, peer: int, layout: Layout) -> Iterator[None]:
    """Turn a rejection of this peer's model into an error that shows where the models differ.

    In the ``with`` block this peer joins the swarm with the model of ``layout``. Before the block,
    a description of the model is written to the run's folder.

    Raises: ModelDiffers: Raised in place of Refused if a peer of the swarm has written a
        description of its model.
    """
    if run_dir is None:
        yield
        return
    own, path = _describe(layout), run_dir / f"peer-{peer}" / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, own)
    except OSError as error:  # if another peer is rejected, its error cannot show the difference
        logger.warning("peer=%d cannot write %s: %s", peer, path, error)
    try:
        yield
    except Refused as refused:
        for other in run_dir.glob(f"peer-*/{FILE}"):
            with contextlib.suppress(ValueError, OSError):
                found = read_json(other) or {}
                # The message of the rejection has the layout id of the swarm's model.
                layout_id = found.get("layout")
                if other != path and layout_id and str(layout_id) in str(refused):
                    raise ModelDiffers(*difference(found, own)) from None
        raise


def _describe(layout: Layout) -> dict[str, Any]:
    tensors = []
    for name, parameter in zip(layout.names, layout.parameters, strict=True):
        kind = str(parameter.dtype).removeprefix("torch.").replace("float32", "")
        tensors.append(f"{name} {tuple(parameter.shape)} {kind}".rstrip())
    return {"layout": layout.digest.hex(), "elements": layout.trained, "tensors": tensors}


def difference(swarm: dict[str, Any], own: dict[str, Any]) -> tuple[str, str]:
    """Return a line for each of the two models, with its number of parameters, its layout digest,
    and the first tensor that differs."""
    pairs = itertools.zip_longest(swarm["tensors"], own["tensors"])
    differing = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))

    def line(described: dict[str, Any], tensor: str | None) -> str:
        tensor = tensor or f"no more than {len(described['tensors'])} tensors"
        return f"{described['elements']:,} parameters  layout {described['layout'][:8]}  {tensor}"

    return line(swarm, differing[0]), line(own, differing[1])
