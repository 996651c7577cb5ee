"""Peers as real processes, whose state is large enough to come in pieces from several of them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from test_node_swarm import Swarm, again

pytestmark = pytest.mark.timeout(300)

VICTIM = 3
FROZEN = 6_000_000  # parameters of 4 bytes that no round has to carry
PIECES = 3

TRAINER = f"""
import time
import gossip
peer = gossip.init()
import torch
model = torch.nn.Linear(6, 3)
model.frozen = torch.nn.Parameter(torch.arange({FROZEN}).float(), requires_grad=False)
optimizer = torch.optim.Adam([model.weight, model.bias], lr=0.01)
model, optimizer = peer.prepare(model, optimizer)
until = peer.run_dir / "until"
while not until.exists() or peer.round < int(until.read_text()):
    torch.manual_seed(1000 * peer.id + peer.round)
    optimizer.zero_grad()
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    time.sleep(0.01)
print("sum", peer.round, sum(p.detach().double().sum() for p in model.parameters()).item().hex(), flush=True)
peer.close()
"""

# Python imports this before anything else, in trainers and in nodes. The node of the first donor that is to give a piece dies.
DEATH = """
import os
if os.environ.get("GOSSIP_PEER") != "3":
    import contextlib
    from gossip.core import donating
    give = donating.Donor._give

    def _give(self, peer, ask, *rest):
        if ask.piece:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(os.path.join(os.environ["GOSSIP_RUN_DIR"], "died"), os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), 9)
        return give(self, peer, ask, *rest)

    donating.Donor._give = _give
"""


def test_a_donor_that_is_killed_when_it_is_to_send_costs_its_pieces_and_the_bits_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peer 3 comes back to three others, of whom f + 1 = 2 vouch. The node of the first that is asked for a piece is killed."""
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    (deaths / "sitecustomize.py").write_text(DEATH)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(deaths), os.environ.get("PYTHONPATH", "")))))
    folder = tmp_path / "run"
    folder.mkdir()
    swarm = Swarm(folder, 4, trainer=TRAINER, ahead=40, aggregator="median", f=1)
    try:
        swarm.wait_round(VICTIM, 3)
        victim = swarm.peers[VICTIM]
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate()
        environment = {
            **os.environ,
            "GOSSIP_PEER": str(VICTIM),
            "GOSSIP_RUN_DIR": str(folder),
            "GOSSIP_CONFIG": str(folder / "config.json"),
        }
        pipe = subprocess.PIPE
        swarm.peers[VICTIM] = subprocess.Popen(
            victim.args, env=environment, start_new_session=True, stdout=pipe, stderr=pipe, text=True
        )
        (restored, *_) = swarm.wait(lambda: swarm.events(VICTIM, "restored"), "a state for the returner")
        assert (folder / "died").exists(), "nobody was killed: the test proves nothing"
        assert restored["nbytes"] > 4 * FROZEN
        served = [event for donor in range(3) for event in swarm.events(donor, "snapshot_served") if "piece" in event]
        assert {event["piece"] for event in served} == set(range(1, PIECES + 1))
        # One changes with every round; and what the dead one had to send comes from another.
        assert len(served) <= PIECES + 2, "what was here came again"
        again(swarm, VICTIM, 0)
        said = swarm.finish(0, 1, 2, VICTIM)
        assert len(set(said.values())) == 1, said
    finally:
        swarm.close()
