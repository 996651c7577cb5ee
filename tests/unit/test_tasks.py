"""A scheduler's task: which peer of which run it is, where the run's folder is,
and what it refuses."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# whether a rule goes with so many peers is then found out in this process
import torch  # noqa: F401

from gossip.config import resolve
from gossip.errors import ConfigError, RunExists
from gossip.launch.schedulers.task_runs import displaces
from gossip.run.completion import over
from gossip.run.rendezvous import SeedFolder, announce_end, claim, claim_life
from gossip.run.scheduler_env import Task, TaskRendezvous, meet, torchrun_task
from gossip.training.voice import words
from gossip.transport import addresses

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "77",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
TASK = Task("slurm", "slurm-9.0", peer=0, peers=2, one_host=True, another="give another name")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def arrive(task: Task, **options: Any) -> TaskRendezvous:
    return meet(task, resolve({"aggregator": "mean", **options}), ["train.py"])


def test_a_rank_of_torchrun_is_a_peer_of_the_run_that_its_run_id_names() -> None:
    task = torchrun_task(TORCHRUN)
    assert (task.peer, task.peers, task.run, task.one_host, task.comes_back) == (
        1,
        4,
        "torchrun-77",
        True,
        False,
    )


def test_without_a_run_id_the_address_of_the_first_rank_names_the_run() -> None:
    bare = {
        key: value
        for key, value in TORCHRUN.items()
        if not key.startswith(("TORCHELASTIC", "LOCAL"))
    }
    for given in (bare, {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}):
        task = torchrun_task(given)
        assert task.run == "torchrun-node-a-29500"
    task = torchrun_task(bare)
    assert (task.one_host, task.towards) == (False, "node-a")


def test_ranks_that_torchrun_has_started_anew_are_another_run() -> None:
    task = torchrun_task({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"})
    assert task.run == "torchrun-77-2"


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_part_of_the_variables_makes_no_task(missing: str) -> None:
    assert torchrun_task({key: value for key, value in TORCHRUN.items() if key != missing}) is None


@pytest.mark.parametrize("wrong", [{"RANK": "4"}, {"RANK": "x"}, {"WORLD_SIZE": "-1"}])
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        torchrun_task({**TORCHRUN, **wrong})


def test_a_run_id_makes_no_path_of_its_own() -> None:
    task = torchrun_task({**TORCHRUN, "TORCHELASTIC_RUN_ID": "../../a b"})
    assert "/" not in task.run


def test_who_comes_first_makes_the_run_and_the_others_find_it(tmp_path: Path) -> None:
    first, second = arrive(TASK), arrive(replace(TASK, peer=1))
    assert first.config == second.config
    assert first.folder == second.folder == tmp_path / "runs" / "slurm-9.0"
    assert (first.config.peers, first.config.f, first.config.name, first.config.run_dir) == (
        2,
        0,
        "slurm-9.0",
        str(first.folder),
    )
    assert (first.incarnation, second.incarnation, first.listen) == (0, 0, "")
    assert {path.name for path in first.folder.iterdir()} == {
        "config.json",
        "config.toml",
        "environment.json",
        "seeds",
    }
    assert [path.name for path in first.folder.parent.iterdir()] == ["slurm-9.0"], (
        "a scratch folder was left"
    )
    assert first.folder.stat().st_mode & 0o077 == 0


def test_who_was_slower_takes_the_run_of_who_was_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen no folder; one makes it while the other is about to."""
    from gossip.run import scheduler_env as tasks

    settle, others = tasks.settled, list[TaskRendezvous]()

    def slowly(*given: Any) -> Any:
        monkeypatch.setattr(tasks, "settled", settle)
        others.append(arrive(replace(TASK, peer=1)))
        return settle(*given)

    monkeypatch.setattr(tasks, "settled", slowly)
    mine = arrive(TASK)
    assert mine.config.run == others[0].config.run
    assert [path.name for path in mine.folder.parent.iterdir()] == ["slurm-9.0"]


def test_a_task_that_was_given_other_settings_is_refused() -> None:
    arrive(TASK)
    with pytest.raises(
        ConfigError, match=r"peer 1 was started with rounds = 7 \(flag\), the run in .* has None"
    ):
        arrive(replace(TASK, peer=1), rounds=7)
    with pytest.raises(ConfigError, match="peers = 3"):
        arrive(replace(TASK, peer=1, peers=3))


