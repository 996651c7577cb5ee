"""Conformance kit for topologies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

from gossip.errors import BadTopology
from gossip.topologies import Plan, Roster, Topology

SEED = 11
LARGEST = 33
SPREAD_ROUNDS = 2  # times n: rounds within which information of one peer must reach all peers
FAIR_ROUNDS = 200


def check_topology(topology: Topology, *, balanced: bool = True) -> None:
    """Check a topology with rosters of 1 to 33 peers.

    The topology must be a pure function of the set of peers, the lineage, the round and the seed.
    Each plan must name every peer. In a gossip topology, information of one peer must reach all
    other peers within 2n rounds. A rolling topology must order all peers for every shard.

    Args:
        topology: Topology with its options bound.
        balanced: Whether all peers must receive or serve about equally often. This is False for a
            star.
    Raises: AssertionError: The topology breaks a requirement. The message names the requirement,
        the roster and the round.
    """
    for n in range(1, LARGEST + 1):
        roster = Roster(tuple(range(n)), b"lineage1")
        _check_plans(topology, roster)
        if not topology.rolling:
            _check_spread(topology, roster)
    _check_plans(topology, Roster((3, 4, 11, 29, 1000), b"lineage2"))
    if balanced:
        for n in (2, 3, 8, 13):
            _check_fair(topology, Roster(tuple(range(n)), b"lineage1"))


def _fail(topology: Topology, promise: str) -> None:
    raise AssertionError(f"topology {topology.name} {promise}")


def _plan(topology: Topology, roster: Roster, round_id: int) -> Plan:
    try:
        return topology(roster, round_id, SEED)
    except BadTopology as error:
        raise AssertionError(str(error)) from error


def _check_plans(topology: Topology, roster: Roster) -> None:
    members = set(roster.peers)
    for round_id in (0, 1, 7, 2**40):
        where = f"in round {round_id} of {len(roster)} peers"
        plan = _plan(topology, roster, round_id)
        if bool(plan.servers) != topology.rolling:
            _fail(
                topology,
                f"is {'' if topology.rolling else 'not '}declared rolling, but its plan differs "
                f"from that {where}",
            )
        if not _is_repeatable(topology, roster, round_id, plan):
            _fail(
                topology,
                f"plans differently for the same peers, round and seed {where}: it must be a pure "
                "function",
            )
        for order in plan.servers:
            if set(order) != members:
                _fail(
                    topology,
                    f"leaves out {sorted(members - set(order))} as servers {where}: all must be "
                    "able to step in",
                )
        if plan.pushes is not None and set(plan.pushes) != members:
            _fail(topology, f"has no entry for {sorted(members - set(plan.pushes))} {where}")


def _is_repeatable(topology: Topology, roster: Roster, round_id: int, plan: Plan) -> bool:
    """Whether the plan is independent of the global random state, of the order of the roster, and
    of the round that was planned before."""
    state = random.getstate()
    try:
        random.seed(1)
        _plan(topology, roster, round_id + 3)
        backwards = Roster(tuple(reversed(roster.peers)), roster.lineage)
        again = [_plan(topology, other, round_id) for other in (roster, backwards)]
    finally:
        random.setstate(state)
    return all(_facts(other) == _facts(plan) for other in again)


def _facts(plan: Plan) -> tuple[object, ...]:
    pushes = (
        None
        if plan.pushes is None
        else {sender: sorted(targets) for sender, targets in plan.pushes.items()}
    )
    return plan.servers, pushes


def _check_spread(topology: Topology, roster: Roster) -> None:
    n, members = len(roster), set(roster.peers)
    knows = {peer: {peer} for peer in members}
    for round_id in range(SPREAD_ROUNDS * n):
        pushes = _plan(topology, roster, round_id).pushes or {}
        before = {peer: set(known) for peer, known in knows.items()}
        for sender, targets in pushes.items():
            for target in targets:
                knows[target] |= before[sender]
        if all(known == members for known in knows.values()):
            return
    deaf = {peer: sorted(members - known) for peer, known in knows.items() if known != members}
    peer, missing = next(iter(sorted(deaf.items())))
    _fail(
        topology,
        f"never lets peer {peer} receive from {missing}, within {SPREAD_ROUNDS * n} rounds of {n} "
        "peers",
    )


def _check_fair(topology: Topology, roster: Roster) -> None:
    counts = Counter(dict.fromkeys(roster.peers, 0))
    for round_id in range(FAIR_ROUNDS):
        counts.update(_burden(_plan(topology, roster, round_id)))
    mean = counts.total() / len(roster)
    for peer, count in sorted(counts.items()):
        if not mean / 2 <= count <= mean * 2:
            verb = "serves" if topology.rolling else "receives"
            _fail(
                topology,
                f"is unfair: peer {peer} of {len(roster)} {verb} {count} times in {FAIR_ROUNDS} "
                f"rounds, {mean:.0f} is typical",
            )


def _burden(plan: Plan) -> Iterable[int]:
    """Return the peers that serve or receive a push. A peer occurs once for each push that it
    receives."""
    if plan.pushes is None:
        return [order[0] for order in plan.servers]
    return [target for targets in plan.pushes.values() for target in targets]
