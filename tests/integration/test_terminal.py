"""``gossip run`` on a real terminal of 80 columns, as a new user sees it."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import zygote
from terminal import Terminal

WIDTH, HEIGHT = 80, 30
FRAME = 9  # five lines, the head of the table, two peers, and the cursor
SCRIPT = """
import torch
import gossip

peer = gossip.init()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = peer.prepare(model, optimizer)
for step in peer.steps(1_000_000, save="ckpt"):
    optimizer.zero_grad()
    loss = (model(torch.randn(8, 4)) - torch.randn(8, 2)).square().mean()
    loss.backward()
    peer.log(loss=loss.item())
    optimizer.step()
    if step == 5:
        print("all write this", flush=True)
        print(f"own line of {peer.id}: " + "long " * 30, flush=True)
"""


class Pty:
    """A terminal with a process on it.

    Attributes:
        screen: What is to be seen.
    """

    def __init__(self, words: list[str], folder: Path) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.screen = Terminal(WIDTH, HEIGHT)
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        self.process = zygote.Popen(words, cwd=folder, env=environment, **streams)
        self._slave = slave

    def until(self, seen: Callable[[], bool], what: str, within_s: float = 100.0) -> None:
        over = time.monotonic() + within_s
        while not seen():
            ready, _, _ = select.select([self._master], [], [], over - time.monotonic())
            assert ready, f"{what} is not there:\n{self.screen.text}"
            self.screen.feed(os.read(self._master, 65536).decode("utf-8", "replace"))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    @property
    def after(self) -> list[object]:
        return termios.tcgetattr(self._slave)


def test_a_new_user_sees_what_runs_how_far_it_is_if_it_is_well_and_where_the_model_will_be(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "gossip.launch.cli", "run", "-n", "2", "--aggregator", "mean"]
    terminal = Pty([*words, "train.py"], tmp_path)
    screen = terminal.screen
    try:
        terminal.until(
            lambda: "step " in screen.text and "files: " in screen.text, "the first step"
        )
        terminal.until(lambda: "2 of 2 peers train" in screen.text, "both peers")
        bottom = screen.lines[-FRAME:]
        for fact in (
            "2 peers, rolling, mean",
            "/1000000",
            "healthy: 2 of 2 peers train",
            "model: ckpt, at the end",
            "files: runs/train-",
        ):
            assert any(fact in line for line in bottom), f"{fact}:\n{screen.text}"
        own = [f"{peer}| own line of {peer}: " for peer in (0, 1)]
        terminal.until(lambda: all(line in screen.text for line in own), "each peer's own line")
        terminal.until(lambda: any("loss " in line for line in screen.lines[-FRAME:]), "the loss")
        # once, unless one of them was HOLD_S later than the other
        alike = [line for line in screen.lines if line.endswith("| all write this")]
        assert alike in (["all| all write this"], [f"{p}| all write this" for p in (0, 1)])
        terminal.process.send_signal(signal.SIGINT)
        terminal.until(lambda: "--resume auto" in "".join(screen.lines[-3:]), "the end")
        assert any(line.endswith("summary.json") for line in screen.lines[-4:])
        terminal.process.wait()
        assert terminal.after == terminal.before
    finally:
        terminal.close()
    assert screen.modes == []
    assert screen.cursor[1] == 0
    # only what a peer writes may be longer
    assert all("own line" in line or "long" in line for line in screen.broken)
    assert screen.text.count("files: ") == 1
