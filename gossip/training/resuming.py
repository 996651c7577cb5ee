"""Selects and loads the checkpoint to resume from, and the per-peer state of this peer."""

from __future__ import annotations

import json
from pathlib import Path

from gossip.config import RunConfig
from gossip.core import planned_peers
from gossip.errors import ConfigError
from gossip.run import OTHERS, checkpoints, stage_parts

from .collectives import ANSWERS
from .own_state import Loaded, load_own
from .peer_run import PeerRun
from .saving import LEDGER_FILE
from .state import TRAINING_FILE, StateMismatch, load_document, read_checkpoint


def load_named(run: PeerRun, name: str) -> None:
    """Load the checkpoint that the launcher has selected and verified."""
    if run.config.pipeline is None:
        _load(run, *checkpoints.resolve(name))
        return
    where = name.removesuffix(OTHERS)
    folder, step = stage_parts.where_and_step(where)
    try:
        _load_stage(run, Path(folder), step)
    except stage_parts.LackingLayers as lacking:
        if where == name:
            raise
        run.notify(f"receives its state from other peers of its stage: {lacking}")


def load_newest(run: PeerRun, folder: Path) -> None:
    """Load the newest undamaged checkpoint. If there is none, the run starts from the beginning.

    Args:
        folder: Folder to which the script saves. In a pipeline it contains a folder for each stage.
    """
    if run.config.pipeline is None:
        _load(run, folder, None)
    else:
        _load_stage(run, folder, None)


def _load_stage(run: PeerRun, folder: Path, step: int | None) -> None:
    """Load this peer's layers from the checkpoints of the stages that had these layers at ``step``.
    If ``step`` is None, use the newest step for which all stages have a checkpoint. If there is
    none, the run starts from the beginning."""
    plan = run.config.pipeline
    assert plan is not None, "only a pipeline has stages"
    if step is None:
        whole = stage_parts.newest_whole(folder)
        if not whole:
            return
        stage_parts.check_model(whole, plan.model, str(folder))
        step = whole[0].step
    own = plan.stages[plan.stage_of(run.peer)].layers
    parts = stage_parts.of_layers(folder, step, own, plan.model)
    if [part.layers for part in parts] == [own]:
        _load(run, Path(parts[0].folder), step)
        return
    assert run.node.stage is not None, "peer.pipeline has made it"
    round_id, ledger, extra = run.node.stage.recut(parts)
    run.model.extra.load(extra)
    run.node.load(step, round_id, ledger)
    stages = ", ".join([str(part.stage) for part in parts])
    run.notify(
        f"goes on from step {step} with layers {own[0]} to {own[1]} from the checkpoints of "
        f"{'stage' if len(parts) == 1 else 'stages'} {stages} in {folder}"
    )


def _load(run: PeerRun, folder: Path, step: int | None) -> None:
    """Load the checkpoint of ``step`` in ``folder``, or the newest undamaged checkpoint if ``step``
    is None. If there is none, the run starts from the beginning."""
    config, trained = run.config, run.model.trained
    found, damaged = checkpoints.newest_good(folder, step, everybody=config.deterministic)
    if found is None and damaged:
        raise ConfigError(
            f"no checkpoint in {folder} can be used: {'; '.join(damaged)}",
            "repair or remove them; without --resume the run starts from the beginning",
        )
    for line in damaged if run.peer == 0 else ():
        run.notify(f"skipped: {line}")
    if found is None:
        if run.peer == run.incarnation == 0:
            run.notify(f"no checkpoint in {folder}: the run starts from the beginning")
        return
    files = {name: found.read(name) for name in (*found.model_files, TRAINING_FILE)}
    check_rounds(found, config)
    try:
        document = read_checkpoint(files)
        extra = load_document(document, trained.model, trained.optimizer, run.model.extra.check)
    except StateMismatch as error:
        raise ConfigError(
            f"{found.path} does not fit this script: {error}",
            "build the same model and optimizer, or start from the beginning without --resume",
        ) from error
    extra.pop(ANSWERS, None)  # all scripts restart, so they repeat all collective calls
    run.model.extra.load(extra)
    load_own_state(run, folder, found)
    ledger, of_round = found.read(LEDGER_FILE), config.steps_per_round
    round_id, planned = _plan_of(ledger, found, of_round)
    run.planned_peers = planned or run.planned_peers
    run.node.load(found.step // of_round, round_id, ledger)
    if run.peer == 0:
        run.notify(f"goes on from step {found.step}: {found.path}")


def load_own_state(run: PeerRun, folder: Path, found: checkpoints.Checkpoint) -> None:
    """Load the per-peer state of this peer, if this run has any."""
    config, model = run.config, run.model
    trained, encoder, stepper = model.trained, model.encoder, model.stepper
    owes = encoder is not None and trained.wire.encoding.feedback
    if config.is_rolling and model.plan_own() is None and not config.sender and not owes:
        return
    into = Loaded(trained.model, trained.optimizer, stepper.own_optimizer)
    own = load_own(folder, run.peer, found.step, into)
    try:
        stepper.load_own(own.parameters or ())
    except StateMismatch as error:
        own = own._replace(why=str(error))
    # Loading has set the learning rates of later local steps. Set those of the checkpoint's step
    # again.
    run.model.extra.restore_settings()
    model.sender_memory = own.memory
    if encoder is not None:
        encoder.load(own.residual)
    if own.extra is not None:
        run.model.extra.load(own.extra)
    if own.why:
        begins = _begins_without_own(run, f"peer {found.manifest.get('writer')}", owes)
        run.notify(f"its own state of step {found.step} is missing ({own.why}): {begins}")


def _begins_without_own(run: PeerRun, writer: str, owes: bool) -> str:
    """Return a phrase that describes how this peer starts without its per-peer state."""
    if not run.config.is_rolling:
        return f"it begins with the mean model and the optimizer of {writer}"
    model = run.model
    begins = {
        f"its buffers are those of {writer}": any(True for _ in model.trained.model.buffers()),
        "its optimizer begins anew": model.stepper.own_optimizer is not None,
        "its local steps that were not exchanged are lost": run.config.fragments > 1,
        "its sender begins anew": bool(run.config.sender),
        "its encoding begins without a residual": owes,
    }
    return ", ".join(what for what, is_so in begins.items() if is_so)


def check_rounds(checkpoint: checkpoints.Checkpoint, config: RunConfig) -> None:
    """Raise ConfigError if the checkpoint was saved with another number of local steps or
    fragments, or another outer optimizer, than this run has."""
    for name, own in config.kind_of_rounds.items():
        saved = checkpoint.manifest.get(name, "" if name == "outer" else 1)
        if saved != own:
            raise ConfigError(
                f"{checkpoint.path} was saved with {name} = {saved or 'none'}, and this run has "
                f"{own or 'none'}",
                f"resume with --{name.replace('_', '-')} {saved}"
                if saved
                else f"resume without --{name}",
            )


def _plan_of(
    ledger: bytes, checkpoint: checkpoints.Checkpoint, of_round: int
) -> tuple[int, int | None]:
    """Return the round after a checkpoint, and the number of peers for which epochs are planned, or
    None. Raises ConfigError: The ledger is not readable, or lacks the round."""
    found = json.loads(ledger)
    round_id = found.get("round") if isinstance(found, dict) else None
    try:
        if type(round_id) is int and round_id * of_round >= checkpoint.step:
            return round_id, planned_peers(ledger)
        why = "it has no round"
    except ValueError as error:
        why = str(error)
    raise ConfigError(
        f"{checkpoint.path} was written by another version of gossip: {why}",
        "use the version of gossip that wrote it",
    )
