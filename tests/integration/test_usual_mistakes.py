"""The ten usual mistakes, really made with the command: what it says stands in ``usual_mistakes/``,
a file for each.

    RENEW_GOLDEN=1 pytest tests/integration/test_usual_mistakes.py  # writes the files anew; read
                                                                    # what git diff shows

What differs from one machine or day to the next is masked: FOLDER, PORT, PID, TIME, KEY,
ADDRESSES, VERSIONS.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zygote
from effort import effort
from following import following

GOLDEN = Path(__file__).with_name("usual_mistakes")
RENEW = os.environ.get("RENEW_GOLDEN", "") not in ("", "0")
SHELL: Callable[..., Any] = effort(zygote.run, subprocess.run)
PYTHON = (sys.executable, "-m", "gossip.launch.cli")
SECONDS = 5.0
"""Until the message is there. Processor time, as tests share the machine; where peers train it is
that of two processors."""

TRAIN = """\
import os
import torch
import gossip

peer = gossip.init()
model = torch.nn.Linear(4, WIDTH)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = peer.prepare(model, optimizer)
while peer.round < 20:
    optimizer.zero_grad()
    loss = model(torch.ones(32, 4)).square().mean()
    loss.backward()
    optimizer.step()
peer.close()
"""
RAISES = (
    TRAIN.replace("WIDTH", "2")
    .replace(
        "while peer.round < 20:\n",
        "def over():\n"  # no sooner than the launcher has heard of the other's end
        "    return '\"exited\"' in (peer.run_dir / 'events.jsonl').read_text()\n"
        "while peer.round < 20 or peer.id == 0 and not over():\n",
    )
    .replace(
        "    loss.backward()\n",
        "    if peer.id == 1 and peer.round == 3:\n"
        "        raise ValueError("
        '"Expected input batch_size (32) to match target batch_size (31)")\n'
        "    loss.backward()\n",
    )
)
OTHER_MODEL = TRAIN.replace("WIDTH", "2 + (os.environ['GOSSIP_PEER'] == '2')")
OTHER_OPTIMIZER = """\
import torch
import gossip

peer = gossip.init()
model = torch.nn.Linear(4, 2)
prepared = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = torch.optim.AdamW(model.parameters())
peer.prepare(model, prepared)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(32, 4)).square().mean().backward()
    optimizer.step()
