"""Cost of losing one stage of a pipeline, by the way in which it is recovered.

    python benchmarks/lost_stage.py --text tinyshakespeare.txt --into lost_stage.jsonl

A transformer over characters with 8 blocks in 4 stages, in one process: the stages compute what
they would as peers, so no network is needed. Each seed trains to the same step once. There a stage
is lost, and each way goes on from that state with the same batches. What was run is in the file of
--into: after Ctrl-C the same command goes on. --table prints what is in it.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from cells import read_rows
from pipeline_train import Block, Embedded
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from whole_runs import environment

from gossip_pipelines.stages import TrainedLayer, between, counterparts

CONTEXT, WIDTH, BLOCKS, BATCH = 32, 32, 8, 16
CUTS = (0, 3, 5, 7, 10)  # layers of each stage: the embedding and 2 blocks, 2, 2, 2 and the head
RATE, WARM_UP = 2e-3, 40
CLIP = 0.1  # of the gradient of a stage: less than most norms, so that it changes some
LOST_AT, AFTER, LOOK_EVERY = 400, 80, 10
AGES = (20, 80)  # steps that a checkpoint is older than the loss
VALIDATION, VALIDATED = 0.1, 96
MIDDLE, END = 1, 3


def layers_of(characters: int, seed: int) -> list[nn.Module]:
    torch.manual_seed(seed)
    head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters))
    return [Embedded(characters, WIDTH, CONTEXT), *(Block(WIDTH) for _ in range(BLOCKS)), head]


class Text:
    """Contexts of the characters of a file: drawn by the step, and held out."""

    def __init__(self, path: Path) -> None:
        characters = path.read_bytes()
        known = sorted(set(characters))
        codes = torch.tensor([known.index(each) for each in characters])
        end = int(len(codes) * (1 - VALIDATION))
        self.characters, self._codes = len(known), codes[:end]
        apart = (len(codes) - end - CONTEXT - 1) // VALIDATED
        starts = range(end, end + apart * VALIDATED, apart)
        self.held_out = torch.stack([codes[at : at + CONTEXT + 1] for at in starts])

    def batch(self, seed: int, step: int) -> Tensor:
        draw = torch.Generator().manual_seed(1_000_003 * seed + step)
        starts = torch.randint(len(self._codes) - CONTEXT - 1, (BATCH,), generator=draw)
        return torch.stack([self._codes[at : at + CONTEXT + 1] for at in starts.tolist()])


@dataclass
class Training:
    """A model in stages, each with an optimizer and a clip of its own.

    Attributes:
        norms: Of the last gradient of each layer, before clipping, and after.
    """

    text: Text
    seed: int
    step: int = 0
    norms: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def __post_init__(self) -> None:
        self.layers = layers_of(self.text.characters, self.seed)
        self.optimizers = [
            torch.optim.AdamW(nn.ModuleList(self.stage(at)).parameters(), lr=RATE)
            for at in range(len(CUTS) - 1)
        ]

    def stage(self, at: int) -> list[nn.Module]:
        return self.layers[CUTS[at] : CUTS[at + 1]]

    def loss_of(self, batch: Tensor) -> Tensor:
        x = batch[:, :-1]
        for layer in self.layers:
            x = layer(x)
        return cross_entropy(x.flatten(0, 1), batch[:, 1:].flatten())

    def validate(self) -> float:
        with torch.no_grad():
            return float(self.loss_of(self.text.held_out))

    def train_step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (self.step + 1) / WARM_UP)
        self.loss_of(self.text.batch(self.seed, self.step)).backward()
        before, after = [], []
        for at, optimizer in enumerate(self.optimizers):
            stage = self.stage(at)
            norms = [_norm_of(layer) for layer in stage]
            of_stage = float(nn.utils.clip_grad_norm_(nn.ModuleList(stage).parameters(), CLIP))
            before += norms
            after += [norm * min(1.0, CLIP / of_stage) for norm in norms]
            optimizer.step()
        self.norms, self.step = (before, after), self.step + 1

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "step": self.step,
                "norms": self.norms,
                "layers": [layer.state_dict() for layer in self.layers],
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            }
        )

    def load(self, state: dict[str, Any], stages: Sequence[int] | None = None) -> None:
        """``stages``: of these alone, and the step stays; None: of all."""
        state = copy.deepcopy(state)
        if stages is None:
            self.step, self.norms = state["step"], state["norms"]
        for at in range(len(self.optimizers)) if stages is None else stages:
            for number in range(CUTS[at], CUTS[at + 1]):
                self.layers[number].load_state_dict(state["layers"][number])
            self.optimizers[at].load_state_dict(state["optimizers"][at])

    # --- a stage that is lost ---------------------------------------------------------------------

    def forget(self, stage: int) -> None:
        """Its layers are as a script makes them, and its optimizer knows nothing."""
        fresh = layers_of(self.text.characters, self.seed + 10_000)
        for number in range(CUTS[stage], CUTS[stage + 1]):
            self.layers[number].load_state_dict(fresh[number].state_dict())
        parameters = nn.ModuleList(self.stage(stage)).parameters()
        self.optimizers[stage] = torch.optim.AdamW(parameters, lr=RATE)

    def zero(self, stage: int) -> None:
        """Reset the stage, and zero what its blocks add: they pass their input on unchanged, and
        can learn."""
        self.forget(stage)
        with torch.no_grad():
            for layer in self.stage(stage):
                last = (layer.out, layer.net[2]) if isinstance(layer, Block) else ()
                for parameter in nn.ModuleList(last).parameters():
                    parameter.zero_()

    def rebuild(self, stage: int, clipped: bool, moments: bool, copies: bool = False) -> None:
        """Rebuild the stage from the stages beside it. ``copies``: from the one before alone, if
        there is one."""
        kept = {at: self._trained(at, clipped) for at in (stage - 1, stage + 1)}
        self.forget(stage)
        signatures = [type(layer).__name__ for layer in self.stage(stage)]
        sides = []
        for at in (stage - 1, stage + 1):
            there = kept[at]
            beside = [type(layer).__name__ for layer in self.stage(at)] if there else []
            places = counterparts(signatures, beside)
            sides.append([None if place is None else there[place] for place in places])
        for number, (below, above) in enumerate(zip(*sides, strict=True)):
            found = between(below, None if copies and below is not None else above)
            if found is not None:
                self._load_layer(stage, number, found, moments)

    def _trained(self, stage: int, clipped: bool) -> list[TrainedLayer]:
        if not 0 <= stage < len(self.optimizers):
            return []
        of, found = self.optimizers[stage].state, []
        for number, layer in enumerate(self.stage(stage), CUTS[stage]):
            moments = {name: dict(of.get(each, {})) for name, each in layer.named_parameters()}
            norm = self.norms[clipped][number]
            found.append(copy.deepcopy(TrainedLayer(layer.state_dict(), moments, norm)))
        return found

    def _load_layer(self, stage: int, number: int, found: TrainedLayer, moments: bool) -> None:
        layer = self.stage(stage)[number]
        layer.load_state_dict(dict(found.tensors))
        for name, parameter in layer.named_parameters() if moments else ():
            self.optimizers[stage].state[parameter] = copy.deepcopy(dict(found.moments[name]))


def _norm_of(layer: nn.Module) -> float:
    gradients = [each.grad for each in layer.parameters() if each.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients])))


Kept = dict[int, dict[str, Any]]  # states, by their steps
Way = Callable[[Training, int, Kept], None]


def from_checkpoint(age: int) -> Way:
    return lambda training, stage, kept: training.load(kept[LOST_AT - age], [stage])


def all_back(age: int) -> Way:
    return lambda training, stage, kept: training.load(kept[LOST_AT - age])


def from_neighbours(clipped: bool, moments: bool) -> Way:
    return lambda training, stage, kept: training.rebuild(stage, clipped, moments)


WAYS: dict[str, Way] = {
    "nothing lost": lambda training, stage, kept: None,
    **{f"checkpoint, {age} steps old": from_checkpoint(age) for age in AGES},
    **{f"all stages back {age} steps": all_back(age) for age in AGES},
    **{
        f"neighbours, norms {weights} clipping, moments {what}": from_neighbours(clipped, averaged)
        for weights, clipped in (("before", False), ("after", True))
        for what, averaged in (("averaged", True), ("reset", False))
    },
    "copy of the stage before": lambda training, stage, kept: training.rebuild(
        stage, False, False, copies=True
    ),
    "zeros": lambda training, stage, kept: training.zero(stage),
    "fresh": lambda training, stage, kept: training.forget(stage),
}
OF_END = ["nothing lost", f"checkpoint, {AGES[0]} steps old", "copy of the stage before", "fresh"]


def play(
    text: Text, seed: int, done: set[tuple[int, int, str]], write: Callable[..., None]
) -> None:
    """One seed: up to the loss once, and on from there in each way."""
    cells = [(MIDDLE, way) for way in WAYS] + [(END, way) for way in OF_END]
    if all((seed, stage, way) in done for stage, way in cells):
        return
    kept: Kept = {}
    training, began = Training(text, seed), time.process_time()
    while training.step < LOST_AT:
        if LOST_AT - training.step in AGES:
            kept[training.step] = training.state()
        training.train_step()
    step_s = (time.process_time() - began) / LOST_AT
    at_loss, before = training.state(), training.validate()
    for stage, way in cells:
        if (seed, stage, way) in done:
            continue
        training = Training(text, seed)
        training.load(at_loss)
        WAYS[way](training, stage, kept)
        first, curve = training.step, []
        for gone in range(AFTER + 1):
            if gone % LOOK_EVERY == 0:
                curve.append(round(training.validate(), 5))
            training.train_step()
        write(
            {
                "seed": seed,
                "stage": stage,
                "way": way,
                "before": round(before, 5),
                "step_s": round(step_s, 5),
                "rewound": LOST_AT - first,
                "curve": curve,
            }
        )


def restart_s(text: Path) -> float:
    """Processor time of a process that imports what it needs, loads the model and makes a step:
    what each peer does at least when everything is stopped and started again."""
    with tempfile.TemporaryDirectory(prefix="gossip-benchmark-") as scratch:
        place = Path(scratch) / "model.safetensors"
        save_file(nn.Sequential(*Training(Text(text), 0).layers).state_dict(), place)
        words = [sys.executable, __file__, "--text", str(text), "--restart", str(place)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, env=environment())
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = []
    for stage, title in ((MIDDLE, "A stage in the middle"), (END, "The last stage")):
        lines += [
            f"\n{title}: validation loss over that before\n",
            f"| | at once | after 20 steps | after 40 | after {AFTER} | steps until it is back |",
            "|---|---|---|---|---|---|",
        ]
        for way in WAYS:
            found = [row for row in rows if (row["stage"], row["way"]) == (stage, way)]
            if found:
                lines.append(f"| {way} | " + " | ".join(_cells(found)) + " |")
    return "\n".join(lines)


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    cells = []
    for step in (0, 20, 40, AFTER):
        over = [row["curve"][step // LOOK_EVERY] - row["before"] for row in rows]
        cells.append(f"{statistics.mean(over):+.3f} ± {statistics.stdev(over):.3f}")
    steps = [_steps_back(row) for row in rows]
    some = sorted(AFTER + 1 if each is None else each for each in steps)
    least, middle, most = [
        f"beyond {AFTER}" if each > AFTER else f"{each:.0f}"
        for each in (some[0], statistics.median(some), some[-1])
    ]
    cells.append(middle if least == most else f"{middle} ({least} to {most})")
    return cells


def _steps_back(row: dict[str, Any]) -> int | None:
    """Return the steps from the loss of the stage until the validation loss is what it was before,
    repeated steps included; None: it is not by the end."""
    if row["way"] == "nothing lost":
        return 0
    for at, loss in enumerate(row["curve"]):
        if loss <= row["before"]:
            return at * LOOK_EVERY
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--into", type=Path, default=Path("lost_stage.jsonl"))
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--table", action="store_true", help="print what is in --into")
    parser.add_argument("--restart", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.restart is not None:
        training = Training(Text(options.text), 0)
        nn.Sequential(*training.layers).load_state_dict(load_file(options.restart))
        training.train_step()
        return
    if not options.table:
        done = {(r["seed"], r["stage"], r["way"]) for r in read_rows(options.into)}
        with options.into.open("a") as out:

            def write(row: dict[str, Any]) -> None:
                out.write(json.dumps(row) + "\n")
                out.flush()

            for seed in range(options.first, options.first + options.seeds):
                play(Text(options.text), seed, done, write)
    rows = read_rows(options.into)
    print(table_of(rows))
    step_s = statistics.median(row["step_s"] for row in rows)
    again_s = statistics.median(restart_s(options.text) for _ in range(3))
    print(
        f"\na step takes {step_s * 1e3:.0f} ms of processor time; to start a process again, until "
        f"it has made its first step, {again_s:.1f} s: {again_s / step_s:.0f} steps"
    )


if __name__ == "__main__":
    main()
