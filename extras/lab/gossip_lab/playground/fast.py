"""The fast engine: all peers at once, without messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from gossip.errors import ConfigError

from .moments import Moment
from .parts import Parts


class FastEngine:
    """Plays a world round by round with the product's own topology, rule and trust table."""

    def __init__(self, parts: Parts) -> None:
        if not parts.topology.rolling:
            raise ConfigError("gossip rounds are not there yet")
        self._parts = parts

    def moments(self) -> Iterator[Moment]:
        """Play the world round by round, without end."""
        parts, task = self._parts, self._parts.task
        peers = np.arange(parts.peers)
        here, memory = task.cohort.initial, None
        now_s, round_id = 0.0, 0
        while True:
            updates = task.compute_updates(here.expand(len(peers), -1), peers, round_id)
            aggregate = parts.rule.explain(updates, f=parts.settings.f).aggregate
            if task.outer is None:
                here = here - task.lr * aggregate
            else:
                move, memory = task.outer.move(aggregate, memory)
                here = here - move
            now_s += float(parts.compute.seconds(peers, round_id).max())
            round_id += 1
            yield Moment(
                round_id,
                now_s,
                round_id * 2 * parts.peers * 4 * task.cohort.d,
                round_id * parts.peers * task.batch * task.local_steps,
                torch.Tensor(here).expand(len(peers), -1),
                np.ones(len(peers), bool),
                np.zeros(len(peers), np.int64),
            )
