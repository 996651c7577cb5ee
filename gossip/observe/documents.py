"""Declarations of JSON files in a run's folder, with the fields that readers need.

The folder may come from another user or version, so ``pick`` drops values of a wrong type.
"""

from __future__ import annotations

from .event import Declared
from .fields import Count, Counts, Flag, Json, Object, Peers, Real, RoundId, Text, Texts, Time


class LauncherRecord(Declared):
    """Record of one launcher of a run, from the folder ``launchers``."""

    pid: Count = None
    started: Count = None
    user: Count = None
    machine: Text = None
    host: Text = None
    since: Real = None
    peers: Peers = None
    ended: Real = 0.0


class RunSettings(Declared):
    """Some settings of a run, from ``config.json``. ``RunConfig`` has all settings, but rejects
    files of another version."""

    run: str = ""
    name: str = ""
    peers: int = 0
    topology: str = ""
    server_weights: str = ""
    aggregator: str = ""
    f: Count = None
    rounds: Count = None
    resume: str = ""
    local_steps: int = 1
    fragments: int = 1
    overlap: int = 0
    faults: Texts = None
    pipeline: Object = None

    @property
    def steps_per_round(self) -> int:
        """Number of local steps of each peer between two rounds."""
        return max(1, self.local_steps // max(1, self.fragments))


class PipelineDocument(Declared):
    """Part ``pipeline`` of ``config.json``: names of the peers, and the stages."""

    names: Texts = None
    stages: Json = None


class StageSettings(Declared):
    """A stage of ``PipelineDocument``. ``layers``: numbers of its first and last layer."""

    layers: Counts = None
    peers: Json = None


class RunEnvironment(Declared):
    """Environment at the start of a run, from ``environment.json``: machine, command and
    versions."""

    started: Time | None = None
    command: Texts = None
    folder: str = ""
    host: str = ""
    platform: str = ""
    python: str = ""
    code: Object = None
    hardware: Object = None
    packages: Object = None


class Hardware(Declared):
    """Part ``hardware`` of ``environment.json``."""

    usable_cores: Count = None
    memory_bytes: Count = None


class CodeVersion(Declared):
    """Part ``code`` of ``environment.json``: a git commit."""

    commit: Text = None
    changed_files: Count = None


class Outcome(Declared):
    """Outcome of a run, from ``summary.json``. If there is no summary, all fields are None."""

    status: Text = None
    exit_code: Count = None
    rounds: Count = None
    loss: Real = None
    accuracy: Object = None
    rounds_lost: Count = None
    bytes_sent: Count = None
    replicas_identical: Flag = None
    faults_missed: Json = None


class Accuracy(Declared):
    """Part ``accuracy`` of ``summary.json``."""

    mean_model: Real = None
    worst_replica: Real = None


class MissedFault(Declared):
    """A row of ``faults_missed`` in ``summary.json``. ``struck``: whether the fault began."""

    fault: str = ""
    struck: Flag = None
    why: str = ""


class ScriptError(Declared):
    """Error that ended a peer's script, from ``error.json`` of that peer."""

    incarnation: Count = None
    round: RoundId = None
    type: Text = None
    message: str = ""
    hint: Text = None
    frames: Json = None


class ScriptFrame(Declared):
    """A stack frame: a row of ``frames`` in ``error.json``."""

    file: str = ""
    line: int = 0
    code: str = ""


class GpuUsage(Declared):
    """State of a GPU: a row of ``gpus`` in an event ``usage``."""

    index: Real = None
    busy: Real = None
    memory: Real = None
    memory_total: Real = None
    celsius: Real = None
