"""Actors on Ray's nodes: one actor for each peer, and one actor that exchanges the addresses of
peers. Other modules import this module only inside functions.

Like every launcher, an actor runs its peer in separate processes. If the actor is killed, the
guardian of its supervisor ends these processes. If the process or node of an actor is lost, Ray
restarts the actor. The restarted peer has the next incarnation, and receives the state from other
peers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gossip.config import RunConfig
from gossip.errors import ConfigError, GossipError
from gossip.run import Seed, peers_in, read_seed, shown_lines, write_seed

EVERY_S = 0.2
ANSWER_S = 10.0
BYTES_MAX = 64 * 2**20  # maximum size of a peer's files that are sent to the driver


@dataclass(frozen=True, slots=True)
class RayPlan:
    """Description of a run that every actor receives.

    Attributes:
        command: Program and arguments. ``folder`` is their working directory.
        one_host: Whether all peers are on one machine, and listen on its loopback interface.
    """

    config: str
    command: Sequence[str]
    folder: str
    one_host: bool


class RayRegistry:
    """Actor with the addresses of all peers. Every peer sends the addresses in its own folder, and
    does so again after a restart of this actor."""

    def __init__(self) -> None:
        self._seeds: dict[int, Seed] = {}
        self._lives: dict[int, int] = {}
        self._stop = False
        self._heard: dict[int, float] = {}

    def begin(self, peer: int) -> int | None:
        """Return the next incarnation of a peer; None if the peer returns too late, because all
        others have ended."""
        former = self._seeds.get(peer)
        others = [seed for seed in self._seeds.values() if seed.peer != peer]
        if former is not None and others and all(seed.ended for seed in others):
            return None
        life = max(self._lives.get(peer, -1), -1 if former is None else former.incarnation) + 1
        self._lives[peer] = life
        return life

    def exchange(
        self, peer: int, known: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], bool]:
        """Merge the seeds (addresses) that a peer sends. Return all seeds, and whether the run must
        stop."""
        self._heard[peer] = time.monotonic()
        for fields in known:
            seed = Seed(**fields)
            if newer(seed, self._seeds.get(seed.peer)):
                self._seeds[seed.peer] = seed
        return [asdict(seed) for seed in self._seeds.values()], self._stop

    def find_active_peers(self, seconds: float) -> list[int]:
        """Return the peers that called ``exchange`` within the last ``seconds``."""
        return [peer for peer, at in self._heard.items() if time.monotonic() - at <= seconds]

    def stop(self) -> None:
        self._stop = True


def newer(seed: Seed, known: Seed | None) -> bool:
    """Whether ``seed`` has a later incarnation than ``known``, or reports the end of the same
    incarnation."""
    return known is None or (seed.incarnation, seed.ended) > (known.incarnation, known.ended)


class SeedCourier(threading.Thread):
    """Thread that copies seeds between the local folder and the registry actor. If the registry
    requests a stop, the thread sends SIGTERM to this process.

    If the registry does not reply, the thread tries again later: peers that have each other's
    addresses do not need the registry.
    """

    def __init__(self, folder: Path, peer: int, register: Any) -> None:
        super().__init__(name="gossip-courier", daemon=True)
        self.folder, self.peer, self.register, self.stopped = folder, peer, register, False
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(EVERY_S):
            self.carry()

    def carry(self) -> None:
        import ray

        known = {
            peer: seed
            for peer in peers_in(self.folder)
            if (seed := read_seed(self.folder, peer)) is not None
        }
        try:
            told = [asdict(seed) for seed in known.values()]
            found, stop = ray.get(self.register.exchange.remote(self.peer, told), timeout=ANSWER_S)
        except Exception as error:  # noqa: BLE001
            # Catch all exceptions: Ray has many, and the next attempt may succeed after any of
            # them.
            print(f"gossip: the registry does not reply: {type(error).__name__}", file=sys.stderr)
            return
        for fields in found:
            seed = Seed(**fields)
            if newer(seed, known.get(seed.peer)):
                write_seed(self.folder, seed)
        if stop and not self.stopped:
            self.stopped = True
            # The supervisor handles SIGTERM: it lets its peer finish the round.
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        self._over.set()
        self.join()
        self.carry()  # Send the end of the peer, too.


@dataclass(eq=False)
class PeerActor:
    """Actor that runs one peer."""

    plan: RayPlan
    peer: int
    register: Any

    def run(self) -> dict[str, Any]:
        """Run the peer to its end. Return its exit code and its files."""
        import ray

        from gossip.launch.local import Program, Supervisor
        from gossip.launch.report import PlainScreen

        incarnation = ray.get(self.register.begin.remote(self.peer))
        if incarnation is None:
            print(f"! peer {self.peer} returned too late: the others have finished", flush=True)
            return {"code": 5, "files": {}}
        try:
            os.chdir(self.plan.folder)
            config = RunConfig.model_validate_json(self.plan.config)
            # Each peer has a folder of its own, because the machines may share no file system.
            folder = Path(config.run_dir) / f"ray-{self.peer}"
            (folder / "seeds").mkdir(parents=True, exist_ok=True, mode=0o700)
            config = config.model_copy(update={"run_dir": str(folder)})
            config.dump(folder / "config.json")
            program = Program.of(self.plan.command)
            if program.file is None:
                raise ConfigError(
                    f"there is no {' '.join(program.what)} in {self.plan.folder} on "
                    f"{ray.util.get_node_ip_address()}"
                )
            listen = "" if self.plan.one_host else ray.util.get_node_ip_address()
            environment = {"GOSSIP_LISTEN": listen} if listen else {}
            life = f", incarnation {incarnation}" if incarnation else ""
            print(
                f"+ peer {self.peer}{life} at {listen or 'loopback'}, pid {os.getpid()}, in "
                f"{folder}",
                flush=True,
            )
        except (OSError, GossipError) as error:
            print(f"error: peer {self.peer}: {shown_lines(error)}", flush=True)
            return {"code": 2, "files": {}, "error": str(error)}
        courier = SeedCourier(folder / "seeds", self.peer, self.register)
        courier.carry()
        courier.start()
        try:
            screen = PlainScreen(every_s=10.0)
            share = {self.peer: incarnation}
            outcome = asyncio.run(
                Supervisor(config, program, screen, environment, share=share).run()
            )
        finally:
            courier.close()
        return {"code": outcome.exit_code, "files": self._files(folder)}

    def _files(self, folder: Path) -> dict[str, bytes]:
        """Return the contents of the files for the driver, by their name in the run's folder."""
        named = {
            "events.jsonl": f"events-{self.peer}.jsonl",
            "logbook.md": f"logbook-{self.peer}.md",
        }
        own = folder / f"peer-{self.peer}"
        paths = {name: folder / path for path, name in named.items()}
        paths.update(
            {
                f"{own.name}/{path.name}": path
                for path in own.glob("*")
                if path.suffix in (".jsonl", ".log")
            }
        )
        files: dict[str, bytes] = {}
        for name, path in sorted(paths.items()):
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
                if sum(map(len, files.values())) + len(data) <= BYTES_MAX:
                    files[name] = data
        return files
