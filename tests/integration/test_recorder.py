"""A real node's life is recorded, and lived again to the same commits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import zygote

from gossip.run import recorder
from gossip_lab.simulation.campaign.replayer import replay

PEERS = 2
AHEAD = 40
TRAINER = """
import os, time
import gossip, torch
peer = gossip.init()
until = peer.run_dir / "until"
model = torch.nn.Linear(6, 3)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
while not until.exists() or peer.round < int(until.read_text()):
    # once it is back the others have seen enough
    if os.environ["GOSSIP_INCARNATION"] == "1" and not until.exists():
        new = peer.run_dir / "until.new"
        new.write_text(str(peer.round + AHEAD))
        new.rename(until)
    torch.manual_seed(1000 * peer.id + peer.round)
    optimizer.zero_grad()
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    time.sleep(0.002)
peer.close()
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short run in which a peer crashed, was started again and caught up."""
    folder = tmp_path_factory.mktemp("recorded")
    script = folder / "train.py"
    script.write_text(TRAINER.replace("AHEAD", str(AHEAD)))
    options = [
        "-n",
        str(PEERS),
        "--run-dir",
        str(folder / "run"),
        "--record",
        "--quiet",
        "--fault",
        "restart:1@20+0.1s",
    ]
    done = zygote.run(
        [sys.executable, "-m", "gossip.launch.cli", "run", *options, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def test_every_life_of_a_run_replays_bit_for_bit_to_the_commits_it_made(run_dir: Path) -> None:
    lives = sorted(run_dir.glob("peer-*/recording-*.msgpack"))
    assert len(lives) >= PEERS + 1, "the restarted peer has two lives"
    for life in lives:
        replayed = replay(life)
        assert replayed.steps > 50, f"{life}: {replayed}"
        assert not replayed.changed
        written = life.parent / "commits.jsonl"
        made = [committed.commit.round_id for committed in replayed.commits if committed.made]
        on_disk = (
            [json.loads(line)["round"] for line in written.read_text().splitlines()[1:]]
            if written.exists()
            else []
        )
        assert set(made) <= set(on_disk), f"{life}: made {made}, wrote {on_disk}"
    stayed, killed, returned = (
        replay(recorder.path_of(run_dir, *life)) for life in ((0, 0), (1, 0), (1, 1))
    )
    assert any(committed.made for committed in stayed.commits), (
        "nothing was compared with what is on the disk"
    )
    assert stayed.halt is not None
    assert stayed.halt.exit_code == 0
    assert killed.halt is None, (
        "it was killed in the midst of its life, and all until then is there"
    )
    assert killed.rounds >= 20
    chains = {committed.commit.round_id: committed.chain for committed in stayed.commits}
    assert returned.commits, "the second life took part again"
    for committed in killed.commits[:-1] + returned.commits:
        assert chains[committed.commit.round_id] == committed.chain, (
            "both peers tell the same story"
        )
