from __future__ import annotations

import itertools
import time
from string import Formatter
from types import SimpleNamespace
from typing import Any

import pytest
from event_rows import event

from gossip.faults import plan as faults
from gossip.launch.local.running import OngoingRun
from gossip.launch.report.happenings import SuspicionRecord
from gossip.launch.report.run_model import RunModel
from gossip.launch.report.sentences import SENTENCES
from gossip.observe import Event


def told(view: RunModel, *rows: Event) -> list[str]:
    return [line for row in rows for line in view.apply(row)]


def test_a_death_is_timed_from_the_blow_to_the_slowest_survivor() -> None:
    view = RunModel(4)
    lines = told(
        view,
        event("fault", 1, 10.0, kind="crash", round=50, fault="crash:server@50"),
        event("skip", 0, 10.010, subject=1, reason="disconnected", round=50),
        event("skip", 2, 10.030, subject=1, reason="disconnected", round=50),
        event("skip", 3, 10.020, subject=1, reason="disconnected", round=50),
        event("skip", 3, 10.500, subject=1, reason="no answer", round=50),
        event("dead", 0, 10.8, subject=1, by=0, round=50),
        event("dead", 2, 10.9, subject=1, by=0, round=50),
    )
    (blow,) = view.failures.blows
    assert (blow.peer, blow.round, blow.planned) == (1, 50, True)
    assert abs(blow.skip_ms - 30) < 0.01
    assert abs(blow.dead_ms - 900) < 0.01
    assert lines == [
        "* injected: SIGKILL peer 1, which serves it at round 50",
        "! peer 1 skipped by peer 0 after 10 ms: disconnected",
        "x peer 1 declared dead by peer 0 after 0.8 s; 3 peers skipped it within 30 ms",
    ]


def test_who_hears_of_a_death_before_noticing_it_skips_then() -> None:
    view = RunModel(3)
    told(
        view,
        event("fault", 1, 10.0, kind="crash", round=5),
        event("dead", 0, 10.2, subject=1),
        event("skip", 2, 10.1, subject=1),
    )
    skip_ms = view.failures.blows[0].skip_ms
    assert abs(skip_ms - 200) < 0.01


def test_who_noticed_a_death_before_the_launcher_saw_it_has_noticed_it() -> None:
    view = RunModel(3)
    told(
        view,
        event("skip", 2, 9.0, subject=1),
        event("skip", 0, 10.001, subject=1),
        event("dead", 0, 10.002, subject=1, by=1),
        event("exited", 1, 10.0, code=None, signal=9, how="killed by SIGKILL"),
    )
    (blow,) = view.failures.blows
    assert (list(blow.skips), list(blow.deaths)) == ([0], [0])


def test_a_skip_before_the_blow_does_not_count() -> None:
    view = RunModel(3)
    told(
        view,
        event("fault", 1, 10.0, kind="crash", round=5),
        event("skip", 0, 9.0, subject=1),
        event("skip", 2, 10.1, subject=1),
    )
    assert list(view.failures.blows[0].skips) == [2]


def test_what_a_host_that_was_cut_off_tells_late_is_not_timed_from_a_blow_that_came_after_it():
    view = RunModel(2)
    lines = told(
        view,
        # of the host that it could not reach
        event("exited", 0, 31.0, code=5, signal=None, how="failed"),
        event("skip", 1, 15.0, subject=0, reason="suspect"),
        event("dead", 1, 16.0, subject=0, by=1),
    )
    assert lines == ["! peer 0 skipped by peer 1: suspect", "x peer 0 declared dead by peer 1"]


def test_a_death_that_nobody_planned_counts_from_when_the_launcher_saw_it() -> None:
    view = RunModel(3)
    lines = told(
        view,
        *(event("started", peer, 1.0, incarnation=0, trainer_pid=7 + peer) for peer in range(3)),
        event("round", 1, 9.0, round=7, loss=1.0),
        event("exited", 1, 10.0, code=None, signal=9, how="killed by SIGKILL", incarnation=0),
        event("skip", 0, 10.05, subject=1, reason="disconnected"),
        event("dead", 0, 11.0, subject=1, by=0),
    )
    (blow,) = view.failures.blows
    assert (blow.kind, blow.planned, blow.round) == ("killed", False, 7)
    assert lines == [
        "x peer 1 killed by SIGKILL at round 7: not in the fault plan; still running: 2 peers",
        "x peer 1 declared dead by peer 0 after 1.0 s; 1 peer skipped it within 50 ms",
    ]


