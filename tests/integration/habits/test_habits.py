"""What scripts do around a step, and what becomes of it: each habit of the table, in real runs.

``make test`` runs every sixth habit alone against plain torch. Of every 24th habit it also runs
one situation with several peers. Which these are rotates with TEST_SEED, by default the number of
commits: 120 in a row cover the table. ``make test-long`` runs all situations.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from effort import effort, seed_of_today
from habit_runs import HabitRuns
from habit_table import HABITS, SITUATIONS

ALONE_EVERY, SWARM_EVERY = 6, 24
SWARMS = [situation for situation in SITUATIONS if situation != "single"]


def due_with(seed: int) -> dict[str, list[str]]:
    """Return the situations of each habit in ``make test``."""
    return {
        name: [
            "single",
            *([SWARMS[(at // SWARM_EVERY + seed) % 5]] if turn % SWARM_EVERY == 0 else []),
        ]
        for at, name in enumerate(HABITS)
        if (turn := at + seed) % ALONE_EVERY == 0
    }


CHOSEN = effort(due_with(seed_of_today()), {name: list(SITUATIONS) for name in HABITS})


@pytest.mark.parametrize("name", CHOSEN)
def test_a_habit_comes_to_what_the_table_says(name: str, tmp_path: Path) -> None:
    runs = HabitRuns(name, tmp_path)
    expected = {situation: HABITS[name].expected(situation) for situation in CHOSEN[name]}
    assert {situation: runs.outcome(situation) for situation in expected} == expected
