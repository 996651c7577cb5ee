"""Doors of several launchers on loopback, each with a folder of its own: what they tell each other, and whom they turn away."""

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
from gossip.launch.registry import door as doors
from gossip.launch.registry import door_messages as says
from gossip.launch.registry import neighbours
from gossip.launch.registry.door import Door
from gossip.launch.registry.door_calls import NUMBER_BYTES, Unanswered, ask
from gossip.launch.registry.doorkeeper import CLAIMED, LET_IN, UNMET_MAX, DoorEntry, Entry
from gossip.launch.registry.entrance import Entrance
from gossip.run.keys import make_pair
from gossip.run.rendezvous import SeedFolder, announce_end, claim, peers_in, read_seed, take_claim

JOINER, ANOTHER = b"joiner-1", b"joiner-2"


def config(**options: Any) -> RunConfig:
    return resolve({"peers": 2, "room": 6, "name": "t", **options}).with_values("drawn", run="00000000000000aa", f=0).config


@asynccontextmanager
async def door_in(folder: Path, own: tuple[int, ...] = (), *seeds: str, **options: Any) -> AsyncIterator[Door]:
    folder.mkdir(exist_ok=True)
    entrance = Entrance(seeds, key=options.pop("key", None))
    door = Door(options.pop("config", config()), folder, dict.fromkeys(own, 0), entrance, **options)
    await door.open()
    try:
        yield door
    finally:
        await door.close()


def announce(folder: Path, peer: int, incarnation: int = 0) -> None:
    SeedFolder(folder / "seeds", peer, 9).announce(f"tcp://127.0.0.1:{peer}1", f"tcp://127.0.0.1:{peer}2", incarnation)


async def until(done: Callable[[], object], within_s: float = 60.0) -> None:
    over = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < over, "it never came"
        await asyncio.sleep(0.02)


async def asked(door: Door, question: says.Question, within_s: float = 10.0) -> Any:
    context = zmq.asyncio.Context()
    try:
        return await ask(context, door.address, question, within_s)
    finally:
        context.destroy(0)


def knock(door: bytes = JOINER, count: int = 1, versions: says.Versions | None = None) -> says.Knock:
    return says.Knock(door, count, versions or says.Versions.here())


