"""``gossip report`` on the folder of a run that has trained, with a liar and a
peer that is killed and comes back."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from command import gossip

SCRIPT = """
import time
import torch
import gossip

peer = gossip.init()
torch.manual_seed(0)
weights = torch.randn(8, 2)
model = torch.nn.Linear(8, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = peer.prepare(model, optimizer)
for step in peer.steps(120, save="ckpt", every=50):
    x = torch.randn(16, 8)
    loss = (model(x) - x @ weights).square().mean()
    optimizer.zero_grad()
    loss.backward()
    peer.log(loss=loss.item())
    time.sleep(0.02)
    optimizer.step()
peer.close()
"""
FAULTS = ("sign_flip:4*10", "restart:1@40+300ms")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run ``one`` has trained."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "train.py").write_text(SCRIPT)
    faults = [word for fault in FAULTS for word in ("--fault", fault)]
    words = ["run", "-n", "5", "-f", "1", "--name", "one", "--quiet", *faults, "train.py"]
    gossip(folder, *words)
    return folder


def test_the_report_of_a_real_run_has_its_faults(folder: Path) -> None:
    gossip(folder, "report", "one")

    text = (folder / "runs" / "one" / "report.html").read_text()
    rows = re.findall(r'<tr role="row" id="incident-\d+">.*?</tr>', text)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    (lies,) = [row for row in cells if "sign_flip" in row[4]]
    assert lies[3] == "4"
    assert re.search(r"suspected at 0:\d\d\.\d \(round \d+\)", lies[5])
    (killed,) = [row for row in cells if "to be restarted" in row[4]]
    assert killed[2:4] == ["40", "1"]
    assert "skipped by all after" in killed[5]
    assert re.match(r"in round \d+, [\d.]+ m?s after its death", killed[6])


def test_a_report_goes_where_it_is_told_to_and_a_run_that_is_not_there_has_none(
    folder: Path,
) -> None:
    gossip(folder, "report", "one", "-o", "other.html")
    assert "What went wrong" in (folder / "other.html").read_text()
    shutil.copytree(folder / "runs/one", folder / "runs/two")
    gossip(folder, "report", "one", "two")
    assert (
        "settings, versions and code are equal" in (folder / "runs/one/comparison.html").read_text()
    )
    missing = gossip(folder, "report", "ome", code=2)
    assert "Did you mean 'one'?" in missing.stderr
