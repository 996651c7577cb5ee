"""Connects the script's model and optimizers to the rounds of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gossip.aggregators import load
from gossip.node import wire_of

from .checks import check_clip_norm, check_model, check_rule, check_shapes, plain_model
from .judging import JudgeService, LossJudge
from .layout import Layout
from .local_model import TrainedModel
from .local_steps import choose_stepper
from .optimizer import StepCoordinator, check_optimizers, make_modes_exact
from .peer_run import PeerRun
from .reference import JudgeReference
from .rounds import ScriptRounds
from .script_steps import ScriptSteps
from .several import as_one


@dataclass(frozen=True)
class Preparation:
    """Arguments of ``Session.prepare``."""

    model: Any
    optimizer: Any
    judge: Callable[..., Tensor] | None
    together: bool
    clip_norm: float | None

    def attach(
        self, run: PeerRun, rounds: ScriptRounds, steps: ScriptSteps, reference: JudgeReference
    ) -> None:
        """Attach the model to the run.

        Raises: ConfigError, UnsupportedModel: As ``Session.prepare``.
        """
        config, local, judge = run.config, run.model, self.judge
        if self.clip_norm is not None:
            check_clip_norm(self.clip_norm, config)
        optimizers = check_optimizers(self.optimizer)
        check_model(self.model, optimizers)
        plain, combined = plain_model(self.model), as_one(optimizers)
        layout = Layout(plain, combined)
        # The rule is checked only here, because the script may register it before this call.
        rule = load(config.aggregator)
        check_rule(rule, config, judge is not None)
        draw_batch = reference.fit(rule, judge)
        seed = f"{config.seed}/{run.peer}".encode()
        local.extra.optimizer = combined
        rounds.batches.prepare(plain, layout.parameters[-1])
        bench = None if judge is None else LossJudge(plain, layout, judge, seed, draw_batch)
        parts = layout.cut(config.fragments)
        # With fragments no encoding needs shapes (``gossip.run.fitting``).
        shapes = layout.shapes if len(parts) == 1 else ()
        wire = wire_of(config, run.peer)(parts[0].elements, parts[0].marks, shapes)
        check_shapes(wire)
        clip = {} if self.clip_norm is None else {"clip_norm": self.clip_norm}
        local.steps_directly = run.trains_alone and wire.is_plain and not clip
        for each in () if local.steps_directly else optimizers:
            make_modes_exact(each)
        coordinator = StepCoordinator(optimizers, steps.step, self.together, self.optimizer)
        steps.coordinator = coordinator
        trained = TrainedModel(plain, combined, coordinator.step, layout, wire, parts, clip)
        stepper, trained = choose_stepper(trained, run)
        local.attach(trained, stepper)
        steps.unprepared.prepared(optimizers, trained.optimizer, alone=run.trains_alone)
        steps.judging = JudgeService(bench, rule, layout.elements)
