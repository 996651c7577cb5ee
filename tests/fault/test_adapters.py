"""Trainers of other libraries, the real ones, in swarms whose peers crash, hang and come back: the
planned steps are made, the schedule ends as planned, and all peers end with one model.

TEST_LONG=1 plays ten plans of faults for each, otherwise two.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import shown_python
import torch
from code_blocks import every_block
from effort import effort
from torch.utils.data import DataLoader

import gossip
from gossip.errors import ConfigError
from gossip.run.telemetry import read_lines

LIBRARIES = ("lightning", "transformers", "accelerate")
pytestmark = [
    pytest.mark.adapters,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in LIBRARIES),
        reason="needs the extras lightning, transformers and accelerate",
    ),
]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLANNED = {"transformers_trainer.py": 64, "lightning_trainer.py": 64, "accelerate_loop.py": 32}
FIRST = {"transformers_trainer.py": 0.01, "lightning_trainer.py": 0.01, "accelerate_loop.py": 0.01}
SEEDS = range(10 if os.environ.get("TEST_LONG") else 2)
ENDS = re.compile(r"(\d)\| planned (\d+) made (\d+) rate (\S+) model (\w+)")


def ends_of(folder: Path, example: str, *options: str) -> dict[int, tuple[int, int, float, str]]:
    """Peer -> planned and made steps, the last rate, the digest of the model."""
    words = ["run", "-n", "4", "--run-dir", "out", *options, str(EXAMPLES / example)]
    done = subprocess.run(
        [sys.executable, "-m", "gossip.launch.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return {
        int(peer): (int(planned), int(made), float(rate), model)
        for peer, planned, made, rate, model in ENDS.findall(said)
    }


def written(folder: Path) -> list[str]:
    """Checkpoints of the library, and folders of its logs."""
    found = folder.glob("trained/**/*")
    return sorted(
        path.name for path in found if re.match(r"(checkpoint|version)[-_]|epoch=", path.name)
    )


@pytest.mark.parametrize("example", sorted(PLANNED))
def test_what_was_planned_is_made_and_one_peer_writes(tmp_path: Path, example: str) -> None:
    ends = ends_of(tmp_path, example)
    assert sorted(ends) == [0, 1, 2, 3]
    assert len(set(ends.values())) == 1
    planned, made, rate, _ = ends[0]
    assert planned == made == PLANNED[example]
    assert rate < 0.01 * FIRST[example], "the schedule came to its end"
    assert (
        written(tmp_path)
        == {
            "transformers_trainer.py": ["checkpoint-32", "checkpoint-64"],
            "lightning_trainer.py": ["epoch=1-step=64.ckpt", "version_0"],
            "accelerate_loop.py": [],
        }[example]
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("example", sorted(PLANNED))
def test_what_was_planned_is_made_whatever_fails(tmp_path: Path, example: str, seed: int) -> None:
    draw = Random(f"{example}/{seed}")
    peer, at = draw.randrange(4), draw.randrange(2, PLANNED[example] - 2)
    kind = draw.choice(["crash", "hang", "restart"])
    fault = f"{kind}:{peer}@{at}" + ("" if kind == "crash" else f"+{draw.choice([0.2, 1.0, 2.0])}s")

    ends = ends_of(tmp_path, example, "--fault", fault)

    faults = [
        row for row in read_lines(tmp_path / "out" / "events.jsonl") if row.get("event") == "fault"
    ]
    assert faults, f"{fault} took place"
    assert sorted(ends) == [each for each in range(4) if kind != "crash" or each != peer], fault
    assert {(planned, made) for planned, made, _, _ in ends.values()} == {(PLANNED[example],) * 2}
    assert len({model for *_, model in ends.values()}) == 1, fault
    own_schedule = example == "accelerate_loop.py"  # its loop is the script's, and so is its count
    rates = [rate for each, (_, _, rate, _) in ends.items() if each != peer or not own_schedule]
    assert max(rates) < 0.01 * FIRST[example], fault


CRASHES = """
import os, signal
from transformers import TrainerCallback