peer.close()
"""
WAITS = """\
open("over").read()  # until somebody writes
"""
DENIED = """\
#!/bin/sh
echo "nodeb: Permission denied (publickey)." >&2
exit 255
"""


@dataclass
class Desk:
    """Where mistakes are made."""

    folder: Path
    said: list[str] = field(default_factory=list)
    cpu_s: float = 0.0

    def gossip(
        self,
        words: str,
        *,
        only: Callable[[str], bool] = lambda line: True,
        start: Callable[..., Any] = SHELL,
    ) -> None:
        """Runs the command and notes what it says.

        Args:
            only: Lines of it; those further in belong to the line before them.
            start: ``zygote.run`` where peers have to train until they can say it;
                ``subprocess.run`` where the command is also started anew in `make test`.
        """
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = start(
            [*PYTHON, *shlex.split(words)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_s += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        told, wanted = [], True
        for line in (done.stdout + done.stderr).splitlines():
            bare = re.sub(r"^\d\d:\d\d\.\d  ", "", line)
            wanted = wanted if bare.startswith(" ") else only(bare)
            told += [line] if wanted else []
        self.said += [f"$ gossip {words}", *told, f"exit code {done.returncode}"]

    def masked(self) -> str:
        text = "\n".join(self.said) + "\n"
        for pattern, mask in (
            (re.escape(str(self.folder.resolve())), "FOLDER"),
            (re.escape(sys.executable), "PYTHON"),
            (r"(?m)^\d\d:\d\d\.\d ", "TIME "),
            (r"\bpid \d+", "pid PID"),
            (r"(127\.0\.0\.1|\[::1\]):\d+", "127.0.0.1:PORT"),
            (r"--port \d+", "--port PORT"),
            (r"\bup \d+ \w+", "up TIME"),
            (r"\bin \d+ s\b", "in TIME"),
            (r"\(x\d+\)", "(xTIMES)"),
            (r"yours is [0-9a-f-]+", "yours is KEY"),
            (
                r"hint: (--advertise \w+; it has .*|this machine has no address that .*)\. For",
                "hint: ADDRESSES. For",
            ),
            (r"python \d.* free$", "VERSIONS"),
            (r"layout [0-9a-f]{8}", "layout DIGEST"),
        ):
            text = re.sub(pattern, mask, text, flags=re.MULTILINE)
        return text


Mistake = Callable[[Desk], None]


def nobody_answers(desk: Desk) -> None:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))  # and nobody listens
        words = f"join --timeout 0.5 127.0.0.1:{end.getsockname()[1]} -- train.py"
        desk.gossip(words, start=subprocess.run)


def loopback_for_others(desk: Desk) -> None:
    desk.gossip("run --room 8 --advertise lo train.py")
    desk.gossip("run --room 8 --advertise localhost train.py")


def taken_port(desk: Desk) -> None:
    run = desk.folder / "runs" / "digits-0a1b"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"name": run.name}))
    with socket.socket() as end, (run / "events.jsonl").open("a"):  # as a launcher has it open
        end.bind(("127.0.0.1", 0))
        end.listen()
        desk.gossip(f"run --port {end.getsockname()[1]} --run-dir mine train.py")
    assert not (desk.folder / "mine").exists()


def script_raises(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(RAISES)
    desk.gossip(
        "run -n 2 --name digits train.py",
        only=lambda line: line.startswith("x peer 1 failed"),
        start=zygote.run,
    )


def other_model(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(OTHER_MODEL)
    desk.gossip(
        "run -n 3 --name digits train.py",
        only=lambda line: line.startswith("x peer 2 failed"),
        start=zygote.run,
    )


def wrong_key(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(WAITS)
    os.mkfifo(desk.folder / "over")
    desk.gossip("keygen wrong.key", only=lambda line: False)
    desk.said.clear()
    words = shlex.split("run -n 1 --keys --room 2 --aggregator mean --run-dir run train.py")
    with zygote.Popen([*PYTHON, *words], cwd=desk.folder, stdout=subprocess.DEVNULL) as process:
        try:
            with following(desk.folder / "run") as written:
                join_servers = written.until(
                    lambda: written.rows("events.jsonl", "join_server"), "a door", 100, process.pid
                )
            desk.gossip(f"join --key wrong.key {join_servers[0]['address']} -- train.py")
        finally:
            process.kill()


def other_optimizer(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(OTHER_OPTIMIZER)
    desk.gossip("run -n 1 train.py", only=lambda line: "Warning" in line, start=zygote.run)


def unknown_rule(desk: Desk) -> None:
    desk.gossip("run --aggregator trimed-mean train.py")
    desk.gossip("run -n 4 --aggregator krum -f 2 train.py")


def no_way_by_ssh(desk: Desk) -> None:
    (desk.folder / "ssh").write_text(DENIED)
    (desk.folder / "ssh").chmod(0o755)
    desk.gossip("hosts -H localhost,nodeb --ssh ./ssh train.py")


def damaged_run(desk: Desk) -> None:
    run = desk.folder / "runs" / "digits-0a1b"
    run.mkdir(parents=True)
    (run / "config.json").write_text('{\n "name": "digits-0a1b",\n "peers"')
    desk.gossip("join digits-0a1b")


MISTAKES: tuple[tuple[Mistake, int], ...] = (
    (nobody_answers, 1),
    (loopback_for_others, 1),
    (taken_port, 1),
    (script_raises, 2),
    (other_model, 2),
    (wrong_key, 1),
    (other_optimizer, 2),
    (unknown_rule, 2),
    (no_way_by_ssh, 1),
    (damaged_run, 1),
)
"""With how many processors' time each may take: 2 where peers train, or the command is given twice
and reads the rules."""


@pytest.mark.parametrize(
    ("number", "mistake", "processors"), [(at, *entry) for at, entry in enumerate(MISTAKES, 1)]
)
def test_a_usual_mistake_is_told_with_what_to_do(
    number: int, mistake: Mistake, processors: int, tmp_path: Path
) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN.replace("WIDTH", "2"))
    mistake(desk)
    path = GOLDEN / f"{number:02}-{mistake.__name__.replace('_', '-')}.txt"
    if RENEW:
        path.write_text(desk.masked(), "utf-8")
    assert desk.masked() == path.read_text("utf-8"), (
        f"if it should say that: RENEW_GOLDEN=1 pytest {Path(__file__).name}"
    )
    assert desk.cpu_s < SECONDS * processors


def test_each_message_is_of_a_mistake_that_is_made_here() -> None:
    made = {
        f"{at:02}-{mistake.__name__.replace('_', '-')}.txt"
        for at, (mistake, _) in enumerate(MISTAKES, 1)
    }
    assert {path.name for path in GOLDEN.iterdir()} == made
