"""What a newcomer is told at a door that it knocks at,
and the folder that it makes when it is let in."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gossip.config import RunConfig, resolve
from gossip.errors import ConfigError, NobodyAnswers, Refused
from gossip.launch.join import arriving
from gossip.launch.join.arriving import JoinSetup, JoinTicket, _JoinClient
from gossip.launch.local import code_of
from gossip.launch.local.program import Program
from gossip.launch.registry.join_endpoint import JoinEndpoint
from gossip.launch.registry.join_server import JoinServer
from gossip.run.keys import make_pair
from gossip.run.rendezvous import SeedFolder, announce_end, claim, peers_in


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the newcomer is in."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)
    return folder


@asynccontextmanager
async def run_in(
    folder: Path, key: Path | None = None, **options: Any
) -> AsyncIterator[JoinServer]:
    """A run of one peer with an open door, and room for two more."""
    given = {"peers": 1, "room": 3, "name": "t", **options}
    config = resolve(given).with_values("drawn", run="00000000000000aa", f=0).config
    folder.mkdir()
    (folder / "command.json").write_text(
        json.dumps({"command": ["python", "-u", "train.py", "--lr", "1"], "folder": "/nowhere"})
    )
    SeedFolder(folder / "seeds", 0, 9).announce(
        "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", 0, "k" * 40
    )
    join_server = JoinServer(config, folder, {0: 0}, JoinEndpoint(key=key))
    await join_server.open()
    try:
        yield join_server
    finally:
        await join_server.close()


async def arrive(
    *join_servers: str, script: Path | None = Path("train.py"), **ticket: Any
) -> tuple[JoinSetup, list[str]]:
    said: list[str] = []
    own = Program(str(script), ("--lr", "2")) if script is not None else None
    newcomer = _JoinClient(JoinTicket(join_servers, **{"patience_s": 1.0, **ticket}), said.append)
    return await asyncio.wait_for(newcomer.arrive(own), 60), said


async def test_a_newcomer_makes_a_folder_of_its_own(tmp_path: Path, here: Path) -> None:
    key = tmp_path / "swarm.key"
    make_pair(key)
    async with run_in(tmp_path / "run", key, keys=True) as join_server:
        arrival, said = await arrive(join_server.address, key=key)
        assert said == []
        run = here / "runs" / "t"
        config = RunConfig.load(run / "config.json")
        assert config == arrival.config
        assert (config.run, config.host, config.run_dir, config.keyed) == (
            "00000000000000aa",
            "127.0.0.1",
            str(run),
            True,
        )
        assert arrival.newcomers == {1: 0}
        assert arrival.program.words == ["train.py", "--lr", "2"]
        assert arrival.endpoint.seeds == (join_server.address,)
        assert join_server.keeper.entries[1].owner == arrival.endpoint.join_server
        assert json.loads((run / "seeds" / "0.addr").read_text())["key"] == "k" * 40
        assert peers_in(run / "seeds") == [0], "its own peers write theirs"
        assert stat.S_IMODE((run / "swarm.key").stat().st_mode) == 0o600
        again, _ = await arrive(join_server.address, key=key)
        assert (Path(again.config.run_dir).name, again.newcomers) == ("t-2", {2: 0})
        assert claim(run / "seeds", config.peers, 3) == (2, 0), (
            "who joins by its folder has another id, though it has no address yet"
        )


@pytest.mark.parametrize("own", [True, False])
async def test_a_list_of_who_is_allowed_is_each_machines_own(
    tmp_path: Path, here: Path, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "swarm.key"
    make_pair(key)
    for name in ("GOSSIP_ALLOWED", "GOSSIP_KEY"):
        monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv("GOSSIP_ALLOWED", "mine.txt")
        monkeypatch.setenv("GOSSIP_KEY", "1.key")
    async with run_in(
        tmp_path / "run", key, keys=True, allowed="/secret/folder/theirs.txt"
    ) as join_server:
        arrival, said = await arrive(join_server.address, key=key)
    assert arrival.config.allowed == (str(here / "mine.txt") if own else "")
    assert [
        "of allowed peers (theirs.txt), and this machine has none" in line for line in said[:1]
    ] == [True] * (not own)
    assert ["GOSSIP_KEY=FILE" in line for line in said[1:]] == [True] * (not own)
    assert "/secret" not in (here / "runs" / "t" / "config.json").read_text() + "".join(said)


async def test_a_script_of_its_own_may_have_its_own_arguments(tmp_path: Path, here: Path) -> None:
    (here / "mine.py").touch()
    async with run_in(tmp_path / "run") as join_server:
        arrival, _ = await arrive(join_server.address, script=Path("mine.py"))
        assert arrival.program.words == ["mine.py", "--lr", "2"]


async def test_what_runs_here_is_not_for_a_door_to_say(tmp_path: Path, here: Path) -> None:
    async with run_in(tmp_path / "run") as join_server:
        with pytest.raises(
            ConfigError, match=r"name the script: .* The other peers run train.py --lr 1"
        ) as raised:
            await arrive(join_server.address, script=None)
        assert raised.value.hint == f"gossip join {join_server.address} -- train.py --lr 1"
        assert list(join_server.keeper.entries) == [0]
        assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ({"aggregator": "evil.py:rule"}, "evil.py:rule"),
        ({"topology": "os:system:k=1"}, "os:system:k=1"),
        ({"aggregator": "nnm+evil:rule"}, "nnm+evil:rule"),
        ({"faults": ("attack:evil.py:lie:0",)}, "evil.py:lie"),
    ],
)
async def test_code_that_a_door_names_runs_only_when_the_user_has_named_it_too(
    code: dict[str, Any], named: str, tmp_path: Path, here: Path
) -> None:
    (here / "mine.py").touch()
    async with run_in(tmp_path / "run") as join_server:
        join_server._config = join_server._config.model_copy(update=code)
        with pytest.raises(ConfigError, match="code that is not gossip's") as raised:
            await arrive(join_server.address, script=Path("mine.py"))
        assert named in str(raised.value.hint)
        assert not (here / "runs").exists()
        arrival, _ = await arrive(join_server.address, script=Path("mine.py"), code=(named,))
        assert named in code_of(arrival.config)


async def test_a_door_starts_no_more_peers_here_than_asked_for(tmp_path: Path, here: Path) -> None:
    (here / "mine.py").touch()
    async with run_in(tmp_path / "run") as join_server:
        welcome = join_server.socket.welcome

        async def generous(join_request: Any) -> Any:
            answer = await welcome(join_request)
            return dataclasses.replace(answer, ids=tuple((peer, 0) for peer in range(1, 6)))

        join_server.socket.welcome = generous  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match="sent 5 ids where 1 was requested"):
            await arrive(join_server.address, script=Path("mine.py"))
        assert not (here / "runs").exists()


async def test_a_run_with_keys_has_no_door_without_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"swarm\.key is missing"):
        async with run_in(tmp_path / "run", keys=True):
            pass


async def test_any_door_that_answers_will_do(tmp_path: Path, here: Path) -> None:
    async with run_in(tmp_path / "run") as join_server:
        arrival, _ = await arrive("127.0.0.1:9", join_server.address)
        assert arrival.newcomers == {1: 0}


async def test_when_nobody_answers_each_address_is_named_with_what_came_back(here: Path) -> None:
    with pytest.raises(NobodyAnswers) as raised:
        await arrive("127.0.0.1:9", "127.0.0.1:10")
    first, *tried = str(raised.value).splitlines()
    assert first.startswith("no join server replied at 127.0.0.1:9, 127.0.0.1:10 in ")
    assert [line.rpartition(" (x")[0] for line in tried] == [
        f"  tried 127.0.0.1:{port} from 127.0.0.1: connection refused: nothing listens there"
        for port in (9, 10)
    ]
    assert raised.value.exit_code == 4


async def test_who_has_no_key_or_another_is_told_so_at_once(tmp_path: Path) -> None:
    key, wrong = tmp_path / "swarm.key", tmp_path / "wrong.key"
    make_pair(key)
    make_pair(wrong)
    async with run_in(tmp_path / "run", key, keys=True) as join_server:
        began = time.monotonic()
        with pytest.raises(Refused, match=r"wrong swarm key \(yours is "):
            await arrive(join_server.address, key=wrong, patience_s=50.0)
        with pytest.raises(
            Refused, match=r"it needs a key, or is not a join server of gossip"
        ) as refused:
            await arrive(join_server.address, patience_s=50.0)
        assert "copy runs/NAME/swarm.key" in (refused.value.hint or "")
        assert time.monotonic() - began < 40
        assert Refused.exit_code == 6


async def test_a_key_that_was_not_copied_is_told_with_where_it_should_be(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"swarm key swarm.key does not exist here") as refused:
        await arrive("10.0.0.5:7421", key=Path("swarm.key"))
    assert f"to {here}/swarm.key, readable only by you" in (refused.value.hint or ""), (
        "and not how to make another key"
    )


async def test_elsewhere_than_on_loopback_nobody_joins_without_a_key() -> None:
    with pytest.raises(ConfigError, match=r"refused to join at 10.0.0.5:7421 without a key"):
        await arrive("10.0.0.5:7421")


async def test_what_is_no_address_is_told_from_a_name_that_nobody_has() -> None:
    with pytest.raises(ConfigError, match="needs brackets"):
        await arrive("fe80::1:7421")
    with pytest.raises(ConfigError, match=r"'10.0.0.5:0' is not HOST:PORT"):
        await arrive("10.0.0.5:0")


async def test_a_full_run_and_one_that_is_over_say_so(tmp_path: Path, here: Path) -> None:
    async with run_in(tmp_path / "run") as join_server:
        with pytest.raises(
            ConfigError, match="room for 3 peers at a time: 3 were to join, and there is room for 2"
        ):
            await arrive(join_server.address, count=3)
        announce_end(tmp_path / "run" / "seeds", 0, 0)
        join_server._publish_changes()
        with pytest.raises(ConfigError, match="the run t is over"):
            await arrive(join_server.address)


async def test_other_versions_are_refused_with_both(tmp_path: Path, here: Path) -> None:
    async with run_in(tmp_path / "run") as join_server:
        join_server._versions = dataclasses.replace(join_server._versions, torch="9.9.9")
        with pytest.raises(Refused, match=r"torch 9.9.9 here, .* there"):
            await arrive(join_server.address)


async def test_an_address_that_the_others_cannot_reach_is_refused(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving, "own_address", {"eth0": "10.9.9.9"}.__getitem__)
    async with run_in(tmp_path / "run") as join_server:
        with pytest.raises(
            ConfigError,
            match=r"peers would be at 10.9.9.9: the other peers could not reach them",
        ):
            await arrive(join_server.address, advertise="eth0")


async def test_what_the_door_saw_is_compared_with_ones_address(tmp_path: Path, here: Path) -> None:
    async with run_in(tmp_path / "run") as join_server:
        said: list[str] = []
        newcomer = _JoinClient(JoinTicket((join_server.address,)), said.append)
        assert newcomer._own_host("127.0.0.1:1", "127.0.0.9") == "127.0.0.1"
        assert said == [
            (
                "! this machine's address is 127.0.0.1, but the join server at 127.0.0.1:1 saw "
                "127.0.0.9: the network between them translates addresses. The other peers "
                "connect to 127.0.0.1"
            )
        ]


@pytest.mark.parametrize(
    ("name", "folder"),
    [("../../etc", "_.._etc"), ("", "run"), ("/a b", "_a_b"), ("t.1-x_y", "t.1-x_y")],
)
def test_the_name_of_a_strangers_run_leads_nowhere_else(name: str, folder: str, here: Path) -> None:
    assert arriving._free(Path("runs"), name) == Path("runs") / folder


async def test_who_joins_with_the_code_of_another_commit_is_told_so(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        arriving, "code_version", lambda folder: {"commit": "b" * 40, "changed_files": 0}
    )
    async with run_in(tmp_path / "run") as join_server:
        (tmp_path / "run" / "environment.json").write_text(
            json.dumps({"code": {"commit": "a" * 40}})
        )
        _, said = await arrive(join_server.address)
        assert said == [
            "! the code here is at commit bbbbbbbbbbbb, that of the other hosts at aaaaaaaaaaaa"
        ]
        (tmp_path / "run" / "environment.json").write_text(
            json.dumps({"code": {"commit": "b" * 40}})
        )
        assert (await arrive(join_server.address))[1] == []
