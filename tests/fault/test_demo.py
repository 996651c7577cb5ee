"""The main job on real processes: liars filtered, the serving peer killed,
sleepers and returners caught up."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from command import gossip, summary_of
from effort import effort
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def demo(folder: Path, *options: str) -> dict[str, Any]:
    done = gossip(
        Path.cwd(), "demo", "--only", "--json", "--run-dir", str(folder), *options, code=None
    )
    assert (folder / "summary.json").exists(), done.stdout + done.stderr
    summary = summary_of(folder)
    assert summary["status"] == "finished", f"{summary}\n{done.stderr}"
    return summary


def test_a_liar_is_suspected_and_the_killed_server_costs_no_round(free_run_dir: Path) -> None:
    # It is looked at soon behind an epoch, whose last rounds are no steps on a handful of samples.
    summary = demo(
        free_run_dir,
        *shlex.split("-n 4 --rounds 200 --fault sign_flip:2*10 --fault crash:server@100"),
        "--track=tensorboard",
    )
    # Around round 200 the accuracy swings between 0.93 and 0.96; with the liar let in it is 0.1.
    assert summary["accuracy"]["worst_replica"] >= 0.88
    assert summary["replicas_identical"] is True
    assert summary["suspected"] == [2]
    assert [death["round"] for death in summary["deaths"]] == [100]
    assert summary["rounds_lost"] <= 1
    assert summary["samples"]["twice"] == 0
    read = EventAccumulator(str(free_run_dir / "tensorboard"), {"scalars": 0}).Reload()
    # A round that two servers have made stands there once for each.
    assert {each.step for each in read.Scalars("swarm/contributors")} == set(range(200))


def test_sleepers_and_returners_in_the_midst_and_at_the_end_finish_with_the_swarms_bits(
    free_run_dir: Path,
) -> None:
    """3 sleeps and 1 starts again in the midst; 4 and 2 do so when the others end, who wait and
    give them the final state."""
    rounds = effort(110, 900)
    faults = [
        "hang:3@30+1s",
        "restart:1@60+100ms",
        f"hang:4@{rounds - 5}+4s",
        f"restart:2@{rounds - 5}+1s",
    ]
    options = [word for fault in faults for word in ("--fault", fault)]
    summary = demo(free_run_dir, "-n", "5", "--rounds", str(rounds), "-f", "0", *options)
    # On a busy machine 1 may come back when it is waited for no longer,
    # which is 30 s after it was lost.
    assert set(summary["finished"]) >= {0, 2, 3, 4}
    assert summary["replicas_identical"] is True
    assert summary["rounds"] == rounds
    assert sorted(hang["peer"] for hang in summary["hangs"]) == [3, 4]
    assert sorted(back["peer"] for back in summary["rejoins"]) == [1, 2]
    assert all(death["planned"] for death in summary["deaths"])
    assert summary["suspected"] == []


def test_gossip_rounds_without_a_server_survive_the_same(free_run_dir: Path) -> None:
    faults = ["--fault", "sign_flip:2*10", "--fault", "crash:1@80"]
    summary = demo(free_run_dir, "-n", "5", "--topology", "random-k", "--rounds", "160", *faults)
    assert summary["accuracy"]["worst_replica"] >= 0.9
    assert [death["peer"] for death in summary["deaths"]] == [1]
