"""Strategies for the steps between two rounds. All strategies have the interface of ``EveryStep``.

``EveryStep`` is the strategy without local steps: each step is a round, so most methods do nothing.
``LocalSteps`` and its subclasses (``local_steps.py``) step the local parameters several times
before a round. The *anchor* is the set of parameters that all peers share after the last round. The
*extra state* is the state of the script besides model and optimizer, such as that of schedulers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gossip.core import record


@record
class StepsTaken:
    """Steps that an update covers.

    Attributes:
        taken: Number of local steps since the last round.
        total: Planned number of local steps between two rounds.
        lasted_s: Duration of these steps; 0.0 means the time since the round began.
        kind: Kind of the step (``is_further``).
        is_useless: Whether the update must not be used.
        is_skipped: Whether the samples of the update were skipped: they do not count as used, but
            are not read again.
    """

    taken: int = 1
    total: int = 1
    lasted_s: float = 0.0
    kind: int = 0
    is_useless: bool = False
    is_skipped: bool = False


class EveryStep:
    """Strategy in which every step is a round, so that all peers have the same parameters between
    two rounds.

    Attributes:
        own_optimizer: The script's optimizer, if its state belongs to this peer alone.
        total: Planned number of steps of a round.
        taken: Number of local steps since the last round. It is 0 here, because a step that is a
            round is never waiting for one.
        good: Number of these steps that were not skipped.
        ends_early: Whether this peer takes part in the round before its last planned step.
    """

    own_optimizer: torch.optim.Optimizer | None = None

    def __init__(self, total: int = 1) -> None:
        self.total, self.taken, self.good, self.ends_early = total, 0, 0, False

    @property
    def is_round_due(self) -> bool:
        """Whether enough steps were taken for a round."""
        return True

    def step(self, skipped: bool = False, since: float = 0.0) -> bool:
        """Take one step.

        Args:
            skipped: Whether to count the step without running the optimizer.
            since: Time when the script began to compute the step.
        Returns: Whether the step changed nothing, so that its batches are read again.
        """
        return False

    def load_update(self, overflow: bool, kind: int = 0) -> StepsTaken:
        """Load the update for the round into the gradients. Return the steps that the update
        covers.

        Args:
            overflow: Whether the gradients of the last step are not finite.
            kind: Kind of the last step.
        """
        return StepsTaken(kind=kind, is_useless=overflow, is_skipped=overflow)

    def mark_exchanged(self, exchanged: Sequence[Tensor]) -> None:
        """Record that a round has exchanged these parameters and was applied."""

    def resume_after_round(self) -> None:
        """Continue after a round that was applied."""

    def continue_before_result(self) -> None:
        """Continue after an offered update, before its round is applied."""

    def discard_steps(self) -> None:
        """Discard the steps that were taken since the last call of ``load_update``."""

    def undo_steps(self) -> int:
        """Undo the steps since the last round, because no round will exchange them. Return the
        number of undone steps."""
        return 0

    def return_to_anchor(self) -> None:
        """Load the anchor into the model for good, such as at the end of the run. Steps that no
        round has exchanged are dropped."""

    def at_anchor(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the parameters that all peers share."""
        return nullcontext()

    @property
    def own_parameters(self) -> list[Tensor]:
        """Local parameters; empty if they equal the shared parameters."""
        return []

    def load_own(self, own: Sequence[Tensor]) -> None:
        """Load the local parameters. The model must have loaded the shared parameters before.

        Raises: StateMismatch: The parameters belong to another model.
        """

    @property
    def anchor_extra(self) -> dict[str, Any] | None:
        """Extra state that belongs to the anchor; None if it is the present state."""
        return None

    def on_state_loaded(self, states: dict[str, Any]) -> None:
        """Record that another peer's state was loaded, with the extra state ``states``."""

    def note_script_ready(self) -> None:
        """Record that the script has completed its work after a round, such as the step of a
        scheduler. Its extra state now belongs to the present parameters."""
