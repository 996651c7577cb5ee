from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from event_rows import event_row

from gossip.config import resolve
from gossip.launch.report import history, summary
from gossip.observe import read_commits
from gossip.run.telemetry import JsonLines, to_json, write_json


def commit(
    round_id: int, server: int = 0, *, made_at: int = 0, parent: str | None = None, **fields: Any
) -> dict[str, Any]:
    return {
        "t": 100.0 + round_id,
        "round": round_id,
        "shard": 0,
        "attempt": made_at,
        "made_at": made_at,
        "lineage": "aa",
        "server": server,
        "parent": parent if parent is not None else f"h{round_id - 1}",
        "chain": f"h{round_id}",
        "digest": f"d{round_id}.{server}",
        "contributors": [{"peer": peer, "samples": 99} for peer in range(4)],
        **fields,
    }


def past_of(rows: list[dict[str, Any]]) -> history.History:
    return history.read(read_commits(rows))


def epochs_of(rows: list[dict[str, Any]]) -> list[dict[str, int]] | None:
    return summary.epochs(read_commits(rows))


def folder(
    tmp_path: Path,
    events: list[dict[str, Any]],
    commits: dict[int, list[dict[str, Any]]],
    **options: Any,
) -> Path:
    made = resolve({"peers": 4, "name": "t", "run_dir": str(tmp_path), **options}).with_values(
        "x", run="00000000000000aa", f=1
    )
    made.config.dump(tmp_path / "config.json")
    file = JsonLines(tmp_path / "events.jsonl", "events")
    for row in events:
        file.write(row)
    file.close()
    for peer, rows in commits.items():
        (tmp_path / f"peer-{peer}").mkdir()
        lines = JsonLines(tmp_path / f"peer-{peer}" / "commits.jsonl", "commits")
        for row in rows:
            lines.write(row)
        lines.close()
    return tmp_path


def halted(peer: int, **fields: Any) -> dict[str, Any]:
    return event_row("halted", peer, 200.0, exit_code=0, traffic={"sent_bytes": 10}, **fields)


def test_it_has_every_field_that_is_promised(tmp_path: Path) -> None:
    run = folder(tmp_path, [halted(0)], {0: [commit(0)]})
    promised = (
        "schema status peers topology aggregator rounds accuracy loss replicas_identical deaths "
        "rejoins suspected quarantined rounds_lost samples epochs rounds_per_s bytes_sent wall_s "
        "seed exit_code faults partitions unconfirmed"
    )
    made = summary.write(run, 0, 1.5)
    assert set(promised.split()) <= set(made)
    assert set(made["accuracy"]) == {"mean_model", "worst_replica"}
    assert json.loads((run / "summary.json").read_text()) == made
    assert (made["schema"], made["status"], made["wall_s"]) == ("gossip.summary/2", "finished", 1.5)


