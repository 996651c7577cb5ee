"""Fault plan: the faults of a run as data, with their times.

Real runs and the simulator use the same plans, but real runs reject faults that only the simulator
supports. On the command line a fault is one word (``docs/faults.md``). In a plan file a fault is
one table:

    crash:3@50          [[fault]]
    sign_flip:5,6*10    kind = "crash"
                        peer = 3
                        round = 50
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gossip.aggregators.attacks import AttackKind
from gossip.errors import BadFault

from .activations import ActivationFault
from .declare import KINDS, Fault, typed_kinds, unknown_kind
from .kinds import ByzantineFault, Crash, RealFault
from .reader import Reader
from .tables import from_table, to_table, toml_of
from .world import FINAL_ROUND_ATTACKS, REAL_ATTACKS, RESULT_ATTACKS, LinkFault, NodeAttack

K = TypeVar("K", bound=Fault)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of a run.

    ``simulate`` has the settings of the simulator, from the table ``[simulate]`` of the plan file.
    Real runs ignore it.
    """

    faults: tuple[Fault, ...] = ()
    simulate: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    def __len__(self) -> int:
        return len(self.faults)

    def of_kind(self, kind: type[K]) -> list[K]:
        return [fault for fault in self.faults if isinstance(fault, kind)]

    @property
    def attackers(self) -> Mapping[int, ByzantineFault]:
        """The attack of each peer that attacks with its updates."""
        return {peer: fault for fault in self.of_kind(ByzantineFault) for peer in fault.peers}

    @property
    def byzantine(self) -> frozenset[int]:
        """All peers with an attack of any kind. They count towards the f of a run."""
        return frozenset(self.attackers).union(
            *[fault.peers for fault in self.of_kind(NodeAttack)],
            *[fault.peers for fault in self.of_kind(ActivationFault)],
        )

    def lies_of(self, peer: int) -> tuple[str, ...]:
        """Return the names, in ``LIES`` of ``gossip.inject``, of the peer's attacks on messages
        other than its updates. The peer's node carries them out; its core stays honest."""
        attacks = self.of_kind(NodeAttack)
        return tuple(dict.fromkeys([fault.lie for fault in attacks if peer in fault.peers]))

    def activation_lies(self, peer: int) -> tuple[ActivationFault, ...]:
        """Return the attacks of a pipeline peer on its results for micro-batches."""
        return tuple([lie for lie in self.of_kind(ActivationFault) if peer in lie.peers])

    def attack_kinds(self, peer: int) -> tuple[str, ...]:
        """Return the kinds of all attacks of the peer."""
        attack = (self.attackers[peer].attack,) if peer in self.attackers else ()
        about_activations = tuple([lie.kind for lie in self.activation_lies(peer)])
        return *attack, *about_activations, *self.lies_of(peer)

    @property
    def specs(self) -> tuple[str, ...]:
        """The plan in the syntax of the command line. ``parse(plan.specs)`` returns an equal plan.

        Raises: BadFault: The plan has a fault that only the simulator supports. No word describes
        such a fault.
        """
        return tuple(map(str, self.real().faults))

    def real(self) -> FaultPlan:
        """Return the plan itself. Raises: BadFault: Real runs do not support one of its faults."""
        for number, fault in enumerate(self.faults, 1):
            if isinstance(fault, NodeAttack) and fault.lie in REAL_ATTACKS:
                continue
            if not isinstance(fault, RealFault | LinkFault | ActivationFault):
                raise BadFault(
                    f"fault {number} ({fault}): only the simulator supports {fault.kind!r}",
                    "gossip simulate --faults PLAN.toml; real processes support: "
                    f"{', '.join(typed_kinds())}",
                )
            known = fault.built_in if isinstance(fault, ByzantineFault) else None
            if known is not None and not known.lonely:
                raise BadFault(
                    f"fault {number} ({fault}): {known.refusal}",
                    "or gossip simulate --faults PLAN.toml",
                )
        return self

    def fits(
        self,
        topology: str,
        rolling: bool,
        aggregator: str,
        asks_loss: bool = False,
        idle: bool = False,
    ) -> FaultPlan:
        """Return the plan itself, if it fits the topology and the rule.

        Args:
            topology, aggregator: Names of the topology and of the rule, for error messages.
            rolling: Whether the topology has a server.
            asks_loss: Whether the rule requests the loss from the trainer.
            idle: Whether attacks without any effect are valid. Generated plans may have some.
        Raises: BadFault: An attack needs neighbours but the topology has a server, an attack needs
        a server but the topology has none, or an attack cannot evaluate the rule.
        """
        for fault in self.faults:
            if (
                isinstance(fault, NodeAttack)
                and fault.lie in (*RESULT_ATTACKS, *FINAL_ROUND_ATTACKS)
                and not (rolling or idle)
            ):
                raise BadFault(
                    f"fault {fault}: it is an attack by servers, and {topology} rounds have no "
                    "server",
                    "--topology rolling, or an attack on updates: sign_flip, scale, nan",
                )
            if isinstance(fault, ByzantineFault) and fault.built_in is not None:
                served, asking = topology if rolling else "", aggregator if asks_loss else ""
                check_attack(fault, fault.built_in, served=served, asks_loss=asking)
        return self

    def fits_stages(self, stages: bool, hint: str) -> FaultPlan:
        """Return the plan itself. ``stages``: whether the peers form the stages of a pipeline.

        Raises: BadFault: The plan has an attack on activations, but the run is not a pipeline.
        """
        lies = self.of_kind(ActivationFault)
        if lies and not stages:
            raise BadFault(f"fault {lies[0]}: it needs a pipeline, and this run has none", hint)
        return self

    def disturbs(self, peer: int) -> bool:
        """Whether this peer has to carry out a fault. Every peer carries out its part of a link
        fault."""
        return bool(self.for_peer(peer)) or any(isinstance(f, LinkFault) for f in self.faults)

    def for_peer(self, peer: int) -> tuple[Fault, ...]:
        """Return the faults that concern this peer. They include ``crash:server@...``, because the
        peer may be the server."""
        return tuple(
            fault for fault in self.faults if peer in fault.victims or fault.victims == ("server",)
        )

    def checked(self, peers: int, rounds: int | None = None) -> FaultPlan:
        """Return the plan itself, if it fits the run.

        Raises: BadFault: A fault names a peer or a round that the run does not have, or two faults
            exclude each other.
        """
        gone: dict[int, Fault] = {}  # peer -> its crash; a dead peer can have no further fault
        lies: dict[int, Fault] = {}  # peer -> its attack
        for fault in sorted(self.faults, key=_when):
            for peer in fault.victims:
                if isinstance(peer, int):
                    _check_victim(fault, peer, peers, gone, lies)
            if isinstance(fault, ByzantineFault):
                check_effect(fault, peers - len(self.attackers))
            at = getattr(fault, "round", None)
            if at is not None and rounds is not None and at >= rounds:
                raise BadFault(
                    f"fault {fault}: there is no round {at}",
                    f"{rounds} rounds are numbered 0 to {rounds - 1}",
                )
        return self

    def to_toml(self) -> str:
        """Return the plan as the text of a plan file, which ``load`` can read."""
        world = [
            "[simulate]\n"
            + "".join(f"{key} = {toml_of(value)}\n" for key, value in self.simulate.items())
        ]
        return "\n".join(
            [*(world if self.simulate else []), *(to_table(fault) for fault in self.faults)]
        )


