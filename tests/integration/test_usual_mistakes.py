"""26 usual mistakes, really made with the command: message, hint and exit code stand in
``usual_mistakes/``, a file for each. Then the hint is followed, and has to work.

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
import shown_commands
import zygote
from code_blocks import ROOT
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
NO_STEP = TRAIN.replace("while peer.round < 20:", "for _ in range(3):").replace(
    "    optimizer.step()\n", ""
)
NO_GPU = TRAIN.replace("import torch\n", 'os.environ["CUDA_VISIBLE_DEVICES"] = ""\nimport torch\n')
HAS_OPTION = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
print(parser.parse_args())
"""
EQUAL_DATA = """\
import torch
import gossip

peer = gossip.init()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = peer.prepare(model, optimizer)
data = torch.utils.data.TensorDataset(torch.linspace(0, 1, 4096).reshape(1024, 4))
loader = torch.utils.data.DataLoader(data, batch_size=32)
for epoch in range(1):
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
peer.close()
"""
OLD_PYTHON = """\
#!/bin/sh
exec PYTHON -c 'import sys
sys.version_info, sys.version = (3, 9, 18), "3.9.18 (main)"
exec(sys.argv[1])' "$2"
"""
NOT_THERE = """\
raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")
"""
WAITS = """\
open("over").read()  # until somebody writes
"""
DENIED = """\
#!/bin/sh
echo "nodeb: Permission denied (publickey)." >&2
exit 255
"""
ALLOWED = """\
#!/bin/sh
for command; do :; done
exec sh -c "$command"
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
        told = [line.replace("python -m gossip.launch.cli", "gossip") for line in told]
        self.said += [f"$ gossip {words}", *told, f"exit code {done.returncode}"]

    def hinted(self, pattern: str) -> tuple[str, ...]:
        """Return the groups of ``pattern`` in what was said last; it has to be there."""
        found = re.search(pattern, "\n".join(self.said), re.MULTILINE)
        assert found is not None, f"{pattern} in {self.said}"
        return found.groups()

    def follow(self, words: str, *, code: int = 0) -> str:
        """Run a command of a hint; it has to end with ``code``. Returns what it says."""
        done = zygote.run(
            [*PYTHON, *shlex.split(words)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=200,
        )
        said = str(done.stdout + done.stderr)
        assert done.returncode == code, f"gossip {words}: {said}"
        return said

    def follow_script(self, script: str, words: str) -> str:
        """Write the script as the hint says and train with it."""
        (self.folder / "train.py").write_text(script)
        said = self.follow(words)
        assert " failed " not in said, said
        return said

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
                r"hint: (--advertise \w+; it has .*|this machine has no address that .*)\. If all",
                "hint: ADDRESSES. If all",
            ),
            (r"python \d.* free$", "VERSIONS"),
            (r"layout [0-9a-f]{8}", "layout DIGEST"),
            (r"and \d+ more", "and MORE"),
            (
                r"\w+: (Torch not compiled with CUDA enabled|Found no NVIDIA .*|No CUDA GPUs .*)",
                "NO GPU",
            ),
        ):
            text = re.sub(pattern, mask, text, flags=re.MULTILINE)
        return text


Mistake = Callable[[Desk], None]


def nobody_answers(desk: Desk) -> None:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))  # and nobody listens
        words = f"join --timeout 0.5 127.0.0.1:{end.getsockname()[1]} -- train.py"
        desk.gossip(words, start=subprocess.run)
        (command,) = desk.hinted(r"Try: (gossip doctor .*)$")
        assert "nothing listens" in desk.follow(command.removeprefix("gossip "), code=1)


def loopback_for_others(desk: Desk) -> None:
    desk.gossip("run --room 8 --advertise lo train.py")
    desk.gossip("run --room 8 --advertise localhost train.py")
    desk.hinted("If all peers run on this machine, (leave it out)")
    desk.follow("run -n 1 --room 8 train.py")


def taken_port(desk: Desk) -> None:
    run = desk.folder / "runs" / "digits-0a1b"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"name": run.name}))
    with socket.socket() as end, (run / "events.jsonl").open("a"):  # as a launcher has it open
        end.bind(("127.0.0.1", 0))
        end.listen()
        desk.gossip(f"run --port {end.getsockname()[1]} --run-dir mine train.py")
        desk.hinted("hint: (leave the port out)")
        assert not (desk.folder / "mine").exists()
        desk.follow("run -n 1 --run-dir mine train.py")
        assert "digits-0a1b" in desk.follow("ls")


def script_raises(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(RAISES)
    desk.gossip(
        "run -n 2 --name digits train.py",
        only=lambda line: line.startswith("x peer 1 failed"),
        start=zygote.run,
    )
    (log,) = desk.hinted("log: (.*)$")
    assert "Expected input batch_size" in Path(log).read_text()


def other_model(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(OTHER_MODEL)
    desk.gossip(
        "run -n 3 --name digits train.py",
        only=lambda line: line.startswith("x peer 2 failed"),
        start=zygote.run,
    )
    desk.hinted("(all peers must build the same model)")
    desk.follow_script(TRAIN.replace("WIDTH", "2"), "run -n 3 train.py")


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
            address = join_servers[0]["address"]
            desk.gossip(f"join --key wrong.key {address} -- train.py")
            desk.hinted("copy runs/NAME/(swarm.key)")
            said = desk.follow(f"doctor --to {address} --key run/swarm.key")
            assert "belongs to run" in " ".join(said.split())
        finally:
            process.kill()


def other_optimizer(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(OTHER_OPTIMIZER)
    desk.gossip("run -n 1 train.py", only=lambda line: "Warning" in line, start=zygote.run)
    (line,) = desk.hinted(r"write (model, optimizer = peer.prepare\(model, optimizer\))")
    right = OTHER_OPTIMIZER.replace("peer.prepare(model, prepared)", line)
    assert "Warning" not in desk.follow_script(right, "run -n 1 train.py")


def unknown_rule(desk: Desk) -> None:
    desk.gossip("run --aggregator trimed-mean train.py")
    (rule,) = desk.hinted("Did you mean '(.*)'")
    desk.follow(f"run --aggregator {rule} --show-config train.py")
    desk.gossip("run -n 4 --aggregator krum -f 2 train.py")
    peers, f = desk.hinted(r"start at least (\d+) peers, or use -f (\d+)")
    desk.follow(f"run -n {peers} --aggregator krum -f 2 --show-config train.py")
    desk.follow(f"run -n 4 --aggregator krum -f {f} --show-config train.py")


def no_way_by_ssh(desk: Desk) -> None:
    (desk.folder / "ssh").write_text(DENIED)
    (desk.folder / "ssh").chmod(0o755)
    desk.gossip("hosts -H localhost,nodeb --ssh ./ssh train.py")
    desk.hinted("(ssh nodeb true)")
    (desk.folder / "ssh").write_text(ALLOWED)
    assert "ok    nodeb" in desk.follow("hosts -H localhost,nodeb --ssh ./ssh --check train.py")


def damaged_run(desk: Desk) -> None:
    run = desk.folder / "runs" / "digits-0a1b"
    run.mkdir(parents=True)
    (run / "config.json").write_text('{\n "name": "digits-0a1b",\n "peers"')
    desk.gossip("join digits-0a1b")


def mistyped_command(desk: Desk) -> None:
    desk.gossip("rnu -n 1 train.py")
    (command,) = desk.hinted("Did you mean '(.*)'")
    desk.follow(f"{command} -n 1 train.py")
    desk.gossip("kill 1")
    option, fault = desk.hinted(r"gossip run (--fault) (\S+) ")
    desk.follow(f"run -n 4 {option} {fault} --show-config train.py")


def no_command(desk: Desk) -> None:
    for words in ("train.py", "-n 1 train.py"):
        desk.gossip(words)
        (command,) = desk.hinted(f"gossip (run {words})$")
        desk.follow(command.replace("run", "run --show-config"))


def script_options_first(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(HAS_OPTION)
    desk.gossip("run -n 1 --lr 0.1 train.py")
    (command,) = desk.hinted("after the script: gossip (.*)$")
    assert "Namespace(lr=0.1)" in desk.follow(command)
    desk.gossip("hosts -H nodea,nodeb:2 -- --seed 7 train.py")
    (command,) = desk.hinted("hint: gossip (hosts .*)$")
    desk.follow(command.replace("hosts", "hosts --show-config"))


def own_options_last(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(HAS_OPTION)
    desk.gossip(
        "run -n 1 --name digits train.py --seed 7",
        only=lambda line: line.startswith("x peer 0 ended"),
        start=zygote.run,
    )
    desk.hinted("options of gossip (go before it)")
    desk.follow("run -n 1 --seed 7 train.py")


def mistyped_script(desk: Desk) -> None:
    desk.gossip("run trian.py")
    (script,) = desk.hinted(r"did you mean (.*)\?$")
    desk.follow(f"run -n 1 {script}")


def other_folder(desk: Desk) -> None:
    (desk.folder / "away").mkdir()
    desk.gossip("run away/train.py")
    desk.hinted("(go to your script's folder)")
    desk.follow("run -n 1 train.py")


def wrong_number(desk: Desk) -> None:
    desk.gossip("run -n 0 train.py")
    desk.gossip("run -n four train.py")
    (command,) = desk.hinted("hint: gossip (.*)$")
    assert "How many peers to start" in desk.follow(command)


def unknown_topology(desk: Desk) -> None:
    desk.gossip("run --topology rimg train.py")
    (topology,) = desk.hinted("Did you mean '(.*)'")
    desk.follow(f"run --topology {topology} --show-config train.py")


def unknown_fault(desk: Desk) -> None:
    desk.gossip("run --fault crush:3@50 train.py")
    (fault,) = desk.hinted("Did you mean '(.*)'")
    desk.gossip("run --fault crash:9@50 train.py")
    (last,) = desk.hinted(r"numbered 0 to (\d+)")
    desk.follow(f"run --fault {fault}:{last}@50 --show-config train.py")
    desk.gossip("run --fault signflip:3 train.py")
    (fault,) = desk.hinted("Did you mean '(sign.*)'")
    desk.follow(f"run --fault {fault}:3 --show-config train.py")


def unknown_run(desk: Desk) -> None:
    run = desk.folder / "runs" / "digits-0a1b"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"name": run.name}))
    desk.gossip("explain digits")
    (command,) = desk.hinted("gossip (ls)$")
    assert "digits-0a1b" in desk.follow(command)
    desk.follow("explain digits-0a1b")


def no_step(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(NO_STEP.replace("WIDTH", "2"))
    desk.gossip(
        "run -n 2 train.py", only=lambda line: line.startswith("! no round"), start=zygote.run
    )
    desk.hinted(r"(optimizer\.step\(\)) for each batch")
    said = desk.follow_script(TRAIN.replace("WIDTH", "2"), "run -n 2 train.py")
    assert "finished after 20 rounds" in said


def no_gpu(desk: Desk) -> None:
    script = NO_GPU.replace("WIDTH)", '2).to("cuda")')
    (desk.folder / "train.py").write_text(script)
    desk.gossip(
        "run -n 1 --name digits train.py",
        only=lambda line: line.startswith("x peer 0 failed"),
        start=zygote.run,
    )
    (device,) = desk.hinted(r"(peer\.device)")
    desk.follow_script(script.replace('"cuda"', device), "run -n 1 train.py")


def equal_batches(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(EQUAL_DATA)
    desk.gossip(
        "run -n 3 train.py", only=lambda line: line.startswith("! the updates"), start=zygote.run
    )
    (call,) = desk.hinted(r"Read data through (peer\.shard\(loader\))")
    right = EQUAL_DATA.replace("for epoch", f"loader = {call}\nfor epoch")
    assert "bit-identical" not in desk.follow_script(right, "run -n 3 train.py")


def lacking_extra(desk: Desk) -> None:
    (desk.folder / "jinja2.py").write_text(NOT_THERE)
    (desk.folder / "runs" / "digits-0a1b").mkdir(parents=True)
    (desk.folder / "runs" / "digits-0a1b" / "config.json").write_text("{}")
    desk.gossip("report digits-0a1b", start=subprocess.run)
    (command,) = desk.hinted("hint: (pip install .*)$")
    assert shown_commands.complaint(command) == ""


def old_python(desk: Desk) -> None:
    python = desk.folder / "python3.9"
    python.write_text(OLD_PYTHON.replace("PYTHON", sys.executable))
    python.chmod(0o755)
    words = ["venv", f"PYTHON={python}", f"VENV={desk.folder}/venv"]
    # The flags of a make that runs the tests are not for this one.
    flags = {"MAKEFLAGS": "", "MAKELEVEL": "0", "MFLAGS": ""}
    done = subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT), *words],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    desk.said += ["$ make venv PYTHON=python3.9", *done.stderr.splitlines()[:1]]
    desk.said += [f"exit code {done.returncode}"]
    (command,) = desk.hinted(r"(make PYTHON=python3\.12 )\.\.\.")
    assert shown_commands.complaint(f"{command}venv") == ""
    assert not (desk.folder / "venv").exists()


def no_backward(desk: Desk) -> None:
    script = TRAIN.replace("WIDTH", "2")
    (desk.folder / "train.py").write_text(script.replace("    loss.backward()\n", ""))
    desk.gossip("run -n 1 train.py", only=lambda line: "Warning" in line, start=zygote.run)
    (call,) = desk.hinted(r"call (loss\.backward\(\)) between")
    right = script.replace("loss.backward()", call)
    assert "Warning" not in desk.follow_script(right, "run -n 1 train.py")


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
    (mistyped_command, 1),
    (no_command, 1),
    (script_options_first, 1),
    (own_options_last, 2),
    (mistyped_script, 1),
    (other_folder, 1),
    (wrong_number, 1),
    (unknown_topology, 1),
    (unknown_fault, 1),
    (unknown_run, 1),
    (no_step, 2),
    (no_gpu, 2),
    (equal_batches, 2),
    (lacking_extra, 1),
    (old_python, 1),
    (no_backward, 2),
)
"""With how many processors' time each may take: 2 where peers train, or the command is given twice
and reads the rules."""


@pytest.mark.parametrize(
    ("number", "mistake", "processors"), [(at, *entry) for at, entry in enumerate(MISTAKES, 1)]
)
def test_a_usual_mistake_is_reported_with_a_hint_that_works(
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