def test_commits_of_all_peers_are_merged_in_order_and_without_doubles(tmp_path: Path) -> None:
    run = folder(tmp_path, [], {0: [commit(0), commit(2)], 1: [commit(1, 1), commit(2)]})
    rows = summary.merge_commits(run)
    assert [row["round"] for row in rows] == [0, 1, 2]
    lines = (run / "commits.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"schema": "gossip.commits/2"}
    assert len(lines) == 4


def test_a_round_without_a_commit_is_lost(tmp_path: Path) -> None:
    run = folder(tmp_path, [], {0: [commit(0), commit(1), commit(3, parent="h1")]})
    made = summary.write(run, 0, 1.0)
    assert (made["rounds"], made["rounds_lost"]) == (3, 1)


def test_a_run_resumed_from_a_checkpoint_has_not_lost_earlier_rounds(tmp_path: Path) -> None:
    rows = [commit(at) for at in (300, 301, 303)]
    run = folder(tmp_path, [], {0: rows}, resume="auto")
    made = summary.write(run, 0, 1.0)
    assert (made["rounds"], made["rounds_lost"]) == (3, 1)


def test_a_commit_that_its_dying_server_never_sent_does_not_count() -> None:
    unsent = commit(1, 0, chain="unsent")
    real = commit(1, 2, made_at=1)
    rows = past_of([commit(0), unsent, real, commit(2)]).true
    assert [row.server for row in rows if row.round == 1] == [2]
    assert [row.made_at for row in past_of([commit(0), unsent, real]).true] == [0, 1], (
        "the last round has no successor"
    )


def test_the_commit_that_the_next_round_builds_on_counts_even_if_a_later_attempt_made_another():
    unheard = commit(1, 2, made_at=1, chain="unheard")
    rows = past_of([commit(0), commit(1, 0), unheard, commit(2)]).true
    assert [row.server for row in rows if row.round == 1] == [0]


def test_the_commit_that_a_lying_server_has_told_is_missing_and_what_it_has_made_stands_for_it():
    """It writes down what it has made. The others went on from what it has told them, one of them
    in quarantine since."""
    made = commit(20, 3, chain="honest20")
    after = [
        commit(number, contributors=[{"peer": peer, "samples": 99} for peer in range(3)])
        for number in range(21, 25)
    ]
    refused = commit(9, 3, chain="refused9")
    past = past_of([*(commit(number) for number in range(20)), refused, made, *after])
    assert [row.round for row in past.true] == list(range(25))
    assert past.true[9].chain == "h9"
    assert past.true[20].server == 3
    assert past.given_up == ()


def branch(rounds: range, mark: str, peers: tuple[int, ...], **fields: Any) -> list[dict[str, Any]]:
    """Commits of one side of a partition, which began after round ``rounds.start - 1``."""
    chains = {number: f"{mark}{number}" for number in rounds} | {
        rounds.start - 1: f"h{rounds.start - 1}"
    }
    who = [{"peer": peer, "samples": 99} for peer in peers]
    return [
        commit(
            at,
            peers[0],
            chain=chains[at],
            parent=chains[at - 1],
            digest=f"{mark}{at}",
            contributors=who,
            **fields,
        )
        for at in rounds
    ]


def test_a_branch_that_was_given_up_does_not_count_though_it_was_ahead_and_was_made_later() -> None:
    light = branch(range(2, 30), "light", (5, 6, 7), made_at=3)
    heavy = branch(range(2, 12), "heavy", (0, 1, 2, 3, 4))
    after = branch(range(12, 20), "x", tuple(range(8)))
    after[0]["parent"] = "heavy11"
    past = past_of([*light, *after, commit(0), commit(1), *heavy])
    assert [row.round for row in past.true] == list(range(20))
    assert {row.chain[:5] for row in past.true[2:12]} == {"heavy"}
    (given_up,) = past.given_up
    assert (given_up.first, given_up.rounds, given_up.peers) == (2, 28, [5, 6, 7])


def test_a_single_commit_that_was_dropped_outweighs_nobody_who_went_on() -> None:
    """It was refused by all, who made another without two that they had locked up
    in the same round."""
    dropped = commit(
        2, 7, chain="dropped", contributors=[{"peer": peer, "samples": 99} for peer in range(7)]
    )
    past = past_of(
        [commit(0), commit(1), dropped, *branch(range(2, 30), "real", (0, 1, 2, 3, 7), made_at=2)]
    )
    assert [row.round for row in past.true] == list(range(30))
    assert past.true[-1].chain == "real29"
    assert past.given_up == ()


def test_where_a_run_ends_apart_the_heavier_side_counts() -> None:
    light, heavy = (
        branch(range(2, 30), "light", (5, 6, 7)),
        branch(range(2, 12), "heavy", (0, 1, 2, 3, 4)),
    )
    assert past_of([commit(0), commit(1), *light, *heavy]).true[-1].chain == "heavy11"


def test_a_partition_is_told_with_who_paused_and_what_was_given_up(tmp_path: Path) -> None:
    word = "partition:0-4|5-7@2s+3s"
    slices = {str(peer): [[peer * 2, peer * 2 + 2]] for peer in range(8)}
    common = {"epoch": 0, "samples_total": 100, "slices": slices}
    heavy = branch(range(2, 12), "heavy", (0, 1, 2, 3, 4), **common)
    light = branch(
        range(2, 4),
        "light",
        (5, 6, 7),
        **{**common, "slices": {"5": [[0, 2]], "6": [[40, 42]], "7": [[50, 52]]}},
    )
    events = [
        event_row("fault", 0, 101.9, kind="partition", round=2, fault=word, seconds=3.0),
        event_row("paused", 5, 102.1, alive=[5, 6, 7], need=5, round=2),
        event_row("minority_continues", 6, 102.0, alive=[5, 6, 7], of=8, round=2),
        event_row("fault_over", 1, 104.9, kind="partition", round=5, fault=word),
    ]
    run = folder(tmp_path, events, {0: [commit(0), commit(1), *heavy], 5: light}, peers=8)
    (told,) = summary.write(run, 0, 1.0)["partitions"]
    assert (told["fault"], told["round"], told["for_s"]) == (word, 2, 3.0)
    assert (told["paused"], told["continued"]) == ([5], [5, 6, 7])
    assert told["given_up"] == [
        {
            "peers": [5, 6, 7],
            "first_round": 2,
            "rounds": 2,
            "samples_given_back": 12,
            "samples_read_twice": 2,
        }
    ]
    made = json.loads((run / "summary.json").read_text())
    assert (made["rounds"], made["rounds_lost"]) == (12, 0)


def test_samples_are_counted_over_completed_epochs_for_contributors(tmp_path: Path) -> None:
    both = [{"peer": 0, "samples": 99}, {"peer": 1, "samples": 99}]

    def row(
        at: int, first: list[int], second: list[int], contributors: list[dict[str, int]] = both
    ) -> dict[str, Any]:
        slices = {"0": [first], "1": [second]}
        plan = {"epoch": at // 3, "samples_total": 10, "steps_per_epoch": 3}
        return commit(at, slices=slices, contributors=contributors, **plan)

    rows = [
        row(0, [0, 3], [3, 6]),
        row(1, [6, 8], [8, 10], [{"peer": 0, "samples": 99}]),
        row(2, [0, 1], [8, 8]),
    ]
    assert epochs_of(rows) == [{"epoch": 0, "once": 7, "twice": 1, "never": 2, "rounds": 3}]
    # what is read in a later epoch counts for the one that it belongs to
    rows += [row(3, [8, 9], [9, 12]), row(4, [12, 15], [15, 18])]
    first = {"epoch": 0, "once": 9, "twice": 1, "never": 0, "rounds": 3}
    assert epochs_of(rows) == [first]
    rows += [row(5, [18, 19], [19, 19])]
    assert epochs_of(rows) == [first, {"epoch": 1, "once": 9, "twice": 0, "never": 1, "rounds": 3}]
    assert summary.samples(epochs_of(rows)) == {"once": 18, "twice": 1, "never": 1}


def test_a_sample_that_only_some_shards_have_used_is_not_used() -> None:
    at = {"epoch": 0, "samples_total": 4, "steps_per_epoch": 2}
    both = [{"peer": 0, "samples": 2}, {"peer": 1, "samples": 2}]
    slices = [{"0": [[0, 2]], "1": [[2, 4]]}, {"1": [[2, 4]]}]
    rows = [
        commit(0, shard=0, slices=slices[0], contributors=both, **at),
        commit(0, shard=1, slices=slices[0], contributors=both[:1], **at),
        commit(1, shard=0, slices=slices[1], contributors=both[1:], **at),
        commit(1, shard=1, slices=slices[1], contributors=both[1:], **at),
    ]
    assert epochs_of(rows) == [{"epoch": 0, "once": 4, "twice": 0, "never": 0, "rounds": 2}]


def test_an_epoch_that_a_run_was_resumed_in_is_not_counted() -> None:
    rows = [
        commit(
            at,
            epoch=at // 2,
            samples_total=4,
            steps_per_epoch=2,
            slices={"0": [[2 * at, 2 * at + 2]]},
            contributors=[{"peer": 0, "samples": 99}],
        )
        for at in range(3, 7)
    ]
    assert epochs_of(rows) == [{"epoch": 2, "once": 4, "twice": 0, "never": 0, "rounds": 2}]


@pytest.mark.timeout(20)
def test_numbers_of_a_strangers_folder_cost_neither_memory_nor_time() -> None:
    """Once a sample took eight bytes: 4 PiB for this row."""
    huge = 2**49
    one = [{"peer": 0, "samples": huge}]
    plan = {"samples_total": huge, "steps_per_epoch": 1, "contributors": one}
    rows = [commit(0, epoch=0, slices={"0": [[0, huge]]}, **plan)]
    assert epochs_of(rows) == [{"epoch": 0, "once": huge, "twice": 0, "never": 0, "rounds": 1}]
    rows = [commit(0, epoch=huge, slices={"0": [[0, huge]]}, **{**plan, "samples_total": 1})]
    assert summary.samples(epochs_of(rows)) == {"once": 0, "twice": 0, "never": 1}


def test_without_sharded_data_nothing_is_said_of_samples() -> None:
    assert epochs_of([commit(0), commit(1)]) is None
    assert summary.samples(None) is None


def test_deaths_carry_what_the_survivors_measured(tmp_path: Path) -> None:
    events = [
        event_row("fault", 2, 10.0, kind="crash", round=5, fault="crash:server@5"),
        event_row("skip", 0, 10.04, subject=2, reason="disconnected"),
        event_row("skip", 1, 10.02, subject=2, reason="disconnected"),
        event_row("dead", 1, 10.9, subject=2, by=1),
        event_row("exited", 2, 10.01, code=None, signal=9, how="killed by SIGKILL"),
    ]
    made = summary.write(
        folder(tmp_path, events, {0: [commit(0)]}, faults=("crash:server@5",)), 0, 1.0
    )
    assert made["deaths"] == [
        {
            "peer": 2,
            "round": 5,
            "kind": "crash",
            "planned": True,
            "skip_ms": 40.0,
            "dead_ms": 900.0,
            "noticed_by": [0, 1],
        }
    ]


def test_suspects_are_named_and_their_reasons_kept(tmp_path: Path) -> None:
    events = [event_row("suspected", 0, subject=3, trust=0.4, reasons=["far out"], round=9)]
    made = summary.write(
        folder(tmp_path, events, {0: [commit(0)]}, faults=("nan:3", "wrong_results:2,3")), 0, 1.0
    )
    assert made["suspected"] == [3]
    assert made["suspicion"] == {"3": {"round": 9, "trust": 0.4, "reasons": ["far out"]}}
    assert made["byzantine"] == [2, 3]


def test_the_trust_of_a_suspect_is_the_lowest_that_any_record_has(tmp_path: Path) -> None:
    found = []
    for at, (in_commit, in_event) in enumerate([(0.2, 0.3), (0.3, 0.2), (0.5, 0.6)]):
        rows = [
            event_row("suspected", 0, subject=3, trust=0.4, reasons=["far out"], round=0),
            event_row("round", 0, round=1, trust={"3": in_event}),
            event_row("trusted", 0, subject=3, trust=0.9, reasons=[], round=2),
        ]
        (run := tmp_path / str(at)).mkdir()
        commits = [commit(0), commit(1, trust={"3": in_commit}), commit(2, trust={"3": 0.9})]
        found.append(summary.write(folder(run, rows, {0: commits}), 0, 1.0)["suspicion"]["3"])
    assert [each["trust"] for each in found] == [0.2, 0.2, 0.4]
    assert {each["round"] for each in found} == {0}


def test_who_cannot_tell_if_its_end_is_everybodys_is_named_unless_it_took_the_others_state(
    tmp_path: Path,
) -> None:
    rows = [
        event_row("unconfirmed_result", peer, round=9, same=1, other=2, silent=[])
        for peer in (3, 1)
    ]
    rows.append(event_row("restored", 3, round=9, **{"from": 0}, nbytes=8))
    assert summary.write(folder(tmp_path, rows, {0: [commit(0)]}), 0, 1.0)["unconfirmed"] == [1]


def test_an_evaluation_beats_what_was_logged(tmp_path: Path) -> None:
    events = [event_row("metrics", 0, accuracy=0.5, loss=1.0)]
    run = folder(tmp_path, events, {0: [commit(0)]})
    assert summary.write(run, 0, 1.0)["accuracy"] == {"mean_model": None, "worst_replica": 0.5}
    digests = {str(peer): "same" for peer in range(4)}
    write_json(
        run / "evaluation.json",
        {"mean_model": 0.97, "worst_replica": 0.96, "loss": 0.1, "digests": digests},
    )
    made = summary.write(run, 0, 1.0)
    assert made["accuracy"] == {"mean_model": 0.97, "worst_replica": 0.96}
    assert (made["loss"], made["replicas_identical"]) == (0.1, True)


def test_replicas_differ_when_one_honest_survivor_ends_with_other_bits(tmp_path: Path) -> None:
    run = folder(tmp_path, [], {0: [commit(0)]}, faults=("nan:3",))
    digests = {"0": "same", "1": "same", "2": "other", "3": "whatever"}
    write_json(
        run / "evaluation.json",
        {"mean_model": 0.97, "worst_replica": 0.96, "loss": 0.1, "digests": digests},
    )
    assert summary.write(run, 0, 1.0)["replicas_identical"] is False
    digests["2"] = "same"
    write_json(
        run / "evaluation.json",
        {"mean_model": 0.97, "worst_replica": 0.96, "loss": 0.1, "digests": digests},
    )
    assert summary.write(run, 0, 1.0)["replicas_identical"] is True, (
        "a liar's own replica does not count"
    )


def test_bytes_and_rate_come_from_halts_and_commits(tmp_path: Path) -> None:
    made = summary.write(
        folder(tmp_path, [halted(0), halted(1)], {0: [commit(0), commit(4, parent="h0")]}), 0, 1.0
    )
    assert (made["bytes_sent"], made["rounds_per_s"]) == (20, 1.0)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, "finished"),
        (1, "failed"),
        (4, "never_started"),
        (5, "quorum_lost"),
        (6, "refused"),
        (130, "stopped"),
    ],
)
def test_the_status_is_a_word_for_the_exit_code(tmp_path: Path, code: int, status: str) -> None:
    assert summary.write(folder(tmp_path, [], {}), code, 1.0)["status"] == status


