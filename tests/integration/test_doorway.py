"""The door of a supervisor: whom a start over several launchers waits for, and what becomes of an
id given away twice."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from test_launch_supervisor import FAKE, LineScreen

from gossip.config import RunConfig, resolve
from gossip.errors import AddressInUse
from gossip.launch.local import start_wait
from gossip.launch.local.program import Program
from gossip.launch.local.supervisor import Supervisor
from gossip.launch.registry.join_endpoint import JoinEndpoint
from gossip.launch.registry.registry import LET_IN, LISTENING, PeerEntry, Progress
from gossip.launch.ssh.agent import Agent, LauncherBacklog
from gossip.launch.ssh.frames import encode
from gossip.observe import read_event
from gossip.run.keys import make_pair
from gossip.run.rendezvous import SeedFolder, announce_end


def config_in(folder: Path, **options: Any) -> RunConfig:
    folder.mkdir()
    resolved = resolve({"peers": 2, "run_dir": str(folder), "name": "t", "warm": False, **options})
    config = resolved.with_values("drawn", run="00000000000000aa", f=0).config
    config.dump(folder / "config.json")
    return config


@pytest.fixture(autouse=True)
def often_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_wait, "WAITING_EVERY_S", 0.3)


def supervise(config: RunConfig, heard: LineScreen, *words: str, **more: Any) -> Supervisor:
    return Supervisor(config, Program(str(FAKE), words), heard, **more)


def note_that_peer_0_waits_for_1(mine: Supervisor) -> None:
    about = {"missing": [1], "waited_s": 5.0, "t": time.monotonic()}
    mine.ongoing.view.apply(read_event({"peer": 0, "event": "waiting", **about}))


def announce(folder: Path, peer: int) -> None:
    SeedFolder(folder / "seeds", peer, 9).announce("tcp://127.0.0.1:9", "tcp://127.0.0.1:9", 0)


async def test_a_start_names_who_is_missing_and_what_came_back(tmp_path: Path) -> None:
    folder, heard = tmp_path / "run", LineScreen()
    endpoint = JoinEndpoint(("127.0.0.1:9",))
    config = config_in(folder, peers=3)
    mine = supervise(config, heard, "raise-early-all-but-0", share={0: 0}, endpoint=endpoint)
    waits = lambda text: lambda view: any(text in line for line in heard.said)  # noqa: E731
    heard.when.append((waits("waiting for peers 1, 2 "), lambda: announce(folder, 2)))
    heard.when.append((waits("waiting for peer 1 "), lambda: mine.shutdown.end("terminate")))
    await asyncio.wait_for(mine.run(), 60)
    assert any("here: 0" in line for line in heard.said if "waiting" in line)
    assert any(
        line.startswith("!   127.0.0.1:9: connection refused: nothing listens there (x")
        for line in heard.said
    )


async def test_a_peer_that_has_an_address_and_is_not_met_is_tried_and_named(tmp_path: Path) -> None:
    folder, heard = tmp_path / "run", LineScreen()
    config, endpoint = config_in(folder), JoinEndpoint()
    mine = supervise(config, heard, "raise-early-all-but-0", share={0: 0}, endpoint=endpoint)
    announce(folder, 1)
    note_that_peer_0_waits_for_1(mine)
    refused = "!   1 at 127.0.0.1:9: connection refused: nothing listens there"
    heard.when.append((lambda view: refused in heard.said, lambda: mine.shutdown.end("terminate")))
    await asyncio.wait_for(mine.run(), 60)
    assert any(
        "waiting for peers 0, 1 " in line or "waiting for peer 1 " in line for line in heard.said
    )
    written = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    kept = [(row["subject"], row["why"]) for row in written if row.get("event") == "unmet"]
    assert (1, refused.removeprefix("!   ")) in kept, "for the end of the run"


async def test_a_task_whose_run_ends_while_it_starts_does_not_wait_for_it_to_begin(
    tmp_path: Path,
) -> None:
    folder, heard = tmp_path / "run", LineScreen()
    config = config_in(folder)
    mine = supervise(config, heard, "raise-early-all-but-0", share={0: 0}, files="-0")
    note_that_peer_0_waits_for_1(mine)
    (folder / "peer-1").mkdir()

    def end() -> None:
        rows = [{"event": "halted", "peer": 1, "reason": "finished", "round": 7}]
        (folder / "peer-1" / "events.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows)
        )

    heard.when.append((lambda view: any("waiting for peer" in line for line in heard.said), end))
    outcome = await asyncio.wait_for(mine.run(), config.start_timeout_s / 2)
    assert outcome.exit_code == 4
    assert "x the run is over: peers 1 have completed it, and no other peer is there" in heard.said


@pytest.mark.parametrize("progress", [None, LISTENING, LET_IN])
async def test_a_newcomer_whose_run_ends_while_it_starts_does_not_wait_to_be_let_in(
    tmp_path: Path, progress: Progress | None
) -> None:
    """Nor do newcomers of two launchers wait for each other. One that was let in has the state."""
    folder, heard = tmp_path / "run", LineScreen()
    config = config_in(folder, room=6)
    announce(folder, 0)
    mine = supervise(config, heard, "raise-early-all-but-2", newcomers={2: 0})
    here = lambda view: view.rows[2].state == "here"  # noqa: E731
    if progress is not None:
        assert mine.join_server is not None
        join_server = mine.join_server
        other = PeerEntry(3, 0, progress, b"\xff" * 8, False, "tcp://127.0.0.1:7", "tcp://a:8")
        heard.when.append((here, lambda: join_server._learn([other], [], other.owner)))
    heard.when.append((here, lambda: announce_end(folder / "seeds", 0)))
    since = time.monotonic()
    alone = lambda view: time.monotonic() > since + 3  # noqa: E731
    heard.when.append((alone, lambda: mine.shutdown.end("terminate")))
    outcome = await asyncio.wait_for(mine.run(), config.start_timeout_s / 2)
    assert outcome.exit_code == (143 if progress == LET_IN else 4)
    over = "x the run is over: all its peers left before those of this launcher arrived"
    assert (over in heard.said) == (progress != LET_IN)


async def test_a_peer_whose_id_is_somebody_elses_comes_again_under_another(tmp_path: Path) -> None:
    folder, heard = tmp_path / "run", LineScreen()
    config = config_in(folder, room=6)
    mine = supervise(config, heard, "polite", newcomers={2: 0})
    assert mine.join_server is not None
    join_server = mine.join_server
    other = PeerEntry(2, 0, LET_IN, b"\xff" * 8, False, "tcp://127.0.0.1:7", "tcp://127.0.0.1:8")
    heard.when.append(
        (
            lambda view: view.rows[2].state == "training",
            lambda: join_server._learn([other], [], other.owner),
        )
    )
    heard.when.append(
        (
            lambda view: 3 in view.rows and view.rows[3].state == "training",
            lambda: mine.shutdown.end("terminate"),
        )
    )
    outcome = await asyncio.wait_for(mine.run(), 60)
    assert [(life.peer, life.code) for life in outcome.lives] == [(3, 0)]
    assert outcome.unplanned == []
    assert any("id 2 was assigned twice" in line for line in heard.said)
    seeds = {peer: json.loads((folder / "seeds" / f"{peer}.addr").read_text()) for peer in (2, 3)}
    assert seeds[2]["control"] == "tcp://127.0.0.1:7", "and the other is not said to have ended"
    assert seeds[3] == {"ended": True, "incarnation": 0}


async def test_an_agent_that_hears_of_another_door_while_it_opens_its_own_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = (
        resolve({"peers": 2, "name": "t", "warm": False, "drills": True})
        .with_values("drawn", run="00000000000000aa", f=0)
        .config
    )
    start = {
        "kind": "start",
        "config": config.model_dump(mode="json"),
        "run_dir": str(tmp_path / "run"),
        "words": [str(FAKE), "polite"],
    }
    start |= {"environment": {}, "peers": {"0": 0}, "address": "127.0.0.1"}
    agent, orders = Agent(outbox := LauncherBacklog()), asyncio.StreamReader()
    outbox._closed = True  # nobody reads what it says
    # In one piece, as on a machine that is busy: the desk for drills is still being opened when
    # the second comes.
    orders.feed_data(
        encode({**start, "key": None, "join_servers": []})
        + encode({"kind": "join_servers", "addresses": ["127.0.0.1:9"]})
    )
    run = asyncio.get_running_loop().create_task(agent.run(orders))
    visited = lambda: (  # noqa: E731
        agent._supervisor
        and agent._supervisor.join_server
        and agent._supervisor.join_server.troubles()
    )
    async with asyncio.timeout(60):
        while not run.done() and not visited():
            await asyncio.sleep(0.02)
        assert not run.done(), run.exception()
        orders.feed_data(encode({"kind": "stop", "why": "terminate"}))
        while not (agent._outcome and agent._outcome.done()):
            await asyncio.sleep(0.02)
        orders.feed_data(encode({"kind": "bye"}))
        assert await run == 0


async def test_the_line_to_paste_names_the_address_the_key_and_what_to_run(tmp_path: Path) -> None:
    folder, heard = tmp_path / "run", LineScreen()
    key = tmp_path / "a key"
    make_pair(key)
    config = config_in(folder, room=6)
    mine = supervise(config, heard, "finish", "--lr", "0.1", endpoint=JoinEndpoint(key=key))
    await asyncio.wait_for(mine.run(), 60)
    (line,) = [line for line in heard.said if line.startswith("room for 4 more: ")]
    address = json.loads(
        next(
            row
            for row in (folder / "events.jsonl").read_text().splitlines()
            if '"join_server"' in row
        )
    )["address"]
    assert line.startswith(
        f"room for 4 more: gossip join --key '{key}' {address} -- {FAKE} finish --lr 0.1   (on "
        "this machine"
    )


async def test_a_door_that_cannot_be_opened_starts_nothing(tmp_path: Path) -> None:
    one, other = config_in(tmp_path / "one", room=6), config_in(tmp_path / "other", room=6)
    first = supervise(one, heard := LineScreen(), "polite")
    raised: list[AddressInUse] = []

    async def second() -> None:
        port = int(first.join_server.address.rpartition(":")[2])
        try:
            endpoint = JoinEndpoint(port=port)
            await supervise(other, LineScreen(), "finish", endpoint=endpoint).run()
        except AddressInUse as error:
            raised.append(error)
        finally:
            first.shutdown.end("terminate")

    heard.when.append(
        (
            lambda view: len(view.lives.ready) == 2,
            lambda: asyncio.get_running_loop().create_task(second()),
        )
    )
    await asyncio.wait_for(first.run(), 60)
    assert raised
    assert not (tmp_path / "other" / "peer-0").exists()
