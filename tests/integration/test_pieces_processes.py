"""Peers as real processes, whose state is large enough to come in pieces from several of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from effort import effort
from swarm import ProcessSwarm, again

from gossip.run import checkpoints

FROZEN = 6_000_000  # parameters of 4 bytes that no round has to carry
TRAINED_BYTES_MAX = 100_000
"""For all but the base: of a checkpoint, and of what is sent of a state."""
OF_LIFE = "int(os.environ['GOSSIP_INCARNATION'])"
"""A peer that is started again makes another base, so all of a state has to be sent to it."""
SHARE_MIN = 0.2  # on a machine that has more to do than this

TRAINER = """
import os, time
import gossip
peer = gossip.init()
import torch
model = torch.nn.Linear(6, 3)
model.frozen = torch.nn.Parameter(torch.arange(FROZEN).float() + SHIFT, requires_grad=False)
optimizer = torch.optim.Adam([model.weight, model.bias], lr=0.01)
model, optimizer = peer.prepare(model, optimizer)
if SAVES:
    peer.save_every(peer.run_dir / "ckpt", every=2, keep=1000)
until = peer.run_dir / "until"
while not until.exists() or peer.round < int(until.read_text()):
    torch.manual_seed(1000 * peer.id + peer.round)
    optimizer.zero_grad()
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    time.sleep(0.02)
total = sum(p.detach().double().sum() for p in model.parameters()).item()
print("sum", peer.round, total.hex(), flush=True)
peer.close()
"""


def large_swarm(
    folder: Path, n: int, frozen: int = FROZEN, shift: str = OF_LIFE, **config: Any
) -> ProcessSwarm:
    """``shift``: of a process's base."""
    folder.mkdir(exist_ok=True)
    trainer = TRAINER.replace("SHIFT", shift).replace("SAVES", str(shift == "0"))
    return ProcessSwarm(
        folder,
        n,
        trainer=trainer.replace("FROZEN", str(frozen)),
        ahead=20,
        aggregator="median",
        **config,
    )


def kill(swarm: ProcessSwarm, peer: int) -> None:
    os.killpg(swarm.peers[peer].pid, signal.SIGKILL)


def start_again(swarm: ProcessSwarm, peer: int, incarnation: int = 1) -> dict[str, Any]:
    """Returns what it has reported of the state that it took."""
    known = len(swarm.events(peer, "restored"))
    swarm.start_again(peer, incarnation)
    return swarm.wait(lambda: swarm.events(peer, "restored")[known:], "a state for the returner")[
        -1
    ]


def test_a_base_that_all_have_is_not_sent_and_saved_once(tmp_path: Path) -> None:
    """As of LoRA. Neither at the start nor to a peer that comes back."""
    swarm = large_swarm(tmp_path / "run", 3, shift="0")
    try:
        swarm.wait_round(2, 3)
        kill(swarm, 2)
        restored = start_again(swarm, 2)
        assert restored["nbytes"] > 4 * FROZEN, "the state has the base"
        again(swarm, 2, 0)
        said = swarm.finish(0, 1, 2)
        assert len(set(said.values())) == 1, said
        served = [
            event["nbytes"] for peer in range(3) for event in swarm.events(peer, "snapshot_served")
        ]
        assert served
        assert sum(served) < len(served) * TRAINED_BYTES_MAX, served
        saved = [checkpoints.open_at(path) for _, path in checkpoints.listed(swarm.folder / "ckpt")]
        bases = [(each.path / checkpoints.BASE_FILE).stat() for each in saved]
        writers = 3 + 1  # each process that has written, the one started again too, has its own
        assert len({each.st_ino for each in bases}) <= writers < len(saved)
        for each, base in zip(saved, bases, strict=True):
            assert base.st_size > 4 * FROZEN
            assert each.nbytes - base.st_size < TRAINED_BYTES_MAX
    finally:
        swarm.close()


def test_donors_go_on_training_while_they_give(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """What is left of their rounds a second while somebody takes a large state from them, of what
    they do without it."""
    frozen = effort(12_000_000, 25_000_000)
    swarm = large_swarm(tmp_path, 4, frozen, f=1)

    def rounds_a_second(began_s: float, ended_s: float) -> float:
        """Of all three, as far as one has told."""
        told = [
            event["round"] for event in swarm.events(0, "round") if began_s <= event["t"] <= ended_s
        ]
        return (told[-1] - told[0]) / (ended_s - began_s) if told else 0.0

    try:
        swarm.wait_round(3, 3)
        kill(swarm, 3)
        alone = swarm.now()
        swarm.wait_round(0, alone + effort(60, 100))
        before = [event["t"] for event in swarm.events(0, "round") if event["round"] > alone + 25]
        restored = start_again(swarm, 3)
        assert restored["nbytes"] > 4 * frozen
        # it may recover once more later, when the others have gone on meanwhile
        began_s = [e["t"] for e in swarm.events(3, "recovering") if e["t"] < restored["t"]][-1]
        share = rounds_a_second(began_s, restored["t"]) / rounds_a_second(before[0], before[-1])
        record_property("share", share)
        print(f"{share:.2f} of their rounds a second, for {restored['t'] - began_s:.2f} s")
        assert share > SHARE_MIN
    finally:
        swarm.close()
