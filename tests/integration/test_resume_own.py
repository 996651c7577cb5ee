"""What belongs to one peer alone goes on with that peer: buffers and a sender's memory in rolling
rounds, everything in gossip rounds. Real processes; docs/checkpoints.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command import gossip
from effort import effort

SCRIPT = """
import hashlib, sys
import torch
from torch import nn
import gossip

peer = gossip.init()
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model, optimizer = peer.prepare(model, optimizer)
first = None
for step in peer.steps(int(sys.argv[1]), save="ckpt", every=10):
    if first is None:
        first = step, digest() if step else ""
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"peer {peer.id} from {first} to {(peer.step, digest())}", flush=True)
""".replace(
    "import gossip\n",
    """import gossip

def digest():
    held = [*model.state_dict().values()]
    held += [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]
    return hashlib.blake2b(b"".join(t.numpy().tobytes() for t in held), digest_size=8).hexdigest()
""",
)
ENDED = re.compile(r"peer (\d) from \((\d+), '(\w*)'\) to \((\d+), '(\w+)'\)")
ROLLING = ("--sender", "momentum", "--deterministic")
ENCODED = ("--encoding", "topk:0.2", "--deterministic")
BOTH = ("--sender", "momentum", *ENCODED)
LOCAL = ("--local-steps", "5", "--deterministic")
GOSSIP = ("--topology", "random-k")


def ended(folder: Path, steps: int, *options: str) -> tuple[list[tuple[str, ...]], str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    words = ("run", "-n", "3", "--aggregator", "mean", "--resume", "auto")
    run = gossip(folder, *words, *options, "train.py", str(steps))
    return sorted(ENDED.findall(run.stdout + run.stderr)), run.stdout + run.stderr


@pytest.mark.parametrize("options", effort([BOTH], [ROLLING, ENCODED, LOCAL, BOTH]))
def test_what_is_a_peers_own_goes_on_as_if_nothing_had_happened(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    undisturbed, _ = ended(tmp_path / "clean", 30, *options)
    ended(tmp_path / "cut", 20, *options)
    resumed, _ = ended(tmp_path / "cut", 30, *options)
    assert [each[1] for each in resumed] == ["20"] * 3
    assert [each[4] for each in resumed] == [each[4] for each in undisturbed]
    assert len({each[4] for each in resumed}) == 3, "each has statistics of its own"


def test_in_gossip_rounds_each_peer_goes_on_with_its_own_model(tmp_path: Path) -> None:
    """Peer 1 lacks it: it begins with the mean of all, and says so."""
    before, _ = ended(tmp_path, 20, *GOSSIP)
    digests = {peer: digest for peer, *_, digest in before}
    assert len(set(digests.values())) == 3
    manifest = json.loads((tmp_path / "ckpt" / "step-000000020" / "manifest.json").read_text())
    assert manifest["mean_of"] == [0, 1, 2]
    for path in (tmp_path / "ckpt" / "own").glob("peer-1.*"):
        path.unlink()
    resumed, said = ended(tmp_path, 30, *GOSSIP)
    began = {peer: digest for peer, step, digest, *_ in resumed if step == "20"}
    assert {peer: began[peer] for peer in "02"} == {peer: digests[peer] for peer in "02"}
    assert began["1"] not in digests.values()
    assert {each[3] for each in resumed} == {"30"}
    assert re.findall(r"peer (\d): its own state of step 20 is missing", said) == ["1"]


def test_a_peer_without_its_own_state_says_what_of_it_begins_anew(tmp_path: Path) -> None:
    options = ("--local-steps", "5", "--encoding", "topk:0.2")
    ended(tmp_path, 20, *options)
    for path in (tmp_path / "ckpt" / "own").glob("peer-1.*"):
        path.unlink()
    _, said = ended(tmp_path, 30, *options)
    begins = re.findall(r"peer (\d): its own state of step 20 is missing \(.*\): (.*)", said)
    manifest = json.loads((tmp_path / "ckpt" / "step-000000020" / "manifest.json").read_text())
    # Any of the three may have held the lock that makes one the writer.
    buffers = f"its buffers are those of peer {manifest['writer']}"
    rest = "its optimizer begins anew, its encoding begins without a residual"
    assert begins == [("1", f"{buffers}, {rest}")]
