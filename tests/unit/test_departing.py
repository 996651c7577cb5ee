"""The end of a peer: when it leaves, and for whom it stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gossip.core.events import Stop
from gossip.core.lifecycle.shutdown import Shutdown
from gossip.core.messages import StateRequest
from gossip.core.rounds.departures import LocalLeave
from gossip.core.settings import CoreSettings
from gossip.core.timers import Timers

SETTINGS = CoreSettings(b"run", b"lineage", 0, (0, 1))


def test_a_peer_on_which_others_rely_leaves_after_its_round() -> None:
    for must_stay in (False, True):
        leave = LocalLeave(SETTINGS, Timers())
        put_off = leave.put_off(Stop("SIGTERM"), 7, must_stay, 0.0)
        assert (put_off is not None, leave.asked is not None) == (must_stay, must_stay)


def test_a_peer_stays_for_one_that_requests_its_last_state_and_no_longer_than_the_drain() -> None:
    members = SimpleNamespace(local=0, members={0: None, 1: None}, skip_reason=lambda peer: "")
    progress = SimpleNamespace(
        local_progress=SimpleNamespace(round_id=9), future_buffer=SimpleNamespace(seen={1: 9})
    )
    shutdown = Shutdown(SETTINGS, *cast(Any, (members, progress)), Timers(), lambda peer: False)
    assert shutdown.stop(completing=False, since=5.0, now=5.0) == []
    shutdown.asked(1, StateRequest(b"lineage", 1, 9, "state"), 6.0)
    assert shutdown.linger_until() == 5.0 + SETTINGS.rounds.drain_timeout_s
