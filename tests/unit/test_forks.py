"""Rules in a forked process, whose parent has calculated on several threads that the
child does not have."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gossip.aggregators import load, names, senders
from gossip.aggregators.kernels import forks

CHAINS = (
    "nnm+trimmed_mean",
    "bucketing:s=2+geometric_median",
    "clipping:radius=1+mean",
    "arc+krum",
)
UPDATES = torch.randn(12, 100_000, generator=torch.Generator().manual_seed(0))
GIVEN: dict[str, Any] = {
    "evaluate": lambda step: float(step.sum()),
    "gradient": UPDATES[0],
    "learning_rate": 0.1,
    "center": UPDATES[0],
    "round_id": 1,
}


@pytest.fixture(params=["fast", "plain"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GOSSIP_KERNELS", request.param)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def aggregate(spec: str) -> bytes:
    return bytes(load(spec)(UPDATES, f=2, **GIVEN).numpy())


def first_that_hangs(jobs: dict[str, Callable[[], bytes]]) -> str | None:
    """Runs all jobs here and then in a forked process; the first that does not end there within 20
    s, or ends differently."""
    expected = {name: job() for name, job in jobs.items()}
    torch.empty_like(UPDATES).copy_(UPDATES).mean(dim=0)  # on threads
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        for name, job in jobs.items():
            os.write(theirs, b"y" if job() == expected[name] else b"n")
        os._exit(0)
    try:
        for name in jobs:
            if not select.select([ours], [], [], 20)[0] or os.read(ours, 1) != b"y":
                return name
        return None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ours)
        os.close(theirs)


def test_no_rule_waits_for_threads_that_a_forked_process_does_not_have() -> None:
    # Built in only: other tests register rules of their own.
    rules = [name for name in names() if load(name).rule.__module__.startswith("gossip.")]
    assert len(rules) > 25
    assert (
        first_that_hangs({spec: (lambda spec=spec: aggregate(spec)) for spec in (*rules, *CHAINS)})
        is None
    )


def test_neither_do_senders_nor_the_users_own_calculations() -> None:
    momentum = senders.load("momentum:beta=0.9+clip:10")
    jobs = {
        "sender": lambda: bytes(momentum(UPDATES[0], None)[0].numpy()),
        "mean": lambda: bytes(UPDATES.mean(dim=0).numpy()),
        "product": lambda: bytes((UPDATES @ UPDATES.T).numpy()),
    }
    assert first_that_hangs(jobs) is None


def test_where_openmp_cannot_end_its_team_a_forked_process_has_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "_pause", lambda: None)
    assert (
        first_that_hangs({"krum": lambda: aggregate("krum"), "mean": lambda: aggregate("mean")})
        is None
    )
    assert torch.get_num_threads() == 2, "the parent keeps its own"
