"""Stage of a pipeline that each peer of a run is in, by the run's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gossip.run import text_of, whole

if TYPE_CHECKING:
    from gossip.config import RunConfig


@dataclass(frozen=True, slots=True)
class PeerStage:
    """A peer's place in a pipeline.

    Attributes:
        number: Of the stage, from 0.
        layers: Its first and its last.
        name: Of the peer in the plan; "": it has none.
    """

    number: int
    layers: tuple[int, int]
    name: str

    @property
    def in_words(self) -> str:
        """``stage 1 (layers 4 to 6)``"""
        first, last = self.layers
        return f"stage {self.number} " + (
            f"(layer {first})" if first == last else f"(layers {first} to {last})"
        )


def stages_of(config: RunConfig) -> dict[int, PeerStage]:
    """By peer; empty for a run without a plan."""
    return {} if config.pipeline is None else stages_in(config.pipeline.model_dump())


def stages_in(pipeline: object) -> dict[int, PeerStage]:
    """Return the stage of each peer, from the part ``pipeline`` of a run's ``config.json``. Anybody
    may have changed that file, so malformed entries are left out."""
    told = pipeline if isinstance(pipeline, Mapping) else {}
    names, found = _list(told.get("names")), dict[int, PeerStage]()
    for number, stage in enumerate(_list(told.get("stages"))):
        if not isinstance(stage, Mapping):
            continue
        layers = [whole(each) for each in _list(stage.get("layers"))]
        if len(layers) != 2 or layers[0] is None or layers[1] is None:
            continue
        for each in _list(stage.get("peers")):
            if (peer := whole(each)) is not None:
                name = text_of(names[peer]) if peer < len(names) else None
                found[peer] = PeerStage(number, (layers[0], layers[1]), name or "")
    return found


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
