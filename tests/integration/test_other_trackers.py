"""MLflow and W&B, where somebody has installed them: what they have of a run, read back
through their own API. `pip install -e '.[mlflow,wandb]'` installs them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from recorded_run import ROUNDS, RecordedRun

from gossip.launch.track.exporting import export


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs the extra {package}")


@pytest.fixture
def exported(tmp_path: Path) -> RecordedRun:
    run = RecordedRun(tmp_path / "run").whole()
    run.log_losses(0, 0, ROUNDS)
    return run


@needs("mlflow")
def test_mlflow_reads_values_back(exported: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    export("mlflow", exported.folder, launched=False)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{exported.folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("gossip")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["aggregator"] == "suspicion"
    history = client.get_metric_history(run.info.run_id, "loss/peer-0")
    assert [(each.step, each.value) for each in history] == [
        (number, 1 / (number + 1)) for number in range(ROUNDS)
    ]
    assert any("quarantined" in value for value in run.data.tags.values())


def hand_on(run: RecordedRun, to: str, **environment: str) -> None:
    """As a user does: these trackers start threads and processes, and read variables on import."""
    command = [sys.executable, "-m", "gossip.launch.cli", "track", str(run.folder), "--to", to]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{to}: " in done.stdout


@needs("wandb")
def test_wandb_takes_a_run_without_a_network(exported: RecordedRun) -> None:
    hand_on(exported, "wandb", WANDB_MODE="offline")
    (written,) = (exported.folder / "wandb").glob("offline-run-*/*.wandb")
    data = written.read_bytes()
    assert b"loss/peer-0" in data
    assert b"trust/peer-3" in data