def closed(exit_code: int, joins: bool = False) -> dict[str, Any]:
    return event_row("launcher_ended", None, exit_code=exit_code, joins=joins)


@pytest.mark.parametrize(
    ("ends", "code", "joined", "status"),
    [
        # a joiner that failed wrote last
        ([closed(5), closed(4, joins=True)], 4, True, "quorum_lost"),
        ([closed(0), closed(4, joins=True)], 4, True, "finished"),
        ([closed(143), closed(4, joins=True)], 4, True, "stopped"),
        # the first launcher was killed, or is still there
        ([closed(4, joins=True)], 4, True, "quorum_lost"),
        ([closed(4, joins=True), closed(5)], 5, False, "quorum_lost"),
        ([closed(0, joins=True), closed(5)], 5, False, "finished"),
        ([closed(4)], 4, False, "quorum_lost"),  # who was started again, and found nobody
    ],
)
def test_a_launcher_that_failed_does_not_say_how_the_run_went(
    tmp_path: Path, ends: list[dict[str, Any]], code: int, joined: bool, status: str
) -> None:
    run = folder(tmp_path, ends, {0: [commit(0), commit(1)]})
    made = summary.write(run, code, 1.0, joined)
    assert (made["status"], made["rounds"]) == (status, 2)


def test_a_newcomer_that_never_got_in_says_so_of_itself(tmp_path: Path) -> None:
    assert (
        summary.write(folder(tmp_path, [closed(4, joins=True)], {}), 4, 1.0, True)["status"]
        == "never_started"
    )


