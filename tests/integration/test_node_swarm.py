"""Nodes and trainers as real processes over ZeroMQ: what is killed, stopped or busy, and what the
others make of it."""

from __future__ import annotations

import ast
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import effort
from swarm import TRAINER, WAIT_S, ProcessSwarm, again, roster

from gossip.core import QUORUM_LOST


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Callable[..., ProcessSwarm]]:
    made: list[ProcessSwarm] = []

    def make(n: int, **options: Any) -> ProcessSwarm:
        made.append(ProcessSwarm(tmp_path, n, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


# Each swarm costs seconds of a processor, so it bears several claims in turn.


def test_peers_find_each_other_train_wait_for_no_one_who_is_busy_and_end_with_the_same_bits(
    swarm: Callable[..., ProcessSwarm],
) -> None:
    """One trainer holds the interpreter's lock for seconds, and is not taken for dead."""
    three = swarm(3, busy=(1, 30))
    three.wait(lambda: three.now() > 60, "rounds without the one that is busy")
    again(three, 1, by=0)
    said = three.finish(0, 1, 2)
    assert len(set(said.values())) == 1
    ready = three.events(1, "ready")[0]["t"]
    for peer in (0, 2):
        last = three.events(peer, "round")[-1]["t"]
        wrong = [
            e
            for e in three.events(peer, "dead", "suspect")
            if e["subject"] == 1 and ready < e["t"] < last
        ]
        assert not wrong, wrong
    _, rounds, _ = said[0].split()
    for peer in range(3):
        halted = three.events(peer, "halted")[-1]
        assert (halted["exit_code"], halted["reason"]) == (0, "finished")
        assert halted["traffic"]["sent_bytes"] > 0
    made = [commit for peer in range(3) for commit in three.commits(peer)]
    assert {commit["round"] for commit in made} == set(range(int(rounds)))
    assert len({(commit["round"], commit["digest"]) for commit in made}) == int(rounds), (
        "each round is made once"
    )
    assert all(commit["contributors"] for commit in made)


WATCHING = TRAINER.replace(
    "busy_peer, busy_round =",
    """
@peer.on_membership_change
def show(change):
    print("change", change.round_id, change.joined, change.died, change.left, flush=True)
busy_peer, busy_round =""",
)


def test_the_scripts_of_the_others_are_shown_a_death_a_return_and_a_leave_as_committed(
    swarm: Callable[..., ProcessSwarm],
) -> None:
    four = swarm(4, trainer=WATCHING)
    for peer in range(4):
        four.wait_round(peer, 3)  # all of them are in it
    os.killpg(four.peers[1].pid, signal.SIGKILL)
    four.wait(lambda: roster(four) == [0, 2, 3], "a roster without the dead peer")
    four.start_again(1, incarnation=1)
    again(four, 1, by=0)
    os.kill(four.peers[3].pid, signal.SIGTERM)
    four.wait(lambda: roster(four) == [0, 1, 2], "a roster without the peer that has left")
    four.finish(0, 1, 2)
    made = [commit for peer in range(4) for commit in four.commits(peer)]
    committed = {commit["round"] + 1: set(commit["roster"]) for commit in made}
    died, returned, left = ((), (1,), ()), ((1,), (), ()), ((), (), (3,))
    for peer, changes in {0: [died, returned, left], 1: [left], 2: [died, returned, left]}.items():
        shown, known = changes_of(four.output[peer]), {0, 1, 2, 3}
        assert [change[1:] for change in shown] == changes, "the first roster is none"
        for round_id, *change in shown:
            known = (known | {*change[0]}) - {*change[1], *change[2]}
            assert known == committed[round_id], f"peer {peer}, round {round_id}"


def changes_of(output: str) -> list[tuple[Any, ...]]:
    """What ``show`` has printed."""
    lines = [line.partition(" ")[2] for line in output.splitlines() if line.startswith("change")]
    return [ast.literal_eval(f"({line.replace(' (', ', (')})") for line in lines]


@pytest.mark.parametrize("keys", effort([True], [False, True]))
def test_who_slept_and_whose_node_was_killed_go_on_and_who_is_asked_to_stop_leaves_politely(
    swarm: Callable[..., ProcessSwarm], keys: bool
) -> None:
    three = swarm(3, faults=("hang:1@50+1s",), keys=keys)
    three.wait(lambda: three.events(1, "fault"), "the hang")
    # That it stopped is written nowhere: asked again as often as the others write.
    asleep = psutil.Process(three.peers[1].pid)
    three.wait(
        lambda: three.now() > 60 and asleep.status() == psutil.STATUS_STOPPED,
        "a round without the sleeper",
    )
    os.killpg(three.peers[1].pid, signal.SIGCONT)
    again(three, 1, by=0)

    former = three.node_pid(1)
    os.kill(former, signal.SIGKILL)
    three.wait(lambda: len(three.events(1, "started")) == 2, "another node of peer 1")
    second = three.events(1, "started")[-1]
    assert second["pid"] != former
    assert second["incarnation"] == 1
    three.wait(
        lambda: [e for e in three.events(1, "round") if e["t"] > second["t"]],
        "a round of the new node",
    )
    again(three, 1, by=0)

    os.killpg(three.peers[2].pid, signal.SIGTERM)  # the node too, as schedulers do
    assert three.peers[2].wait(WAIT_S) == 143
    three.wait(lambda: [e for e in three.events(0, "left") if e["subject"] == 2], "its goodbye")
    said = three.finish(0, 1)
    assert said[0] == said[1]


def test_a_stopped_process_that_goes_on_after_its_replacement_trains_disturbs_nobody(
    swarm: Callable[..., ProcessSwarm],
) -> None:
    three = swarm(3, quorum_timeout_s=3.0)
    three.wait_round(0, 10)
    os.killpg(three.peers[1].pid, signal.SIGSTOP)
    three.wait(
        lambda: 1 not in three.events(0, "round")[-1]["contributors"],
        "a round without the stopped peer",
    )
    former = three.replace(1, incarnation=1)
    again(three, 1, by=0)
    before = len(three.events(0))
    os.killpg(former.pid, signal.SIGCONT)
    assert former.wait(WAIT_S) == QUORUM_LOST
    (notice,) = three.events(1, "notice")
    assert "as incarnation 1" in notice["message"]
    three.wait_round(0, three.now() + 10)
    meanwhile = {row["event"] for row in three.events(0)[before:]}
    assert meanwhile <= {"round", "usage"}
    assert all(1 in row["contributors"] for row in three.events(0, "round")[-10:])
    said = three.finish(0, 1, 2)
    assert len({*said.values()}) == 1, said


def test_a_crash_strikes_its_victim_or_whoever_serves_and_a_killed_trainers_node_tells_of_it(
    swarm: Callable[..., ProcessSwarm],
) -> None:
    """Of five peers one crashes as planned, one dies when it serves, one is killed by hand: the two
    that are left end alike."""
    five = swarm(5, faults=("crash:2@50", "crash:server@80"))
    five.wait(lambda: five.events(2, "fault"), "the crash")
    assert five.peers[2].wait(WAIT_S) == -signal.SIGKILL
    fault = five.events(2, "fault")[-1]
    assert (fault["kind"], fault["round"]) == ("crash", 50)

    others = [0, 1, 3, 4]
    five.wait(lambda: any(five.events(peer, "fault") for peer in others), "the crash of the server")
    (server,) = [peer for peer in others if five.events(peer, "fault")]
    assert five.peers[server].wait(WAIT_S) == -signal.SIGKILL
    others.remove(server)
    # until then two of them are no majority
    five.wait(lambda: roster(five) == others, f"a roster of {others}")
    makers = [peer for peer in range(5) for commit in five.commits(peer) if commit["round"] == 80]
    assert len(makers) == 1
    assert makers != [server], (
        "round 80 is made once, by another than the one that died before its commit was out"
    )

    first, second, third = others
    node = psutil.Process(five.node_pid(third))
    os.kill(five.peers[third].pid, signal.SIGKILL)
    killed_at = time.monotonic()
    node.wait(WAIT_S)
    # A node that says goodbye for its trainer is heard at once: no suspicion need run out.
    gone = five.wait(
        lambda: [e for e in five.events(first, "dead", "left") if e["subject"] == third],
        f"the death of {third}",
    )
    assert gone[0]["by"] == third, "it was announced, not found out"
    assert gone[0]["t"] > killed_at
    said = five.finish(first, second)
    assert said[first] == said[second]
