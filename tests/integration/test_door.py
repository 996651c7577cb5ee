"""Doors of several launchers on loopback, each with a folder of its own: what they tell each other,
and whom they turn away."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from gossip.config import RunConfig, resolve
from gossip.launch.registry import join_calls, join_messages as says, join_socket, remote_servers
from gossip.launch.registry.join_calls import NUMBER_BYTES, JoinServerUnreachable, ask
from gossip.launch.registry.join_endpoint import JoinEndpoint
from gossip.launch.registry.join_server import JoinServer, JoinServerCallbacks
from gossip.launch.registry.join_socket import JoinSocket
from gossip.launch.registry.registry import CLAIMED, LET_IN, UNMET_MAX, PeerEntry, ServerEntry
from gossip.run.keys import make_pair, read_pair
from gossip.run.rendezvous import SeedFolder, announce_end, peers_in, read_seed

JOINER, ANOTHER = b"joiner-1", b"joiner-2"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\x01" + bytes(31)
"""Of a server with a key, in ZMTP 3.1."""


def config(**options: Any) -> RunConfig:
    return (
        resolve({"peers": 2, "room": 6, "name": "t", **options})
        .with_values("drawn", run="00000000000000aa", f=0)
        .config
    )


@asynccontextmanager
async def join_server_in(
    folder: Path, own: tuple[int, ...] = (), *seeds: str, **options: Any
) -> AsyncIterator[JoinServer]:
    folder.mkdir(exist_ok=True)
    endpoint = JoinEndpoint(seeds, key=options.pop("key", None))
    given = options.pop("config", config())
    callbacks = JoinServerCallbacks(**options)
    join_server = JoinServer(given, folder, dict.fromkeys(own, 0), endpoint, callbacks)
    await join_server.open()
    try:
        yield join_server
    finally:
        await join_server.close()


def announce(folder: Path, peer: int, incarnation: int = 0) -> None:
    SeedFolder(folder / "seeds", peer, 9).announce(
        f"tcp://127.0.0.1:{peer}1", f"tcp://127.0.0.1:{peer}2", incarnation
    )


async def until(done: Callable[[], object], within_s: float = 60.0) -> None:
    over = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < over, "it never came"
        await asyncio.sleep(0.02)


async def asked(join_server: JoinServer, question: says.Question, within_s: float = 10.0) -> Any:
    context = zmq.asyncio.Context()
    try:
        return await ask(context, join_server.address, question, within_s)
    finally:
        context.destroy(0)


def join_request(
    join_server: bytes = JOINER, count: int = 1, versions: says.Versions | None = None
) -> says.JoinRequest:
    return says.JoinRequest(join_server, count, versions or says.Versions.here())


async def test_what_one_writes_the_others_read_and_the_end_of_a_peer_too(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    async with (
        join_server_in(a, (0,)) as first,
        join_server_in(b, (1,), first.address),
        join_server_in(c, (), first.address),
    ):
        announce(a, 0)
        announce(b, 1)
        await until(lambda: all(peers_in(folder / "seeds") == [0, 1] for folder in (a, b, c)))
        assert read_seed(c / "seeds", 1) == read_seed(b / "seeds", 1)
        announce(b, 1, incarnation=4)
        await until(
            lambda: all(read_seed(folder / "seeds", 1).incarnation == 4 for folder in (a, c))
        )  # type: ignore[union-attr]
        announce_end(b / "seeds", 1, 4)
        await until(lambda: all(read_seed(folder / "seeds", 1).ended for folder in (a, c)))  # type: ignore[union-attr]


async def test_a_door_told_of_another_before_it_is_open_visits_it_then(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with join_server_in(a, (0,)) as first:
        b.mkdir()
        second = JoinServer(config(), b, {1: 0}, JoinEndpoint())
        # the launcher of many hosts tells of those that are open, and one may be slow to start
        second.meet([first.address])
        await second.open()
        try:
            await until(
                lambda: len(first.keeper.join_servers) == len(second.keeper.join_servers) == 2
            )
        finally:
            await second.close()


async def test_doors_that_were_told_of_one_know_all_and_go_on_without_it(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    async with join_server_in(b, (1,)) as second, join_server_in(c, ()) as third:
        async with join_server_in(a, (0,), second.address, third.address):
            await until(
                lambda: len(second.keeper.join_servers) == len(third.keeper.join_servers) == 3
            )
        # It has closed, or is forgotten where it did so before it was met.
        await until(
            lambda: sum(not entry.ended for entry in second.keeper.join_servers.values()) == 2
        )
        announce(b, 1)
        await until(lambda: read_seed(c / "seeds", 1))


async def test_who_leaves_before_its_first_visit_is_answered_says_goodbye_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"

    async def unheard(asking: JoinSocket, address: str, question: says.Question) -> says.Said:
        answer = await ask_in_full(asking, address, question)
        if isinstance(question, says.RegistryPull) and asking.address != second.address:
            await asyncio.Event().wait()  # the answer is on the way
        return answer

    ask_in_full = JoinSocket.ask
    async with join_server_in(b) as second:
        monkeypatch.setattr(JoinSocket, "ask", unheard)
        async with join_server_in(a, (0,), second.address):
            await until(lambda: second.remote_servers.there)
        await until(lambda: sum(entry.ended for entry in second.keeper.join_servers.values()) == 1)


async def test_a_knock_is_answered_with_all_that_a_folder_needs(tmp_path: Path) -> None:
    a = tmp_path / "a"
    async with join_server_in(a, (0, 1)) as join_server:
        assert (await asked(join_server, join_request())).kind == "wait", (
            "nobody is here to take its state from"
        )
        announce(a, 0)
        (a / "command.json").write_text(
            json.dumps({"command": ["python", "-u", "train.py", "--lr", "1"], "folder": "/work"})
        )
        await until(lambda: join_server.keeper.state == "running")
        welcome = await asked(join_server, join_request(count=2))
        assert isinstance(welcome, says.JoinAccepted)
        assert welcome.ids == ((2, 0), (3, 0))
        assert RunConfig.model_validate_json(welcome.config) == config(run_dir="", keys=False)
        here = await asked(join_server, says.RunQuery())
        assert (here.command, here.folder) == (("train.py", "--lr", "1"), "/work")
        assert (here.name, here.state, here.peers, here.free, here.seen) == (
            "t",
            "running",
            (0,),
            2,
            "127.0.0.1",
        )
        assert {entry.peer: entry.owner for entry in welcome.entries} == {
            0: join_server.join_server,
            1: join_server.join_server,
            2: JOINER,
            3: JOINER,
        }
        assert (a / "seeds" / "3.0.claim").exists(), "who joins by the folder sees it, too"


async def test_two_launchers_with_the_same_id_find_out_and_one_is_told(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    lost: list[tuple[str, int]] = []
    async with join_server_in(a, (2,), lost=lambda peer: lost.append(("a", peer))) as one:
        announce(a, 2)
        b.mkdir()
        announce(b, 2)
        async with join_server_in(
            b, (2,), one.address, lost=lambda peer: lost.append(("b", peer))
        ) as other:
            await until(lambda: lost)
            await until(lambda: one.keeper.digest() == other.keeper.digest())
            assert [(peer, len(one.keeper.own) + len(other.keeper.own)) for _, peer in lost] == [
                (2, 1)
            ]


async def test_other_versions_are_turned_away_with_both_values(tmp_path: Path) -> None:
    async with join_server_in(tmp_path / "a", (0,)) as join_server:
        here = says.Versions.here()
        other = says.Versions(here.protocol, here.gossip, here.python, "1.2.3")
        answer = await asked(join_server, join_request(versions=other))
        assert (answer.kind, answer.message) == (
            "version",
            f"different versions: torch {here.torch} here, 1.2.3 there",
        )


async def test_doors_of_different_runs_have_nothing_to_say_to_each_other(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    strange = config().model_copy(update={"run": "00000000000000bb", "name": "u"})
    async with (
        join_server_in(a, (0,)) as one,
        join_server_in(b, (0,), one.address, config=strange) as other,
    ):
        announce(a, 0)
        await until(other.troubles)
        assert "belongs to run t, not yours" in other.troubles()[0]
        assert peers_in(b / "seeds") == []
        assert len(one.keeper.join_servers) == 1


async def test_a_door_that_does_not_answer_is_named_with_what_came_back(tmp_path: Path) -> None:
    async with join_server_in(tmp_path / "a", (0,)) as one:
        gone = one.address
    async with join_server_in(tmp_path / "b", (), gone) as join_server:
        await until(join_server.troubles)
        assert join_server.troubles()[0].startswith(
            f"{gone}: connection refused: nothing listens there (x"
        )


async def test_the_address_that_was_bound_is_in_the_folder(tmp_path: Path) -> None:
    async with join_server_in(tmp_path / "a", (0,)) as join_server:
        (found,) = (tmp_path / "a" / "join_servers").glob("*.json")
        assert json.loads(found.read_text())["address"] == join_server.address
        assert not join_server.address.endswith(":0")
    assert not found.exists()


async def test_bytes_of_strangers_are_counted_and_nothing_else(tmp_path: Path) -> None:
    context = zmq.asyncio.Context()
    async with join_server_in(tmp_path / "a", (0,)) as join_server:
        number = b"\0" * NUMBER_BYTES

        async def say(frames: list[bytes]) -> zmq.asyncio.Socket:
            # one for each: a connection has room for one question
            stranger = context.socket(zmq.DEALER)
            stranger.connect(f"tcp://{join_server.address}")
            await stranger.send_multipart(frames)
            return stranger

        good = says.encode(says.RunQuery())
        bad = [
            [b""],
            [number, b""],
            [number, b"GDR1"],
            [number, good + b"x"],
            [b"short", good],
            [number, good, b"more"],
        ]
        bad += [
            [number, says.VERSION + bytes([byte]) * 50]
            for byte in (0x00, 0x91, 0xC1, 0xDD, 0xDF, 0xFF)
        ]
        bad += [[number, says.encode(says.GrantedIds((1,)))]]
        for frames in bad:
            await say(frames)
        await until(lambda: join_server.socket.refused == len(bad))
        stranger = await say([number, b"GDR9whatever"])
        answer = says.decode((await stranger.recv_multipart())[1])
        assert isinstance(answer, says.JoinRejected)
        assert answer.message == "this join server has protocol version 1, you have 9"
        assert isinstance(await asked(join_server, says.RunQuery()), says.RunInfo)
    context.destroy(0)


async def test_who_asks_too_much_is_not_heard_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_socket, "UNITS_A_S", 0.001)
    monkeypatch.setattr(join_socket, "UNITS_AT_ONCE", 10.0)
    async with join_server_in(tmp_path / "a", (0,)) as join_server:
        context = zmq.asyncio.Context()
        floods = [context.socket(zmq.DEALER) for _ in range(15)]
        for flood in floods:
            flood.connect(f"tcp://{join_server.address}")
            await flood.send_multipart([b"\0" * NUMBER_BYTES, says.encode(says.RunQuery())])
        await until(
            lambda: join_server.socket.refused == 6
        )  # a question costs a bit more than one unit
        context.destroy(0)


async def test_an_entry_for_an_id_beyond_the_room_is_not_taken(tmp_path: Path) -> None:
    async with join_server_in(tmp_path / "a", (0,)) as join_server:
        question = says.ProposeIds(
            config().run_id, (PeerEntry(6, 0, CLAIMED, ANOTHER), PeerEntry(5, 0, CLAIMED, ANOTHER))
        )
        assert (await asked(join_server, question)).peers == (5,)
        try:
            await asked(
                join_server,
                says.ProposeIds(config().run_id, (PeerEntry(5, -1, CLAIMED, ANOTHER),)),
                within_s=1.0,
            )
        except JoinServerUnreachable as silence:
            # it is what came back that is looked at
            assert "no reply" in str(silence)  # noqa: PT017
        else:
            raise AssertionError("a negative incarnation is nothing that a door says")


async def test_doors_with_the_swarm_key_talk_and_others_hear_that_it_is_it(tmp_path: Path) -> None:
    key, wrong = tmp_path / "swarm.key", tmp_path / "wrong.key"
    make_pair(key)
    make_pair(wrong)
    a, b = tmp_path / "a", tmp_path / "b"
    async with (
        join_server_in(a, (0,), key=key) as one,
        join_server_in(b, (1,), one.address, key=key),
    ):
        announce(b, 1)
        await until(lambda: peers_in(a / "seeds") == [1])
        async with (
            join_server_in(tmp_path / "c", (), one.address, key=wrong) as other,
            join_server_in(tmp_path / "d", (), one.address) as none,
        ):
            await until(lambda: other.troubles() and none.troubles())
            assert other.troubles()[0].startswith(
                f"{one.address}: refused by key: that join server has a different key"
            )
            assert none.troubles()[0].startswith(
                f"{one.address}: refused by key: that join server needs a key (--key FILE)"
            )
            assert peers_in(tmp_path / "c" / "seeds") == peers_in(tmp_path / "d" / "seeds") == []
        assert (one.socket.refused, len(one.keeper.join_servers)) == (0, 2), (
            "not a byte of theirs was read"
        )


@pytest.mark.parametrize("greets", [False, True])
async def test_a_door_that_is_slow_refuses_nobody_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, greets: bool
) -> None:
    """It is stopped before its greeting, or after it, for longer than a handshake may take."""
    monkeypatch.setitem(join_calls._OPTIONS, zmq.HANDSHAKE_IVL, 200)
    make_pair(tmp_path / "swarm.key")
    key = read_pair(tmp_path / "swarm.key")

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greets:
            writer.write(GREETING)
        while await reader.read(1000):
            pass
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        context = zmq.asyncio.Context()
        try:
            with pytest.raises(JoinServerUnreachable) as silence:
                await ask(context, address, says.RunQuery(), 3.0, key)
        finally:
            context.destroy(0)
    assert not silence.value.by_key
    assert str(silence.value) == join_calls.CONNECTS


@pytest.mark.parametrize("greeted", [11, 12, 64])
async def test_a_server_that_ends_the_handshake_in_its_greeting_refuses(greeted: int) -> None:
    """As libzmq does with a mechanism that is not its own, when it is busy."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING[:greeted])
        await reader.readexactly(len(GREETING))
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        context = zmq.asyncio.Context()
        try:
            with pytest.raises(JoinServerUnreachable) as silence:
                await ask(context, address, says.RunQuery(), 3.0)
        finally:
            context.destroy(0)
    assert silence.value.by_key