def test_a_killed_trainer_has_two_lines_though_its_node_and_the_others_report_it_first() -> None:
    view, gone = RunModel(3), "the trainer is gone: the other side has closed the channel"
    noticed = [
        event(kind, by, 10.0, subject=2, by=2, reason=reason)
        for by in (0, 1)
        for kind, reason in (("skip", "dead"), ("dead", "announced by the peer"))
    ]
    exited = event("exited", 2, 10.0, code=None, signal=9, how="killed by SIGKILL")
    late = event("dead", 0, 10.9, subject=2, by=1)
    assert told(view, event("error", 2, 10.0, message=gone), *noticed, exited, late) == [
        f"! peer 2: {gone}",
        "x peer 2 killed by SIGKILL before its first round: not in the fault plan; still running: "
        "2 peers",
    ]
    view.apply_recorded(event("halted", 2, 10.0, reason=gone, exit_code=1))
    assert view.rows[2].exit == "killed by SIGKILL", "as the launcher saw it"


def test_a_peer_that_has_come_to_the_end_has_begun_though_its_process_is_still_there() -> None:
    view = RunModel(2)
    told(view, event("spawned", 1, 1.0, pid=5, incarnation=0))
    assert not view.lives.have_begun([1])
    told(view, event("restored", 1, 2.0, round=7))
    assert view.lives.have_begun([1])
    told(view, event("halted", 1, 9.0, round=20))
    assert view.lives.have_begun([1])
    assert not view.lives.have_begun([0])


def test_a_peer_whose_trainer_was_killed_has_not_finished_though_its_node_halts_after_it() -> None:
    view = RunModel(2)
    told(
        view,
        event("spawned", 1, 1.0, pid=5, incarnation=0),
        event(
            "exited",
            1,
            2.0,
            code=None,
            signal=9,
            how="killed by SIGKILL",
            planned=False,
            stopping=False,
        ),
        event("halted", 1, 2.01, reason="the trainer is gone", exit_code=1, round=5),
        event("halted", 0, 9.0, reason="finished", exit_code=0, round=50),
    )
    assert (view.rows[0].state, view.rows[1].state) == ("done", "gone")


def test_a_second_death_of_a_restarted_peer_is_a_death_of_its_own() -> None:
    """The end of the process after a planned death is none."""
    view = RunModel(3)
    told(
        view,
        event("started", 1, 1.0, incarnation=0),
        event("fault", 1, 10.0, kind="restart", round=5, seconds=0.5),
        event("exited", 1, 10.01, code=None, signal=9, how="killed by SIGKILL"),
        event("started", 1, 11.0, incarnation=1),
        event("round", 1, 12.0, round=30, loss=None),
        event("exited", 1, 13.0, code=None, signal=9, how="killed by SIGKILL"),
    )
    blows = [(blow.kind, blow.incarnation) for blow in view.failures.blows]
    assert blows == [("restart", 0), ("killed", 1)]
    assert view.failures.restarts == {1: 0.5}
    (rejoin,) = view.lives.rejoins
    assert (rejoin.peer, rejoin.incarnation, rejoin.round, rejoin.after_s) == (1, 1, 30, 2.0)


def test_peers_that_leave_politely_are_no_news() -> None:
    view = RunModel(3)
    lines = told(
        view,
        event("left", 0, 5.0, subject=1),
        event("skip", 0, 5.1, subject=1, reason="disconnected"),
        event("halted", 2, 5.2, reason="finished", exit_code=0),
        event("skip", 0, 5.3, subject=2, reason="disconnected"),
        event("dead", 0, 5.4, subject=2),
    )
    assert lines == []
    assert view.failures.blows == []


