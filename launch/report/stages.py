"""Stages of the peers in a pipeline, from the run's settings, and messages about stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossip.observe import documents, events
from gossip.run import text_of, whole

from .words import lasted

if TYPE_CHECKING:
    from gossip.config import RunConfig


@dataclass(frozen=True, slots=True)
class PeerStage:
    """Position of a peer in a pipeline.

    Attributes:
        number: Number of the stage, from 0.
        layers: First and last layer of the stage.
        name: Name of the peer in the plan; "" if it has none.
    """

    number: int
    layers: tuple[int, int]
    name: str

    @property
    def in_words(self) -> str:
        """Text such as ``stage 1 (layers 4 to 6)``."""
        first, last = self.layers
        return f"stage {self.number} " + (
            f"(layer {first})" if first == last else f"(layers {first} to {last})"
        )


def stages_of(config: RunConfig) -> dict[int, PeerStage]:
    """Return the stage of each peer; {} for a run without a plan."""
    return {} if config.pipeline is None else stages_in(config.pipeline.model_dump(mode="json"))


def stages_in(pipeline: object) -> dict[int, PeerStage]:
    """Return the stage of each peer, from the entry ``pipeline`` of a run's ``config.json``. The
    file is untrusted, so malformed entries are skipped."""
    plan = documents.PipelineDocument.pick(pipeline)
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


def describe_rebuilt_stage(event: events.StageRebuilt) -> str:
    """Return the message about an event ``stage_rebuilt``."""
    stage, behind = event.stage, event.lost
    match event.source:
        case "checkpoint":
            made = f"with its last checkpoint, {behind} rounds older than the others"
        case "own":
            made = f"with the state of its trainer, {behind} rounds older than the others"
        case "neighbours":
            made = "with the layers of the neighbouring stages"
        case _:
            made = "with fresh weights: its training so far is lost"
    fresh = event.fresh if event.source == "neighbours" else 0
    rest = f"; {fresh} of its layers have no counterpart and are fresh" if fresh else ""
    return f"stage {stage} continues in round {event.round}, {made}{rest}"


def describe_unlike_profile(event: events.UnlikeProfile) -> str:
    """Return the message about an event ``unlike_profile``. It has the measured and the predicted
    time, and a remedy."""
    measured, predicted = (event.measured_us or 0.0) / 1e6, (event.predicted_us or 0.0) / 1e6
    apart, slower = measured / predicted if predicted else 0.0, measured > predicted
    factor, word = (apart, "slower") if slower else (1 / apart if apart else 0.0, "faster")
    return (
        f"takes {lasted(measured)} for a micro-batch where its profile says "
        f"{lasted(predicted)}: "
        f"{factor:.1f} times {word}. Is it busy with other work, or is the profile from another "
        "machine? Profile it again (gossip plan profile ... --again) and plan again (gossip plan)"
    )
