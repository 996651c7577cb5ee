"""``gossip explain RUN``: why things went as they did, in sentences."""

import json
import re
from pathlib import Path

import pytest
from recorded_run import RecordedRun

from gossip.errors import ConfigError
from gossip.launch.report.explain import explain, times_far


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return RecordedRun(tmp_path_factory.mktemp("runs") / "run").whole()


def told(run: RecordedRun, what: str | None = None) -> str:
    return "\n".join(explain(run.folder, what))


def test_a_run_is_told_with_where_the_time_of_its_rounds_went(run: RecordedRun) -> None:
    text = told(run)
    assert "A round took 100 ms in the median" in text
    assert "Its slowest contributor needed 30 ms of that" in text
    assert "The rule took 4.0 ms." in text
    assert "The rest, 66 ms, was spent on" in text


@pytest.mark.parametrize(
    ("local_steps", "words"),
    [
        (4, "would need 300 ms for all steps of a round, and did fewer."),
        (1, "reports 300 ms for its update, more than the time between the commits."),
    ],
)
def test_an_update_that_took_longer_than_its_round_is_explained(
    local_steps: int, words: str, tmp_path: Path
) -> None:
    """A peer with local steps reports how long all of them take."""
    run = RecordedRun(tmp_path / "run").whole()
    for path in run.folder.glob("peer-*/commits.jsonl"):
        path.write_text(path.read_text().replace('"took_us": 30000', '"took_us": 300000'))
    config = json.loads((run.folder / "config.json").read_text())
    (run.folder / "config.json").write_text(json.dumps({**config, "local_steps": local_steps}))
    text = told(run)
    assert f"Its slowest contributor {words}" in text
    assert "of that for its update" not in text
    assert "The rest" not in text
    assert f"peer 3, {words}" in told(run, "@12")


def test_rounds_before_the_checkpoint_of_a_resumed_run_are_not_its_own(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run")
    run.rounds(25, 40)
    assert told(run).startswith("Run digits-0a1b: ")
    assert ": 40 rounds in " in told(run).splitlines()[0], "of its first ones it has no record"
    config = json.loads((run.folder / "config.json").read_text())
    (run.folder / "config.json").write_text(json.dumps({**config, "resume": "auto"}))
    assert ": 15 rounds in " in told(run).splitlines()[0]


def test_a_run_is_told_with_what_befell_its_peers(run: RecordedRun) -> None:
    text = told(run)
    assert "30 rounds of 40 were closed without peer 2, which was late." in text
    assert "round 19, peer 1: killed, not in the fault plan" in text
    assert "back: in round 30, " in text
    assert "peer 3: false updates: sign_flip (fault: sign_flip:3*1)" in text
    assert "suspected at 0:01.7 (round 6); in quarantine at 0:02.6 (round 15)" in text


def test_only_rounds_that_went_to_another_server_count_as_handed_on(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run").whole()
    (commits,) = [
        path
        for path in run.folder.glob("peer-*/commits.jsonl")
        if '"round": 25,' in path.read_text()
    ]
    before = commits.read_text()
    at = before.index('"made_at": 0', before.index('"round": 25,'))
    commits.write_text(before[:at] + '"made_at": 1' + before[at + len('"made_at": 0') :])
    turn = {"round": 25, "shard": 0, "attempt": 1}
    run.event(9.0, 3, "attempt", **turn, reason="a result of 1 is refused: a cosine of -0.5")
    for peer in (0, 2):
        run.event(9.0, peer, "attempt", **turn, reason="1 is skipped: suspect")
    for number in range(30, 38):  # one peer goes to another server, and comes back to the first
        alone = {"round": number, "shard": 0, "attempt": 1, "reason": "a result of 0 is refused"}
        run.event(9.0, 3, "attempt", **alone)
    text = told(run)
    assert (
        "1 of 40 rounds went to another server than the first in turn. "
        "Reasons: the server is skipped: suspect (1)."
    ) in text
    assert "is refused" not in text


def test_samples_that_no_step_has_used_are_counted(run: RecordedRun) -> None:
    used = {"once": 90, "twice": 0, "rounds": 9, "skipped": 0, "given_up": 0}
    for epoch, left in ((0, 10), (1, 20)):
        run.event(9.0, 0, "epoch", epoch=epoch, left=left, **used)
    assert "20 samples of all epochs were left unused (docs/data.md)." in told(run)


def test_a_peer_is_told_with_how_it_died_and_came_back(run: RecordedRun) -> None:
    text = told(run, "1")
    assert "x peer 1 killed by 9 at round 19: not in the fault plan" in text
    assert "+ peer 1 re-synced from peer 2 at round 30" in text


def test_a_peer_is_told_with_why_it_was_quarantined(run: RecordedRun) -> None:
    text = told(run, "3")
    assert "? peer 3 suspected Byzantine at round 6: trust 0.48: 6 updates stood out" in text
    assert "- peer 3 quarantined at round 15: trust 0.18: 15 updates stood out" in text
    assert "Its updates lay 12 times as far out as is typical" in text
    assert "The fault plan makes it Byzantine: sign_flip." in text


def test_a_peer_that_is_not_as_its_profile_says_is_told_with_what_to_do(tmp_path: Path) -> None:
    run, found = RecordedRun(tmp_path / "run"), {"measured_us": 160_000, "predicted_us": 80_000}
    run.event(0.3, 0, "unlike_profile", subject=1, round=4, **found)
    text = told(run.whole(), "1")
    assert "! peer 1 takes 160 ms for a micro-batch where its profile says 80 ms" in text
    assert "plan again (gossip plan)" in text
    assert "! peer 1 takes 160 ms" in told(run, "@4")


def test_a_slow_peer_is_told_beside_the_others(run: RecordedRun) -> None:
    text = told(run, "2")
    assert "Its updates take 90 ms, those of other peers 30 ms (median)." in text
    assert "Its update is in 10 of 40 rounds since its first (25%)." in text


def test_a_round_is_told_with_who_is_not_in_it_and_why(run: RecordedRun) -> None:
    text = told(run, "@20")
    assert "It took 100 ms from the previous commit to its own." in text
    assert re.search(r"Its slowest contributor, peer [03], needed 30 ms", text)
    assert "The update of peer 3 arrived but got no weight" in text
    assert "Its server waited for 2 until 50 ms after the first update" in text
    assert "It lacks an update of 1,2 from the roster." in text


def test_a_number_that_is_no_peer_is_a_round(run: RecordedRun) -> None:
    assert told(run, "20") == told(run, "@20")
    assert told(run, "3") != told(run, "@3")


@pytest.mark.parametrize("what", ["@999", "999", "me", "@", "-1"])
def test_what_is_neither_is_refused(run: RecordedRun, what: str) -> None:
    with pytest.raises(ConfigError):
        explain(run.folder, what)


@pytest.mark.parametrize(
    ("far", "words"), [(1.02, "just"), (1.1, "1.1 times"), (2000.0, "over 1000 times")]
)
def test_a_distance_from_the_others_is_a_multiple_of_the_typical_one(far: float, words: str):
    assert times_far(far) == words