def test_a_run_that_never_had_a_round_has_a_summary_too(tmp_path: Path) -> None:
    made = summary.write(folder(tmp_path, [], {}), 4, 1.0)
    assert (made["rounds"], made["rounds_lost"], made["rounds_per_s"], made["samples"]) == (
        0,
        0,
        None,
        None,
    )


def test_lines_cut_off_by_a_crash_are_left_out(tmp_path: Path) -> None:
    run = folder(tmp_path, [], {0: [commit(0)]})
    with (run / "peer-0" / "commits.jsonl").open("a") as file:
        file.write('{"round": 1, "sha')
    assert [row["round"] for row in summary.merge_commits(run)] == [0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"loss": float("nan"), "big": float("inf"), "id": b"\x01"},
            '"loss":null,"big":null,"id":"01"',
        ),
        ({"loss": np.float32("nan")}, '"loss":null'),
        ({"losses": {float("inf")}}, '"losses":[null]'),
        ({"by": MappingProxyType({1: float("nan")})}, '"by":{"1":null}'),
    ],
)
def test_numbers_that_json_cannot_hold_become_null(value: dict[str, object], text: str) -> None:
    assert to_json(value) == f"{{{text}}}"


def ended(peer: int, digest: str | None, at: int = 9) -> dict[str, object]:
    return event_row(
        "halted", peer, reason="finished", exit_code=0, state_round=at, state_digest=digest
    )


