"""Effect of attacks on local steps of a transformer over characters: rules, attacks, and momentum
before and after the rule.

    python benchmarks/char_gpt_attacks.py --text tinyshakespeare.txt --write PAGE  # hours
    python benchmarks/char_gpt_attacks.py --text ... --device cuda --jobs 4 --write PAGE  # minutes

Eight workers of which two lie, without network: rules, liars and rounds are those of `gossip bench
robustness`. Each worker steps AdamW, with moments of its own where it takes several steps between
two rounds; with one step, AdamW follows the rule, momentum and all. Momentum before the rule is not
played there: AdamW would divide by it, and take longer steps. A seed is two hours of one processor.
What was run is in the file of --into: after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from cells import Row, mean_and_deviation, name_of, put_between, run_all
from char_gpt import CharacterModel, Contexts, read_text
from local_steps_attacks import FEW_RULES, MOMENTUM, OUTER, SENDER
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from gossip.aggregators import BoundRule
from gossip_lab.bench.data_sets import TrainingData
from gossip_lab.bench.learning import NO_ATTACK, Trial, _Run, train

ATTACKS = (NO_ATTACK, "sign_flip*10", "alie*1.5", "label_flip", "outer_momentum*4")
AFTER, BEFORE = MOMENTUM
TABLES = (30, AFTER), (30, BEFORE), (1, AFTER)
"""Local steps, and where the momentum is."""
WORKERS, LIARS, BATCH = 8, 2, 8
RATE, WEIGHT_DECAY, WARM_UP = 1e-3, 0.1, 0.1
FAILS_ABOVE = 1.05
"""Multiple of the loss of averaging without liars above which a rule fails."""


@dataclass(frozen=True)
class Cell:
    """One run; ``steps`` of each worker."""

    local_steps: int
    momentum: str
    rule: str
    attack: str
    seed: int
    steps: int


class Prepared:
    """Data and device of a process that plays cells."""

    data: TrainingData
    known: int
    device: str


def prepare(text: str, device: str) -> None:
    torch.set_num_threads(1)
    training, validation, known = read_text(Path(text))
    contexts = Contexts(training)
    tokens, following = (
        contexts.pieces[at : at + len(contexts.pieces) - 1].view(len(contexts), -1) for at in (0, 1)
    )
    Prepared.data = TrainingData(tokens, following, validation[:, :-1], validation[:, 1:])
    Prepared.known, Prepared.device = known, device


class CharacterNetwork:
    """``CharacterModel`` as a ``Model`` of ``gossip_lab.bench``: its parameters are one vector,
    on the CPU, where rules calculate. Passes are made on the device."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.module = CharacterModel(Prepared.known)
        names, parts = zip(*self.module.named_parameters(), strict=True)
        self.names: tuple[str, ...] = names
        self.shapes = tuple(tuple(part.shape) for part in parts)
        self.parameters = torch.cat([part.detach().flatten() for part in parts])
        self.module.to(Prepared.device)

    def answers(self, flat: Tensor, tokens: Tensor) -> Tensor:
        """``(samples, characters, context)``: logits, at parameters on the device."""
        parts = torch.split(flat, [math.prod(shape) for shape in self.shapes])
        named = {
            name: part.view(shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }
        found: Tensor = functional_call(self.module, named, (tokens.to(Prepared.device),))
        return found.transpose(1, 2)

    def gradient(self, flat: Tensor, tokens: Tensor, following: Tensor) -> Tensor:
        """``(d,)``, on the device, of the mean loss of a batch: ``(samples, context)`` each."""
        leaf = flat.detach().requires_grad_()
        loss = cross_entropy(self.answers(leaf, tokens), following.to(Prepared.device))
        return torch.autograd.grad(loss, leaf)[0]

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        flat = self.parameters.to(Prepared.device)
        batches = zip(images, labels, strict=True)
        return torch.stack([self.gradient(flat, *batch).cpu() for batch in batches])

    def logits(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.answers(self.parameters.to(Prepared.device), images).cpu()

    def loss(self, images: Tensor, labels: Tensor, step: Tensor) -> float:
        with torch.no_grad():
            answers = self.answers((self.parameters - step).to(Prepared.device), images)
        return float(cross_entropy(answers.cpu(), labels))


class AdamW:
    """Torch's, of a worker or of all: its moments stay, while parameters are set from outside."""

    def __init__(self, d: int, steps: int) -> None:
        self.flat = torch.zeros(d, device=Prepared.device)
        self.inner = torch.optim.AdamW(
            [self.flat], lr=RATE, weight_decay=WEIGHT_DECAY, fused=Prepared.device == "cuda"
        )
        self.steps, self.warm_up = steps, max(1, int(WARM_UP * steps))

    def step(self, gradient: Tensor, at: int) -> None:
        """The step number ``at`` of the run. The rate rises, and then falls to a tenth, as in
        ``char_gpt.py``."""
        done = (at - self.warm_up) / (self.steps - self.warm_up)
        falling = 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2
        self.inner.param_groups[0]["lr"] = (
            RATE * min((at + 1) / self.warm_up, 1.0) * (falling if done > 0 else 1.0)
        )
        self.flat.grad = gradient
        self.inner.step()


class CharacterRun(_Run):
    """A run of the loop with AdamW in place of plain SGD. ``validated``: its last validation loss,
    nats a character; not finite where the model is not."""

    model: CharacterNetwork

    def __init__(self, trial: Trial, rule: BoundRule, data: TrainingData) -> None:
        super().__init__(trial, rule, data)
        d, steps = len(self.model.parameters), trial.rounds * trial.local_steps
        self.steppers = [AdamW(d, steps) for _ in range(trial.n if trial.has_local_steps else 1)]
        self.begun = 0
        self.validated = math.inf

    def _made_model(self) -> CharacterNetwork:
        return CharacterNetwork(self.trial.seed)

    def _round(self, round_id: int) -> bool:
        self.begun = round_id * self.trial.local_steps
        return super()._round(round_id)

    def _updates(self, images: Tensor, labels: Tensor) -> Tensor:
        if self.outer is None:
            return self.model.gradients(images, labels)
        anchor, batch = self.model.parameters.to(Prepared.device), self.trial.batch
        found = []
        for stepper, tokens, following in zip(self.steppers, images, labels, strict=True):
            stepper.flat.copy_(anchor)
            batches = zip(tokens.split(batch), following.split(batch), strict=True)
            for at, one in enumerate(batches, self.begun):
                stepper.step(self.model.gradient(stepper.flat, *one), at)
            found.append((anchor - stepper.flat).cpu())
        return torch.stack(found)

    def _step(self, aggregate: Tensor) -> Tensor:
        if self.outer is not None:
            return super()._step(aggregate)
        (stepper,) = self.steppers
        stepper.flat.copy_(self.model.parameters)
        stepper.step(aggregate.to(Prepared.device), self.begun)
        return self.model.parameters - stepper.flat.cpu()

    def _test(self) -> tuple[float, Tensor]:
        labels = self.data.test_labels
        answers = self.model.logits(self.data.test_images)
        self.validated = float(cross_entropy(answers, labels))
        right = (answers.argmax(dim=1) == labels).float().mean()
        return float(right), right.view(1)


def play(cell: Cell) -> Row:
    trial = Trial(
        cell.rule,
        cell.attack,
        WORKERS,
        LIARS,
        cell.seed,
        rounds=cell.steps // cell.local_steps,
        batch=BATCH,
        lr=RATE,
        sender=SENDER[cell.momentum],
        local_steps=cell.local_steps,
        outer=OUTER[cell.momentum] if cell.local_steps > 1 else "",
    )
    made: list[CharacterRun] = []

    def run_of(trial: Trial, rule: BoundRule, data: TrainingData) -> CharacterRun:
        made.append(CharacterRun(trial, rule, data))
        return made[0]

    found = train(trial, Prepared.data, run_of)
    finite = bool(torch.isfinite(made[0].model.parameters).all())
    loss = made[0].validated if finite and math.isfinite(made[0].validated) else None
    return {"loss": loss, "skipped": found.skipped}


def sections(cells: Sequence[Cell], rows: dict[str, Row]) -> str:
    """Markdown: a table for each number of local steps and place of the momentum."""
    lines: list[str] = []
    for local_steps, momentum in TABLES:
        some = [c for c in cells if (c.local_steps, c.momentum) == (local_steps, momentum)]
        losses: dict[tuple[str, str], list[float | None]] = {}
        for cell in some:
            if name_of(cell) in rows:
                losses.setdefault((cell.rule, cell.attack), []).append(rows[name_of(cell)]["loss"])
        honest = [loss for loss in losses.get(("mean", NO_ATTACK), []) if loss is not None]
        limit = FAILS_ABOVE * mean_and_deviation(honest)[0] if honest else math.inf
        lines += [
            f"### {local_steps} local step{'s' if local_steps > 1 else ''}, momentum {momentum}",
            "",
            f"| rule | {' | '.join(f'`{attack}`' for attack in ATTACKS)} |",
            "|---|" + "---|" * len(ATTACKS),
        ]
        for rule in FEW_RULES:
            told = [_shown(losses.get((rule, attack), []), limit) for attack in ATTACKS]
            lines.append(f"| `{rule}` | {' | '.join(told)} |")
        lines.append("")
    return "\n".join(lines)


def _shown(losses: Sequence[float | None], limit: float) -> str:
    """Nats a character, bold above ``limit``."""
    if not losses:
        return "-"
    finite = [loss for loss in losses if loss is not None]
    if len(finite) < len(losses):
        return "**not finite**"
    mean, deviation = mean_and_deviation(finite)
    error = "" if deviation is None else f" ± {deviation / math.sqrt(len(finite)):.3f}"
    return f"**{mean:.3f}{error}**" if mean > limit else f"{mean:.3f}{error}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, help="a file of plain text")
    parser.add_argument("--steps", type=int, default=300, help="of each worker")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--into", type=Path, default=Path("runs/char_gpt_attacks.jsonl"))
    parser.add_argument("--write", type=Path, required=True, help="the page, between two markers")
    parser.add_argument("--only-done", action="store_true", help="run nothing")
    options = parser.parse_args()
    cells = [
        Cell(local_steps, momentum, rule, attack, seed, options.steps)
        for seed in range(options.seeds)
        for local_steps, momentum in TABLES
        for rule, attack in product(FEW_RULES, ATTACKS)
    ]
    os.nice(10)
    begin = partial(prepare, str(options.text.resolve()), options.device)
    try:
        jobs = 0 if options.only_done else options.jobs
        rows = run_all(cells, play, options.into, begin, jobs)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on from {options.into}", file=sys.stderr)
        return 130
    put_between(options.write, "characters", sections(cells, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
