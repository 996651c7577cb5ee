"""Decides when checkpoints are saved, and what they contain."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gossip.errors import ConfigError
from gossip.run import checkpoints, stage_parts

from .peer_run import PeerRun
from .replicas import digest_tensors
from .saving import HANDED_OVER_S, CheckpointSaver, SavePlan
from .state import StateFile
from .watch import HURRIED_S

LAST_STATE = "last_state"
SAVED_S = 20.0
"""Maximum time to wait until another peer has written the last checkpoint, unless this peer must
end quickly. Also the maximum time to wait for the disk after a signal that ends this peer. Without
a signal, the wait for the disk has no limit."""


class RunCheckpoints:
    """Checkpoints that the script requests with ``save_every``.

    Attributes:
        saver: Writer of the checkpoints; None if the script requests no checkpoints.
        missing: Reason why the last checkpoint is missing; "" if it is saved.
        has_new_step: Whether the script has made a step since the last save.
    """

    def __init__(self, run: PeerRun) -> None:
        self._run, self._config, self._node = run, run.config, run.node
        self.saver: CheckpointSaver | None = None
        self._own_step = -1  # step of the last saved per-peer state
        self.missing = ""
        self.has_new_step = False

    def open(self, given: Path, every: int | None, keep: int) -> None:
        """Save checkpoints to a folder from now on.

        Raises: ConfigError: ``every`` or ``keep`` is invalid, or another run saves to this folder.
        """
        for name, value in (("every", 1 if every is None else every), ("keep", keep)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}, not a number of at least 1")
        config, pipeline = self._config, self._config.pipeline
        folder = given
        if pipeline is not None:
            folder = checkpoints.stage_folder(given, pipeline.stage_of(self._run.peer))
        averaged = () if config.is_rolling else tuple(range(config.peers))
        # A peer of a pipeline may lack memory for a second copy of its stage's state.
        streams = pipeline is not None
        plan = SavePlan(folder, every, keep, averaged, config.steps_per_round, streams)
        saver = CheckpointSaver(plan, self._run.peer, self._describe_run(), self._run.notify)
        saver.check_folder(resumes=bool(config.resume))
        self.saver = saver
        if self._run.run_dir is not None:
            with suppress(OSError):  # other code reports that the records are incomplete
                checkpoints.note_folder(self._run.run_dir, given)

    def _describe_run(self) -> dict[str, Any]:
        config, plan = self._config, self._config.pipeline
        of_stage = {} if plan is None else stage_parts.about(plan.cut, plan.model)
        return {
            **of_stage,
            "run": config.name,
            "seed": config.seed,
            "peers": config.peers,
            "aggregator": config.aggregator,
            **config.kind_of_rounds,
            "torch": torch.__version__,
        }

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint of ``step`` is due."""
        return self.saver is not None and self.saver.is_due(step)

    def save_due(self) -> None:
        """Save the present state if a checkpoint is due."""
        saver = self.saver
        if saver is not None and saver.is_due(self._run.step):
            self._save(saver, whole=saver.is_writer(), may_be_left_out=True)

    def save_last(self, in_hurry: bool, leaves_early: bool) -> None:
        """Write the last checkpoint, or wait until another peer has written it.

        Args:
            leaves_early: Whether the other peers continue. This peer then saves only if it holds
                the writer's lock.
        """
        saver, step, began = self.saver, self._run.step, time.monotonic()
        if saver is None or step == 0 or (leaves_early and not saver.is_writer()):
            return
        within_s = HURRIED_S if in_hurry else SAVED_S

        def waits() -> bool:
            """Whether another peer has the lock and may still write the checkpoint."""
            waited_s = time.monotonic() - began
            mine = saver.is_writer() or saver.failed or waited_s >= HANDED_OVER_S
            return not mine and not saver.has(step) and waited_s < within_s

        self._node.serve_while(waits)
        self._save(saver, whole=saver.newest != step and not saver.has(step))
        saver.wait(self._disk_expired, self._node.serve_while)
        before, self.missing = self.missing, ""
        if not saver.has(step):
            saver.release()  # other peers wait for the lock, and may succeed
            self.missing = f"step {step} to {saver.folder}: {saver.failed or 'no ledger'}"
            if not (in_hurry or before):
                self._run.notify(f"the last checkpoint is missing: {self.missing}")

    def _save(self, saver: CheckpointSaver, whole: bool, may_be_left_out: bool = False) -> None:
        """Save the per-peer state of this step, unless there is none or it is already saved.
        ``whole``: whether to save the complete checkpoint, too. If the disk is too slow, a
        checkpoint without per-peer state may be skipped. Per-peer states must be saved by all peers
        at the same steps."""
        step, model = self._run.step, self._run.model
        own = model.plan_own() if self._own_step != step else None
        if may_be_left_out and own is None and not saver.is_in_time(step):
            return
        self._own_step = step
        with model.stepper.at_anchor():
            self._save_parts(saver, own, whole)

    def _save_parts(self, saver: CheckpointSaver, own: StateFile | None, whole: bool) -> None:
        run, model, began = self._run, self._run.model, time.monotonic()

        def expired() -> bool:
            hurries = run.is_closed and run.is_asked_to_stop
            return time.monotonic() - began >= (HURRIED_S if hurries else SAVED_S)

        if not saver.wait(self._disk_expired):
            return
        ledger = self._node.ledger(expired) if whole else b""
        step = run.step  # the wait for the ledger may have applied rounds
        if not ledger:
            if own is not None:
                saver.save(step, own, {}, b"", {})
            return
        trained, rows = model.trained, json.loads(ledger)
        files = self._run.model.plan_checkpoint()
        about = {
            "writer": self._run.peer,
            "parameters": digest_tensors(trained.layout.parameters).hex(),
            "history": rows["chain"],
            "everybody": rows["whole"],
        }
        saver.save(step, own, files, ledger, about)

    def leave_state(self, reason: str) -> str:
        """Write the state to ``last_state`` in the folder of this peer before the peer exits,
        because no other copy may exist.

        Returns: A line with the path of the written state, or with the reason why it could not be
            written. An error is only reported, not raised, because the peer is exiting.
        """
        run, round_id = self._run, self._run.applied.round_id
        if run.run_dir is None or not self._node.is_prepared or round_id == 0:
            return ""
        folder = run.run_dir / f"peer-{run.peer}" / LAST_STATE
        outgoing = checkpoints.OutgoingCheckpoint(folder, run.step)
        try:
            for name, file in self._run.model.plan_checkpoint().items():
                outgoing.add(name, file.blocks())
            about = {**self._describe_run(), "round": round_id, "reason": reason}
            place = outgoing.finish(about, keep=1)
        except (OSError, ConfigError) as error:
            return f"its state of round {round_id} could not be written to {folder}: {error}"
        finally:
            outgoing.drop()
        return f"its state of round {round_id} is in {place}"

    def _disk_expired(self) -> bool:
        """Whether this peer must stop waiting for the disk."""
        since = self._run.termination.since
        return since is not None and time.monotonic() - since >= SAVED_S