async def test_what_one_writes_the_others_read_and_the_end_of_a_peer_too(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    async with door_in(a, (0,)) as first, door_in(b, (1,), first.address), door_in(c, (), first.address):
        announce(a, 0)
        announce(b, 1)
        await until(lambda: all(peers_in(folder / "seeds") == [0, 1] for folder in (a, b, c)))
        assert read_seed(c / "seeds", 1) == read_seed(b / "seeds", 1)
        announce(b, 1, incarnation=4)
        await until(lambda: all(read_seed(folder / "seeds", 1).incarnation == 4 for folder in (a, c)))  # type: ignore[union-attr]
        announce_end(b / "seeds", 1, 4)
        await until(lambda: all(read_seed(folder / "seeds", 1).ended for folder in (a, c)))  # type: ignore[union-attr]


async def test_a_door_that_is_told_of_another_before_it_is_open_visits_it_then(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with door_in(a, (0,)) as first:
        b.mkdir()
        second = Door(config(), b, {1: 0}, Entrance())
        second.meet([first.address])  # the launcher of many hosts tells of those that are open, and one may be slow to start
        await second.open()
        try:
            await until(lambda: len(first.keeper.doors) == len(second.keeper.doors) == 2)
        finally:
            await second.close()


async def test_doors_that_were_told_of_one_know_all_and_go_on_without_it(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    async with door_in(b, (1,)) as second, door_in(c, ()) as third:
        async with door_in(a, (0,), second.address, third.address):
            await until(lambda: len(second.keeper.doors) == len(third.keeper.doors) == 3)
        # It has closed, or is forgotten where it did so before it was met.
        await until(lambda: sum(not entry.ended for entry in second.keeper.doors.values()) == 2)
        announce(b, 1)
        await until(lambda: read_seed(c / "seeds", 1))


async def test_who_leaves_before_its_first_visit_is_answered_says_goodbye_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"

    async def unheard(asking: Door, address: str, question: says.Question) -> says.Said:
        answer = await ask_in_full(asking, address, question)
        if isinstance(question, says.Pull) and asking.keeper.own:
            await asyncio.Event().wait()  # the answer is on the way
        return answer

    ask_in_full = Door._ask
    async with door_in(b) as second:
        monkeypatch.setattr(Door, "_ask", unheard)
        async with door_in(a, (0,), second.address):
            await until(lambda: second.neighbours.there)
        await until(lambda: sum(entry.ended for entry in second.keeper.doors.values()) == 1)


async def test_a_knock_is_answered_with_all_that_a_folder_needs(tmp_path: Path) -> None:
    a = tmp_path / "a"
    async with door_in(a, (0, 1)) as door:
        assert (await asked(door, knock())).kind == "wait", "nobody is here to take its state from"
        announce(a, 0)
        (a / "command.json").write_text(json.dumps({"command": ["python", "-u", "train.py", "--lr", "1"], "folder": "/work"}))
        await until(lambda: door.keeper.state == "running")
        welcome = await asked(door, knock(count=2))
        assert isinstance(welcome, says.Welcome)
        assert welcome.ids == ((2, 0), (3, 0))
        assert RunConfig.model_validate_json(welcome.config) == config(run_dir="", keys=False)
        here = await asked(door, says.Look())
        assert (here.command, here.folder) == (("train.py", "--lr", "1"), "/work")
        assert (here.name, here.state, here.peers, here.free, here.seen) == ("t", "running", (0,), 2, "127.0.0.1")
        assert {entry.peer: entry.owner for entry in welcome.entries} == {0: door.door, 1: door.door, 2: JOINER, 3: JOINER}
        assert (a / "seeds" / "3.0.claim").exists(), "who joins by the folder sees it, too"


async def test_those_who_knock_at_two_doors_at_once_get_different_ids(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with door_in(a, (0,)) as one, door_in(b, (1,), one.address) as other:
        announce(a, 0)
        await until(lambda: other.keeper.state == one.keeper.state == "running" and len(one.keeper.doors) == 2)
        joiners = [bytes([number]) * 8 for number in range(4)]
        answers = await asyncio.gather(*(asked((one, other)[at % 2], knock(who)) for at, who in enumerate(joiners)))
        ids = [peer for answer in answers for peer, _ in answer.ids]
        assert sorted(ids) == [2, 3, 4, 5]
        full = await asked(one, knock(b"too-late"))
        assert (full.kind, "there is room for 0" in full.message) == ("full", True)


async def test_an_id_that_was_taken_by_the_folder_is_not_given_at_the_door(tmp_path: Path) -> None:
    a = tmp_path / "a"
    async with door_in(a, (0,)) as door:
        announce(a, 0)
        (a / "seeds" / "2.0.claim").touch()
        await until(lambda: door.keeper.state == "running")
        assert (await asked(door, knock())).ids == ((3, 0),)


async def test_an_id_that_is_heard_of_when_it_has_an_address_already_is_not_taken_by_the_folder(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with door_in(a, (0,)) as first:
        announce(a, 0)
        b.mkdir()
        announce(b, 3)
        async with door_in(b, (3,), first.address):
            await until(lambda: read_seed(a / "seeds", 3))
        assert [claim(a / "seeds", 2, 6)[0] for _ in range(3)] == [2, 4, 5]  # type: ignore[index]
        assert not take_claim(a / "seeds", 3, 0), "nor between the look at the addresses and the claim"


async def test_two_launchers_with_the_same_id_find_out_and_one_is_told(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    lost: list[tuple[str, int]] = []
    async with door_in(a, (2,), lost=lambda peer: lost.append(("a", peer))) as one:
        announce(a, 2)
        b.mkdir()
        announce(b, 2)
        async with door_in(b, (2,), one.address, lost=lambda peer: lost.append(("b", peer))) as other:
            await until(lambda: lost)
            await until(lambda: one.keeper.digest() == other.keeper.digest())
            assert [(peer, len(one.keeper.own) + len(other.keeper.own)) for _, peer in lost] == [(2, 1)]


async def test_other_versions_are_turned_away_with_both_values(tmp_path: Path) -> None:
    async with door_in(tmp_path / "a", (0,)) as door:
        here = says.Versions.here()
        other = says.Versions(here.protocol, here.gossip, here.python, "1.2.3")
        answer = await asked(door, knock(versions=other))
        assert (answer.kind, answer.message) == ("version", f"not the same versions: torch {here.torch} here, 1.2.3 there")


async def test_doors_of_different_runs_have_nothing_to_say_to_each_other(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    strange = config().model_copy(update={"run": "00000000000000bb", "name": "u"})
    async with door_in(a, (0,)) as one, door_in(b, (0,), one.address, config=strange) as other:
        announce(a, 0)
        await until(other.troubles)
        assert "of the run t, not of yours" in other.troubles()[0]
        assert peers_in(b / "seeds") == []
        assert len(one.keeper.doors) == 1


async def test_a_door_that_does_not_answer_is_named_with_what_came_back(tmp_path: Path) -> None:
    async with door_in(tmp_path / "a", (0,)) as one:
        gone = one.address
    async with door_in(tmp_path / "b", (), gone) as door:
        await until(door.troubles)
        assert door.troubles()[0].startswith(f"{gone}: connection refused: nothing listens there (x")


async def test_the_address_that_was_bound_is_in_the_folder(tmp_path: Path) -> None:
    async with door_in(tmp_path / "a", (0,)) as door:
        (found,) = (tmp_path / "a" / "doors").glob("*.json")
        assert json.loads(found.read_text())["address"] == door.address
        assert not door.address.endswith(":0")
    assert not found.exists()


async def test_bytes_of_strangers_are_counted_and_nothing_else(tmp_path: Path) -> None:
    context = zmq.asyncio.Context()
    async with door_in(tmp_path / "a", (0,)) as door:
        number = b"\0" * NUMBER_BYTES

        async def say(frames: list[bytes]) -> zmq.asyncio.Socket:
            stranger = context.socket(zmq.DEALER)  # one for each: a connection has room for one question
            stranger.connect(f"tcp://{door.address}")
            await stranger.send_multipart(frames)
            return stranger

        good = says.encode(says.Look())
        bad = [[b""], [number, b""], [number, b"GDR1"], [number, good + b"x"], [b"short", good], [number, good, b"more"]]
        bad += [[number, says.VERSION + bytes([byte]) * 50] for byte in (0x00, 0x91, 0xC1, 0xDD, 0xDF, 0xFF)]
        bad += [[number, says.encode(says.Granted((1,)))]]
        for frames in bad:
            await say(frames)
        await until(lambda: door.refused == len(bad))
        stranger = await say([number, b"GDR9whatever"])
        answer = says.decode((await stranger.recv_multipart())[1])
        assert isinstance(answer, says.TurnedAway)
        assert answer.message == "this door speaks version 1, you version 9"
        assert isinstance(await asked(door, says.Look()), says.Here)
    context.destroy(0)


async def test_who_asks_too_much_is_not_heard_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "UNITS_A_S", 0.001)
    monkeypatch.setattr(doors, "UNITS_AT_ONCE", 10.0)
    async with door_in(tmp_path / "a", (0,)) as door:
        context = zmq.asyncio.Context()
        floods = [context.socket(zmq.DEALER) for _ in range(15)]
        for flood in floods:
            flood.connect(f"tcp://{door.address}")
            await flood.send_multipart([b"\0" * NUMBER_BYTES, says.encode(says.Look())])
        await until(lambda: door.refused == 6)  # a question costs a bit more than one unit
        context.destroy(0)


async def test_an_entry_for_an_id_beyond_the_room_is_not_taken(tmp_path: Path) -> None:
    async with door_in(tmp_path / "a", (0,)) as door:
        question = says.Propose(config().run_id, (Entry(6, 0, CLAIMED, ANOTHER), Entry(5, 0, CLAIMED, ANOTHER)))
        assert (await asked(door, question)).peers == (5,)
        try:
            await asked(door, says.Propose(config().run_id, (Entry(5, -1, CLAIMED, ANOTHER),)), within_s=1.0)
        except Unanswered as silence:
            assert "no answer" in str(silence)  # noqa: PT017 - it is what came back that is looked at
        else:
            raise AssertionError("a negative incarnation is nothing that a door says")


async def test_doors_with_the_swarm_key_talk_and_others_are_told_that_it_is_the_key(tmp_path: Path) -> None:
    key, wrong = tmp_path / "swarm.key", tmp_path / "wrong.key"
    make_pair(key)
    make_pair(wrong)
    a, b = tmp_path / "a", tmp_path / "b"
    async with door_in(a, (0,), key=key) as one, door_in(b, (1,), one.address, key=key):
        announce(b, 1)
        await until(lambda: peers_in(a / "seeds") == [1])
        async with door_in(tmp_path / "c", (), one.address, key=wrong) as other, door_in(tmp_path / "d", (), one.address) as none:
            await until(lambda: other.troubles() and none.troubles())
            assert other.troubles()[0].startswith(f"{one.address}: refused by key: this is not the key of that door")
            assert none.troubles()[0].startswith(f"{one.address}: refused by key: that door wants one (--key FILE)")
            assert peers_in(tmp_path / "c" / "seeds") == peers_in(tmp_path / "d" / "seeds") == []
        assert (one.refused, len(one.keeper.doors)) == (0, 2), "not a byte of theirs was read"


async def test_a_door_that_hears_of_an_end_in_its_last_moment_closes_all_the_same(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with door_in(a, (0,)) as first, door_in(b, (1,), first.address) as second:
        announce(b, 1)
        await until(lambda: read_seed(a / "seeds", 1))
        await until(lambda: all(other.wake._waiters for other in second.neighbours.all.values()))  # between two visits
        announce_end(b / "seeds", 1)
        closing = asyncio.create_task(second.close())
        await asyncio.wait([closing], timeout=20.0)
        assert closing.done()
        second.address = ""  # it is closed


async def test_who_has_gone_before_the_answer_costs_no_word(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    async with door_in(tmp_path / "a", (0,)) as door:
        door._reply(b"gone", b"n" * NUMBER_BYTES, says.TurnedAway("wait", "", ""))
        gc.collect()
        await asked(door, says.Look())
    assert told == []


async def test_a_full_disk_costs_an_answer_and_not_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    async with door_in(tmp_path / "a", (0,), say=said.append) as door:
        answer = door._answer

        def full(question: Any, seen: str) -> Any:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(door, "_answer", full)
        for _ in range(2):
            with pytest.raises(Unanswered):
                await asked(door, says.Look(), 0.3)
        monkeypatch.setattr(door, "_answer", answer)
        assert isinstance(await asked(door, says.Look()), says.Here)
    assert [line for line in said if "No space left" in line] == [
        f"! the door at {door.address} could not do something, and goes on: OSError: [Errno 28] No space left on device"
    ]


async def met(*open_doors: Door) -> None:
    await until(lambda: all(len(one.neighbours.there) == len(open_doors) - 1 for one in open_doors))


def lies_of(door: Door, stranger: bytes = ANOTHER) -> tuple[Entry, ...]:
    """About peer 1, whose door this is."""
    return (
        Entry(1, 0, LET_IN, door.door, ended=True),
        Entry(1, 7, LET_IN, door.door, False, "tcp://10.6.6.6:1", "tcp://10.6.6.6:2"),
        Entry(1, 8, LET_IN, stranger, False, "tcp://10.6.6.6:1", "tcp://10.6.6.6:2"),
    )


async def test_whoever_has_the_key_of_the_swarm_cannot_speak_for_a_door_that_answers(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with door_in(a, (0,)) as one, door_in(b, (1,), one.address, lost=lambda peer: pytest.fail("it was told so")) as other:
        announce(a, 0)
        announce(b, 1)
        await until(lambda: read_seed(a / "seeds", 1))
        await met(one, other)
        before = read_seed(a / "seeds", 1)
        for sender in (other.keeper.local, replace(other.keeper.local, ended=True), DoorEntry(ANOTHER, "127.0.0.1:1", ANOTHER)):
            for lie in lies_of(other):
                for door in (one, other):
                    await asked(door, says.Push(config().run_id, sender, (lie,), ()))
        announce(b, 0)  # when this has got there, all that came of the lies has
        announce(a, 1 + 1)
        await until(lambda: read_seed(b / "seeds", 2) and read_seed(a / "seeds", 0))
        await met(one, other)
        assert read_seed(a / "seeds", 1) == before == read_seed(b / "seeds", 1)
        assert other.door in one.keeper.doors
        assert not one.keeper.doors[other.door].ended
        announce(b, 1, incarnation=1)
        await until(lambda: read_seed(a / "seeds", 1).incarnation == 1)  # type: ignore[union-attr]


async def test_what_a_door_says_at_its_end_is_believed_when_it_does_not_answer_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "LOOK_S", 3600.0)  # it looks when it opens, and once more when it closes
    a, b = tmp_path / "a", tmp_path / "b"
    b.mkdir()
    announce(b, 1)
    async with door_in(a, (0,)) as one:
        async with door_in(b, (1,), one.address) as other:
            await until(lambda: read_seed(a / "seeds", 1))
            await met(one, other)
            announce_end(b / "seeds", 1)
        await until(lambda: read_seed(a / "seeds", 1).ended)  # type: ignore[union-attr]
        await until(lambda: one.keeper.doors[other.door].ended and not one.neighbours.all)


async def test_doors_that_are_made_up_are_forgotten_and_do_not_fill_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "BACK_OFF_MAX_S", 0.2)
    async with door_in(tmp_path / "a", (0,)) as one, door_in(tmp_path / "b", (1,), one.address) as other:
        await met(one, other)
        for much in range(10):
            made_up = tuple([DoorEntry(bytes([much, n]) * 4, f"127.0.0.1:{1 + much}{n:02}", b"") for n in range(50)])
            await asked(one, says.Push(config().run_id, made_up[0], (), made_up))
            assert len(one.neighbours.all) <= UNMET_MAX + 2
            assert len(one.keeper.doors) <= UNMET_MAX + 3
        assert (await asked(one, says.Pull(config().run_id, other.keeper.local, b""))).doors == one.keeper.told
        assert {door.door for door in one.keeper.told} == {one.door, other.door}
        await until(lambda: list(one.neighbours.all) == [other.address])
        assert set(one.keeper.doors) == {one.door, other.door}


async def test_nobody_gets_an_id_under_the_number_of_a_door_that_is_there(tmp_path: Path) -> None:
    async with door_in(tmp_path / "a", (0,)) as one, door_in(tmp_path / "b", (1,), one.address) as other:
        announce(tmp_path / "a", 0)
        await met(one, other)
        await until(lambda: one.keeper.state == "running")
        for taken in (one.door, other.door):
            assert (await asked(one, knock(taken))).kind == "wait"
        assert (await asked(one, says.Look())).free == 4