class Crash(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        first = (os.environ["GOSSIP_PEER"], os.environ["GOSSIP_INCARNATION"]) == ("1", "0")
        if first and state.global_step == 10:
            {how}
"""
HOWS = {
    "exception": "raise ValueError('no')",
    "exit": "os._exit(3)",
    "signal": "os.kill(os.getpid(), signal.SIGSEGV)",
}


@pytest.mark.parametrize("how", effort(["exception"], list(HOWS)))
def test_a_trainer_that_crashes_is_started_again(tmp_path: Path, how: str) -> None:
    script = (EXAMPLES / "transformers_trainer.py").read_text()
    script = script.replace("def main", CRASHES.replace("{how}", HOWS[how]) + "\n\ndef main", 1)
    script = script.replace("train_dataset=", "callbacks=[Crash()], train_dataset=")
    (tmp_path / "train.py").write_text(script.replace("default=1024", "default=8192"))
    ends = ends_of(tmp_path, str(tmp_path / "train.py"), "--restarts=1")
    assert sorted(ends) == [0, 1, 2, 3]
    assert {(planned, made) for planned, made, _, _ in ends.values()} == {(512, 512)}
    assert len({model for *_, model in ends.values()}) == 1


EARLY_SCHEDULE = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import gossip
from gossip.integrations.accelerate import prepare

x = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
model = nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
planned = 2 * len(loader)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: max(0.0, 1 - at / planned))
accelerator = Accelerator(cpu=True)
peer = gossip.init()
model, optimizer, loader, schedule = prepare(peer, accelerator, model, optimizer, loader, schedule)
for _ in peer.epochs(2):
    for inputs, targets in loader:
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
rate = schedule.get_last_lr()[0]
print(f"planned {planned} made {peer.step} rate {rate:.3g} model 0", flush=True)
"""


def test_a_schedule_that_was_planned_before_prepare_comes_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EARLY_SCHEDULE)
    ends = ends_of(tmp_path, str(tmp_path / "train.py"))
    assert set(ends.values()) == {(128, 32, 0.0, "0")}
    assert sorted(ends) == [0, 1, 2, 3]


def surroundings(page: str) -> dict[str, Any]:
    """What a page about a library takes for granted beside the rest."""
    names = shown_python.surroundings()
    if page == "accelerate":
        from accelerate import Accelerator

        return names | {"accelerator": Accelerator(cpu=True)}
    if page == "lightning":
        import lightning.pytorch as pl
        from lightning_trainer import Classifier

        names["loader"] = DataLoader([(torch.randn(8), label % 4) for label in range(64)], 8)
        loaders = {"train_loader": names["loader"], "val_loader": names["loader"]}
        return names | loaders | {"pl": pl, "model": Classifier()}
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
    from transformers_trainer import Sums

    shape = {"vocab_size": 10, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    arguments = TrainingArguments("trained", num_train_epochs=1, report_to=[], use_cpu=True)
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=None, eos_token_id=None))
    return names | {"model": model, "arguments": arguments, "dataset": Sums(64)}


@pytest.mark.parametrize("page", LIBRARIES)
def test_python_on_the_pages_about_libraries_is_executed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    shown = [
        block
        for block in every_block()
        if block.page == "docs/integrations.md" and f"gossip.integrations.{page} " in block.text
    ]
    assert shown
    for block in shown:
        made = shown_python.execute(block.text, str(block), surroundings(page), tmp_path)
        trainer = made.get("trainer")
        (made["peer"] if trainer is None else getattr(trainer, "strategy", trainer).peer).close()


def test_averages_of_lightning_and_streams_without_a_length_are_refused() -> None:
    """A returning peer would end with an average of other weights, without an error."""
    import lightning.pytorch as pl
    from lightning.pytorch.demos.boring_classes import BoringModel, RandomIterableDataset

    from gossip.integrations.lightning import GossipStrategy

    averages = [pl.callbacks.StochasticWeightAveraging(1e-2)]
    stream = DataLoader(RandomIterableDataset(32, 8))
    for loader, callbacks, why in (
        (DataLoader(torch.randn(8, 32)), averages, "StochasticWeightAveraging"),
        (stream, [], "without a length"),
    ):
        with gossip.init() as peer:
            trainer = pl.Trainer(
                strategy=GossipStrategy(peer=peer), max_steps=2, callbacks=callbacks, logger=False
            )
            with pytest.raises(ConfigError, match=why):
                trainer.fit(BoringModel(), loader)


def test_a_logged_loss_is_the_mean_of_the_own_steps() -> None:
    """Also if the run has made steps without this peer."""
    from gossip.integrations.transformers import GossipCallback, GossipTrainer

    trainer: Any = GossipTrainer.__new__(GossipTrainer)
    trainer.clock = SimpleNamespace(follow=lambda _: 12, over=False)
    trainer.lr_scheduler, trainer._globalstep_last_logged = None, 3
    state = SimpleNamespace(global_step=5, max_steps=20)
    GossipCallback(trainer)._follow(state, SimpleNamespace())
    assert (state.global_step, trainer._globalstep_last_logged) == (12, 10)
