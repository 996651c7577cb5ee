"""The types of keyword arguments have the names of what they are passed on to."""

from __future__ import annotations

import inspect

from torch.utils.data import DataLoader

from gossip.config import RunConfig
from gossip.training.typed import LoaderOptions, RunOptions

OF_NO_SCRIPT = {"run", "peers_for_one", "warm", "drills", "pipeline", "audit", "lost_stage"}
"""Options that only a launcher, a plan or gossip itself sets."""
OURS = {"self", "dataset", "batch_size", "shuffle", "drop_last", "batch_sampler", "generator"}
"""What ``shard`` decides by itself."""


def test_the_options_of_init_are_those_of_a_run() -> None:
    assert RunOptions.__annotations__.keys() == RunConfig.model_fields.keys() - OF_NO_SCRIPT


def test_the_options_of_shard_are_those_of_a_loader() -> None:
    taken = inspect.signature(DataLoader.__init__).parameters.keys() - OURS
    assert LoaderOptions.__annotations__.keys() == taken
