"""Schedules: descriptions of simulated runs as data, and their random generation from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .generator import PEERS, ROUNDS_MIN, generate
    from .pipelines import generate_pipeline
    from .schedule import PEERS_MAX, Schedule, without_peer
else:
    __getattr__, __dir__ = lazy(__name__)
