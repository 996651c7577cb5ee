"""The table of habits: what each script should come to in each situation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

SITUATIONS: Mapping[str, str] = {
    "single": "one peer alone, bit-equal to plain torch",
    "pair": "2 peers, equal to the mean of gradients that is computed by hand",
    "late": "one peer of 3 misses three steps",
    "killed": "one peer of 3 is killed and started again",
    "resumed": "3 peers are killed and resumed from their checkpoint",
    "fewer": "3 peers are killed, and 2 are resumed from their checkpoint",
}
BY_HAND = ("single", "pair", "resumed")
OK = "ok"
DIVERGED = "exit code 9"
"""The replica check stops a run whose replicas differ again without a missed round."""


@dataclass(frozen=True)
class Habit:
    """A row of the table: a script of ``scripts/`` and how it is run.

    Attributes:
        group: Section of the table.
        all: Result in every situation: ``ok``, ``refused NAME`` with the name of an exception, or
            ``exit code N``.
        but: Results of the situations that differ from ``all``.
        by_hand: Situations whose numbers the run by hand gives. In the others peers are compared
            with each other.
        words: Arguments of the script.
        stdin: Standard input of the script.
        head: Whether standard output is closed after its first line.
    """

    group: str
    all: str = OK
    but: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    by_hand: tuple[str, ...] = BY_HAND
    words: tuple[str, ...] = ()
    stdin: str = ""
    head: bool = False

    def expected(self, situation: str) -> str:
        """Return the result that ``situation`` should have."""
        return self.but.get(situation, self.all)


def _swarms(result: str) -> dict[str, str]:
    return {situation: result for situation in SITUATIONS if situation != "single"}


UNSUPPORTED, CONFIG = "refused UnsupportedModel", "refused ConfigError"
OPT, LR, LOOP, STATE, DATA, ENV = "optimizers", "schedules", "loops", "state", "data", "environment"
HABITS: Mapping[str, Habit] = {
    "sgd": Habit(OPT),
    "adamw": Habit(OPT),
    "adam_fused": Habit(OPT),
    "adam_foreach": Habit(OPT),
    "adagrad": Habit(OPT),
    "rprop": Habit(OPT),
    "rmsprop": Habit(OPT),
    "adafactor": Habit(OPT),
    "adafactor_lr_none": Habit(OPT),
    "lion": Habit(OPT),
    "muon": Habit(OPT),
    "muon_and_adamw": Habit(OPT),
    "shampoo_like": Habit(OPT),
    "soap_like_lists": Habit(OPT),
    "string_key_state": Habit(OPT),
    "noise_in_step": Habit(OPT),
    "galore_like": Habit(OPT),
    "schedule_free": Habit(OPT),
    # Plain torch computes the trained weights back after an evaluation, with rounding.
    "schedule_free_evaluated": Habit(OPT, by_hand=("single",)),
    "lbfgs": Habit(OPT, UNSUPPORTED),
    "sparse_adam": Habit(OPT, UNSUPPORTED),
    "sam_two_steps": Habit(OPT),
    "sam_closure": Habit(OPT),
    "one_per_parameter": Habit(OPT),
    "two_optimizers": Habit(OPT),
    "three_optimizers": Habit(OPT),
    "two_optimizers_large": Habit(OPT),
    "large": Habit(OPT),
    # A loss between the steps of two optimizers sees the first model before its step, where there
    # are several peers (docs/training_loop.md).
    "gan": Habit(OPT),
    # A script that is resumed begins to count its batches anew.
    "critic_steps_more": Habit(OPT, by_hand=("single", "pair")),
    "one_cycle": Habit(LR),
    "lambda_lr": Habit(LR),
    "warm_restarts": Habit(LR),
    "sequential_lr": Habit(LR),
    "plateau_local": Habit(LR, by_hand=("single",)),
    "schedule_before_prepare": Habit(LR),
    "schedule_not_kept": Habit(LR),
    "lr_in_loop": Habit(LR),
    "weight_decay_schedule": Habit(LR),
    # A resumed script counts from 0 again.
    "eps_schedule": Habit(LR, by_hand=("single", "pair")),
    "momentum_schedule": Habit(LR),
    "switch_of_settings": Habit(LR),
    "accumulation": Habit(LOOP),
    "uneven_last_batch": Habit(LOOP),
    "prefetch": Habit(LOOP, CONFIG),
    "skip_bad_batches": Habit(LOOP),
    "first_batch_looked_at": Habit(LOOP),
    "evaluation_on_training_loader": Habit(LOOP, CONFIG),
    "optimizer_made_anew": Habit(LOOP, CONFIG),
    "break_on_loss": Habit(LOOP),
    "epochs_from_one": Habit(LOOP),
    "steps_loop": Habit(LOOP),
    "own_loop": Habit(LOOP),
    "evaluation_on_one_peer": Habit(LOOP),
    "several_backwards": Habit(LOOP),
    "clip_before": Habit(LOOP),
    "clip_in_hook": Habit(LOOP),
    "clip_norm": Habit(LOOP),
    "clamp_after": Habit(LOOP),
    "clamp_in_loop": Habit(LOOP),
    "manual_decay": Habit(LOOP),
    "gradient_penalty": Habit(LOOP),
    "closure": Habit(LOOP),
    "scaler_skip": Habit(LOOP),
    "scaler_unscale": Habit(LOOP),
    "step_in_backward": Habit(LOOP),
    "zero_after_step": Habit(LOOP),
    "kept_gradients": Habit(LOOP),
    "flat_gradients": Habit(LOOP),
    "grad_by_hand": Habit(LOOP),
    "unused_parameters": Habit(LOOP),
    "dropout": Habit(LOOP),
    "recompute": Habit(LOOP),
    "autocast": Habit(LOOP),
    "ema": Habit(STATE),
    "ema_by_hand": Habit(STATE),
    "ema_in_loop": Habit(STATE),
    "swa": Habit(STATE),
    "lookahead": Habit(STATE),
    "target_network": Habit(STATE),
    "counter": Habit(STATE),
    "growing_buffer": Habit(STATE),
    "batch_norm": Habit(STATE),
    "spectral_norm": Habit(STATE),
    "weight_norm": Habit(STATE),
    "max_norm": Habit(STATE, but=_swarms(DIVERGED)),
    "tied_by_assignment": Habit(STATE),
    "tied_by_copy": Habit(STATE),
    "frozen_before": Habit(STATE),
    "frozen_then_unfrozen": Habit(STATE),
    "parameters_added": Habit(STATE, UNSUPPORTED),
    "momentum_buffers_reset": Habit(STATE),
    "lora": Habit(STATE),
    "complex_parameters": Habit(STATE, UNSUPPORTED),
    "zero_dim_parameter": Habit(STATE),
    "float64_parameters": Habit(STATE),
    "bf16_parameters": Habit(STATE),
    "mixed_dtypes": Habit(STATE),
    "parameter_dict": Habit(STATE),
    "channels_last": Habit(STATE),
    # A resumed stream begins again.
    "iterable_dataset": Habit(DATA, by_hand=("single", "pair")),
    "loader_with_state": Habit(DATA),
    "persistent_workers": Habit(DATA),
    "spawned_workers": Habit(DATA),
    "spawned_workers_no_guard": Habit(DATA, CONFIG),
    "workers_that_draw": Habit(DATA),
    "batch_sampler": Habit(DATA, CONFIG),
    "weighted_sampler": Habit(DATA, CONFIG),
    "subset_sampler": Habit(DATA),
    "dict_batches": Habit(DATA),
    "nested_batches": Habit(DATA),
    "own_collate": Habit(DATA),
    "dataset_of_lists": Habit(DATA),
    "change_of_folder": Habit(ENV),
    "fork": Habit(ENV),
    "subprocess_calls": Habit(ENV),
    "thread": Habit(ENV),
    "helper_thread": Habit(ENV),
    "asyncio_loop": Habit(ENV),
    "exit_at_once": Habit(ENV),
    "sys_exit": Habit(ENV),
    # Peers have no standard input.
    "reads_stdin": Habit(ENV, but=_swarms("refused EOFError"), stdin="0.05\n"),
    # A script alone ends as in plain torch when it prints into a closed pipe.
    "closed_stdout": Habit(ENV, but={"single": "refused BrokenPipeError"}, head=True),
    "print_progress": Habit(ENV),
    "own_options": Habit(ENV, words=("-n", "5", "--rounds", "3")),
    "signal_handler": Habit(ENV),
    "default_dtype": Habit(ENV),
    "anomaly_and_deterministic": Habit(ENV),
    "seeds_in_script": Habit(ENV),
}
