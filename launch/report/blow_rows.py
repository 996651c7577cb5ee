"""Faults, deaths and returns of peers, as rows of ``summary.json``."""

from __future__ import annotations

from typing import Any

from .run_model import RunModel


def blows_and_returns(view: RunModel) -> dict[str, list[dict[str, Any]]]:
    """Return deaths, hangs, rejoins and restarts, each in order."""
    return {
        "deaths": [
            {
                "peer": blow.peer,
                "round": blow.round,
                "kind": blow.kind,
                "planned": blow.planned,
                "skip_ms": rounded(blow.skip_ms),
                "dead_ms": rounded(blow.dead_ms),
                "noticed_by": sorted({*blow.skips, *blow.deaths}),
            }
            for blow in view.blows
            if blow.kind != "hang"
        ],
        "hangs": [
            {
                "peer": blow.peer,
                "round": blow.round,
                "skip_ms": rounded(blow.skip_ms),
                "noticed_by": sorted(blow.skips),
            }
            for blow in view.blows
            if blow.kind == "hang"
        ],
        "rejoins": [
            {
                "peer": rejoin.peer,
                "incarnation": rejoin.incarnation,
                "round": rejoin.round,
                "after_ms": rounded(None if rejoin.after_s is None else rejoin.after_s * 1000),
            }
            for rejoin in view.rejoins
        ],
        **_restarts(view),
    }


def _restarts(view: RunModel) -> dict[str, list[dict[str, Any]]]:
    """Return the restarts of peers that died by themselves (``--restarts``)."""
    return {
        "restarts": [
            {
                "peer": each.peer,
                "round": each.round,
                "why": each.why,
                "number": each.number,
                "wait_s": each.wait_s,
                "incarnation": each.incarnation,
            }
            for each in view.own_restarts
            if each.number is not None
        ],
        "restarts_used_up": [
            {"peer": each.peer, "round": each.round, "why": each.why}
            for each in view.own_restarts
            if each.number is None
        ],
    }


def rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 1)
