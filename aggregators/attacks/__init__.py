"""What liars send: attacks by name, as one liar tells them or as all of them together.

    lie = make("sign_flip", 10)(update, round_id)                   one liar, of what it would have
                                                                    sent
    lies = make("alie").collude(honest, f=2)                        (f, d): liars who see what the
                                                                    honest send
    lie = make("dissensus").tell(update, receiver, theirs, others)  gossip rounds: each receiver is
                                                                    told something else

An attack acts where an update leaves its sender. It is told the round and draws from a seed, so the
same liar tells the same lie in every run. Attacks of a crew (``alie``, ``min_max``, ...) are
omniscient in ``collude``; called for one liar, they work on a guess of what the others send, from
the results that every replica has (``guessing``). A few cannot be guessed: ``names(lonely=True)``
leaves them out. ``label_flip`` is a lie about the data and acts where the trainer reads it:
``flip_labels``.

Knowing the names costs no torch, because command lines check them.
"""

from __future__ import annotations

from . import adaptive as _adaptive
from . import alone as _alone
from . import apart as _apart
from . import together as _together
from .kinds import DATA_ATTACKS as DATA_ATTACKS
from .kinds import KINDS as KINDS
from .kinds import LABEL_FLIP as _LABEL_FLIP
from .kinds import Aggregator as Aggregator
from .kinds import AttackKind as AttackKind
from .kinds import attack as attack
from .kinds import flip_labels as flip_labels
from .kinds import names as names
from .telling import Attack as Attack
from .telling import AttackerGroup as AttackerGroup
from .telling import make as make

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
]
_HOMES = (_adaptive, _alone, _apart, _together)  # imported for what they register
ATTACKS = {**KINDS, _LABEL_FLIP.name: _LABEL_FLIP}
"""Of real runs, the simulator and benchmarks: on updates and on data."""
