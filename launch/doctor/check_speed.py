"""Measurements of ``gossip doctor``: bytes between two processes, and the effect of threads on a
small model.

    python -m gossip.launch.doctor.check_speed send ADDRESS
    python -m gossip.launch.doctor.check_speed threads

The process that measures threads imports torch, reports that, and waits for the order to measure.
So the slowest step starts first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from gossip.interpreter import python_command
from gossip.launch.report import counted

from .findings import Finding

SENT_BYTES = 16 * 2**20
CHUNK_BYTES = 256 * 1024
PATIENCE_S = 10.0
# to import torch takes a second, or a minute where nothing of it is in memory and
# the machine is busy
TORCH_S = 120.0
MEASURE_S = 0.25
STEPS_MAX = 500
SLOWER = 1.5
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY")


def _command(*words: str) -> list[str]:
    return python_command("-m", "gossip.launch.doctor.check_speed", *words)


def loopback() -> list[Finding]:
    """Sends some MiB from another process over loopback, by sockets like those of peers."""
    import zmq

    from gossip.transport import bind, new_socket

    context: zmq.Context[Any] = zmq.Context()
    end = new_socket(context, zmq.ROUTER, bulk=True)
    sender = None
    try:
        address = bind(end, "127.0.0.1", 0)
        sender = subprocess.Popen(
            _command("send", address), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        received, began, until = 0, 0.0, time.monotonic() + PATIENCE_S
        while received < SENT_BYTES:
            if not end.poll(100):
                if sender.poll() is None and time.monotonic() < until:
                    continue
                return [_silent(received, sender)]
            frames = end.recv_multipart()
            began = began or time.monotonic()
            received += len(frames[-1])
        took_s = max(time.monotonic() - began, 1e-6)
        end.send_multipart([frames[0], b"thanks"])
        sender.wait(PATIENCE_S)
    finally:
        if sender is not None:
            with sender:
                sender.kill()
        context.destroy(0)
    facts = {"bytes": received, "seconds": took_s}
    said = (
        f"2 processes exchanged {received >> 20} MiB in {took_s:.2f} s "
        f"({received / took_s / 2**20:.0f} MiB/s)"
    )
    return [Finding("ok", "loopback", said, facts=facts)]


def _silent(received: int, sender: subprocess.Popen[bytes]) -> Finding:
    sender.kill()
    assert sender.stderr is not None
    said = sender.stderr.read().decode("utf-8", "replace").strip().splitlines()
    why = said[-1] if said else f"nothing more for {PATIENCE_S:.0f} s"
    do = "look for a firewall on the interface lo, or a limit of this container"
    return Finding(
        "fail",
        "loopback",
        f"{received} of {SENT_BYTES} bytes came through between 2 processes: {why}",
        do,
    )


def _send(address: str) -> None:
    import zmq

    from gossip.transport import new_socket

    context: zmq.Context[Any] = zmq.Context()
    end = new_socket(context, zmq.DEALER, bulk=True)
    end.connect(address)
    block = bytes(CHUNK_BYTES)
    for _ in range(SENT_BYTES // CHUNK_BYTES):
        end.send(block)
    end.poll(int(PATIENCE_S * 1000))
    context.destroy(0)


class Threads:
    """Measures in a process of its own, which imports torch from now on."""

    def __init__(self) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in _THREADS[1:]
        }
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            _command("threads"), env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def findings(self) -> list[Finding]:
        """Waits for what it finds."""
        try:
            out, err = self._process.communicate("go\n", timeout=TORCH_S)
            return judge(json.loads(out), os.environ.get("OMP_NUM_THREADS"))
        except subprocess.TimeoutExpired:
            return [
                Finding(
                    "fail",
                    "torch",
                    f"not imported in {TORCH_S:.0f} s",
                    "time python -c 'import torch'",
                )
            ]
        except ValueError:
            last = (
                err.strip().splitlines()
                or [f"it said nothing, exit code {self._process.returncode}"]
            )[-1]
            return [
                Finding(
                    "fail",
                    "torch",
                    f"cannot be used: {last}",
                    "python -c 'import torch' shows all of it",
                )
            ]

    def close(self) -> None:
        with self._process:
            self._process.kill()


def judge(measured: dict[str, Any], wanted: str | None) -> list[Finding]:
    """Compare the steps/s with the default number of threads and with one thread.

    Args:
        measured: ``torch``, ``cuda`` (names of devices), ``threads`` by default, ``cores``;
            ``default`` and ``one``: steps/s.
        wanted: OMP_NUM_THREADS as the user has set it, which ``gossip run`` leaves alone.
    """
    devices = ", ".join(measured["cuda"]) or "CPU only"
    torch = Finding(
        "ok", "torch", f"{measured['torch']}, {devices}", facts={"cuda": measured["cuda"]}
    )
    threads, default, one = measured["threads"], measured["default"], measured["one"]
    facts = {key: measured[key] for key in ("threads", "cores", "default", "one")}
    said = f"a small model makes {default:,.0f} steps/s with {counted(threads, 'thread')}"
    if threads == 1:
        return [
            torch,
            Finding("ok", "threads", f"{said}, as many as gossip gives each peer", facts=facts),
        ]
    said += f", {one:,.0f} with one"
    if wanted is None:
        return [
            torch,
            Finding("ok", "threads", f"{said}: gossip run gives each peer one", facts=facts),
        ]
    if one > SLOWER * default:
        do = f"unset OMP_NUM_THREADS (it is {wanted}): gossip run then gives each peer one"
        return [torch, Finding("warn", "threads", said, do, facts)]
    return [
        torch,
        Finding("ok", "threads", f"{said}: OMP_NUM_THREADS={wanted} is kept", facts=facts),
    ]


def _measure_threads() -> dict[str, Any]:
    import torch

    # what a peer needs beside torch has to be there, too
    from gossip.transport import sockets  # noqa: F401

    default = torch.get_num_threads()
    torch.set_num_threads(1)
    _steps_per_s(3)  # the first ones are slower
    sys.stdin.readline()
    one = _steps_per_s(STEPS_MAX)
    torch.set_num_threads(default)
    many = _steps_per_s(STEPS_MAX) if default > 1 else one
    cuda = (
        [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    cores = len(os.sched_getaffinity(0))
    return {
        "torch": torch.__version__,
        "cuda": cuda,
        "threads": default,
        "cores": cores,
        "default": many,
        "one": one,
    }


def _steps_per_s(steps_max: int) -> float:
    """Return the steps/s of the digits' model: 64-64-10, batches of 32."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    parameters = list(model.parameters())
    inputs, targets = torch.randn(32, 64), torch.zeros(32, dtype=torch.long)
    steps, began = 0, time.monotonic()
    while steps < steps_max and (steps < 3 or time.monotonic() - began < MEASURE_S):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        # by hand: the first optimizer of a process imports for most of a second
        with torch.no_grad():
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(loss, parameters), strict=True
            ):
                parameter.sub_(0.1 * gradient)
        steps += 1
    return steps / max(time.monotonic() - began, 1e-9)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        _send(sys.argv[2])
    else:
        print(json.dumps(_measure_threads()))