def test_the_number_of_tasks_is_the_number_of_peers() -> None:
    with pytest.raises(ConfigError, match=r"5 peers \(flag\), but slurm has started 2 tasks"):
        arrive(TASK, peers=5)


def test_a_second_run_of_the_same_name_is_refused_and_told_what_to_do() -> None:
    arrive(TASK)
    with pytest.raises(ConfigError, match=r"peer 0 of the run in .* was started before") as refused:
        arrive(TASK)
    assert refused.value.hint == "give another name"


def test_a_task_that_may_come_back_has_another_life_while_others_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = replace(TASK, comes_back=True)
    seeds = arrive(task).folder / "seeds"
    assert arrive(task).incarnation == 1, "before anybody else has come"
    SeedFolder(seeds, 1, 2).announce("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", 0)
    with pytest.raises(ConfigError, match="is over, or all of its peers were killed"):
        arrive(task)
    monkeypatch.setattr("gossip.run.rendezvous.answers", lambda seed: True)
    assert arrive(task).incarnation == 3
    announce_end(seeds, 1)
    with pytest.raises(ConfigError, match="is over"):
        arrive(task)


def test_a_task_that_comes_back_does_not_share_its_id_with_the_newcomer_that_was_given_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gossip.run.rendezvous.answers", lambda seed: True)
    task = replace(TASK, comes_back=True)
    seeds = arrive(task).folder / "seeds"
    SeedFolder(seeds, 1, 2).announce("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", 0)
    announce_end(seeds, 0)
    assert claim(seeds, 2, 2) == (0, 1)
    with pytest.raises(
        ConfigError, match=r"peer 0 of the run in .* has ended, and a newcomer has its id"
    ) as refused:
        arrive(task)
    assert str(refused.value.hint).startswith("gossip join ")
    SeedFolder(seeds, 0, 2).announce("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", 1)
    with pytest.raises(ConfigError, match="a newcomer has its id"):
        arrive(task)
    announce_end(seeds, 0, 1)
    assert [arrive(task).incarnation, arrive(task).incarnation] == [2, 3], (
        "and its own lives are not in its way"
    )


def test_a_task_that_comes_after_the_end_is_told_at_once_who_has_completed_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = replace(TASK, peers=4)
    folder = arrive(task).folder
    SeedFolder(folder / "seeds", 0, 4).announce("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", 0)
    SeedFolder(folder / "seeds", 1, 4).announce("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", 0)
    ends(folder, 0, reason="the trainer is gone")
    assert arrive(replace(task, peer=2, comes_back=True)).incarnation == 0, (
        "they may have been killed, and come back"
    )
    ends(folder, 0, reason="finished")
    announce_end(folder / "seeds", 0)
    with monkeypatch.context() as patch:
        patch.setattr("gossip.run.completion.answers", lambda seed: True)
        assert arrive(replace(task, peer=3, comes_back=True)).incarnation == 0, (
            "peer 1 is there, and may not be done"
        )
    with pytest.raises(ConfigError, match=r"is over: 0 of its 4 peers have completed it") as late:
        arrive(replace(task, peer=2, comes_back=True))
    assert late.value.hint == "give another name"


@pytest.mark.parametrize(
    ("rows", "done"),
    [
        ([("started", {}), ("halted", {"reason": "finished", "round": 9})], (1,)),
        ([("halted", {"reason": "finished", "round": 9}), ("started", {})], ()),
        ([("started", {}), ("halted", {"reason": "finished", "round": -1})], ()),
        (
            [("started", {})]
            + [("skip", {"why": "x" * 100})] * 500
            + [("halted", {"reason": "finished", "round": 0})],
            (1,),
        ),
    ],
    ids=["to the end", "started again", "no round", "a long file"],
)
def test_who_has_completed_a_run_is_told_by_the_end_of_its_events(
    rows: list[tuple[str, dict[str, Any]]], done: tuple[int, ...], tmp_path: Path
) -> None:
    for event, fields in rows:
        writes(tmp_path, 1, event=event, **fields)
    assert over(tmp_path, [0]) == done
    assert over(tmp_path, [1]) == (), "of whoever asks it is not the question"


