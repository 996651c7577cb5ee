"""What liars send: pure functions of the update they should have sent.

An attack acts where an update leaves its sender. It is told the round and draws from a seed, so the same liar tells the
same lie in every run. ``label_flip`` is a lie about the data and acts where the trainer reads it: ``flip_labels``.

Knowing the names costs no torch, because command lines check them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from gossip.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DATA_ATTACKS = ("label_flip",)
"""Attacks that change what the trainer learns from, not what it sends."""


@dataclass(frozen=True, slots=True)
class _Kind:
    function: Callable[..., Any]
    strength: float | None  # by default; None when there is nothing to set
    meaning: str
    wants: frozenset[str]


_KINDS: dict[str, _Kind] = {}


def attack(*, strength: float | None = None, meaning: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers ``(update, *, ...) -> update`` under its name. It may name ``strength``, ``generator``, ``past``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _KINDS[function.__name__] = _Kind(function, strength, meaning, frozenset(inspect.signature(function).parameters))
        return function

    return decorate


@attack(strength=1.0, meaning="factor of the negated update")
def sign_flip(update: Tensor, *, strength: float) -> Tensor:
    """``-strength * update``: climbs where the others descend."""
    return update * -strength


@attack(strength=0.1, meaning="fraction of the coordinates that are hit")
def bit_flip(update: Tensor, *, strength: float, generator: torch.Generator) -> Tensor:
    """Flips bits 22, 29, 30 and 31 of the float32 in a random fraction ``strength`` of the coordinates, like failing memory.

    Bit 31 is the sign, 30 and 29 the top of the exponent, 22 the top of the mantissa: a value of ordinary size becomes one of
    about 1e16 to 1e20, or nearly nothing. Few become infinite or NaN. The bits are those of the Zeno authors' code.
    """
    import torch

    hit = torch.rand(update.shape, generator=generator).to(update.device) < strength
    mask = (1 << 22) | (1 << 29) | (1 << 30) | -(1 << 31)
    flipped = (update.to(torch.float32).view(torch.int32) ^ mask).view(torch.float32)
    return torch.where(hit, flipped.to(update.dtype), update)


@attack(strength=200.0, meaning="standard deviation")
def gaussian(update: Tensor, *, strength: float, generator: torch.Generator) -> Tensor:
    """Noise N(0, strength^2) instead of the update."""
    import torch

    return (torch.randn(update.shape, generator=generator) * strength).to(update)


@attack(strength=1000.0, meaning="factor")
def scale(update: Tensor, *, strength: float) -> Tensor:
    """``strength * update``: the right direction, shouted."""
    return update * strength


@attack()
def nan(update: Tensor) -> Tensor:
    """Not a number, everywhere."""
    return update.new_full(update.shape, math.nan)


@attack()
def zero(update: Tensor) -> Tensor:
    """Nothing at all, but on time."""
    return update.new_zeros(update.shape)


@attack(strength=10.0, meaning="age in rounds")
def stale(update: Tensor, *, past: Tensor) -> Tensor:
    """The update of ``strength`` rounds ago, replayed; in the first rounds the oldest there is."""
    return past


def flip_labels(labels: Any, classes: int) -> Any:
    """``classes - 1 - label``: what ``label_flip`` does to a batch before its gradient is taken. For an int, array or tensor."""
    return classes - 1 - labels


class Attack:
    """One liar's way of lying. Called once a round with the honest update it returns what is sent; its argument stays as it is.

    What it returns depends only on the seed, the round and the updates seen. ``stale`` keeps copies of the last ``strength``
    updates; no other attack remembers anything.
    """

    def __init__(self, name: str, kind: _Kind, strength: float | None, seed: int) -> None:
        self.name, self.strength, self.seed = name, strength, seed
        self._kind = kind
        self._past: dict[int, Tensor] = {}

    def __call__(self, update: Tensor, round_id: int) -> Tensor:
        """``update`` is ``(d,)``; the lie has its shape, dtype and device."""
        given: dict[str, Any] = {}
        if "strength" in self._kind.wants:
            given["strength"] = self.strength
        if "generator" in self._kind.wants:
            given["generator"] = self._generator(round_id)
        if "past" in self._kind.wants:
            given["past"] = self._recall(update, round_id)
        lie: Tensor = self._kind.function(update, **given)
        return lie

    def _generator(self, round_id: int) -> torch.Generator:
        import torch

        words = f"{self.name}/{self.seed}/{round_id}".encode()
        return torch.Generator().manual_seed(int.from_bytes(blake2b(words, digest_size=7).digest(), "big"))

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
        return f"<attack {self.name}" + (f"*{self.strength:g}>" if self.strength is not None else ">")


def names() -> tuple[str, ...]:
    """The attacks on updates that ``make`` knows, ascending. ``DATA_ATTACKS`` are not among them."""
    return tuple(sorted(_KINDS))


def make(name: str, strength: float | None = None, seed: int = 0) -> Attack:
    """An attack by name.

    Args:
        name: One of ``names()``; hyphens and underscores are the same.
        strength: What it means depends on the attack; each has a default. ``nan`` and ``zero`` have nothing to set.
        seed: Give each liar its own, or they will collude.
    Raises:
        UnknownName: There is no such attack.
        ConfigError: The strength is out of range, or the attack is one on data.
    """
    plain = name.replace("-", "_")
    if plain in DATA_ATTACKS:
        raise ConfigError(
            f"{plain} changes the labels that a trainer reads, not the update it sends", "use flip_labels(y, classes)"
        )
    if plain not in _KINDS:
        raise UnknownName("attack", name, (*names(), *DATA_ATTACKS))
    kind = _KINDS[plain]
    if strength is None:
        return Attack(plain, kind, kind.strength, seed)
    if kind.strength is None:
        raise ConfigError(f"{plain} has no strength to set, got {strength:g}", f"leave out *{strength:g}")
    _check_strength(plain, strength, kind.meaning)
    return Attack(plain, kind, strength, seed)


def _check_strength(name: str, strength: float, meaning: str) -> None:
    allowed = {
        "stale": (
            "a whole number of at least 1",
            strength >= 1 and strength == int(strength) if math.isfinite(strength) else False,
        ),
        "bit_flip": ("above 0 and at most 1", 0 < strength <= 1),
        "gaussian": ("at least 0 and finite", strength >= 0 and math.isfinite(strength)),
    }
    words, fine = allowed.get(name, ("finite", math.isfinite(strength)))
    if not fine:
        raise ConfigError(f"{name}*{strength:g}: the strength is the {meaning} and must be {words}")
