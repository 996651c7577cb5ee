"""Real processes with keys: failover and rejoin as without,
strangers and those who were struck off stay out."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from swarm import ProcessSwarm, again
from zeromq_rig import KeysOf, Known

from gossip.config import RunConfig
from gossip.core.messages import Ping
from gossip.transport.curve import new_pair
from gossip.transport.zeromq import ZeroMQTransport

# one claim after another, each of which may wait for processes to start
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ProcessSwarm]:
    swarm = ProcessSwarm(tmp_path, 3, keys=True)
    yield swarm
    swarm.close()


def seed_of(swarm: ProcessSwarm, peer: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((swarm.folder / "seeds" / f"{peer}.addr").read_text())
    return found


def knocks_in_vain(swarm: ProcessSwarm, at: int, name: int) -> Callable[[], bool]:
    """Somebody who knows all that can be known of a run, but has no key that is on the list:
    in the name of a peer."""
    seed = seed_of(swarm, at)
    known = Known([at, name])
    known.list(at, seed["key"])
    run = RunConfig.load(swarm.folder / "config.json").run_id
    stranger = ZeroMQTransport(
        run, name, 99, lambda sender, message: -1, keys=KeysOf(known, new_pair())
    )
    stranger.connect(at, seed["control"], seed["bulk"])

    def told() -> bool:
        stranger.poll(0.1)
        assert not stranger.send(at, Ping(1, 1, ()))
        found = [
            event
            for event in swarm.events(at, "notice")
            if "in no seed file here" in event["message"]
        ]
        if found:
            stranger.close()
        return bool(found)

    return told


def test_failover_and_rejoin_work_with_keys_and_nobody_else_gets_in(three: ProcessSwarm) -> None:
    three.wait(lambda: three.now() > 20, "rounds")
    three.wait(knocks_in_vain(three, at=0, name=1), "a line about somebody whom nobody knows")

    key = seed_of(three, 1)["key"]
    os.kill(three.node_pid(1), signal.SIGKILL)
    three.wait(lambda: len(three.events(1, "started")) == 2, "another node of peer 1")
    again(three, 1, by=0)
    assert seed_of(three, 1)["key"] != key, "another life has another key"

    seed = three.folder / "seeds" / "2.addr"
    kept = seed.read_bytes()
    seed.unlink()
    three.wait(
        lambda: [e for e in three.events(0, "skip", "dead") if e["subject"] == 2], "2 to be put out"
    )
    three.wait(
        lambda: [e for e in three.events(2, "notice") if "does not know our key" in e["message"]],
        "2 to be told why",
    )
    now = three.now()
    three.wait(lambda: three.now() > now + 20, "rounds without it")
    seed.write_bytes(kept)
    again(three, 2, by=0)

    said = three.finish(0, 1, 2)
    assert len(set(said.values())) == 1
    traffic = {peer: three.events(peer, "halted")[-1]["traffic"]["dropped"] for peer in range(3)}
    assert traffic[0].get("unknown_key", 0) > 0
    assert not any(
        dropped.get(why) for dropped in traffic.values() for why in ("no_key", "wrong_name")
    ), traffic
