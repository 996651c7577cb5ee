"""Stage of a pipeline that each peer of a run is in, by the run's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossip.observe import documents
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
    return {} if config.pipeline is None else stages_in(config.pipeline.model_dump(mode="json"))


def stages_in(pipeline: object) -> dict[int, PeerStage]:
    """Return the stage of each peer, from the part ``pipeline`` of a run's ``config.json``. Anybody
    may have changed that file, so malformed entries are left out."""
    plan = documents.PipelineSettings.pick(pipeline)
    names, found = plan.names or [], dict[int, PeerStage]()
    for number, each in enumerate(plan.stages or ()):
        stage = documents.StageSettings.pick(each)
        match stage.layers:
            case [int(first), int(last)]:
                for peer in map(whole, stage.peers or ()):
                    if peer is not None:
                        name = text_of(names[peer]) if peer < len(names) else None
                        found[peer] = PeerStage(number, (first, last), name or "")
    return found
