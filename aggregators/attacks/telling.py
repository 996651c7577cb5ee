"""An attack with its strength, its seed and its memory of earlier rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from gossip.errors import ConfigError

from .finding import kind_of
from .guessing import HonestEstimate
from .kinds import Aggregator, AttackKind, checked_strength

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttackerGroup:
    """Byzantine peers that attack together. Each of them derives the group without communication.

    Attributes:
        honest: Number of honest peers.
        attackers: Number of peers that carry out this attack.
        rank: Index of this attacker in the group, from 0.
        seed: Seed that all attackers of the group share.
        rule: The aggregation rule with its f bound; None if the attackers do not have it.
    """

    honest: int = 1
    attackers: int = 1
    rank: int = 0
    seed: int = 0
    rule: Aggregator | None = None


class Attack:
    """Attack of one Byzantine peer, or with ``collude`` of all Byzantine peers.

    The output depends only on the seed, the round, and the updates and results so far. ``stale``
    stores the last ``strength`` updates. Attacks of the shape ``together`` store some deviations of
    the last rounds. Other attacks have no memory.

    Attributes:
        somebody_locked: Whether this attacker has seen an honest peer in quarantine.
    """

    def __init__(
        self, kind: AttackKind, strength: float | None, seed: int, attacker_group: AttackerGroup
    ) -> None:
        self.name, self.strength, self.seed, self.attacker_group = (
            kind.name,
            strength,
            seed,
            attacker_group,
        )
        self._kind = kind
        self._past: dict[int, Tensor] = {}
        self._guess = HonestEstimate()
        self._memory: dict[str, Any] = {}
        self._each: dict[int, Attack] = {}
        self.somebody_locked = False

    @property
    def guesses(self) -> bool:
        """Whether the attack estimates honest updates from results. If so, call ``saw`` after each
        round."""
        return self._kind.shape == "together"

    @property
    def tells_each(self) -> bool:
        """Whether each receiver gets a different update. If so, call ``tell`` for each receiver."""
        return self._kind.shape == "apart"

    # --- alone ------------------------------------------------------------------------------------

    def __call__(self, update: Tensor, round_id: int) -> Tensor:
        """Return the update to send instead of the honest update. Call this once per round.

        An attack of the shape ``together`` uses an estimate of the honest updates
        (``HonestEstimate``), and returns the row of this attacker (``attacker_group.rank``).

        Args:
            update: ``(d,)``, the honest update, which is not changed.
            round_id: Number of the round.
        Returns: ``(d,)``, in the dtype and on the device of ``update``.
        Raises: ConfigError: A single peer cannot carry out this attack, or it sends each receiver a
            different update.
        """
        if not self._kind.lonely:
            raise ConfigError(
                f"one peer cannot send {self.name} by itself: {self._kind.refusal}",
                "call collude",
            )
        if self._kind.shape == "apart":
            raise ConfigError(
                f"{self.name} sends each receiver a different update", "use .tell(update, receiver)"
            )
        if self._kind.shape == "together":
            self._guess.sends(update, round_id)
            attacker_group = self.attacker_group
            own = update.repeat(attacker_group.attackers, 1)
            rows = self._colluded(
                self._guess.honest(update, attacker_group.honest),
                own,
                self._generator(round_id, attacker_group.seed),
                attacker_group.rule,
            )
            return rows[attacker_group.rank].clone()
        known: dict[str, Callable[[], Any]] = {
            "strength": lambda: self.strength,
            "generator": lambda: self._generator(round_id, self.seed),
            "direction": lambda: self._generator(None, self.seed),
            "past": lambda: self._recall(update, round_id),
            "round_id": lambda: round_id,
            "somebody_locked": lambda: self.somebody_locked,
        }
        lie = self._kind.function(
            update, **{name: make() for name, make in known.items() if name in self._kind.wants}
        )
        return self._checked(lie, update)

    def saw(self, result: Tensor, round_id: int) -> None:
        """Record the aggregate of a round. Only attacks with ``guesses`` use it.

        Args:
            result: ``(d,)``, in the unit of the updates.
            round_id: Number of the round.
        """
        if self.guesses:
            self._guess.saw(result.clone(), round_id)

    # --- together ---------------------------------------------------------------------------------

    def collude(
        self,
        honest: Tensor,
        f: int,
        generator: torch.Generator | None = None,
        rule: Aggregator | None = None,
        *,
        own: Tensor | None = None,
        round_id: int = 0,
        locked: Collection[int] = (),
    ) -> Tensor:
        """Return the updates of f omniscient Byzantine peers. Call this once per round.

        Args:
            honest: ``(h, d)``, the honest updates, which are not changed.
            f: Number of Byzantine peers.
            generator: Randomness of this round. By default it follows from the seed and the round.
            rule: ``(n, d) -> (d,)``, with its f bound, for attacks that evaluate it.
            own: ``(f, d)``, the updates that honest peers would send in place of the Byzantine
                peers. By default copies of ``honest``.
            round_id: Number of the round, for attacks that replay or wait.
            locked: Rows of ``honest`` from peers in quarantine that the Byzantine peers have
                detected.
        Returns: ``(f, d)`` in the dtype and on the device of ``honest``.
        Raises: ConfigError: The attack needs ``rule`` and it is None, or the attack works only in
            gossip rounds (``tell``).
        """
        import torch

        if self._kind.shape == "apart":
            raise ConfigError(
                f"{self.name} works only in gossip rounds: each receiver gets a different update",
                "use .tell(update, receiver)",
            )
        if f < 0 or not len(honest):
            raise ConfigError(
                f"{self.name} needs f >= 0 and an honest update, got f = {f} and {len(honest)}"
            )
        if own is None:
            own = honest[torch.arange(f) % len(honest)]
        if f == 0:
            return own.clone()
        if self._kind.shape == "together":
            chosen = generator if generator is not None else self._generator(round_id, self.seed)
            return self._colluded(honest, own, chosen, rule, frozenset(locked))
        self.somebody_locked |= bool(locked)
        rows = [self._one(rank)(update, round_id) for rank, update in enumerate(own)]
        return torch.stack(rows)

    def _colluded(
        self,
        honest: Tensor,
        own: Tensor,
        generator: torch.Generator,
        rule: Aggregator | None,
        locked: frozenset[int] = frozenset(),
    ) -> Tensor:
        import torch

        from .crowd import OmniscientView

        work = torch.float64 if honest.dtype == torch.float64 else torch.float32
        direction = self._generator(None, self.attacker_group.seed)
        crowd = OmniscientView(
            honest.to(work), own.to(work), generator, direction, rule, self._memory, locked
        )
        given = {"strength": self.strength} if "strength" in self._kind.wants else {}
        with torch.no_grad():
            lies = self._kind.function(crowd, **given)
        return self._checked(lies, own).to(honest.dtype)

    def _one(self, rank: int) -> Attack:
        if rank not in self._each:
            self._each[rank] = Attack(
                self._kind, self.strength, self.seed + 1 + rank, self.attacker_group
            )
        one = self._each[rank]
        one.somebody_locked = self.somebody_locked
        return one

    # --- apart ------------------------------------------------------------------------------------

    def tell(
        self,
        update: Tensor,
        receiver: int,
        theirs: Tensor | None = None,
        others: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return the update for one receiver in a gossip round.

        Args:
            update: ``(d,)``, the honest update.
            receiver: Number of the receiving peer.
            theirs: ``(d,)``, the receiver's last update; None if none has arrived.
            others: The last updates of other honest peers.
        Returns: ``(d,)``.
        Raises: ConfigError: This attack sends the same update to all receivers.
        """
        if self._kind.shape != "apart":
            raise ConfigError(
                f"{self.name} sends all receivers the same update",
                "call it with the update and the round",
            )
        given = {
            "strength": self.strength,
            "receiver": receiver,
            "theirs": theirs,
            "others": others,
            "attackers": self.attacker_group.attackers,
        }
        # Minus 1, because the receiver is one of the honest peers.
        given["neighbours"] = max(len(others), self.attacker_group.honest - 1)
        lie = self._kind.function(
            update, **{key: value for key, value in given.items() if key in self._kind.wants}
        )
        return self._checked(lie, update)

    def _checked(self, lie: object, like: Tensor) -> Tensor:
        """Return the result of the attack's function. Raises: ConfigError: It is not a tensor with
        the shape of ``like``."""
        from torch import Tensor

        if isinstance(lie, Tensor) and lie.shape == like.shape:
            return lie
        found = f"shape {tuple(lie.shape)}" if isinstance(lie, Tensor) else type(lie).__name__
        raise ConfigError(
            f"the attack {self.name} returned {found}, not a tensor of shape {tuple(like.shape)}",
            "an attack on one update has the parameter update, and an attack that knows the "
            "honest updates has the parameter crowd",
        )

    # --- chance and memory ------------------------------------------------------------------------

    def _generator(self, round_id: int | None, seed: int) -> torch.Generator:
        """Return the random generator of a round, or of the whole run if ``round_id`` is None."""
        import torch

        words = f"{self.name}/{seed}" + ("" if round_id is None else f"/{round_id}")
        return torch.Generator().manual_seed(
            int.from_bytes(blake2b(words.encode(), digest_size=7).digest(), "big")
        )

    def _recall(self, update: Tensor, round_id: int) -> Tensor:
        assert self.strength is not None
        self._past[round_id] = update.clone()
        wanted = round_id - int(self.strength)
        old_enough = [seen for seen in self._past if seen <= wanted]
        chosen = max(old_enough) if old_enough else min(self._past)
        for seen in [seen for seen in self._past if seen < chosen]:
            del self._past[seen]
        return self._past[chosen].clone()

    def __repr__(self) -> str:
        return f"<attack {self.name}" + (
            f"*{self.strength:g}>" if self.strength is not None else ">"
        )


def make(
    name: str,
    strength: float | None = None,
    seed: int = 0,
    attacker_group: AttackerGroup | None = None,
) -> Attack:
    """Make an attack by name.

    Args:
        name: A name in ``names()``; hyphens and underscores are equivalent.
        strength: Meaning and default depend on the attack. Some attacks, such as ``nan`` and
            ``zero``, have no strength.
        seed: Use a different seed for each Byzantine peer. With equal seeds all peers send the same
            random vector.
        attacker_group: Group of this attacker, for attacks that several peers carry out. By default
            one Byzantine and one honest peer.
    Raises:
        UnknownName: There is no such attack.
        ConfigError: The strength is out of range, or ``name`` is an attack on data.
    """
    kind = kind_of(name)
    return Attack(
        kind, checked_strength(kind, strength), seed, attacker_group or AttackerGroup(seed=seed)
    )
