"""``gossip.spawn`` in a script and in a notebook: output, interrupt, death of who called it. `pip
install -e '.[notebooks]'` installs what the notebooks need."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import zygote
from effort import effort

import gossip
from gossip.errors import ConfigError, RunExists, SpawnFailed
from gossip.training import spawning

CELL = """\
import torch
import gossip

RATE = 0.1

def build():
    return torch.nn.Linear(4, 2)
"""
TRAIN = """\
def train(steps):
    import os
    peer = gossip.init()
    model = build()
    model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    print("pid", os.getpid(), flush=True)
    for step in peer.steps(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if step == 10:
            print("ten steps are made", flush=True)
"""
SCRIPT = f"""\
{CELL}
{TRAIN}
if __name__ == "__main__":
    import signal

    # Whoever starts these tests in the background of a shell hands on that it is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gossip.spawn(train, 10**9, peers=2, f=0)
"""
LAST_S = 60.0  # for processes to end; a limit, and none of what is promised


@pytest.mark.parametrize("how", effort([signal.SIGINT], [signal.SIGINT, signal.SIGKILL]))
def test_no_peer_outlives_who_spawned_it(how: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    caller = zygote.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert caller.stdout is not None
    seen = []
    try:
        for line in caller.stdout:
            seen.append(line)
            if "ten steps are made" in line:
                break
        started = psutil.Process(caller.pid).children(recursive=True)
        pids = {int(pid) for line in seen for pid in re.findall(r"pid (\d+)", line)}
        assert len(pids) == 2
        assert pids <= {process.pid for process in started}
        caller.send_signal(how)
        _, said = caller.communicate(timeout=LAST_S)
    finally:
        caller.kill()
    _, alive = psutil.wait_procs(started, timeout=LAST_S)
    assert alive == []
    assert ("KeyboardInterrupt" in said) == (how is signal.SIGINT)


def fails() -> None:
    raise ValueError("of the script's own")


def test_a_run_that_does_not_finish_raises_and_a_wrong_option_does_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="aggregator"):
        gossip.spawn(fails, aggregator="trimed_mean")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run").mkdir()
    with pytest.raises(RunExists):
        gossip.spawn(fails, run_dir="run")
    assert list((tmp_path / "run").iterdir()) == []
    monkeypatch.setenv("GOSSIP_CONFIG", "config.json")
    with pytest.raises(ConfigError, match="in a peer"):
        gossip.spawn(fails)
    monkeypatch.delenv("GOSSIP_CONFIG")
    forks = SimpleNamespace(**{**vars(subprocess), "Popen": zygote.Popen})
    monkeypatch.setattr(spawning, "subprocess", forks)
    with pytest.raises(SpawnFailed, match="exit code 1") as failed:
        gossip.spawn(fails, peers=1)
    assert "of the script's own" in capsys.readouterr().out
    folder = Path(failed.value.folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert "import fails" in (folder / "spawned.py").read_text()


needs_jupyter = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("nbclient", "ipykernel"))),
    reason="needs nbclient and ipykernel",
)


@needs_jupyter
def test_a_notebook_spawns_what_its_cells_define_and_shows_the_output(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    last = (
        "folder = gossip.spawn(train, 20, peers=2, f=0)\nprint((folder / 'summary.json').exists())"
    )
    wrong = "model = build()\ndef bad():\n    return model.weight\ngossip.spawn(bad)"
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(text) for text in (CELL, TRAIN, last, wrong)]
    book.cells[3].metadata["tags"] = ["raises-exception"]

    nbclient.NotebookClient(book, timeout=LAST_S * 3, resources=_place(tmp_path)).execute()

    coloured = "".join(output.get("text", "") for output in book.cells[2].outputs)
    shown = re.sub(r"\x1b\[\d*m", "", coloured)
    assert "all| ten steps are made" in shown
    assert shown.rstrip().endswith("True")
    error = book.cells[3].outputs[-1]
    assert (error.ename, "bad uses model, which is a Linear" in error.evalue) == (
        "ConfigError",
        True,
    )


@needs_jupyter
def test_interrupting_a_cell_ends_its_peers_and_the_next_cell_runs(tmp_path: Path) -> None:
    """As the square of a notebook does: SIGINT to the kernel, whose process group the peers are
    not in."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(tmp_path), startup_timeout=LAST_S)
    try:
        client.execute_interactive(f"{CELL}\n{TRAIN}", timeout=LAST_S)
        shown: list[str] = []

        def look(message: dict[str, Any]) -> None:
            before = "ten steps are made" in "".join(shown)
            shown.append(message["content"].get("text", ""))
            if not before and "ten steps are made" in "".join(shown):
                manager.interrupt_kernel()

        cell = "gossip.spawn(train, 10**9, peers=2, f=0)"
        reply = client.execute_interactive(cell, output_hook=look, timeout=LAST_S * 3)
        kernel = psutil.Process(manager.provisioner.pid)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        pids = {int(pid) for pid in re.findall(r"pid (\d+)", "".join(shown))}
        assert len(pids) == 2
        assert kernel.children(recursive=True) == []
        assert not any(map(psutil.pid_exists, pids))
        (folder,) = (tmp_path / "runs").iterdir()
        assert json.loads((folder / "summary.json").read_text())["status"] == "stopped"
        reply = client.execute_interactive("gossip.spawn(train, 20, peers=2, f=0)", timeout=LAST_S)
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _place(folder: Path) -> dict[str, Any]:
    return {"metadata": {"path": str(folder)}}
