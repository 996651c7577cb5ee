"""What carries faults out is neither imported nor in the object graph of a peer that has none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import zygote

from gossip.faults import parse

SCRIPT = """
import gc, sys, torch, gossip
peer = gossip.init(node="thread", rounds=3, faults=tuple(sys.argv[1:]))
model = torch.nn.Linear(2, 1)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
imported = sorted(name for name in sys.modules if name.startswith("gossip.inject"))
made = sorted({type(each).__name__ for each in gc.get_objects()
    if str(getattr(type(each), "__module__", "")).startswith("gossip.inject")})
print("found:", *imported, *made)
peer.close()
"""


def found(*faults: str) -> set[str]:
    """Modules and classes of ``gossip.inject`` in a process that is trainer and node in one. It is
    forked from one that has imported both: what they import is there in any case."""
    done = zygote.run(
        [sys.executable, "-c", SCRIPT, *faults], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found:")]
    return set(line.split()[1:])


def test_without_faults_nothing_that_carries_them_out_is_there() -> None:
    assert found() == set()


def test_with_a_fault_it_is_around_transport_core_and_trainer() -> None:
    assert {"DisturbedTransport", "FaultyCore", "FaultyTrainer", "gossip.inject"} <= found(
        "slow:0*1"
    )


@pytest.mark.parametrize(
    ("word", "disturbed"),
    [
        ("crash:2@5", {2}),
        ("crash:server@5", {0, 1, 2, 3}),
        ("sign_flip:1", {1}),
        ("wrong_results:1,3", {1, 3}),
        ("loss:1*0.1@1s+1s", {0, 1, 2, 3}),
    ],
)
def test_only_those_peers_are_disturbed_at_which_something_is_carried_out(
    word: str, disturbed: set[int]
) -> None:
    assert {peer for peer in range(4) if parse(word).disturbs(peer)} == disturbed


def test_node_transport_and_training_name_what_carries_faults_out_in_two_places_only() -> None:
    root = Path(__file__).parents[2] / "gossip"
    naming = {
        path.relative_to(root).as_posix()
        for folder in ("node", "transport", "training")
        for path in (root / folder).glob("*.py")
        if "gossip.inject" in path.read_text("utf-8")
    }
    assert naming == {"node/spec.py", "training/steps.py"}
