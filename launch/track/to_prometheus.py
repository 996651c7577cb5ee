"""Export to Prometheus: during the run, a server on loopback returns the newest value of each curve
as text."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gossip.errors import ConfigError
from gossip.run import shown

from .base import Point, RunDescription
from .loopback import LoopbackServer

PORT = 9464
"""Default port. If it is taken, for example by a second run, any free port is used."""
PORT_VARIABLE = "GOSSIP_PROMETHEUS_PORT"
ADDRESS = "prometheus.url"
"""File in the run's folder that contains the address of the server."""
CURVES_MAX = 20_000
_PEER = re.compile(r"peer-(\d+)")
Labels = tuple[tuple[str, str], ...]


class Prometheus:
    """Serves ``GET /metrics``. ``folder``: folder of the run."""

    def __init__(self, folder: Path, port: int | None) -> None:
        self._lock = threading.Lock()
        self._newest: dict[tuple[str, Labels], float] = {}
        self._run: Labels = (("run", folder.name),)
        self._events = self._step = 0
        self._server = _server(self.text, port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True
        )
        self._thread.start()
        (folder / ADDRESS).write_text(f"{self.url}\n")
        print(f"metrics are at {self.url}", flush=True)

    @property
    def url(self) -> str:
        return self._server.url

    def begin(self, about: RunDescription) -> None:
        with self._lock:
            self._run = (("run", about.name),)

    def points(self, points: Sequence[Point]) -> None:
        with self._lock:
            for point in points:
                name, labels = _metric(point.name)
                key = name, labels
                if key in self._newest or len(self._newest) < CURVES_MAX:
                    self._newest[key] = point.value
                self._step = max(self._step, point.step)

    def log_event(self, step: int, at: float, text: str) -> None:
        with self._lock:
            self._events += 1

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        with self._lock:
            newest = {**self._newest, ("gossip_round", ()): float(self._step)}
            run, events = self._run, self._events
        by_name: dict[str, list[tuple[Labels, float]]] = {}
        for (name, labels), value in newest.items():
            by_name.setdefault(name, []).append((labels, value))
        lines: list[str] = []
        for name, found in sorted(by_name.items()):
            lines.append(f"# TYPE {name} gauge")
            lines += [_line(name, (*run, *labels), value) for labels, value in sorted(found)]
        lines += ["# TYPE gossip_events_total counter", _line("gossip_events_total", run, events)]
        return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def _metric(curve: str) -> tuple[str, Labels]:
    """Return the name and the labels of the metric for a curve: ``gossip_loss{peer="0"}`` for
    ``loss/peer-0``, and ``gossip_swarm_loss`` for ``swarm/loss``."""
    name, _, where = curve.rpartition("/")
    peer = _PEER.fullmatch(where)
    words = name if peer or where == "swarm" else curve
    labels = (("peer", peer[1]),) if peer else ()
    return "gossip_" + re.sub(r"[^a-zA-Z0-9_]", "_", words), labels


def _line(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    # JSON and Prometheus escape a text in the same way.
    pairs = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels)
    return f"{name}{{{pairs}}} {value!r}"


def _server(make: Callable[[], bytes], port: int | None) -> LoopbackServer:
    """Return a server at ``port``. Without a port, use the default port, or any free port if that
    is taken."""
    for chosen in (PORT, 0) if port is None else (port,):
        try:
            return LoopbackServer(make, chosen)
        except OSError as error:
            why = error.strerror
    raise ConfigError(
        f"cannot serve metrics on port {port}: {why}", f"set another {PORT_VARIABLE}, or unset it"
    )


def open_tracker(folder: Path) -> Prometheus:
    """Open the tracker of the run in ``folder``.

    Raises: ConfigError: The requested port is invalid or taken.
    """
    asked = os.environ.get(PORT_VARIABLE, "")
    if asked and not (asked.isdecimal() and int(asked) < 65536):
        raise ConfigError(f"{PORT_VARIABLE}={shown(asked)} is not a port", "a number below 65536")
    return Prometheus(folder, int(asked) if asked else None)