async def test_a_door_that_hears_of_an_end_at_its_last_moment_closes(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with join_server_in(a, (0,)) as first, join_server_in(b, (1,), first.address) as second:
        announce(b, 1)
        await until(lambda: read_seed(a / "seeds", 1))
        # between two visits
        others = second.remote_servers.all
        await until(lambda: all(other.wake._waiters for other in others.values()))
        announce_end(b / "seeds", 1)
        closing = asyncio.create_task(second.close())
        await asyncio.wait([closing], timeout=20.0)
        assert closing.done()
        second.socket.address = ""  # it is closed


async def test_who_has_gone_before_the_answer_costs_no_word(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    async with join_server_in(tmp_path / "a", (0,)) as join_server:
        join_server.socket.reply(b"gone", b"n" * NUMBER_BYTES, says.JoinRejected("wait", "", ""))
        gc.collect()
        await asked(join_server, says.RunQuery())
    assert told == []


async def test_a_full_disk_costs_an_answer_and_not_the_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    async with join_server_in(tmp_path / "a", (0,), say=said.append) as join_server:

        def full(question: Any, seen: str) -> Any:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(join_server.socket, "answer", full)
        for _ in range(2):
            with pytest.raises(JoinServerUnreachable):
                await asked(join_server, says.RunQuery(), 0.3)
        monkeypatch.undo()
        assert isinstance(await asked(join_server, says.RunQuery()), says.RunInfo)
    assert [line for line in said if "No space left" in line] == [
        (
            f"! the join server at {join_server.address} had an error, and continues: "
            "OSError: [Errno 28] No space left on device"
        )
    ]


async def met(*open_join_servers: JoinServer) -> None:
    await until(
        lambda: all(
            len(one.remote_servers.there) == len(open_join_servers) - 1 for one in open_join_servers
        )
    )


def lies_of(join_server: JoinServer, stranger: bytes = ANOTHER) -> tuple[PeerEntry, ...]:
    """About peer 1, whose door this is."""
    return (
        PeerEntry(1, 0, LET_IN, join_server.join_server, ended=True),
        PeerEntry(
            1, 7, LET_IN, join_server.join_server, False, "tcp://10.6.6.6:1", "tcp://10.6.6.6:2"
        ),
        PeerEntry(1, 8, LET_IN, stranger, False, "tcp://10.6.6.6:1", "tcp://10.6.6.6:2"),
    )


async def test_who_has_the_swarm_key_cannot_speak_for_a_door_that_answers(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with (
        join_server_in(a, (0,)) as one,
        join_server_in(
            b, (1,), one.address, lost=lambda peer: pytest.fail("it was told so")
        ) as other,
    ):
        announce(a, 0)
        announce(b, 1)
        await until(lambda: read_seed(a / "seeds", 1))
        await met(one, other)
        before = read_seed(a / "seeds", 1)
        for sender in (
            other.keeper.local,
            replace(other.keeper.local, ended=True),
            ServerEntry(ANOTHER, "127.0.0.1:1", ANOTHER),
        ):
            for lie in lies_of(other):
                for join_server in (one, other):
                    await asked(join_server, says.RegistryPush(config().run_id, sender, (lie,), ()))
        announce(b, 0)  # when this has got there, all that came of the lies has
        announce(a, 1 + 1)
        await until(lambda: read_seed(b / "seeds", 2) and read_seed(a / "seeds", 0))
        await met(one, other)
        assert read_seed(a / "seeds", 1) == before == read_seed(b / "seeds", 1)
        assert other.join_server in one.keeper.join_servers
        assert not one.keeper.join_servers[other.join_server].ended
        announce(b, 1, incarnation=1)
        await until(lambda: read_seed(a / "seeds", 1).incarnation == 1)  # type: ignore[union-attr]


async def test_doors_that_are_made_up_are_forgotten_and_do_not_fill_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_servers, "BACK_OFF_MAX_S", 0.2)
    async with (
        join_server_in(tmp_path / "a", (0,)) as one,
        join_server_in(tmp_path / "b", (1,), one.address) as other,
    ):
        await met(one, other)
        for much in range(10):
            made_up = tuple(
                [
                    ServerEntry(bytes([much, n]) * 4, f"127.0.0.1:{1 + much}{n:02}", b"")
                    for n in range(50)
                ]
            )
            await asked(one, says.RegistryPush(config().run_id, made_up[0], (), made_up))
            assert len(one.remote_servers.all) <= UNMET_MAX + 2
            assert len(one.keeper.join_servers) <= UNMET_MAX + 3
        assert (
            await asked(one, says.RegistryPull(config().run_id, other.keeper.local, b""))
        ).join_servers == one.keeper.announced_servers
        assert {join_server.join_server for join_server in one.keeper.announced_servers} == {
            one.join_server,
            other.join_server,
        }
        await until(lambda: list(one.remote_servers.all) == [other.address])
        assert set(one.keeper.join_servers) == {one.join_server, other.join_server}