def _check_victim(
    fault: Fault, peer: int, peers: int, gone: dict[int, Fault], lies: dict[int, Fault]
) -> None:
    if peer >= peers:
        raise BadFault(
            f"fault {fault}: there is no peer {peer}",
            f"{peers} peers are numbered 0 to {peers - 1}",
        )
    if peer in gone and isinstance(fault, RealFault):
        raise BadFault(
            f"fault {fault}: peer {peer} is dead since {gone[peer]}",
            "restart it instead: restart:P@R+2s",
        )
    if isinstance(fault, ByzantineFault):
        if peer in lies:
            raise BadFault(
                f"fault {fault}: peer {peer} already has an attack: {lies[peer]}",
                "a peer can have one kind of attack",
            )
        lies[peer] = fault
    if isinstance(fault, Crash):
        gone[peer] = fault


def check_attack(
    fault: ByzantineFault, attack: AttackKind, *, served: str = "", asks_loss: str = ""
) -> None:
    """Check that an attack can be carried out.

    Args:
        served: Name of the topology, if its rounds have a server.
        asks_loss: Name of the rule, if it requests the loss from the trainer.

    Raises: BadFault: The attack needs neighbours but the topology has a server, or the attack
    evaluates the rule and the rule needs the trainer's loss.
    """
    if attack.shape == "apart" and served:
        raise BadFault(
            f"fault {fault}: it sends each neighbour another vector, and {served} rounds have one "
            "server",
            "--topology random-k",
        )
    if attack.tries and asks_loss:
        raise BadFault(
            f"fault {fault}: it evaluates the rule, and {asks_loss} requests the loss from the "
            "trainer",
            "`gossip bench robustness` shows it; in a run use alie, ipm or min_max",
        )


