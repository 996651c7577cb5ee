"""A liar at work: an attack with its strength, its seed,
and what it remembers from one round to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from gossip.errors import ConfigError

from .guessing import HonestEstimate
from .kinds import Aggregator, AttackKind, checked_strength, kind_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttackerGroup:
    """The liars of a run, as one of them knows them without a word.

    Attributes:
        honest: How many others there are.
        liars: How many lie in this way.
        rank: Which of them this one is, from 0.
        seed: The same for all of them.
        rule: What is made of the updates, its f bound, if they know.
    """

    honest: int = 1
    attackers: int = 1
    rank: int = 0
    seed: int = 0
    rule: Aggregator | None = None


class Attack:
    """One liar's way of lying, or with ``collude`` that of all liars at once.

    What it returns depends only on the seed, the round, and the updates and results seen. ``stale``
    keeps copies of the last ``strength`` updates, attacks of a crew some of the last deviations; no
    other remembers anything.
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

    @property
    def guesses(self) -> bool:
        """Whether it wants to hear what becomes of the rounds (``saw``)."""
        return self._kind.shape == "together"

    @property
    def tells_each(self) -> bool:
        """Whether it tells each receiver something else (``tell``)."""
        return self._kind.shape == "apart"

    # --- alone ------------------------------------------------------------------------------------

    def __call__(self, update: Tensor, round_id: int) -> Tensor:
        """What is sent instead of an honest update. Called once a round;
        its argument stays as it is.

        An attack of a crew is told from a guess of what the others send (``HonestEstimate``), as
        that of ``attacker_group.rank``.

        Args:
            update: ``(d,)``; the lie has its shape, dtype and device.
        Raises: ConfigError: A liar alone cannot tell this lie, or it tells each receiver another.
        """
        if not self._kind.lonely:
            raise ConfigError(
                f"{self.name} cannot be told by one liar alone: {self._kind.refusal}",
                "call collude",
            )
        if self._kind.shape == "apart":
            raise ConfigError(
                f"{self.name} tells each receiver another update", "call tell(update, receiver)"
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
        given: dict[str, Any] = {}
        if "strength" in self._kind.wants:
            given["strength"] = self.strength
        if "generator" in self._kind.wants:
            given["generator"] = self._generator(round_id, self.seed)
        if "direction" in self._kind.wants:
            given["direction"] = self._generator(None, self.seed)
        if "past" in self._kind.wants:
            given["past"] = self._recall(update, round_id)
        lie: Tensor = self._kind.function(update, **given)
        return lie

    def saw(self, result: Tensor, round_id: int) -> None:
        """What the swarm made of a round, ``(d,)``, in the unit of the updates.
        Only attacks that guess keep it."""
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
    ) -> Tensor:
        """What f liars send who see everything. Call it once a round.

        Args:
            honest: ``(h, d)``, what the honest send; stays as it is.
            f: Liars.
            generator: Of this round's randomness; by default of the seed and the round.
            rule: ``(n, d) -> (d,)``, its f bound, for attacks that try themselves on it.
            own: ``(f, d)``, what the liars would have sent; by default what the honest do, one
                after the other.
            round_id: For attacks that replay.
        Returns: ``(f, d)`` in the dtype and on the device of ``honest``.
        Raises: ConfigError: The attack needs the rule and was given none, or has no such form.
        """
        import torch

        if self._kind.shape == "apart":
            raise ConfigError(
                f"{self.name} tells each receiver another update, so it is for gossip rounds only",
                "call tell(update, receiver)",
            )
        if f < 0 or not len(honest):
            raise ConfigError(
                f"{self.name}: {f} liars among {len(honest)} honest updates make no crowd"
            )
        if own is None:
            own = honest[torch.arange(f) % len(honest)]
        if f == 0:
            return own.clone()
        if self._kind.shape == "together":
            chosen = generator if generator is not None else self._generator(round_id, self.seed)
            return self._colluded(honest, own, chosen, rule)
        rows = [self._one(rank)(update, round_id) for rank, update in enumerate(own)]
        return torch.stack(rows)

    def _colluded(
        self, honest: Tensor, own: Tensor, generator: torch.Generator, rule: Aggregator | None
    ) -> Tensor:
        import torch

        from .crowd import OmniscientView

        work = torch.float64 if honest.dtype == torch.float64 else torch.float32
        direction = self._generator(None, self.attacker_group.seed)
        crowd = OmniscientView(
            honest.to(work), own.to(work), generator, direction, rule, self._memory
        )
        given = {"strength": self.strength} if "strength" in self._kind.wants else {}
        with torch.no_grad():
            lies: Tensor = self._kind.function(crowd, **given)
        return lies.to(honest.dtype)

    def _one(self, rank: int) -> Attack:
        if rank not in self._each:
            self._each[rank] = Attack(
                self._kind, self.strength, self.seed + 1 + rank, self.attacker_group
            )
        return self._each[rank]

    # --- apart ------------------------------------------------------------------------------------

    def tell(
        self,
        update: Tensor,
        receiver: int,
        theirs: Tensor | None = None,
        others: Sequence[Tensor] = (),
    ) -> Tensor:
        """What one receiver of a gossip round is told.

        Args:
            update: ``(d,)``, the honest one.
            theirs: What the receiver said last, if anything was heard.
            others: What other honest peers said last.
        Raises: ConfigError: The attack tells everybody the same.
        """
        if self._kind.shape != "apart":
            raise ConfigError(
                f"{self.name} tells everybody the same", "call it with the update and the round"
            )
        given = {
            "strength": self.strength,
            "receiver": receiver,
            "theirs": theirs,
            "others": others,
            "attackers": self.attacker_group.attackers,
        }
        # the receiver is one of the honest
        given["neighbours"] = max(len(others), self.attacker_group.honest - 1)
        lie: Tensor = self._kind.function(
            update, **{key: value for key, value in given.items() if key in self._kind.wants}
        )
        return lie

    # --- chance and memory ------------------------------------------------------------------------

    def _generator(self, round_id: int | None, seed: int) -> torch.Generator:
        """Of a round, or of the whole run."""
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
    """An attack by name.

    Args:
        name: One of ``names()``; hyphens and underscores are the same.
        strength: What it means depends on the attack; each has a default. ``nan``, ``zero`` and
            some others have nothing to set.
        seed: Give each liar its own, or they will collude.
        crew: For attacks of several liars that each tell their part alone; by default one liar and
            one honest peer.
    Raises:
        UnknownName: There is no such attack.
        ConfigError: The strength is out of range, or the attack is one on data.
    """
    kind = kind_of(name)
    return Attack(
        kind, checked_strength(kind, strength), seed, attacker_group or AttackerGroup(seed=seed)
    )
