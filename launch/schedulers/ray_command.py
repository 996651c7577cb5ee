"""``gossip ray``: the peers of a run as actors in a placement group of a Ray cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gossip.errors import ConfigError
from gossip.launch.optional import optional
from gossip.launch.report import counted
from gossip.run import shown

if TYPE_CHECKING:
    from gossip.config import Resolved
    from gossip.launch.local import Program

PLACE_S = 30.0
SILENT_S = 20.0
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def ray(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[OPTIONS] SCRIPT [ARGS]",
            help="Arguments of gossip run.",
            show_default=False,
        ),
    ],
    peers: Annotated[int, optional("Number of peers.", "-n", "--peers", min=1)],
    address: Annotated[
        str,
        typer.Option(
            help="Address of the cluster: HOST:PORT, or auto for the cluster of this machine."
        ),
    ] = "auto",
    strategy: Annotated[
        str, typer.Option(help=f"Placement of peers: {', '.join(STRATEGIES)}.")
    ] = "SPREAD",
    cpus: Annotated[float, typer.Option(min=0.0, help="Processors of each peer.")] = 1.0,
    gpus: Annotated[float, typer.Option(min=0.0, help="GPUs of each peer.")] = 0.0,
    restarts: Annotated[
        int, typer.Option(min=-1, help="Maximum restarts of a peer by Ray; -1 means no limit.")
    ] = 3,
    place_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for free resources in the cluster.")
    ] = PLACE_S,
) -> None:
    """Train with peers on a Ray cluster: gossip ray -n 8 --address auto -- train.py --lr 0.1

    If the process or node of a peer is lost, Ray restarts the peer, which receives the state from
    the others. The others continue without interruption. The script and gossip are needed on
    every node, under the same path. Needs the extra ray: pip install 'gossip-train[ray]'
    """
    try:
        import ray as the_ray
    except ImportError:
        raise ConfigError("Ray is not installed", "pip install 'gossip-train[ray]'") from None
    from gossip.run import settled_resume

    from .planned_task import refuse_plan
    from .task_words import check, to_stderr

    if strategy not in STRATEGIES:
        raise ConfigError(f"--strategy {strategy}: it must be one of {', '.join(STRATEGIES)}")
    resolved, _, program = check(context, words, peers)
    refuse_plan(resolved, "Ray")
    resolved = settled_resume(_with_peers(resolved, peers), to_stderr)
    driver = Driver(the_ray, resolved, program, cpus, gpus, restarts)
    raise typer.Exit(driver.run(address, strategy, place_timeout))


def _with_peers(resolved: Resolved, peers: int) -> Resolved:
    """Return the settings with the number of actors as the number of peers. Raises: ConfigError:
    The user has set another number of peers."""
    given, source = resolved.config.peers, resolved.sources["peers"]
    if source != "default" and given != peers:
        raise ConfigError(
            f"-n {peers}, but {counted(given, 'peer')} ({source})", "leave one of them out"
        )
    return resolved.with_values("flag", peers=peers)


@dataclass(eq=False)
class Driver:
    """Starts the actors, waits for them, and collects their results."""

    ray: Any
    resolved: Resolved
    program: Program
    cpus: float
    gpus: float
    restarts: int
    stopped: int = 0

    def run(self, address: str, strategy: str, place_timeout: float) -> int:
        """Run all actors until they end. Return the exit code."""
        from gossip.config import RunConfig
        from gossip.launch.report import RUNS
        from gossip.run import make, settled, tolerance

        from . import task_runs
        from .ray_peer import PeerActor, RayPlan, RayRegistry

        ray, peers = self.ray, self.resolved.config.peers
        try:
            ray.init(
                address=address,
                log_to_driver=True,
                namespace=f"gossip-{os.getpid()}",
                logging_level="WARNING",
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"no Ray cluster at {address}: {said}", "ray start --head, or --address HOST:PORT"
            ) from None
        try:
            one_host = sum(node["Alive"] for node in ray.nodes()) == 1
            if not one_host and not self.resolved.config.insecure:
                self.resolved = self.resolved.with_values("Ray, on several machines", keys=True)
            name = self.resolved.config.name or f"ray-{os.urandom(2).hex()}"
            folder = Path(self.resolved.config.run_dir or Path(RUNS) / name).resolve()
            make(folder, settled(self.resolved, folder), sys.argv, self.program.folder)
            config = RunConfig.load(folder / "config.json")
            group = self._place(peers, strategy, place_timeout)
            nodes = sum(node["Alive"] for node in ray.nodes())
            print(
                f"{config.name}: {counted(peers, 'peer')} on {counted(nodes, 'node')} "
                f"({strategy}), in {folder}",
                flush=True,
            )
            judge = tolerance.judges(config, self.resolved.sources)
            print(*filter(None, [judge, tolerance.describe(config)]), sep="\n", flush=True)
            register = (
                ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(RayRegistry)
                .options(name="register")
                .remote()
            )
            plan = RayPlan(
                config.model_dump_json(), tuple(self.program.words), os.getcwd(), one_host
            )
            pinned = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            made = ray.remote(
                num_cpus=self.cpus,
                num_gpus=self.gpus,
                max_restarts=self.restarts,
                max_task_retries=self.restarts,
            )(PeerActor)
            actors = [
                made.options(
                    name=f"peer-{peer}",
                    scheduling_strategy=pinned(group, placement_group_bundle_index=peer),
                ).remote(plan, peer, register)
                for peer in range(peers)
            ]
            signal.signal(signal.SIGTERM, lambda number, frame: self._stop(register, number))
            signal.signal(signal.SIGINT, lambda number, frame: self._stop(register, number))
            codes = self._wait(
                register, {actor.run.remote(): peer for peer, actor in enumerate(actors)}, folder
            )
        finally:
            ray.shutdown()
        code = next((codes[key] for key in sorted(codes) if codes[key]), 0)
        return 128 + self.stopped if self.stopped else task_runs.verdict(folder, code)

    def _place(self, peers: int, strategy: str, timeout_s: float) -> Any:
        """Reserve resources for the actors. Raises: ConfigError: The cluster has no room."""
        ray = self.ray
        bundle = {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}
        group = ray.util.placement_group([bundle] * peers, strategy=strategy)
        if not group.wait(timeout_s):
            have = {
                key: value
                for key, value in ray.available_resources().items()
                if key in ("CPU", "GPU")
            }
            raise ConfigError(
                f"the cluster has no room for {counted(peers, 'time')} {bundle} ({strategy}) in "
                f"{timeout_s:.0f} s; free: {json.dumps(have)}",
                "use fewer peers, --cpus 0.5, or another --strategy",
            )
        return group

    def _any_lives(self, register: Any, peers: set[int]) -> bool:
        """Whether one of the peers has reported to the registry within the last ``SILENT_S``
        seconds. Return True if the registry does not reply."""
        try:
            return not peers.isdisjoint(
                self.ray.get(register.find_active_peers.remote(SILENT_S), timeout=SILENT_S)
            )
        except self.ray.exceptions.RayError:
            return True

    def _stop(self, register: Any, number: int) -> None:
        """Request all peers to leave after their round. At a second signal, raise
        KeyboardInterrupt, which ends this process and all actors."""
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = number
        print("stopping after this round (Ctrl-C again: stop now)", flush=True)
        register.stop.remote()

    def _wait(self, register: Any, running: dict[Any, int], folder: Path) -> dict[int, int]:
        codes: dict[int, int] = {}
        while running:
            if 0 in codes.values() and not self._any_lives(register, set(running.values())):
                # Do not wait for these peers: Ray may wait indefinitely for resources to restart
                # them.
                print(
                    f"x peers {', '.join(map(str, sorted(running.values())))} are lost; the "
                    "others have finished",
                    flush=True,
                )
                break
            done, _ = self.ray.wait(list(running), timeout=1.0)
            for one in done:
                peer = running.pop(one)
                try:
                    result = self.ray.get(one)
                except self.ray.exceptions.RayError as error:
                    print(
                        f"x peer {peer} is lost: {shown(str(error).strip().splitlines()[0])}",
                        flush=True,
                    )
                    codes[peer] = 5
                    continue
                codes[peer] = int(result["code"])
                for name, data in result["files"].items():
                    path = folder / name
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(data)
        return codes
