"""State in addition to model and optimizer: the script's objects (``Session.keep``), and settings
of optimizers, such as learning rates."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection
from typing import Any

import torch

from gossip.errors import ConfigError, TrainingWarning

from .collectives import ANSWERS, read_answers
from .local_steps import STATE as LOCAL_STATE, groups_of, read_settings, settings_of
from .peer_run import PeerRun
from .schedulers import SchedulerPace, counts_steps
from .stage import NORMS
from .state import StateFile, StateMismatch

LOST = "gossip.lost_rounds"
DIFFERENT = (
    "the objects of peer.keep, and settings of the optimizer such as the learning rate, were not "
    "copied from the other peers, because these have different ones: keep only what is equal on "
    "all peers, and change it in a function passed to peer.each_step"
)


class ExtraState:
    """State in addition to model and optimizer.

    A state of other peers may arrive during a step. Schedulers then load their state only after the
    script's work that follows the step.

    Attributes:
        kept: Objects of ``Session.keep``, by name.
        in_flight: State that belongs to the parameters before the round in flight.
        optimizer: The script's optimizer, or a combination of several; set by ``prepare``.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, run: PeerRun) -> None:
        self._run, self._node = run, run.node
        # Whether the script and its optimizer's settings, such as the learning rate, may be ahead
        # of the parameters that peers share.
        self._is_ahead = run.config.has_local_steps or run.config.overlap > 0
        self.kept: dict[str, Any] = {}
        self.in_flight: dict[str, Any] = {}
        self._unclaimed: dict[str, Any] = {}  # States of objects not yet passed to ``keep``.
        self._due: dict[str, Any] = {}  # States that arrived during a step, for kept objects.
        self._loaded: set[str] = set()  # Names of kept objects that have just loaded a state.
        self._settings: list[dict[str, Any]] = []  # Settings of parameter groups in the last state.
        self._settings_step = -1  # Step of these settings; -1 if unknown.
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
            # The constructor of a scheduler has set the learning rates of its first epoch. Set
            # those of the loaded state again.
            self._apply_settings()

    # --- the state --------------------------------------------------------------------------------

    def now(self) -> dict[str, Any]:
        """Return the extra state that belongs to the parameters that all peers share."""
        state = self.in_flight if self._run.exchange.in_flight else self._at_anchor()
        answers = self._run.answers.state()
        return {**state, ANSWERS: answers} if answers else state

    def before_round(self, step: int) -> dict[str, Any]:
        """Return a copy of the extra state before the round of the next update. ``step``: as in
        ``latest``."""
        return copy.deepcopy(self._at_anchor(step))

    def _at_anchor(self, step: int | None = None) -> dict[str, Any]:
        state = self._run.stepper.anchor_extra
        return self.latest(step) if state is None else state

    def latest(self, step: int | None = None) -> dict[str, Any]:
        """Return the present state of the script. ``step``: number of the script's next step; by
        default the number of the run's next step."""
        run, stage = self._run, self._node.stage
        parts = {
            ANSWERS: run.answers.state(),
            NORMS: stage and stage.norms.state(),
            LOST: run.applied.lost,
            LOCAL_STATE: self._is_ahead
            and settings_of(self.optimizer, run.step if step is None else step),
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

    def load(self, states: dict[str, Any], is_agreed: bool = True) -> None:
        """Load the state of another peer or of a checkpoint. ``is_agreed``: whether enough peers
        have this state. If not, ``states`` is empty, and the script is warned."""
        if not is_agreed:
            warnings.warn(DIFFERENT, TrainingWarning, stacklevel=2)
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
        """Load states that arrived during this step into their objects. Schedulers are excluded,
        because the script has yet to step them for this step."""
        self._load_due({name for name in self._due if not counts_steps(self.kept[name])})

    def load_all(self) -> None:
        """Load all states that arrived during the last step into their objects."""
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
        """Record the step of the state that schedulers have loaded. Call it before the script steps
        the schedulers again."""
        if self._loaded:
            loaded = {name: self.kept[name] for name in self._loaded}
            at = self._settings_step if self._is_ahead else self._run.applied.state_step
            self._pace.loaded(loaded, at - self._lost_at)
            self._loaded = set()

    def restore(self, before: dict[str, Any]) -> None:
        """Reset kept objects, such as schedulers, to the state ``before`` the steps that were
        undone."""
        states = copy.deepcopy(before)
        for name, thing in self.kept.items():
            if name in states:
                thing.load_state_dict(states[name])
        _, self._settings = read_settings(states.get(LOCAL_STATE), self.optimizer)
        self._apply_settings()
        self._pace.undone(self.kept)

    def restore_settings(self) -> None:
        """Restore the settings of the last loaded state, if the script may be ahead of that
        state."""
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
        """Step the schedulers for steps that the script did not make. ``over``: whether the script
        makes no further step."""
        self._pace.follow(self.kept, self._run.step - self._run.lost_steps, over=over)
