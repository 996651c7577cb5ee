"""A host whose agent is not understood, or not heard: it ends for the launcher,
and that is said once."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossip.launch.ssh import frames, hostfacts, shutdown as hosts
from gossip.launch.ssh.agent import Agent, LauncherBacklog
from gossip.launch.ssh.hostlist import Host
from gossip.launch.ssh.remote import RemoteAgent
from gossip.launch.ssh.restarts import HostState
from gossip.launch.ssh.shutdown import LOST_S, HostsShutdown
from gossip.run.rendezvous import SeedFolder, read_seed

AGENT = """
import sys
from gossip.launch.ssh import frames
from gossip.launch.ssh.agent import VERSION

for frame in ({"kind": "hello", "version": VERSION}, {"kind": "pong", "mono": "it has no number"}):
    sys.stdout.buffer.write(frames.encode(frame))
sys.stdout.flush()
sys.stdin.read()
"""


def remote(ended: list[str], *argv: str) -> RemoteAgent:
    nobody = cast(
        Any, SimpleNamespace(token="token", watch=lambda process: None, forget=lambda process: None)
    )
    return RemoteAgent(
        Host("a"),
        argv,
        nobody,
        lambda remote, frame: None,
        lambda remote: ended.append(remote.name),
    )


async def test_an_agent_that_says_what_is_none_of_the_language_ends_and_its_host_is_told_lost():
    ended: list[str] = []
    agent = remote(ended, sys.executable, "-c", AGENT)
    await asyncio.wait_for(agent.open(), 60)
    await asyncio.wait_for(agent._tasks[1], 60)
    assert (agent.over, ended) == (True, ["a"])
    assert "its frames are malformed: KeyError" in agent.last_words
    await agent.close(now=True)
    assert ended == ["a"], "it ends once"


async def test_a_process_that_not_even_a_kill_ends_in_time_is_over_for_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gossip.launch.ssh.remote.BYE_S", 0.0)
    monkeypatch.setattr(RemoteAgent, "_signal", lambda remote, number: None)
    ended: list[str] = []
    agent = remote(ended, sys.executable, "-c", AGENT.replace("pong", "x"))
    await asyncio.wait_for(agent.open(), 60)
    await asyncio.wait_for(agent.close(), 60)
    assert (agent.over, ended) == (True, ["a"])
    agent._process.kill()
    await agent._process.wait()


async def test_a_host_that_stays_silent_is_given_up_once() -> None:
    said: list[str] = []
    closed: list[bool] = []

    class Silent:
        over, closing, silent_s = False, False, LOST_S + 1

        async def close(self, now: bool) -> None:
            self.closing = True
            closed.append(now)

    place = HostState(Host("a"), range(2), cast(RemoteAgent, Silent()))
    records: Any = SimpleNamespace(print_line=said.append)
    shutdown = HostsShutdown(records, cast(Any, None), {"a": place})
    for _ in range(5):
        shutdown.watch_silence(place)
        await asyncio.gather(*shutdown._tasks)
    assert closed == [True]
    assert [line.partition(" has been silent for ")[2] for line in said] == [
        "61 s; if possible, its peers 0, 1 continue without the launcher",
        f"{hosts.LOST_S:.0f} s: it is reconnected or abandoned",
    ]


def look_order(folder: Path) -> bytes:
    asked = {
        "workdir": str(folder),
        "program": ["train.py"],
        "run_dir": str(folder / "run"),
        "run": "aa",
        "address": "",
    }
    return frames.encode({"kind": "check", **asked})


async def test_an_agent_whose_disk_hangs_is_heard_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = threading.Event()

    collect_facts = hostfacts.collect_facts

    def hangs(asked: Any) -> dict[str, Any]:
        assert answer.wait(10.0), "nobody was heard while the disk was asked"
        return collect_facts(asked)

    monkeypatch.setattr(hostfacts, "collect_facts", hangs)
    agent, orders = Agent(outbox := LauncherBacklog()), asyncio.StreamReader()
    orders.feed_data(look_order(tmp_path) + frames.encode({"kind": "ping", "n": 7}))
    run = asyncio.create_task(agent.run(orders))
    async with asyncio.timeout(60):
        while len(outbox._frames) < 2:
            await asyncio.sleep(0.01)
        answer.set()
        while len(outbox._frames) < 3:
            await asyncio.sleep(0.01)
        orders.feed_data(frames.encode({"kind": "bye"}))
        assert await run == 0
    assert [frame["kind"] for frame in outbox._frames] == ["hello", "pong", "facts"]


async def test_an_agent_that_cannot_look_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(asked: object) -> None:
        raise PermissionError(13, "Permission denied", "train.py")

    monkeypatch.setattr(hostfacts, "collect_facts", fails)
    orders = asyncio.StreamReader()
    orders.feed_data(look_order(tmp_path))
    assert await asyncio.wait_for(Agent(LauncherBacklog()).run(orders), 60) == 1
    assert capsys.readouterr().err == "gossip agent: [Errno 13] Permission denied: 'train.py'\n"


def test_the_end_of_a_lost_hosts_peer_is_not_said_of_the_newcomer_that_has_its_id_since(
    tmp_path: Path,
) -> None:
    agent, seeds = Agent(LauncherBacklog()), tmp_path / "seeds"
    agent._folder = tmp_path
    for peer, life in ((1, 1), (2, 0)):
        SeedFolder(seeds, peer, 4).announce("tcp://a:1", "tcp://a:2", life)
        agent._handle_frame({"kind": "gone", "peer": peer, "incarnation": 0})
    assert [seed.ended for peer in (1, 2) if (seed := read_seed(seeds, peer))] == [False, True]
