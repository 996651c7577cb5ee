"""Schedules as data: what a simulated run is, and how one is drawn from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .generator import PEERS as PEERS, ROUNDS_MIN as ROUNDS_MIN, generate as generate
    from .pipelines import generate_pipeline as generate_pipeline
    from .schedule import PEERS_MAX as PEERS_MAX, Schedule as Schedule, without_peer as without_peer
else:
    __getattr__, __dir__ = lazy(__name__)