def test_who_leaves_its_loop_before_the_planned_end_is_told_once_for_each_round() -> None:
    view = RunModel(4)
    lines = told(
        view,
        *[event("plan", peer, 1.0, steps=100) for peer in range(4)],
        event("halted", 1, 5.0, reason="finished", exit_code=0, round=29),
        event("halted", 2, 5.0, reason="finished", exit_code=0, round=29),
        event("halted", 0, 6.0, reason="stopped", exit_code=143, round=40),
        event("halted", 3, 9.0, reason="finished", exit_code=0, round=99),
    )
    assert lines == ["~ peer 1 ended after 30 of 100 rounds"]


def test_a_liar_is_told_once_with_the_reason_and_kept_for_the_summary() -> None:
    view = RunModel(3, faults.parse("sign_flip:2*10"))
    reasons = ["7 of the last 7 updates stood out"]
    lines = told(
        view,
        event("suspected", 0, 5.0, subject=2, trust=0.48, reasons=reasons, round=6),
        event("suspected", 1, 5.1, subject=2, trust=0.40, reasons=reasons, round=6),
        event("quarantined", 0, 5.5, subject=2, trust=0.18, reasons=reasons, round=15),
        event("quarantined", 1, 5.5, subject=2, trust=0.18, reasons=reasons, round=15),
        event("parole", 1, 6.0, subject=2, round=115),
        event("trusted", 1, 7.0, subject=2, round=200),
    )
    assert lines == [
        "? peer 2 suspected Byzantine at round 6: trust 0.48: 7 of the last 7 updates stood out",
        "- peer 2 quarantined at round 15: trust 0.18: 7 of the last 7 updates stood out",
        "~ peer 2 on parole from round 115",
        "~ peer 2 is trusted again",
    ]
    assert view.trust.suspicions == {2: SuspicionRecord(6, 0.18, reasons)}
    assert view.trust.quarantines == {2}
    assert view.rows[2].lie == "sign_flip"


def test_a_peer_that_has_ended_holds_nobody_for_dead() -> None:
    view = RunModel(3)
    told(view, event("skip", 0, 1.0, subject=2), event("dead", 1, 1.0, subject=2))
    assert view.rows[2].skipped_by == {0, 1}
    told(view, event("exited", 1, 2.0, signal=9, how="killed by SIGKILL"))
    assert view.rows[2].skipped_by == {0}


def test_who_was_away_tells_of_old_verdicts_without_a_line() -> None:
    view = RunModel(4)
    why = {"trust": 0.18, "reasons": ["9 of the last 20 updates stood out"]}
    lines = told(
        view,
        event("suspected", 1, 1.0, subject=2, round=6, **why),
        event("quarantined", 1, 2.0, subject=2, round=15, **why),
        event("parole", 1, 6.0, subject=2, round=115),
        event("quarantined", 1, 7.0, subject=2, round=121, **why),
        event("parole", 3, 8.0, subject=2, round=115),  # it was stopped meanwhile
        event("quarantined", 3, 8.1, subject=2, round=121, **why),
    )
    assert [line[:25] for line in lines[2:]] == [
        "~ peer 2 on parole from r",
        "- peer 2 quarantined at r",
    ]
    assert view.rows[2].quarantined
    told(view, event("trusted", 3, 8.2, subject=2, round=60))
    assert view.rows[2].quarantined


def test_the_newest_round_is_shown_and_a_missing_loss_leaves_the_last() -> None:
    view = RunModel(2)
    told(
        view,
        event("round", 0, 1.0, round=5, loss=0.5, server=1, attempt=0, alive=2, trust={"1": 0.7}),
        event("round", 1, 1.1, round=4, loss=9.0, server=0, attempt=1, alive=2),
        event("round", 0, 1.2, round=6, loss=None, server=0, attempt=2, alive=2),
    )
    at = view.progress
    assert (at.round, at.loss, at.server, at.attempt, at.alive) == (6, 4.75, 0, 2, 2)
    assert view.rows[1].trust == 0.7


