"""MLflow, trackio and W&B, where somebody has installed them: what they have of a run, read back
through their own API. `pip install -e '.[mlflow,trackio,wandb]'` installs them."""

from __future__ import annotations

import json
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
def test_mlflow_reads_the_same_values_back(
    exported: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@needs("trackio")
def test_trackio_reads_the_same_values_back(exported: RecordedRun) -> None:
    environment = {"TRACKIO_DIR": str(exported.folder / "trackio")}
    hand_on(exported, "trackio", **environment)
    read = (
        "import json, trackio; "
        "print(json.dumps(trackio.SQLiteStorage.get_logs('gossip', 'digits-0a1b')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", read],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    losses = {row["step"]: row["loss/peer-0"] for row in rows if "loss/peer-0" in row}
    assert losses == {number: 1 / (number + 1) for number in range(ROUNDS)}
    assert any("quarantined" in str(row.get("event")) for row in rows)


@needs("wandb")
def test_wandb_takes_a_run_without_a_network(exported: RecordedRun) -> None:
    hand_on(exported, "wandb", WANDB_MODE="offline")
    (written,) = (exported.folder / "wandb").glob("offline-run-*/*.wandb")
    data = written.read_bytes()
    assert b"loss/peer-0" in data
    assert b"trust/peer-3" in data