@pytest.mark.parametrize(
    ("last", "identical"),
    [
        (ended(3, "aa"), True),
        (ended(3, "bb"), False),
        (ended(3, None), None),
        (ended(3, "bb", at=8), None),
    ],
)
def test_replicas_are_compared_by_what_their_nodes_said_last(
    tmp_path: Path, last: dict[str, object], identical: bool | None
) -> None:
    events = [*(ended(peer, "aa") for peer in range(3)), last]
    assert (
        summary.write(folder(tmp_path, events, {0: [commit(0)]}), 0, 1.0)["replicas_identical"]
        is identical
    )


def test_a_lone_commit_of_more_peers_is_no_history_where_a_shrunken_swarm_went_on() -> None:
    few = [{"peer": peer, "samples": 99} for peer in range(2)]
    lone = commit(1, 1, chain="lone")
    went_on = [
        commit(round_id, 0, made_at=int(round_id == 1), contributors=few) for round_id in (1, 2, 3)
    ]
    past = past_of([commit(0), lone, *went_on])
    assert [row.chain for row in past.true] == ["h0", "h1", "h2", "h3"]


def test_a_folder_that_holds_only_a_part_of_a_run_counts_no_round_of_the_others_as_lost(
    tmp_path: Path,
) -> None:
    came = event_row("spawned", 5, joins=True, incarnation=0)
    epoch = event_row("epoch", 5, epoch=3, once=97, twice=0, never=0, rounds=9)
    rounds = [event_row("round", 5, 2.0, round=number) for number in (70, 80)]
    run = folder(
        tmp_path,
        [came, *rounds, epoch, halted(5, round=80)],
        {5: [commit(72, 5), commit(77, 5, parent="h72")]},
        room=8,
    )
    made = summary.write(run, 0, 1.0)
    assert (made["remote_peers"], made["rounds_lost"], made["rounds"]) == ([0, 1, 2, 3], 0, 81)
    assert made["samples"] == {"once": 97, "twice": 0, "never": 0}
    assert [each["epoch"] for each in made["epochs"]] == [3]


