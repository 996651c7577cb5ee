"""A peer without gossip in it: speaks the launcher's status channel, has a node process and a
worker as real ones do.

    launch_fake_peer.py MODE

The node is a child that holds the status socket too and leaves when its trainer is gone, unless the
mode says otherwise.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

PEER = int(os.environ["GOSSIP_PEER"])
INCARNATION = int(os.environ["GOSSIP_INCARNATION"])
STATUS = socket.socket(fileno=int(os.environ["GOSSIP_STATUS_FD"]))
ROUNDS = 5


def tell(event: str, **fields: object) -> None:
    row = {"t": time.monotonic(), "wall": time.time(), "peer": PEER, "event": event, **fields}
    STATUS.sendall(json.dumps(row).encode() + b"\n")


def start_node(stubborn: bool) -> subprocess.Popen[bytes]:
    """Lives until its stdin ends, that is as long as its trainer; a stubborn one lives for ever."""
    code = "import sys, time\nsys.stdin.read()\n" + ("time.sleep(3600)" if stubborn else "")
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=(STATUS.fileno(),)
    )


def wait_for(name: str) -> None:
    """Until the test makes such a file in the run folder."""
    while not os.path.exists(os.path.join(os.environ["GOSSIP_RUN_DIR"], name)):
        time.sleep(0.01)


def leave_when_the_launcher_goes() -> None:
    def watch() -> None:
        poll = select.poll()
        poll.register(STATUS, select.POLLRDHUP | select.POLLHUP)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    mode = sys.argv[1]
    mine = (
        mode.removesuffix(f"@{PEER}")
        if mode.endswith(f"@{PEER}")
        else mode
        if "@" not in mode
        else "finish"
    )
    before_the_node(mode, mine)
    node = start_node(stubborn=mine in ("stubborn", "orphans", "node-stays"))
    tell(
        "started",
        pid=node.pid,
        trainer_pid=os.getpid(),
        incarnation=INCARNATION,
        control="",
        bulk="",
    )
    before_ready(mode, mine)
    tell("ready", present=[PEER])
    if mode.startswith("raise-ready"):
        raise ValueError("after peer.prepare")
    print(f"hello from {PEER}.{INCARNATION}", flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    tell(
        "round",
        round=1,
        loss=2.0,
        server=0,
        attempt=0,
        alive=4,
        contributors=[0, 1, 2, 3],
        trust={"0": 1.0},
    )
    if mine == "grandchild":
        child = subprocess.Popen(["sleep", "3600"])
        Path(os.environ["GOSSIP_RUN_DIR"], f"child-{PEER}").write_text(str(child.pid))
    if mine == "raise":
        raise ValueError(
            f"Expected input batch_size (32) to match target batch_size (31) in {PEER}"
        )
    is_struck(mine)
    ends_early(mine)
    if mine in ("polite", "stubborn", "stopped", "workers", "orphans"):
        goes_on(mine)
    if mode.startswith(("late", "restart", "dies-")) and mine == "finish":
        wait_for("go")
    tell(
        "halted",
        reason="finished",
        exit_code=0,
        round=ROUNDS,
        traffic={"sent_bytes": 100, "received_bytes": 1},
    )


def before_the_node(mode: str, mine: str) -> None:
    if mine == "never-starts":
        time.sleep(3600)
    if mine == "late-silent" and INCARNATION > 0:
        time.sleep(3600)
    if mine == "raise-early":
        raise ImportError("no module named pickles")
    if mode.startswith("raise-early-all-but-") and not mode.endswith(f"-{PEER}"):
        raise ImportError("no module named pickles")


ASKED = signal.SIGTERM, signal.SIGINT
"""What a launcher asks a peer to leave with, the second after Ctrl-C."""


def before_ready(mode: str, mine: str) -> None:
    if mine in ("late", "late-deaf") and INCARNATION > 0:
        leaves = (lambda *_: sys.exit(143)) if mine == "late" else signal.SIG_IGN
        signal.signal(signal.SIGTERM, leaves)
        time.sleep(3600)
    if mode.endswith(f"-all-but-{PEER}"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        leave_when_the_launcher_goes()
        time.sleep(3600)
    if mine in ("polite", "asleep"):  # before others know of it: whoever does may end it at once
        for number in ASKED:
            signal.signal(number, lambda *_: sys.exit(0))
    elif mine in ("stubborn", "stopped", "workers", "orphans"):
        for number in ASKED:
            signal.signal(number, signal.SIG_IGN)


def is_struck(mine: str) -> None:
    """By the fault that the plan has for it."""
    if mine == "restart-when-told" and INCARNATION == 0:
        wait_for("strike")
    again = mine in ("restart", "restart-when-told", "late", "late-silent", "late-deaf")
    if (mine == "crash" or again) and INCARNATION == 0:
        how = {"fault": f"restart:{PEER}@1+100ms", "seconds": 0.1} if again else {}
        tell("fault", kind="restart" if again else "crash", round=1, **how)
        os.killpg(os.getpgrp(), signal.SIGKILL)
    if mine == "hang":
        tell("fault", kind="hang", round=1, seconds=0.2)
        os.killpg(os.getpgrp(), signal.SIGSTOP)
        tell(
            "round",
            round=2,
            loss=1.0,
            server=0,
            attempt=0,
            alive=4,
            contributors=[0, 1, 2, 3],
            trust={},
        )
    if mine == "oversleeps":
        tell("fault", kind="hang", round=1, seconds=0.5)
        os.killpg(os.getpgrp(), signal.SIGSTOP)
        tell("halted", reason="quorum lost: 1 peer is left", exit_code=5, round=1)
        sys.exit(5)


def ends_early(mine: str) -> None:
    if mine == "dies-always" or (mine == "dies-once" and INCARNATION == 0):
        raise ValueError("no luck")
    if mine == "dies-of-crash" and INCARNATION == 0:
        tell("fault", kind="crash", round=1)
        os.killpg(os.getpgrp(), signal.SIGKILL)
    if mine == "dies-by-segv" and INCARNATION == 0:
        print("Fatal Python error: a library", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if mine.startswith("dies-with-"):
        sys.exit(int(mine.rsplit("-", 1)[1]))
    if mine == "killed":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    if mine == "trainer-dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if mine == "quorum":
        tell("halted", reason="quorum lost", exit_code=5, round=1)
        sys.exit(1)
    if mine == "asleep":
        os.killpg(os.getpgrp(), signal.SIGSTOP)
        time.sleep(3600)


def goes_on(mine: str) -> None:
    """Until it is told to leave, or killed."""
    if mine == "polite":
        leave_when_the_launcher_goes()
    if mine == "workers":
        # As a DataLoader's workers do: forked, holding everything their parent holds, deaf to
        # the status channel.
        for _ in range(2):
            if os.fork() == 0:
                time.sleep(3600)
        leave_when_the_launcher_goes()
    if mine == "orphans" and os.fork() == 0:
        os.setsid()
        time.sleep(3600)
    tell("metrics", loss=1.0, accuracy=0.5)
    if mine == "stopped":
        os.killpg(os.getpgrp(), signal.SIGSTOP)
    time.sleep(3600)


if __name__ == "__main__":
    main()