def ends(folder: Path, peer: int, **fields: Any) -> None:
    writes(folder, peer, event="started")
    writes(folder, peer, event="halted", round=7, **fields)


def writes(folder: Path, peer: int, **row: Any) -> None:
    (folder / f"peer-{peer}").mkdir(exist_ok=True)
    with (folder / f"peer-{peer}" / "events.jsonl").open("a") as file:
        file.write(json.dumps({"t": 1.0, "peer": peer, **row}) + "\n")


def test_no_two_lives_of_a_peer_have_the_same_incarnation(tmp_path: Path) -> None:
    SeedFolder(tmp_path, 5, 9).announce("a", "b", 3)
    assert [claim_life(tmp_path, 5), claim_life(tmp_path, 5), claim_life(tmp_path, 6)] == [4, 5, 0]


def test_a_folder_with_something_else_in_it_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.run.scheduler_env.SEEN_S", 0.0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(RunExists):
        arrive(TASK, run_dir="mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_tasks_on_several_machines_have_keys_and_listen_where_the_others_reach_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = replace(TASK, one_host=False, towards="10.1.2.3")
    monkeypatch.setattr(
        "gossip.run.scheduler_env.source_towards",
        lambda host: {"10.1.2.3": "10.1.2.9", "node-a": "127.0.1.1"}.get(host, ""),
    )
    with pytest.raises(ConfigError, match="without keys, any process that reaches them could join"):
        arrive(far, keys=False)
    mine = arrive(far)
    assert (mine.listen, mine.config.keyed) == ("10.1.2.9", True)
    assert (mine.folder / "swarm.key").stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match=r"node-a leaves from 127\.0\.1\.1"):
        arrive(replace(far, peer=1, towards="node-a"))
    with pytest.raises(ConfigError, match="unknown: node-b cannot be reached"):
        arrive(replace(far, peer=1, towards="node-b"))
    monkeypatch.setenv("GOSSIP_LISTEN", "10.1.2.8")
    assert arrive(replace(far, peer=1, towards="node-b")).listen == "10.1.2.8"
    assert not arrive(far, insecure=True, name="open").config.keyed


def test_the_source_address_is_that_of_the_way_there() -> None:
    assert addresses.source_towards("127.0.0.1") == "127.0.0.1"
    assert addresses.source_towards("::1") in ("::1", "")
    assert addresses.source_towards("no such host") == ""


def test_of_what_all_see_the_first_who_is_there_speaks() -> None:
    event = {"event": "waiting", "missing": [0, 3], "waited_s": 5.0}
    assert words(1, event) == "waiting for peers 0, 3 since 5.0 s"
    assert words(2, event) == ""
    assert words(2, {"event": "round", "round": 3}) == ""
    assert "peer 3 is dead" in words(2, {"event": "dead", "subject": 3, "by": 1})
    alike = {"event": "identical_updates", "peers": [1, 2]}
    assert "train on the same batches" in words(1, alike)
    assert words(2, alike) == ""


def test_who_takes_the_place_of_a_life_that_still_runs_says_so(tmp_path: Path) -> None:
    seeds = SeedFolder(tmp_path / "seeds", 1, 4)
    assert displaces(tmp_path, 1) == ""
    with socket.create_server(("127.0.0.1", 0)) as alive:
        control = f"tcp://127.0.0.1:{alive.getsockname()[1]}"
        seeds.announce(control, "tcp://127.0.0.1:1", 3)
        assert f"incarnation 3 answers at {control}" in displaces(tmp_path, 1)
        assert displaces(tmp_path, 2) == ""
    assert displaces(tmp_path, 1) == "", "it is gone"


def test_a_peer_sees_that_a_later_life_has_taken_its_place(tmp_path: Path) -> None:
    own, later = SeedFolder(tmp_path / "seeds", 1, 4), SeedFolder(tmp_path / "seeds", 1, 4)
    assert own.later_life(0) is None
    own.announce("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", 0)
    assert own.later_life(0) is None
    later.announce("tcp://127.0.0.1:3", "tcp://127.0.0.1:4", 1)
    assert own.later_life(0) == 1
    assert later.later_life(1) is None
    announce_end(tmp_path / "seeds", 1)
    assert own.later_life(0) is None
