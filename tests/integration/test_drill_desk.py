"""Orders reach a run by a socket in its folder, are checked before anything is done, and end when
their time is over."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossip.config import resolve
from gossip.errors import ConfigError
from gossip.faults.drills import DrillFile
from gossip.faults.kinds import ByzantineFault, Slow
from gossip.faults.world import Partition
from gossip.launch.local.desks import RunUnreachable, ask, name_of, open_socket
from gossip.launch.local.drilling import DrillServer
from gossip.launch.local.program import Program
from gossip.launch.local.supervisor import Supervisor
from gossip.observe import Event, events, select
from gossip.run.rendezvous import announce_end


class FakeRun:
    """What a desk asks of a supervisor, and what it was asked to do."""

    def __init__(self, folder: Path, peers: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        self.folder, self.peers = folder, peers
        self.config = SimpleNamespace(peers=4)
        self.view = SimpleNamespace(progress=SimpleNamespace(round=7))
        self.is_training, self.is_over = True, False
        self.rows: list[Event] = []
        self.done: list[tuple[Any, ...]] = []

    def is_here(self, peer: int) -> bool:
        return peer in self.peers and peer != 3

    def record(self, event: Event) -> None:
        self.rows.append(event)

    def kill_peer(self, after_s: float | None, peer: int, fault: str) -> None:
        self.done.append(("kill", peer, after_s))

    def stop_peer(self, for_s: float, peer: int, fault: str) -> None:
        self.done.append(("stop", peer, for_s))

    def ask_peer_to_leave(self, peer: int, fault: str) -> None:
        self.done.append(("leave", peer, fault))

    def wake_all(self) -> list[int]:
        self.done.append(("wake",))
        return [2] if 2 in self.peers else []


def with_desks(
    folder: Path, act: Callable[[Callable[..., dict[str, Any]]], Any], *runs: FakeRun
) -> None:
    """Runs ``act`` in a thread while the desks of ``runs`` are open;
    it is given a function that sends an order."""

    async def serve() -> None:
        desks = [
            DrillServer(cast(Any, run), cast(Any, run), min(run.peers) if number else None)
            for number, run in enumerate(runs)
        ]
        for desk in desks:
            await desk.open()
        try:
            await asyncio.to_thread(act, lambda **order: ask(folder, order))
        finally:
            for desk in desks:
                desk.close()

    asyncio.run(serve())


def with_desk(folder: Path, act: Callable[[Callable[..., dict[str, Any]]], Any]) -> FakeRun:
    run = FakeRun(folder)
    with_desks(folder, act, run)
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Deeper than the name of a socket may be long."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    return deep


def test_only_the_owner_can_open_the_socket_and_it_is_gone_with_the_run(folder: Path) -> None:
    seen: list[int] = []
    with_desk(
        folder, lambda order: seen.append(stat.S_IMODE((folder / name_of(None)).stat().st_mode))
    )
    assert seen == [0o600]
    assert not (folder / name_of(None)).exists()


def test_orders_are_carried_out_and_written_down(folder: Path) -> None:
    def act(order: Callable[..., dict[str, Any]]) -> None:
        assert order(drill="kill", peers=[1, 2], restart_s=2.5)["number"] == 1
        order(drill="kill", peers=[0], for_good=True)
        order(drill="stop", peers=[1], for_s=3)
        order(drill="leave", peers=[2])

    run = with_desk(folder, act)
    left = ("leave", 2, "drill 4: leave 2")
    assert run.done == [
        ("kill", 1, 2.5),
        ("kill", 2, 2.5),
        ("kill", 0, None),
        ("stop", 1, 3.0),
        left,
    ]
    told = [drill.drill for drill in select(run.rows, events.Drill)]
    assert told == ["kill", "kill", "stop", "leave"]


def test_what_lasts_is_in_the_file_until_its_time_is_over_or_all_is_healed(folder: Path) -> None:
    def act(order: Callable[..., dict[str, Any]]) -> None:
        book, faults = DrillFile(folder / "faults"), []
        order(drill="partition", sides=[[0, 1, 2], [3]], for_s=0.2)
        order(drill="slow", peers=[1], factor=3, for_s=50)
        order(drill="poison", peers=[2], attack="sign-flip", for_s=50)
        faults.append(book.on(time.monotonic()))
        until = time.monotonic() + 20
        while (
            time.monotonic() < until
            and len(rows := json.loads((folder / "faults" / "drills.json").read_text())) == 3
        ):
            pass
        assert [row["fault"]["kind"] for row in rows] == ["slow", "sign_flip"], (
            "the partition is over"
        )
        healed = order(drill="heal")
        assert healed["ended"] == ["drill 2: slow:1*3", "drill 3: sign_flip:2*1"]
        assert healed["woken"] == [2]
        assert json.loads((folder / "faults" / "drills.json").read_text()) == []
        assert faults[0][1:] == (Slow(1, 3.0), ByzantineFault("sign_flip", (2,), 1.0))
        assert isinstance(faults[0][0], Partition)

    run = with_desk(folder, act)
    faults = select(run.rows, events.Fault, events.FaultOver)
    told = [(fault.name(), fault.kind) for fault in faults]
    assert told[:3] == [("fault", "partition"), ("fault", "slow"), ("fault", "sign_flip")]
    assert sorted(told[3:]) == [
        ("fault_over", "partition"),
        ("fault_over", "sign_flip"),
        ("fault_over", "slow"),
    ]
    assert run.done == [("wake",)]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ({"drill": "kil"}, "unknown drill 'kil'. Did you mean 'kill'"),
        ({"drill": "kill", "peers": [4]}, "there is no peer 4"),
        ({"drill": "kill", "peers": [0, 3]}, "peer 3 is not running"),
        ({"drill": "leave", "peers": [3]}, "peer 3 is not running"),
        ({"drill": "kill"}, "a drill needs a peer"),
        (
            {"drill": "kill", "peers": [1], "restart_s": "soon"},
            "restart_s = 'soon' is not a duration",
        ),
        ({"drill": "stop", "peers": [1], "for_s": -1}, "not a duration"),
        ({"drill": "stop", "peers": [1], "for_s": 0}, "not a duration"),
        ({"drill": "slow", "peers": [1], "factor": 2}, "for_s = 0.0 is not a duration"),
        ({"drill": "partition", "sides": [[0, 1]]}, "at least two sides"),
        ({"drill": "partition", "sides": [0, 1], "for_s": 1}, "each with a peer"),
        ({"drill": "partition", "sides": [[0, 1], [1]], "for_s": 1}, "peer 1 is listed twice"),
        ({"drill": "slow", "peers": [1], "factor": 0.5, "for_s": 1}, "factor = 0.5"),
        (
            {"drill": "poison", "peers": [1], "attack": "sign_flop", "for_s": 1},
            "unknown attack 'sign_flop'. Did you mean 'sign_flip'",
        ),
        (
            {"drill": "poison", "peers": [1], "attack": "label_flip", "for_s": 1},
            "changes a peer's data",
        ),
        (
            {"drill": "poison", "peers": [1], "attack": "sign_flip", "strength": "much"},
            "strength = 'much' is not a number: factor of the negated update",
        ),
        (
            {"drill": "poison", "peers": [1], "attack": "sign_flip", "strength": float("inf")},
            "strength inf is not above 0",
        ),
        (
            {"drill": "poison", "peers": [1], "attack": "sign_flip", "strength": 10**400},
            "not an order",
        ),
        ({"drill": "poison", "peers": [1], "attack": "nan", "strength": 2}, "nan has no strength"),
    ],
)
def test_an_order_that_cannot_be_is_refused_and_nothing_of_it_is_done(
    order: dict[str, Any], says: str, folder: Path
) -> None:
    def act(send: Callable[..., dict[str, Any]]) -> None:
        with pytest.raises(ConfigError, match=says):
            send(**order)

    run = with_desk(folder, act)
    assert (run.done, run.rows) == ([], [])


def test_who_came_later_or_has_ended_is_known_by_the_seeds(folder: Path) -> None:
    (folder / "seeds").mkdir()
    for peer in (5, 7):
        (folder / "seeds" / f"{peer}.addr").write_text(
            '{"control": "tcp://h:1", "bulk": "tcp://h:2", "incarnation": 0}'
        )
    announce_end(folder / "seeds", 1)

    def act(order: Callable[..., dict[str, Any]]) -> None:
        order(drill="partition", sides=[[0, 1, 2], [5]], for_s=50)
        order(drill="slow", peers=[5], factor=2, for_s=50)
        with pytest.raises(ConfigError, match="there is no peer 6") as error:
            order(drill="slow", peers=[6], factor=2, for_s=50)
        assert error.value.hint == "there are 0-3,5,7"
        with pytest.raises(ConfigError, match="peer 1 has ended"):
            order(drill="slow", peers=[1], factor=2, for_s=50)

    with_desk(folder, act)


def test_each_launcher_hurts_its_own_peers_and_all_heal(folder: Path) -> None:
    (folder / "seeds").mkdir()
    (folder / "seeds" / "5.addr").write_text(
        '{"control": "tcp://h:1", "bulk": "tcp://h:2", "incarnation": 0}'
    )
    first, later = FakeRun(folder), FakeRun(folder, (5,))

    def act(order: Callable[..., dict[str, Any]]) -> None:
        order(drill="kill", peers=[1, 5], restart_s=2.5)
        with pytest.raises(ConfigError, match="peer 3 is not running"):
            order(drill="kill", peers=[5, 3])
        order(drill="slow", peers=[5], factor=2, for_s=50)
        assert order(drill="heal")["woken"] == [2]
        later.is_training = False
        with pytest.raises(ConfigError, match="does not train yet"):
            order(drill="stop", peers=[1, 5], for_s=1)

    with_desks(folder, act, first, later)
    assert first.done == [("kill", 1, 2.5), ("wake",)]
    assert later.done == [("kill", 5, 2.5), ("wake",)]


def test_the_socket_of_a_launcher_that_was_killed_hides_nobody(folder: Path) -> None:
    (folder / "seeds").mkdir()
    (folder / "seeds" / "5.addr").write_text(
        '{"control": "tcp://h:1", "bulk": "tcp://h:2", "incarnation": 0}'
    )
    open_socket(folder, name_of(None), socket.socket.bind).close()
    with pytest.raises(RunUnreachable, match="does not answer"):
        ask(folder, {"drill": "heal"})
    with_desks(
        folder,
        lambda order: order(drill="kill", peers=[5]),
        FakeRun(folder),
        later := FakeRun(folder, (5,)),
    )
    assert later.done == [("kill", 5, 2.0)]


def test_a_run_that_allows_no_drills_or_is_over_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        ask(tmp_path, {"drill": "heal"})
    for drills, says in ((False, "allows no drills"), (True, "is over, or has not begun")):
        made = resolve({"peers": 4, "name": "t", "run_dir": str(tmp_path), "drills": drills}).config
        made.dump(tmp_path / "config.json")
        with pytest.raises(ConfigError, match=says):
            ask(tmp_path, {"drill": "heal"})


@pytest.mark.parametrize(
    ("over", "error", "says"),
    [(False, ConfigError, "does not train yet"), (True, RunUnreachable, "about to end")],
)
def test_a_run_that_does_not_train_takes_no_drills(
    over: bool, error: type[ConfigError], says: str, folder: Path
) -> None:
    run = FakeRun(folder)
    run.is_training, run.is_over = False, over

    def act(order: Callable[..., dict[str, Any]]) -> None:
        with pytest.raises(error, match=says) as raised:
            order(drill="kill", peers=[1])
        assert type(raised.value) is error

    with_desks(folder, act, run)
    assert run.done == []


def test_each_task_of_a_scheduler_has_a_desk_of_its_own(tmp_path: Path) -> None:
    config = (
        resolve({"peers": 3, "drills": True, "run_dir": str(tmp_path), "name": "t"})
        .with_values("x", run="00" * 8, f=0)
        .config
    )
    screen: Any = None
    tasks = [
        Supervisor(config, Program("true"), screen, share={peer: 0}, files=f"-{peer}")
        for peer in range(3)
    ]
    desks = [task._desk.path.name for task in tasks if task._desk is not None]
    assert desks == ["drill-0.sock", "drill-1.sock", "drill-2.sock"]
    alone = Supervisor(config, Program("true"), screen)._desk
    assert alone is not None
    assert alone.path.name == "drill.sock"