def check_effect(fault: ByzantineFault, honest: int) -> None:
    """Check that the attack has an effect against ``honest`` honest peers, if it uses its default
    strength. Raises: BadFault."""
    f = len(fault.peers)
    known = fault.built_in
    if fault.strength is None and known is not None and known.idle(honest + f, f):
        raise BadFault(
            f"fault {fault}: its default strength has no effect if {f} of {honest + f} attack",
            f"for example {fault}*1.5",
        )


def parse(specs: str | Iterable[str]) -> FaultPlan:
    """Parse the faults of a command line.

    Args:
        specs: One word, or several; each word describes one kind of fault.
    Raises: BadFault: A word is invalid; the message has the position and the expected text.
    """
    words = [specs] if isinstance(specs, str) else list(specs)
    return FaultPlan(tuple(fault for word in words for fault in read_word(word)))


def read_word(word: str) -> tuple[Fault, ...]:
    """Parse one word of the command line. If its kind concerns a single peer, return one fault for
    each peer in the word. Raises: BadFault."""
    known = typed_kinds()
    reader = Reader(word.strip(), usage="for example crash:3@50; kinds: " + ", ".join(known))
    kind = reader.expect(r"[A-Za-z_-]+", "the kind of a fault").replace("-", "_")
    if kind not in known:
        raise unknown_kind(kind, f"bad fault {word!r}", known)
    reader.usage = KINDS[kind].usage
    return KINDS[kind].read(reader)


def load(path: Path | str) -> FaultPlan:
    """Read a plan file.

    Raises: BadFault: The file cannot be read, is not TOML, or has an invalid entry.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFault(
            f"cannot read the fault plan {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    return from_toml(text, str(path))


def from_toml(text: str, origin: str = "fault plan") -> FaultPlan:
    """Return the plan in the text of a plan file. ``origin``: name of the file for errors."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadFault(f"{origin} is not TOML: {error}") from error
    for key in document:
        if key not in ("fault", "simulate"):
            raise BadFault(
                f"{origin}: unknown key {key!r}",
                "a plan has [[fault]] tables and at most one [simulate] table",
            )
    tables, world = document.get("fault", []), document.get("simulate", {})
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadFault(
            f"{origin}: 'fault' must be an array of tables",
            'write [[fault]], then kind = "crash" and so on',
        )
    if not isinstance(world, dict):
        raise BadFault(
            f"{origin}: 'simulate' must be a table", "write [simulate], then peers = 5 and so on"
        )
    faults = tuple(
        from_table(table, f"{origin}, fault {number}") for number, table in enumerate(tables, 1)
    )
    return FaultPlan(faults, {key: _frozen(value) for key, value in world.items()})


def _when(fault: Fault) -> tuple[float, float]:
    """Return the sort key of a fault. Attacks come first, then faults with a time, then faults with
    a round, because a round cannot be compared with a time before the run."""
    at, at_s = getattr(fault, "round", None), getattr(fault, "at_s", None)
    return (-1.0 if at is None else float(at), -1.0 if at_s is None else float(at_s))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
