"""The table of habits: what each script should come to in each situation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

SITUATIONS: Mapping[str, str] = {
    "single": "one peer alone, bit-equal to plain torch",
    "pair": "2 peers, equal to the mean of gradients that is computed by hand",
    "late": "one peer of 3 misses five steps",
    "killed": "one peer of 3 is killed and started again",
    "resumed": "3 peers are killed and resumed from their checkpoint",
    "fewer": "3 peers are killed, and 2 are resumed from their checkpoint",
}
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
        numbers: Whether the run by hand gives the numbers of several peers. If not, replicas are
            compared with each other.
        words: Arguments of the script.
        stdin: Standard input of the script.
        head: Whether standard output is closed after its first line.
    """

    group: str
    all: str = OK
    but: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    numbers: bool = True
    words: tuple[str, ...] = ()
    stdin: str = ""
    head: bool = False

    def expected(self, situation: str) -> str:
        """Return the result that ``situation`` should have."""
        return self.but.get(situation, self.all)


def _swarms(result: str) -> dict[str, str]:
    return {situation: result for situation in SITUATIONS if situation != "single"}


UNSUPPORTED, CONFIG = "refused UnsupportedModel", "refused ConfigError"
O, S, L, M, D, E = "optimizers", "schedules", "loops", "state", "data", "environment"
HABITS: Mapping[str, Habit] = {
    "sgd": Habit(O),
    "adamw": Habit(O),
    "adam_fused": Habit(O),
    "adam_foreach": Habit(O),
    "adagrad": Habit(O),
    "rprop": Habit(O),
    "rmsprop": Habit(O),
    "adafactor": Habit(O),
    "adafactor_lr_none": Habit(O),
    "lion": Habit(O),
    "muon": Habit(O),
    "muon_and_adamw": Habit(O),
    "shampoo_like": Habit(O),
    "soap_like_lists": Habit(O),
    "string_key_state": Habit(O),
    "noise_in_step": Habit(O, numbers=False),
    "galore_like": Habit(O, numbers=False),
    "schedule_free": Habit(O),
    "lbfgs": Habit(O, UNSUPPORTED),
    "sparse_adam": Habit(O, UNSUPPORTED),
    "sam_two_steps": Habit(O),
    "sam_closure": Habit(O),
    "one_per_parameter": Habit(O),
    "two_optimizers": Habit(O),
    "three_optimizers": Habit(O),
    "two_optimizers_large": Habit(O),
    "large": Habit(O),
    # A loss between the steps of two optimizers sees the first model before its step, where there
    # are several peers (docs/training_loop.md).
    "gan": Habit(O, numbers=False),
    "critic_steps_more": Habit(O, numbers=False),
    "one_cycle": Habit(S),
    "lambda_lr": Habit(S),
    "warm_restarts": Habit(S),
    "sequential_lr": Habit(S),
    "plateau_local": Habit(S, numbers=False),
    "schedule_before_prepare": Habit(S),
    "schedule_not_kept": Habit(S),
    "lr_in_loop": Habit(S),
    "weight_decay_schedule": Habit(S),
    "eps_schedule": Habit(S),
    "momentum_schedule": Habit(S),
    "switch_of_settings": Habit(S),
    "accumulation": Habit(L),
    "uneven_last_batch": Habit(L),
    "prefetch": Habit(L, CONFIG),
    "skip_bad_batches": Habit(L),
    "break_on_loss": Habit(L),
    "epochs_from_one": Habit(L),
    "steps_loop": Habit(L),
    "own_loop": Habit(L),
    "evaluation_on_one_peer": Habit(L),
    "several_backwards": Habit(L),
    "clip_before": Habit(L),
    "clip_in_hook": Habit(L),
    "clamp_after": Habit(L),
    "clamp_in_loop": Habit(L),
    "manual_decay": Habit(L),
    "gradient_penalty": Habit(L),
    "closure": Habit(L),
    "scaler_skip": Habit(L),
    "scaler_unscale": Habit(L),
    "step_in_backward": Habit(L),
    "zero_after_step": Habit(L),
    "kept_gradients": Habit(L),
    "flat_gradients": Habit(L),
    "grad_by_hand": Habit(L),
    "unused_parameters": Habit(L),
    "dropout": Habit(L),
    "recompute": Habit(L),
    "autocast": Habit(L),
    "ema": Habit(M),
    "ema_by_hand": Habit(M),
    "ema_in_loop": Habit(M),
    "swa": Habit(M),
    "lookahead": Habit(M),
    "target_network": Habit(M),
    "counter": Habit(M),
    "growing_buffer": Habit(M),
    "batch_norm": Habit(M),
    "spectral_norm": Habit(M),
    "weight_norm": Habit(M),
    "max_norm": Habit(M, but=_swarms(DIVERGED)),
    "tied_by_assignment": Habit(M),
    "tied_by_copy": Habit(M),
    "frozen_before": Habit(M),
    "frozen_then_unfrozen": Habit(M),
    "parameters_added": Habit(M, UNSUPPORTED),
    "momentum_buffers_reset": Habit(M),
    "lora": Habit(M),
    "complex_parameters": Habit(M, UNSUPPORTED),
    "zero_dim_parameter": Habit(M),
    "float64_parameters": Habit(M),
    "bf16_parameters": Habit(M),
    "mixed_dtypes": Habit(M),
    "parameter_dict": Habit(M),
    "channels_last": Habit(M),
    "iterable_dataset": Habit(D),
    "loader_with_state": Habit(D),
    "persistent_workers": Habit(D),
    "spawned_workers": Habit(D),
    "spawned_workers_no_guard": Habit(D, CONFIG),
    "workers_that_draw": Habit(D),
    "batch_sampler": Habit(D, CONFIG),
    "weighted_sampler": Habit(D, CONFIG),
    "subset_sampler": Habit(D),
    "dict_batches": Habit(D),
    "nested_batches": Habit(D),
    "own_collate": Habit(D),
    "dataset_of_lists": Habit(D),
    "change_of_folder": Habit(E),
    "fork": Habit(E),
    "subprocess_calls": Habit(E),
    "thread": Habit(E),
    "helper_thread": Habit(E),
    "asyncio_loop": Habit(E),
    "exit_at_once": Habit(E),
    "sys_exit": Habit(E),
    "reads_stdin": Habit(E, stdin="0.05\n"),
    # A script alone ends as in plain torch when it prints into a closed pipe.
    "closed_stdout": Habit(E, but={"single": "refused BrokenPipeError"}, head=True),
    "print_progress": Habit(E),
    "argparse": Habit(E, words=("-n", "5", "--rounds", "3")),
    "signal_handler": Habit(E),
    "default_dtype": Habit(E),
    "anomaly_and_deterministic": Habit(E),
    "seeds_in_script": Habit(E),
}
