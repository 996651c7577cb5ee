"""State beside model and optimizer: the script's objects (``Session.keep``), and settings of
optimizers."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch

from gossip.errors import ConfigError

from .collectives import ANSWERS, read_answers
from .local_steps import STATE as LOCAL_STATE, groups_of, read_settings, settings_of
from .peer_run import PeerRun
from .schedulers import SchedulerPace, counts_steps
from .stage import NORMS
from .state import StateFile, StateMismatch

LOST = "gossip.lost_rounds"


class ExtraState:
    """State beside model and optimizer.

    A state of other peers may arrive within a step. Schedulers load their part after the script's
    work that follows the step.

    Attributes:
        kept: Objects of ``Session.keep``, by name.
        in_flight: State that belongs to the parameters before the round in flight.
        optimizer: The script's optimizer, or a combination of several; set by ``prepare``.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, run: PeerRun) -> None:
        self._run, self._node = run, run.node
        # The script and the settings of its optimizer, such as the learning rate, are ahead of the
        # parameters.
        self._is_ahead = run.config.has_local_steps or run.config.overlap > 0
        self.kept: dict[str, Any] = {}
        self.in_flight: dict[str, Any] = {}
        self._unclaimed: dict[str, Any] = {}  # States of objects not yet passed to ``keep``.
        self._due: dict[str, Any] = {}  # States of kept objects that arrived within a step.
        self._loaded: set[str] = set()  # Kept objects that have loaded a state of another step.
        self._settings: list[dict[str, Any]] = []  # Settings of parameter groups from a state.
        self._settings_step = -1  # Step of these settings, if known.
        self._lost_at = 0  # ``lost_steps`` in the last state.
        self._pace = SchedulerPace()

    def keep(self, name: str, thing: Any) -> None:
        """Add an object to the state.

        Raises: ConfigError, UnsupportedModel: As ``Session.keep``.
        """
        if not callable(getattr(thing, "state_dict", None)) or not callable(
            getattr(thing, "load_state_dict", None)
        ):
            raise ConfigError(
                f"{name} is a {type(thing).__name__}, which has no state_dict and load_state_dict"
            )
        StateFile({name: thing.state_dict()})  # raise here, not at the first checkpoint
        self.kept[name] = thing
        if name in self._unclaimed:
            thing.load_state_dict(self._unclaimed.pop(name))
            self._loaded.add(name)
            # The constructor of a scheduler sets the rates of its first epoch, but those of its
            # state apply.
            self._apply_settings()

    # --- the state --------------------------------------------------------------------------------

    def now(self) -> dict[str, Any]:
        """Return the state that belongs to the parameters that all peers share."""
        if self._run.exchange.in_flight:
            state = self.in_flight
        else:
            state = self._run.stepper.extra_state(self.latest)
        answers = self._run.answers.state()
        return {**state, ANSWERS: answers} if answers else state

    def before_round(self) -> dict[str, Any]:
        """Return a copy of the state at the start of the next update's round."""
        return copy.deepcopy(self._run.stepper.extra_state(self.latest))

    def latest(self) -> dict[str, Any]:
        """Return the present state of the script."""
        run, stage = self._run, self._node.stage
        parts = {
            ANSWERS: run.answers.state(),
            NORMS: stage and stage.norms.state(),
            LOST: run.applied.lost,
            LOCAL_STATE: self._is_ahead and settings_of(self.optimizer, run.step),
        }
        return {
            **{name: part for name, part in parts.items() if part},
            **self._unclaimed,
            **{name: thing.state_dict() for name, thing in sorted(self.kept.items())},
            **self._due,
        }

    def check(self, states: dict[str, Any]) -> None:
        """Check a state before any part of it is loaded.

        Raises: StateMismatch: ``states`` does not fit.
        """
        if self._is_ahead:
            read_settings(states.get(LOCAL_STATE), self.optimizer)
        if not isinstance(states.get(LOST, 0), int):
            raise StateMismatch(f"{LOST} is not a number of rounds: {states[LOST]!r:.80}")
        try:
            read_answers(states.get(ANSWERS, ()))
        except ValueError as error:
            raise StateMismatch(str(error)) from error

    def load(self, states: dict[str, Any]) -> None:
        """Load the state of another peer or of a checkpoint."""
        if self._is_ahead:
            saved = states.get(LOCAL_STATE)
            self._settings_step, settings = read_settings(saved, self.optimizer)
        else:
            settings = groups_of(self.optimizer)
        self._run.applied.lost = states.get(LOST, 0)
        self._lost_at = self._run.lost_steps
        stage = self._node.stage
        for name, state in states.items():
            if name == ANSWERS:
                self._run.answers.adopt(state)
            elif name == NORMS:
                if stage is not None:
                    stage.norms.adopt(state)
            elif name not in (LOCAL_STATE, LOST):
                (self._due if name in self.kept else self._unclaimed)[name] = state
        self._settings = settings
        self._run.stepper.on_state_loaded(states)
        self.restore_settings()
        if not self._run.in_round:
            self._load_due(self._due)

    # --- between two steps ------------------------------------------------------------------------

    def load_objects(self) -> None:
        """Load states that arrived within this step, except those of schedulers, which the script
        still steps for this step."""
        self._load_due({name for name in self._due if not counts_steps(self.kept[name])})

    def load_all(self) -> None:
        """Load states that arrived within the last step."""
        self._load_due(self._due)
        self._note_loaded()

    def _load_due(self, names: Collection[str]) -> None:
        if not names:
            return
        for name in tuple(names):
            self.kept[name].load_state_dict(self._due.pop(name))
            self._loaded.add(name)
        self._apply_settings()

    def _note_loaded(self) -> None:
        """Record the step of the state that schedulers have loaded, before the script steps
        them."""
        if self._loaded:
            loaded = {name: self.kept[name] for name in self._loaded}
            at = self._settings_step if self._is_ahead else self._run.applied.state_step
            self._pace.loaded(loaded, at - self._lost_at)
            self._loaded = set()

    def restore(self, before: dict[str, Any]) -> None:
        """Restore objects such as schedulers, which the script changed after undone steps, to
        ``before``."""
        states = copy.deepcopy(before)
        for name, thing in self.kept.items():
            if name in states:
                thing.load_state_dict(states[name])
        _, self._settings = read_settings(states.get(LOCAL_STATE), self.optimizer)
        self._apply_settings()
        self._pace.undone(self.kept)

    def restore_settings(self) -> None:
        """Restore the settings of the last state if the script is ahead of it."""
        if self._is_ahead:
            self._apply_settings()

    def _apply_settings(self) -> None:
        for group, settings in zip(self.optimizer.param_groups, self._settings, strict=True):
            group.update(settings)

    # --- schedulers -------------------------------------------------------------------------------

    def note_step(self) -> None:
        """Record that the script has made a step."""
        self._pace.stepped()

    def begin_epoch(self, epoch: int) -> None:
        """Step the schedulers that count epochs."""
        self._note_loaded()
        self._pace.begin_epoch(self.kept, epoch)

    def follow_steps(self, *, over: bool = False) -> None:
        """Step the schedulers for steps that the script did not make. ``over``: whether no step of
        the script follows."""
        self._pace.follow(self.kept, self._run.step - self._run.lost_steps, over=over)
