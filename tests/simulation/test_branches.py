"""A round that has come out differently on two sides: one of them gives way, and does so once."""

from __future__ import annotations

import pytest

from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules import generate, strains


def test_seed_912041_two_branches_that_give_way_to_each_other_do_not_do_so_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sides hold different results of a round, and each has heard more of the other than of
    its own. All left their rounds for a state that nobody could give, came back to their own,
    and left again at the next word of the others."""
    monkeypatch.setattr(strains, "FAR_SHARE", 0.0)
    outcome = run(generate(912041))
    assert outcome.violation is None, outcome.violation
    assert outcome.reports["kept_own_state"] > 0, (
        "nobody has left in vain: the schedule proves nothing"
    )