def test_where_all_peers_were_started_here_nobody_is_elsewhere(tmp_path: Path) -> None:
    spawned = [event_row("spawned", peer) for peer in range(4)]
    run = folder(tmp_path, spawned, {0: [commit(0), commit(2, parent="h0")], 1: [], 2: [], 3: []})
    made = summary.write(run, 0, 1.0)
    assert (made["remote_peers"], made["rounds_lost"]) == ([], 1)


@pytest.mark.parametrize(
    ("spawned", "missing"),
    [(4, 4), (4, 3)],
    ids=["a newcomer of another machine", "a host that was lost"],
)
def test_rounds_that_somebody_whose_files_are_elsewhere_has_written_down_are_not_lost(
    spawned: int, missing: int, tmp_path: Path
) -> None:
    everybody = [{"peer": peer, "samples": 99} for peer in range(missing + 1)]
    rows = [
        commit(0),
        *(commit(number, parent="unseen", contributors=everybody) for number in (2, 4, 5)),
    ]
    came = [event_row("spawned", peer) for peer in range(spawned)]
    epochs = [event_row("epoch", 0, epoch=0, once=10, twice=0, never=0, rounds=6)]
    made = summary.write(
        folder(
            tmp_path, came + epochs, {0: rows, **{peer: [] for peer in range(1, missing)}}, room=6
        ),
        0,
        1.0,
    )
    assert (made["remote_peers"], made["rounds_lost"], made["rounds"]) == ([missing], 0, 6)
    assert made["samples"] == {"once": 10, "twice": 0, "never": 0}, "as the peers here tell it"


def test_a_summary_names_the_faults_that_never_took_place(tmp_path: Path) -> None:
    events = [
        event_row("ready", 1),
        event_row("fault", 1, kind="hang", fault="hang:1@0+1s"),
        halted(1),
    ]
    plan = ["hang:1@0+1s", "crash:server@50", "slow:1*2"]
    made = summary.write(folder(tmp_path, events, {0: [commit(0), commit(1)]}, faults=plan), 0, 1.5)
    over = "it was not due when the run ended, after round 1"
    assert made["faults_missed"] == [{"fault": "crash:server@50", "struck": False, "why": over}]
