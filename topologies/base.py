"""Base classes of topologies, which are pure functions (roster, round, seed) -> plan. Every peer
computes the same plan, so plans are never sent."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, overload

from gossip.errors import BadTopology, UnknownName


@dataclass(frozen=True, slots=True)
class Roster:
    """The agreed members of a round.

    Attributes:
        peers: Numbers of the members, ascending.
        lineage: Id of the run's history that the members continue.
    """

    peers: tuple[int, ...]
    lineage: bytes = b""

    def __iter__(self) -> Iterator[int]:
        return iter(self.peers)

    def __len__(self) -> int:
        return len(self.peers)

    def __contains__(self, peer: object) -> bool:
        return peer in self.peers


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of one round: the servers, or the receivers of each peer's update.

    A rolling plan has ``servers``, a gossip plan ``pushes``.

    Attributes:
        servers: For each shard, the peers in the order in which they serve it. In attempt ``i``,
            the server is the peer at index ``i`` modulo the length.
        pushes: The receivers of each peer's update; the key is the peer.
        metropolis: Whether averages have Metropolis weights (Xiao, Boyd, Kim 2007), which count
            peers of any degree equally. These weights need pushes in both directions. Parameters
            then move at most half of the way to the neighbours' mean.
    """

    servers: tuple[tuple[int, ...], ...] = ()
    pushes: Mapping[int, tuple[int, ...]] | None = None
    metropolis: bool = False

    def sources(self, peer: int) -> tuple[int, ...]:
        """Return the peers that send to ``peer`` in a gossip plan, ascending."""
        assert self.pushes is not None
        return tuple(sorted(sender for sender, targets in self.pushes.items() if peer in targets))


class Topology:
    """A named topology. ``topology(roster, round_id, seed)`` returns a checked ``Plan``.

    Attributes:
        name: Name for ``--topology``.
        rolling: Whether plans have servers. The plans of a gossip topology have pushes.
        bound: Options with a fixed value, by name.
    """

    def __init__(
        self,
        function: Callable[..., Plan],
        name: str,
        rolling: bool,
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.name, self.rolling = function, name, rolling
        self.parameters = inspect.signature(function).parameters
        self.bound: Mapping[str, Any] = dict(bound or {})

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the topology's options."""
        return tuple(
            name
            for name, parameter in self.parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the options with neither a fixed value nor a default."""
        names = [name for name in self.options if name not in self.bound]
        empty = inspect.Parameter.empty
        return tuple([name for name in names if self.parameters[name].default is empty])

    def bind(self, **options: Any) -> Topology:
        """Return the topology with some options fixed.

        Raises: UnknownName: The topology has no such option.
        """
        for name in options:
            if name not in self.options:
                raise UnknownName(f"option of topology {self.name}", name, self.options)
        return Topology(self.function, self.name, self.rolling, {**self.bound, **options})

    def __call__(self, roster: Roster, round_id: int, seed: int, **options: Any) -> Plan:
        """Return the plan of a round. Raises: BadTopology: The function returned an invalid
        plan."""
        plan = self.function(roster, round_id, seed, **{**self.bound, **options})
        check_plan(self.name, plan, roster)
        return plan

    def __repr__(self) -> str:
        bound = "".join(f" {name}={value}" for name, value in self.bound.items())
        return f"<topology {self.name}{bound}>"


@overload
def topology(function: Callable[..., Plan]) -> Topology: ...
@overload
def topology(
    *, name: str | None = None, rolling: bool = False
) -> Callable[[Callable[..., Plan]], Topology]: ...
def topology(
    function: Callable[..., Plan] | None = None, *, name: str | None = None, rolling: bool = False
) -> Topology | Callable[[Callable[..., Plan]], Topology]:
    """Make a topology from a pure function ``(roster, round_id, seed, *, ...) -> Plan``.

    Every peer calls the function, and must get the same plan. Take randomness from ``draw(seed,
    round_id, ...)``, never from a clock, a global generator or ``hash()``.

    Args:
        name: Name of the topology. By default the function's name.
        rolling: As for ``Topology``.
    Raises: BadTopology: A call of the topology returned an invalid plan (see ``check_plan``).
    """

    def decorate(function: Callable[..., Plan]) -> Topology:
        return Topology(function, name or function.__name__, rolling)

    return decorate(function) if function is not None else decorate


def check_plan(name: str, plan: Plan, roster: Roster) -> None:
    """Check that a plan is valid for this roster. Raises ``BadTopology``.

    A valid plan has either ``servers`` or ``pushes``. All its peers are in the roster, and no peer
    pushes to itself.
    """
    if not isinstance(plan, Plan) or not isinstance(plan.pushes, Mapping | None):
        found = plan.pushes if isinstance(plan, Plan) else plan
        raise BadTopology(
            f"topology {name} returned a {type(found).__name__}, not a plan",
            "return a plan such as Plan(pushes={sender: (receiver, receiver)})",
        )
    if bool(plan.servers) == (plan.pushes is not None):
        raise BadTopology(f"topology {name} must return servers or pushes, and not both")
    members = set(roster.peers)
    for order in plan.servers:
        named = set(order)
        if not named or not named <= members or len(named) != len(order):
            raise BadTopology(
                f"topology {name}: {order} is not an order of the peers {roster.peers}"
            )
    for sender, targets in (plan.pushes or {}).items():
        if (
            sender not in members
            or sender in targets
            or not members.issuperset(targets)
            or len(set(targets)) != len(targets)
        ):
            raise BadTopology(
                f"topology {name}: peer {sender} cannot push to {targets} in {roster.peers}"
            )
    if plan.metropolis:
        edges = {(peer, to) for peer, targets in (plan.pushes or {}).items() for to in targets}
        for sender, receiver in sorted(edges):
            if (receiver, sender) not in edges:
                raise BadTopology(
                    f"topology {name}: Metropolis weights need pushes in both directions, and peer "
                    f"{receiver} does not push to {sender}"
                )


def draw(*words: object) -> int:
    """Return a pseudorandom 64-bit number, the blake2b hash of ``words``. It is the same on every
    peer, and no peer can influence it."""
    return draws(words[:-1], words[-1:])[0]


def draws(begin: Sequence[object], last: Sequence[object]) -> list[int]:
    """Return ``draw(*begin, word)`` for each word of ``last``."""
    prefix = "".join([f"{_text(word)}/" for word in begin])
    return [
        int.from_bytes(blake2b(f"{prefix}{_text(word)}".encode(), digest_size=8).digest(), "big")
        for word in last
    ]


def _text(word: object) -> str:
    return word.hex() if isinstance(word, bytes) else str(word)