def test_accuracy_is_that_of_honest_peers() -> None:
    view = RunModel(3, faults.parse("nan:2"))
    told(
        view,
        *(
            event("metrics", peer, 1.0, accuracy=value)
            for peer, value in enumerate((0.8, 0.9, 0.1))
        ),
    )
    assert view.progress.accuracy == 0.8, "the lowest, as in the summary"
    told(view, *(event("exited", peer, 2.0, signal=2, stopping=peer != 0) for peer in range(3)))
    assert view.progress.accuracy == 0.9, "a stopped peer keeps it, one that died does not"


def test_the_batch_policy_is_told_at_the_start_and_when_the_roster_changes_size() -> None:
    def batch(at: int, peer: int, n: int, samples: int) -> dict[str, Any]:
        return event(
            "batch",
            peer,
            round=at,
            policy="fixed_local",
            peers=n,
            local=-(-samples // n),
            samples=samples,
        )

    view = RunModel(3)
    assert told(view, *(batch(0, peer, 3, 96) for peer in range(3))) == [
        "= batch: 3 peers x 32 samples, 96 a round (fixed_local); the learning rate is unchanged"
    ]
    assert told(view, batch(7, 0, 2, 64), batch(7, 2, 2, 64)) == [
        (
            "= batch from round 7 on: 2 peers x 32 samples, 64 a round (fixed_local); the "
            "learning rate is unchanged; so epochs leave samples unread, unless the script has "
            'peer.epochs(n, remainder="extend") or the run --batch-policy fixed_global'
        )
    ]
    assert told(view, batch(9, 1, 2, 64)) == []  # one that has come back: no news
    (line,) = told(view, batch(12, 1, 3, 100), batch(7, 1, 2, 64))
    (again,) = told(view, batch(20, 1, 1, 32))
    assert again.startswith("= batch from round 20 on: 1 peer x 32 samples")
    assert again.endswith("the learning rate is unchanged"), "the remedy is there once"
    assert line.startswith(
        "= batch from round 12 on: 3 peers, at most 34 samples each, 100 a round"
    )


def test_whose_batches_change_is_told_once() -> None:
    view = RunModel(4)
    lines = told(
        view,
        *(event("share", peer, subject=3, was=1.0, share=0.5, round=20) for peer in (0, 1, 2)),
        *(event("share", peer, subject=3, was=0.5, share=0.25, round=36) for peer in (0, 1)),
        event("share", 2, subject=3, was=1.0, share=0.5, round=20),
        event("share", 2, subject=3, was=0.25, share=0.5, round=90),
        # It was out of the roster, and came back to whole batches.
        event("share", 2, subject=3, was=1.0, share=0.5, round=190),
    )
    assert lines == [
        "= peer 3 gets half batches from round 21 on: it was slower than most, or away",
        "= peer 3 gets quarter batches from round 37 on: it was slower than most, or away",
        "= peer 3 gets half batches from round 91 on: it is quick enough for that",
        "= peer 3 gets half batches from round 191 on: it was slower than most, or away",
    ]


def test_an_epoch_is_told_once_and_short_ones_share_a_line() -> None:
    def ended(epoch: int, peer: int, t: float, left: int = 0) -> dict[str, Any]:
        return event("epoch", peer, t, epoch=epoch, once=100 - left, twice=0, left=left, rounds=4)

    view = RunModel(2)
    assert told(view, ended(0, 1, 1.0), ended(0, 0, 1.1)) == [
        "= epoch 0: 100 samples used once, 0 twice, in 4 rounds; left over in all epochs so far: 0"
    ]
    assert told(view, ended(1, 0, 2.0), ended(2, 0, 3.0), ended(2, 1, 3.0)) == []
    assert told(view, ended(3, 0, 6.0)) == [
        "= epochs 1 to 3: 300 samples used once, 0 twice, in 12 rounds; left over in all epochs so "
        "far: 0"
    ]
    assert told(view, ended(4, 0, 6.1)) == []
    # One that has left samples is told at once, and the end of the run tells the rest.
    assert told(view, ended(5, 1, 6.2, left=3)) == [
        "= epochs 4 to 5: 197 samples used once, 0 twice, in 8 rounds; left over in all epochs so "
        "far: 3"
    ]
    assert told(view, ended(6, 1, 6.3)) == []
    assert view.epochs.at_end(planned=True) == [
        "= epoch 6: 100 samples used once, 0 twice, in 4 rounds; left over in all epochs so far: 0"
    ]
    assert view.epochs.rest() == []


@pytest.mark.parametrize("planned", [False, True])
def test_what_the_last_epoch_leaves_is_unused_only_if_it_was_the_end(planned: bool) -> None:
    view = RunModel(1)
    told(view, event("epoch", 0, 1.0, epoch=0, once=97, twice=0, left=3, rounds=4))
    lines = view.epochs.at_end(planned)
    assert [line.split(";")[0] for line in lines] == planned * [
        "= 3 samples of all epochs left unused at the end"
    ]


def test_a_long_run_tells_of_short_epochs_less_and_less_often() -> None:
    view = RunModel(1)
    lines = [
        line
        for epoch in range(600)
        for line in view.apply(
            event("epoch", 0, float(epoch), epoch=epoch, once=100, twice=0, left=0, rounds=4)
        )
    ]
    ends = [int(line.split(":")[0].split()[-1]) for line in lines]
    assert ends[:6] == [0, 5, 15, 35, 75, 135]
    assert {b - a for a, b in itertools.pairwise(ends[4:])} == {60}


def test_a_lost_round_counts_once_whoever_tells() -> None:
    view = RunModel(3)
    lines = told(
        view,
        event("lost_round", 0, round=5, reason="r"),
        event("lost_round", 1, round=5, reason="r"),
    )
    assert lines == ["! round 5 is lost: r"]
    assert [*view.progress.lost] == [5]


def test_rows_of_strangers_and_unknown_events_are_ignored() -> None:
    view = RunModel(2)
    assert told(view, event("round", 7, round=1), event("whatever", 0), event("skip", 0)) == []


def test_the_last_round_is_known_though_its_event_was_throttled() -> None:
    view = RunModel(2)
    told(
        view,
        event("round", 0, 1.0, round=5, loss=0.5),
        event("halted", 0, 2.0, round=9, exit_code=0),
    )
    assert (view.progress.round, view.rows[0].round) == (9, 9)


def test_a_flood_about_a_peer_is_told_once() -> None:
    view = RunModel(4)
    flood = {"of": "bad_commit", "about": 3, "count": 1203, "message": "and 1,203 more"}
    lines = told(
        view,
        *(
            event("events_suppressed", peer, 10.0 + at, **flood)
            for at in range(5)
            for peer in (0, 1)
        ),
    )
    assert lines == [
        "! events.jsonl has only some of the events bad_commit about 3, and a count of the others"
    ]


def test_of_epochs_that_leave_samples_the_first_is_told_at_once() -> None:
    """With a liar each epoch leaves some, since what it has read is read again."""
    view = RunModel(1)
    told = [
        view.apply(event("epoch", 0, 0.1 * at, epoch=at, once=99, twice=0, left=at, rounds=4))
        for at in range(40)
    ]
    assert [at for at, lines in enumerate(told) if lines] == [0, 1]
    twice = event("epoch", 0, 4.0, epoch=40, once=99, twice=1, left=0, rounds=4)
    assert view.apply(twice)[0].startswith("! epochs 2 to 40: ")


def test_smaller_batches_of_a_peer_in_quarantine_have_that_reason() -> None:
    view = RunModel(2)
    smaller = {"subject": 1, "share": 0.5, "was": 1.0}
    assert "slower than most" in view.apply(event("share", 0, 1.0, round=15, **smaller))[0]
    view.apply(event("quarantined", 0, 2.0, subject=1, round=20, trust=0.1))
    assert "it is in quarantine" in view.apply(event("share", 0, 3.0, round=31, **smaller))[0]


def test_a_peer_that_wakes_up_far_behind_does_not_pause_the_swarm() -> None:
    view = RunModel(4)
    for number in range(160):
        view.apply(event("round", 0, number / 10, round=number, step=number + 1, alive=4))
    view.apply(event("paused", 3, 16.0, round=120, alive=[1, 3], need=3))
    assert not view.progress.paused
    view.apply(event("paused", 0, 17.0, round=160, alive=[0], need=3))
    assert view.progress.paused


def test_on_the_two_sides_of_a_partition_nobody_is_called_dead() -> None:
    view = RunModel(4)
    cut = event("fault", 0, 5.0, kind="partition", fault="partition:0,1,2|3@5s+6s", round=9)
    sides = [(0, 3), (1, 3), (3, 0), (3, 1), (3, 2)]
    lines = told(
        view, cut, *(event("dead", by, 6.0 + by / 10, subject=of, by=by) for by, of in sides)
    )
    assert lines[1:] == [
        "! peer 3 is dead for peer 0: the partition is between them",
        "! peer 0 is dead for peer 3: the partition is between them",
        "! peer 1 is dead for peer 3: the partition is between them",
        "! peer 2 is dead for peer 3: the partition is between them",
    ]
    # On one side of it a death is one.
    assert told(view, event("dead", 0, 6.5, subject=1, by=0)) == [
        "x peer 1 declared dead by peer 0"
    ]


def test_what_befalls_a_peer_after_it_is_back_is_not_counted_from_its_death() -> None:
    view = RunModel(3)
    lines = told(
        view,
        event("fault", 1, 10.0, kind="hang", round=5, seconds=3.0),
        event("dead", 0, 11.0, subject=1, by=0),
        event("alive_again", 0, 13.0, subject=1),
        event("dead", 2, 40.0, subject=1, by=2),
    )
    assert lines[1:] == [
        "x peer 1 declared dead by peer 0 after 1.0 s",
        "~ peer 1 is back",
        "x peer 1 declared dead by peer 2",
    ]
    assert view.failures.blows[0].dead_ms == 1000.0


def test_a_death_long_after_a_short_hang_is_not_counted_from_it() -> None:
    """It said "dead after 155393 ms": nobody had held the peer for dead when it hung."""
    view = RunModel(3)
    lines = told(
        view,
        event("fault", 1, 10.0, kind="hang", round=5, seconds=0.3),
        event("skip", 0, 10.3, subject=1, by=0, reason="no answer"),
        event("dead", 2, 165.0, subject=1, by=2),
    )
    assert lines[-1] == "x peer 1 declared dead by peer 2"
    assert view.failures.blows[0].dead_ms is None


def test_links_that_close_because_the_run_is_over_are_no_trouble() -> None:
    view = RunModel(3)
    over = event("halted", 0, 30.0, reason="finished", exit_code=0, round=9)
    gone = {"subject": 1, "reason": "disconnected"}
    assert told(view, over, event("skip", 2, 30.1, **gone)) == []
    assert told(view, event("skip", 2, 60.0, **gone)) == [
        "! peer 1 skipped by peer 2: disconnected"
    ]


@pytest.mark.parametrize(("local_steps", "means"), [(1, 0), (10, 0), (10, 3)])
def test_who_has_had_all_steps_is_fine_when_links_close(local_steps: int, means: int) -> None:
    """The words that it is over come a moment later. The script tells how many rounds it makes.
    ``means``: rounds that were no steps."""
    view = RunModel(3, local_steps=local_steps)
    lines = told(view, event("plan", 2, 0.1, steps=10))
    gone = {"subject": 1, "reason": "disconnected"}
    told(view, event("round", 2, 1.0, round=7 + means, step=8))
    assert told(view, event("skip", 2, 2.0, round=10 + means, **gone)) == lines == []
    said = ["! peer 0 skipped by peer 2: disconnected"]
    gone["subject"] = 0
    assert told(view, event("skip", 2, 2.1, round=9 + means, **gone)) == said


def test_who_is_away_gets_smaller_batches_for_that() -> None:
    view = RunModel(3)
    (_, line) = told(
        view,
        event("skip", 0, 9.0, subject=1, reason="suspect"),
        event("share", 0, 10.0, subject=1, was=1.0, share=0.5, round=20),
    )
    assert line == "= peer 1 gets half batches from round 21 on: it is away"


def test_a_peer_that_is_not_as_its_profile_says_is_told_of_once_with_what_to_do() -> None:
    view = RunModel(4)
    found = {"subject": 2, "measured_us": 160_000, "predicted_us": 80_000, "round": 4}
    lines = told(view, *(event("unlike_profile", peer, **found) for peer in (1, 2, 3)))
    (line,) = lines
    assert line.startswith(
        "! peer 2 takes 160 ms for a micro-batch where its profile says 80 ms: 2.0"
    )
    assert "slower" in line
    assert "gossip plan profile" in line
    faster = {**found, "subject": 3, "measured_us": 20_000}
    assert "4.0 times faster" in told(view, event("unlike_profile", 0, **faster))[0]


def test_a_peer_that_logs_its_loss_shows_that_and_the_run_the_mean_over_its_peers() -> None:
    view = RunModel(2)
    both = {"step": 1, "loss": 0.5, "alive": 2, "contributors": [0, 1], "server": 0}
    told(
        view,
        event("metrics", 0, 1.0, round=0, loss=2.0),
        event("round", 0, 1.1, round=0, **both),
        event("round", 1, 1.1, round=0, **both),
    )
    assert (view.rows[0].loss, view.rows[1].loss, view.progress.loss) == (2.0, 0.5, 1.25)


def test_a_peer_with_little_influence_is_named_once_and_only_if_nothing_speaks_against_it() -> None:
    view = RunModel(4)
    lines = told(
        view,
        event("suspected", 0, 1.0, subject=2, round=9, trust=0.4, reasons=["7 stood out"]),
        *(event("low_influence", peer, 2.0, subject=2, round=30, share=0.1) for peer in range(4)),
        *(event("low_influence", peer, 2.0, subject=3, round=31, share=0.31) for peer in range(4)),
    )
    (line,) = [line for line in lines if "equal weight" in line]
    assert "peer 3" in line
    assert "31%" in line
    assert view.trust.low_influence == {3: 0.31}


def test_a_sentence_has_fields_of_its_event_alone() -> None:
    for kind, sentence in SENTENCES.items():
        names = {name for _, name, _, _ in Formatter().parse(sentence.text) if name is not None}
        assert {*names, *filter(None, [sentence.about])} <= kind.fields.keys(), kind


@pytest.mark.parametrize(
    ("name", "fields", "line"),
    [
        (
            "notice",
            {"message": "peer 2 has no key", "hint": "add it"},
            "! peer 1: peer 2 has no key (add it)",
        ),
        (
            "lingering",
            {"for": [2], "at_most_s": 5.0},
            "~ peer 1 has finished; it waits for peer 2 up to 5.0 s",
        ),
        (
            "restored",
            {"from": 2, "round": 0},
            "+ peer 1 re-synced from peer 2 at round 0: its initial state differed "
            "(torch.manual_seed(0) before the model)",
        ),
        (
            "reduced_tolerance",
            {"updates": 1, "round": 7, "f": 0, "wanted": 1},
            "! round 7 has 1 update: it tolerates f=0 Byzantine peers instead of 1",
        ),
        ("resumed", {"alive": [0, 1, 2, 5]}, "~ resumed: alive are 0-2,5"),
        ("resumed", {"alive": 3}, "~ resumed: alive are 3"),
        (
            "stage_lost",
            {"stage": 1, "peers": [2, 3]},
            "x stage 1 has lost all its peers (2,3): the others wait for one",
        ),
        ("error", {"message": "two\nlines {peer}"}, "! peer 1: two\nlines {peer}"),
    ],
)
def test_an_event_has_its_sentence(name: str, fields: dict[str, Any], line: str) -> None:
    assert RunModel(3).apply(event(name, 1, **fields)) == [line]


def test_both_times_of_an_event_of_the_launcher_are_those_of_the_event() -> None:
    rows: list[dict[str, Any]] = []
    launcher: Any = SimpleNamespace(receive=rows.append)
    exited = event("exited", 1, 0.0, code=None, signal=9, how="killed by SIGKILL")
    OngoingRun.record(launcher, exited, time.monotonic() - 1000.0)
    assert rows[0]["wall"] == pytest.approx(time.time() - 1000.0, abs=100.0)
