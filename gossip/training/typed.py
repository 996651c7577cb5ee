"""Types of keyword arguments, so that editors complete them and type checkers find typos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

from torch.utils.data import Sampler


class RunOptions(TypedDict, total=False):
    """Options of ``gossip.init``: those of ``gossip run``. They are documented in ``RunConfig``."""

    name: str
    peers: int
    room: int
    topology: str
    aggregator: str
    f: int | None
    sender: str
    encoding: str
    local_steps: int
    outer: str
    fragments: int
    overlap: int
    seed: int
    rounds: int | None
    run_dir: str
    faults: Sequence[str]
    quorum: Literal["majority", "available"]
    min_peers: int | None
    patience_s: float
    on_minority: Literal["pause", "continue"]
    on_divergence: Literal["stop", "heal", "warn"]
    reference_samples: int
    batch_policy: Literal["fixed_local", "fixed_global"]
    slices: Literal["speed", "equal"]
    server_weights: str
    round_timeout_s: float
    start_timeout_s: float
    quorum_timeout_s: float
    resume: str
    deterministic: bool
    insecure: bool
    keys: bool | None
    allowed: str
    host: str
    restarts: int
    node: Literal["process", "thread"]
    trust: bool
    mix_every: int
    mixing: float
    probe_interval_s: float


class LoaderOptions(TypedDict, total=False):
    """Options of ``peer.shard``: those of the DataLoader that it makes for a data set."""

    sampler: Sampler[Any]
    num_workers: int
    collate_fn: Callable[[list[Any]], Any]
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None]
    multiprocessing_context: Any
    prefetch_factor: int
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
