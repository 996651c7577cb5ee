"""What this peer says instead of its update, when the fault plan makes it a liar."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gossip.aggregators.attacks import DATA_ATTACKS, make
from gossip.faults import ATTACKS, FaultPlan


class Tongue:
    """Twists what leaves this peer. Lies about data are told in the trainer, before there is an update."""

    def __init__(self, plan: FaultPlan, peer: int, seed: int) -> None:
        self._lie = plan.liars.get(peer)
        self._seed, self._peer = seed, peer
        self._attacks: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {}

    @property
    def lies(self) -> bool:
        return self._lie is not None and self._lie.attack not in DATA_ATTACKS

    def twist(self, truth: np.ndarray, round_id: int, what: str) -> np.ndarray:
        """The lie to tell, in memory of its own. ``what`` names the stream: a replayed update is not a replayed parameter."""
        assert self._lie is not None
        if what not in self._attacks:
            strength = self._lie.strength if ATTACKS[self._lie.attack].unit else None
            self._attacks[what] = make(self._lie.attack, strength, self._seed + self._peer)
        with torch.no_grad():
            lie = self._attacks[what](torch.from_numpy(truth), round_id)
        twisted: np.ndarray = lie.detach().to(torch.float32).contiguous().numpy()
        return twisted.copy() if np.may_share_memory(twisted, truth) else twisted
