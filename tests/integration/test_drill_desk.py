"""Orders reach a run by a socket in its folder, are checked before anything is done, and end when their time is over."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossip.config import resolve
from gossip.drills import DrillBook
from gossip.errors import ConfigError
from gossip.faults import Liar, Slow
from gossip.launch.drilling import SOCKET, DrillDesk, ask
from gossip.world_faults import Partition


class FakeRun:
    """What a desk asks of a supervisor, and what it was asked to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = SimpleNamespace(peers=4)
        self.view = SimpleNamespace(round=7)
        self.is_training = True
        self.rows: list[tuple[str, int | None, dict[str, Any]]] = []
        self.done: list[tuple[Any, ...]] = []

    def is_here(self, peer: int) -> bool:
        return peer != 3

    def record(self, event: str, peer: int | None, **fields: Any) -> None:
        self.rows.append((event, peer, fields))

    def kill_peer(self, peer: int, after_s: float | None, fault: str) -> None:
        self.done.append(("kill", peer, after_s))

    def stop_peer(self, peer: int, for_s: float, fault: str) -> None:
        self.done.append(("stop", peer, for_s))

    def wake_all(self) -> None:
        self.done.append(("wake",))


def with_desk(folder: Path, act: Callable[[Callable[..., dict[str, Any]]], Any]) -> FakeRun:
    """Runs ``act`` in a thread while a desk is open; it is given a function that sends an order."""
    run = FakeRun(folder)

    async def serve() -> None:
        desk = DrillDesk(run)  # type: ignore[arg-type]
        await desk.open()
        try:
            await asyncio.to_thread(act, lambda **order: ask(folder, order))
        finally:
            desk.close()

    asyncio.run(serve())
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Deeper than the name of a socket may be long."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    return deep


def test_only_the_owner_can_open_the_socket_and_it_is_gone_with_the_run(folder: Path) -> None:
    seen: list[int] = []
    with_desk(folder, lambda order: seen.append(stat.S_IMODE((folder / SOCKET).stat().st_mode)))
    assert seen == [0o600]
    assert not (folder / SOCKET).exists()


def test_orders_are_carried_out_and_written_down(folder: Path) -> None:
    def act(order: Callable[..., dict[str, Any]]) -> None:
        assert order(drill="kill", peers=[1, 2], restart_s=2.5)["number"] == 1
        order(drill="kill", peers=[0], for_good=True)
        answer = order(drill="stop", peers=[1], for_s=3)
        assert answer["until"] - answer["t"] == pytest.approx(3.0)

    run = with_desk(folder, act)
    assert run.done == [("kill", 1, 2.5), ("kill", 2, 2.5), ("kill", 0, None), ("stop", 1, 3.0)]
    assert [fields["drill"] for event, peer, fields in run.rows if event == "drill" and peer is None] == ["kill", "kill", "stop"]


def test_what_lasts_is_in_the_file_until_its_time_is_over_or_all_is_healed(folder: Path) -> None:
    def act(order: Callable[..., dict[str, Any]]) -> None:
        book, faults = DrillBook(folder / "faults"), []
        order(drill="partition", sides=[[0, 1, 2], [3]], for_s=0.2)
        order(drill="slow", peers=[1], factor=3, for_s=50)
        order(drill="poison", peers=[2], attack="sign-flip", for_s=50)
        faults.append(book.on(time.monotonic()))
        until = time.monotonic() + 20
        while time.monotonic() < until and len(rows := json.loads((folder / "faults" / "drills.json").read_text())) == 3:
            pass
        assert [row["fault"]["kind"] for row in rows] == ["slow", "sign_flip"], "the partition is over"
        order(drill="heal")
        assert json.loads((folder / "faults" / "drills.json").read_text()) == []
        assert faults[0][1:] == (Slow(1, 3.0), Liar("sign_flip", (2,), 1.0))
        assert isinstance(faults[0][0], Partition)

    run = with_desk(folder, act)
    told = [(event, fields["kind"]) for event, _, fields in run.rows if event != "drill"]
    assert told[:3] == [("fault", "partition"), ("fault", "slow"), ("fault", "sign_flip")]
    assert sorted(told[3:]) == [("fault_over", "partition"), ("fault_over", "sign_flip"), ("fault_over", "slow")]
    assert run.done == [("wake",)]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ({"drill": "explode"}, "there is no drill 'explode'"),
        ({"drill": "kill", "peers": [4]}, "there is no peer 4"),
        ({"drill": "kill", "peers": [0, 3]}, "peer 3 is not there"),
        ({"drill": "kill"}, "a drill names a peer"),
        ({"drill": "stop", "peers": [1], "for_s": -1}, "no duration"),
        ({"drill": "partition", "sides": [[0, 1]]}, "two sides at least"),
        ({"drill": "partition", "sides": [[0, 1], [1]], "for_s": 1}, "no peer is on two"),
        ({"drill": "slow", "peers": [1], "factor": 0.5, "for_s": 1}, "factor = 0.5"),
        ({"drill": "poison", "peers": [1], "attack": "sign_flop", "for_s": 1}, "no attack 'sign_flop'"),
        ({"drill": "poison", "peers": [1], "attack": "label_flip", "for_s": 1}, "about a peer's data"),
        ({"drill": "poison", "peers": [1], "attack": "sign_flip", "strength": "much"}, "not an order"),
    ],
)
def test_an_order_that_cannot_be_is_refused_and_nothing_of_it_is_done(order: dict[str, Any], says: str, folder: Path) -> None:
    def act(send: Callable[..., dict[str, Any]]) -> None:
        with pytest.raises(ConfigError, match=says):
            send(**order)

    run = with_desk(folder, act)
    assert (run.done, run.rows) == ([], [])


def test_a_run_that_allows_no_drills_or_is_over_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        ask(tmp_path, {"drill": "heal"})
    for drills, says in ((False, "allows no drills"), (True, "is over, or has not begun")):
        made = resolve({"peers": 4, "name": "t", "run_dir": str(tmp_path), "drills": drills}).config
        made.dump(tmp_path / "config.json")
        with pytest.raises(ConfigError, match=says):
            ask(tmp_path, {"drill": "heal"})


def test_a_run_that_has_not_begun_to_train_takes_no_drills(folder: Path) -> None:
    run = FakeRun(folder)
    run.is_training = False

    async def serve() -> None:
        desk = DrillDesk(run)  # type: ignore[arg-type]
        await desk.open()
        try:
            with pytest.raises(ConfigError, match="does not train yet"):
                await asyncio.to_thread(ask, folder, {"drill": "kill", "peers": [1]})
        finally:
            desk.close()

    asyncio.run(serve())
    assert run.done == []
