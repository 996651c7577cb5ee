"""However many bad letters come, what is written down of them is bounded,
and nothing goes uncounted."""

from __future__ import annotations

from pathlib import Path

from gossip.run.event_rates import BURST, PER_S, TELL_EVERY_S, EventRateLimiter
from gossip.run.journal import Journal
from gossip.run.telemetry import read_lines


def test_a_burst_passes_then_so_many_a_second_and_the_rest_is_counted() -> None:
    flood = EventRateLimiter()
    passed = sum(flood.lets("fork", 3, 100.0 + at / 1000) for at in range(5000))
    assert passed == BURST + int(PER_S * 5) - 1
    assert flood.held(105.0) == [("fork", 3, 5000 - passed)]
    assert flood.held(200.0) == []
    assert all(flood.lets("fork", 3, 200.0) for _ in range(BURST))


def test_the_count_comes_once_a_second_and_at_the_end() -> None:
    flood = EventRateLimiter()
    for _ in range(BURST + 7):
        flood.lets("fork", 3, 100.0)
    assert flood.held(100.0 + TELL_EVERY_S / 2) == []
    assert flood.held(100.0 + TELL_EVERY_S) == [("fork", 3, 7)]
    assert not flood.lets("fork", 3, 100.0)
    assert flood.held(100.1, all_of_them=True) == [("fork", 3, 1)]


def test_a_flood_about_one_peer_hides_neither_others_nor_other_kinds() -> None:
    flood = EventRateLimiter()
    for _ in range(1000):
        flood.lets("fork", 3, 100.0)
    assert flood.lets("fork", 4, 100.0)
    assert flood.lets("bad_commit", 3, 100.0)


def test_a_journal_stays_small_under_a_flood_and_says_how_much_it_left_out(tmp_path: Path) -> None:
    journal = Journal(0, tmp_path)
    for number in range(20_000):
        journal.event("bad_commit", round=number, server=1, **{"from": 3})
    for number in range(200):
        journal.event("lost_round", round=number, reason="nobody's fault")
    journal.close()
    rows = list(read_lines(tmp_path / "events.jsonl"))
    written = sum(row["event"] == "bad_commit" for row in rows)
    more = [row for row in rows if row["event"] == "events_suppressed"]
    assert {(row["of"], row["about"]) for row in more} == {("bad_commit", 3)}
    assert written + sum(row["count"] for row in more) == 20_000
    assert written < 1000
    assert f"and {more[-1]['count']:,} more" == more[-1]["message"]
    assert sum(row["event"] == "lost_round" for row in rows) == 200


def test_who_is_away_in_a_flood_of_skips_is_known_all_the_same(tmp_path: Path) -> None:
    journal = Journal(0, tmp_path)
    for _ in range(BURST + 1):
        journal.event("skip", subject=3)
        journal.event("unskip", subject=3)
    journal.event("skip", subject=3)
    assert journal._away == {3}
    journal.close()
