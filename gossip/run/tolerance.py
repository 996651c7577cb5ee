"""Lines that a run prints before its first round. They show how many broken or Byzantine peers the
run tolerates and why, with how many peers it would tolerate one, and whether requested reference
samples are used.
"""

from __future__ import annotations

from collections.abc import Mapping

from gossip.config import ROBUST, WITH_REFERENCE, RunConfig

GUARDED, SUSPICION = "guarded_mean", "suspicion"
ADVERSARIES = "Against Byzantine peers: -f N (docs/protection.md)"
COSTS = (
    "If the data of peers differ, this rule costs accuracy even without Byzantine peers; with "
    "--reference SAMPLES it does not (docs/protection.md)"
)
FOUND = "what "
"""Prefix of the source of a default f."""


def describe(config: RunConfig, source: str = "") -> str:
    """Return one line about the peers that the run tolerates.

    Args:
        config: Resolved config, in which ``f`` and ``peers_for_one`` are set.
        source: Source of ``f``, as in ``Resolved.sources``; "" if unknown.
    """
    f, rule = config.f or 0, config.aggregator
    if not config.peers_for_one:
        but = ", but" if f else ":"
        line = f"f={f}{but} {rule} tolerates no Byzantine peer"
        line += "" if config.is_rolling else f" with --topology {config.topology}"
        line += ", however many peers there are"
        of = "" if config.pipeline is None else " of a stage"
        of += "" if config.is_rolling else " with --topology rolling"
        return f"{line}{_planned(config, 0)}. {SUSPICION} would tolerate one of 4 peers{of}"
    plan = config.pipeline
    peers = config.peers if plan is None else plan.smallest
    among = f"{peers} peer{'s' if peers != 1 else ''}{'' if plan is None else ' of a stage'}"
    why = ""
    if source:
        why = f" ({'by default' if source.startswith(FOUND) else f'given: {source}'})"
    if rule == GUARDED:
        broken = f"{f or 'no'} broken peer{'s' if f > 1 else ''}"
        line = f"f={f}: {rule} tolerates {broken} among {among}{why}{_planned(config, f)}"
        return f"{line}. {ADVERSARIES}"
    if f == 0:
        line = f"f=0: {rule} tolerates no Byzantine peer among {among}{why}{_planned(config, 0)}"
        return f"{line}. {config.peers_for_one} peers would tolerate one"
    many = f"{f} Byzantine peer{'s' if f > 1 else ''}"
    costs = f". {COSTS}" if why and rule in ROBUST else ""
    does = "is assumed to tolerate" if ":" in rule else "tolerates"  # a rule of the user
    return f"f={f}: {rule} {does} {many} among {among}{why}{_planned(config, f)}{costs}"


def judges(config: RunConfig, sources: Mapping[str, str]) -> str:
    """Return one line about whether and how the requested reference samples are used; "" if none
    were requested. ``sources``: as in ``Resolved``."""
    if sources["aggregator"] == WITH_REFERENCE:
        samples = f"{config.reference_samples} sample{'s' if config.reference_samples != 1 else ''}"
        return f"{config.aggregator}: updates are judged by {samples} ({WITH_REFERENCE})"
    source = sources["reference_samples"]
    # A value from a file is no request: the config file of a run has every option, including
    # defaults.
    if source != "flag" and not source.startswith("GOSSIP_"):
        return ""
    from gossip.aggregators import load

    if load(config.aggregator).needs_trainer:
        return ""
    return (
        f"! reference_samples = {config.reference_samples} ({source}): {config.aggregator} does "
        f"not use them ({sources['aggregator']}). judged_clipping does, in rolling rounds"
    )


def warns(config: RunConfig, chosen: bool) -> bool:
    """Whether the run probably tolerates fewer Byzantine peers than the user intends.

    Args:
        chosen: Whether the user has named the rule.
    """
    if len(config.plan.byzantine) > (config.f or 0 if config.peers_for_one else 0):
        return True
    return chosen and bool(config.peers_for_one) and config.f == 0 and config.peers > 1


def _planned(config: RunConfig, f: int) -> str:
    liars = sorted(config.plan.byzantine)
    if len(liars) <= f:
        return ""
    who = f"peer{'s' if len(liars) > 1 else ''} {', '.join(map(str, liars))}"
    return f", and the fault plan makes {who} Byzantine"
