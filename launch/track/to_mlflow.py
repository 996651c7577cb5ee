"""Export to MLflow: to the server in ``MLFLOW_TRACKING_URI`` if it is set, else to the file
``RUN/mlflow.db``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from .base import Point, RunDescription

EXPERIMENT = "gossip"
PARAMS = 100
TOLD_MAX = 300
"""Maximum number of events that are exported as tags, because MLflow limits the tags of a run."""


class MLflow:
    """Exports values as metrics, settings as parameters, and events as tags: ``event.0001`` and so
    on."""

    def __init__(self, uri: str) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        self._run = ""
        self._told = 0

    def begin(self, about: RunDescription) -> None:
        known = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        tags = {**about.tags, "mlflow.source.git.commit": about.tags.get("code.commit", "")}
        run = self._client.create_run(
            experiment, start_time=int(1000 * about.began), tags=tags, run_name=about.name
        )
        self._run = run.info.run_id
        params = [Param(key, value) for key, value in about.settings.items()]
        for at in range(0, len(params), PARAMS):
            self._client.log_batch(self._run, params=params[at : at + PARAMS])

    def points(self, points: Sequence[Point]) -> None:
        metrics = [Metric(each.name, each.value, int(1000 * each.at), each.step) for each in points]
        self._client.log_batch(self._run, metrics=metrics)

    def log_event(self, step: int, at: float, text: str) -> None:
        self._told += 1
        if self._told <= TOLD_MAX:
            tag = RunTag(f"event.{self._told:04d}", f"round {step}: {text}")
            self._client.log_batch(self._run, tags=[tag])

    def close(self) -> None:
        if self._told > TOLD_MAX:
            self._client.set_tag(self._run, "events.left_out", str(self._told - TOLD_MAX))
        self._client.set_terminated(self._run)


def open_tracker(folder: Path) -> MLflow:
    """Open the tracker of the run in ``folder``."""
    return MLflow(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}")
