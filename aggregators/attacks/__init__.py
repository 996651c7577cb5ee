"""Attacks by name: vectors that Byzantine peers send instead of their updates.

    # one Byzantine peer, from the update that it would have sent
    bad = make("sign_flip", 10)(update, round_id)

    # (f, d): all attackers together, with knowledge of the honest updates
    bad = make("alie").collude(honest, f=2)

    # gossip rounds: a different update for each receiver
    bad = make("dissensus").tell(update, receiver, theirs, others)

    # a function of your own
    bad = make("my_attacks.py:mine")(update, round_id)

An attack changes an update before it is sent. All randomness comes from the round and a seed, so a
run can be repeated. In ``collude``, attacks of several peers (``alie``, ``min_max``, ...) use all
honest updates. In a call for one peer, they estimate the honest updates from the results that every
replica has (``guessing``). A few attacks cannot use an estimate; ``names(lonely=True)`` omits
these.
``label_flip`` does not change updates but the labels that the trainer reads (``flip_labels``).

Listing the names does not import torch, because command lines check them.
"""

from __future__ import annotations

from . import (
    adaptive as _adaptive,
    alone as _alone,
    apart as _apart,
    together as _together,
    unequal as _unequal,
)
from .finding import kind_of, place_of
from .kinds import (
    DATA_ATTACKS,
    KINDS,
    LABEL_FLIP as _LABEL_FLIP,
    Aggregator,
    AttackKind,
    attack,
    checked_strength,
    flip_labels,
    names,
)
from .telling import Attack, AttackerGroup, make

__all__ = [
    "ATTACKS",
    "DATA_ATTACKS",
    "KINDS",
    "Aggregator",
    "Attack",
    "AttackKind",
    "AttackerGroup",
    "attack",
    "flip_labels",
    "make",
    "names",
    "place_of",
]
# Imported because they register their attacks.
_HOMES = (_adaptive, _alone, _apart, _together, _unequal)
ATTACKS = {**KINDS, _LABEL_FLIP.name: _LABEL_FLIP}
"""Attacks on updates and on data, in real runs, the simulator and benchmarks."""
