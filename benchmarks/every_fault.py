"""A run to which everything happens, for readers of its report who were not told.

    python benchmarks/every_fault.py --into drawn --seed 7
    gossip report drawn/runs/first          # find each fault, its time and its effect
    gossip top drawn/runs/first --once      # the same, from this alone
    cat drawn/truth.json                    # what was drawn; afterwards

Two of eight peers lie, a server is killed while it serves, a peer hangs, the network is cut in two,
a peer is killed and comes back, and at the end all processes are killed and the same command goes
on from a checkpoint. Who, in which order and when is drawn, and not shown. With ``--unplanned``
gossip is not told either: the script of two peers lies, and signals come from outside. Two minutes;
what is written to TensorBoard is read with ``tensorboard --logdir drawn/runs``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whole_runs import GOSSIP, HERE, end_all, environment, folder

from gossip.run import node_in

PEERS, F = 8, 2
TRAIN = HERE / "every_fault_train.py"
FIRST_S, APART_S, JITTER_S = 8.0, 8.0, 2.0
"""When the first fault comes, and how far from each other they are: each can be seen alone."""
LIES = ("sign_flip:{}*10", "scale:{}*100", "gaussian:{}*50", "random_direction:{}*20")
START_S, END_S = 300.0, 300.0
LOOK_S = 0.02


@dataclass
class Story:
    """Events of a run, in seconds since training began.

    Attributes:
        liars: Two peers.
        lies: Faults of the plan that make them lie; empty if their script lies itself.
        planned: The other faults of the plan.
        signals: Peer, moment, name of the signal and, for SIGSTOP, seconds until SIGCONT.
        killed_at_s: Moment at which every process is killed.
    """

    liars: tuple[int, ...]
    lies: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    signals: tuple[tuple[int, float, str, float], ...] = ()
    killed_at_s: float = 0.0


def drawn(seed: int, unplanned: bool) -> Story:
    """The story of a seed."""
    draw = random.Random(seed)
    peers = draw.sample(range(PEERS), PEERS)
    liars, hung, reborn = tuple(sorted(peers[:2])), peers[2], peers[3]
    kinds = draw.sample(LIES, 2)
    cut_off = draw.sample(peers[4:], 2)
    events = ["server", "hang", "partition", "rebirth"]
    while events.index("server") < max(events.index("hang"), events.index("rebirth")):
        draw.shuffle(events)  # a server that is dead could be neither of those two
    starts = (FIRST_S + APART_S * at + draw.uniform(0, JITTER_S) for at in range(len(events)))
    moments = {event: round(at, 1) for event, at in zip(events, starts, strict=True)}
    hung_s, cut_s, away_s = (round(draw.uniform(2, 4), 1) for _ in range(3))
    rest = [peer for peer in range(PEERS) if peer not in cut_off]
    sides = "|".join(",".join(map(str, sorted(side))) for side in (cut_off, rest))
    planned = [
        f"crash:server@{moments['server']}s",
        f"partition:{sides}@{moments['partition']}s+{cut_s}s",
    ]
    blows = [
        f"hang:{hung}@{moments['hang']}s+{hung_s}s",
        f"restart:{reborn}@{moments['rebirth']}s+{away_s}s",
    ]
    signals = (
        (hung, moments["hang"], "SIGSTOP", hung_s),
        (reborn, moments["rebirth"], "SIGKILL", 0.0),
    )
    killed_at_s = round(FIRST_S + APART_S * len(events) + draw.uniform(0, 4), 1)
    if unplanned:
        return Story(liars, (), tuple(planned), signals, killed_at_s)
    lies = tuple(kind.format(liar) for kind, liar in zip(kinds, liars, strict=True))
    return Story(liars, lies, (*planned, *blows), (), killed_at_s)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of what happens")
    parser.add_argument("--into", type=Path, help="folder of the two runs and of truth.json")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--unplanned", action="store_true", help="gossip is told of less")
    parser.add_argument("--track", choices=["tensorboard"], help="as `gossip run` has it")
    options = parser.parse_args()
    with folder(options.into and options.into.resolve()) as into:
        story = drawn(options.seed, options.unplanned)
        running = [start(options, into, "first", story, [*story.lies, *story.planned])]
        try:
            play(running[0], into / "runs" / "first", story)
            running.append(start(options, into, "second", story, story.lies))
            code = running[1].wait(END_S)
        finally:
            end_all([each for each in running if each.poll() is None])
        (into / "truth.json").write_text(json.dumps(asdict(story), indent=1) + "\n")
    return code


def start(
    options: argparse.Namespace, into: Path, name: str, story: Story, faults: Sequence[str]
) -> subprocess.Popen[bytes]:
    """One ``gossip run``; what it writes goes to a file."""
    runs, saved = into / "runs", into / "ckpt"
    words = ["-n", str(PEERS), "-f", str(F), "--seed", "1", "--run-dir", str(runs / name)]
    words += ["--resume", "auto", "--restarts", "5"]
    words += ["--track", options.track] if options.track else []
    words += [word for fault in faults for word in ("--fault", fault)]
    liars = "" if story.lies else ",".join(map(str, story.liars))
    with (into / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*GOSSIP, "run", *words, str(TRAIN), str(options.steps), str(saved)],
            cwd=into,
            env=environment(DRAWN_LIARS=liars),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def play(launcher: subprocess.Popen[bytes], run: Path, story: Story) -> None:
    """Sends the signals, and kills all at the end."""
    began = training_began(launcher, run)
    moments = [(at, signal.Signals[name], peer) for peer, at, name, _ in story.signals]
    moments += [
        (at + for_s, signal.SIGCONT, peer) for peer, at, name, for_s in story.signals if for_s
    ]
    for at, sent, peer in sorted(moments):
        wait_until(launcher, began + at)
        for pid in processes_of(run, peer):
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
    wait_until(launcher, began + story.killed_at_s)
    everybody = [pid for peer in range(PEERS) for pid in processes_of(run, peer)]
    for pid in (launcher.pid, *everybody):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    launcher.wait()


def training_began(launcher: subprocess.Popen[bytes], run: Path) -> float:
    """The monotonic time at which somebody told of a first round."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and launcher.poll() is None:
        for event in events(run):
            if event.get("event") == "round":
                return float(event["t"])
        time.sleep(LOOK_S)
    sys.exit(f"no round was done within {START_S:.0f} s: see {run.name}.log")


def events(run: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the events that peers have reported so far, without a line that is being written."""
    for path in run.glob("peer-*/events.jsonl"):
        for line in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                yield json.loads(line)


def wait_until(launcher: subprocess.Popen[bytes], moment: float) -> None:
    while time.monotonic() < moment:
        if launcher.poll() is not None:
            sys.exit(f"the run ended with {launcher.returncode} before all had happened")
        time.sleep(LOOK_S)


def processes_of(run: Path, peer: int) -> list[int]:
    """Node and trainer of a peer, as its node has written them down; none where that has ended:
    another process may have its number."""
    folder = run / f"peer-{peer}"
    node = node_in(folder)
    if node is None or not node.alive:
        return []
    return [node.pid, int(json.loads((folder / "peer.json").read_text())["trainer_pid"])]


if __name__ == "__main__":
    sys.exit(main())
