"""Selects the reference samples. A server judges updates by losses on these samples, which differ
between rounds."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Subset, default_collate

from gossip.aggregators import BoundRule
from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.topologies import draw

STREAM_MAX = 2**16
"""Maximum number of samples of an iterable to keep in memory."""

UNUSED_REFERENCE = (
    "gossip.init received a reference, but the rule {} does not use it: start the run with "
    "--aggregator judged_clipping, in rolling rounds"
)

Collate = Callable[[list[Any]], Any]


class ReferenceData:
    """Data from which a random batch is selected for each round. The batch depends only on
    ``words`` and the round."""

    def __init__(
        self,
        dataset: Any,
        collate: Collate,
        size: int,
        words: Sequence[object],
    ) -> None:
        """
        Args:
            dataset: Data set with ``__getitem__`` and ``__len__``.
            collate: Function that makes a batch of a list of samples.
            size: Number of samples in a batch. If the data set is smaller, every batch has all
                samples.
            words: Values that, together with the round, determine the seed of a batch.
        """
        self._dataset, self._collate, self._size = dataset, collate, size
        self._words, self._count = tuple(words), len(dataset)
        if not self._count:
            raise ConfigError("the reference has no samples", "pass at least one")

    def set_apart(self, samples: int) -> tuple[Any, Callable[[int, int], Any]]:
        """Return ``samples`` held-out samples as one batch, and a function ``(order, step)`` that
        returns a random batch of the other samples. Equal ``words`` select equal samples.

        Raises: ConfigError: ``samples`` is below 1, or above half the number of all samples.
        """
        if not 0 < samples <= self._count // 2:
            raise ConfigError(
                f"{samples} samples cannot be held out of {self._count}",
                f"hold out at least 1, and at most half of them: {self._count // 2}",
            )
        order = random.Random(draw("set apart", *self._words)).sample(
            range(self._count), self._count
        )
        rest = sorted(order[samples:])

        def drawn(order: int, step: int) -> Any:
            return self._among(rest, self._size, order).batch(step)

        return self._among(order[:samples], samples, 0).batch(0), drawn

    def _among(self, chosen: Sequence[int], size: int, order: int) -> ReferenceData:
        return ReferenceData(
            Subset(self._dataset, chosen), self._collate, size, (*self._words, order)
        )

    def batch(self, round_id: int) -> Any:
        """Return the batch of a round, collated as in the training loop. No sample is in it
        twice."""
        places = random.Random(draw("reference", *self._words, round_id)).sample(
            range(self._count), min(self._size, self._count)
        )
        many = getattr(self._dataset, "__getitems__", None)
        samples = many(places) if callable(many) else [self._dataset[at] for at in places]
        return self._collate(samples)


class JudgeReference:
    """Source of this peer's reference samples: the script's ``reference``, or else the training
    data.

    Attributes:
        given: Reference data of ``gossip.init``; None if there are none.
        shared: Function that returns reference data from the training data, for a batch size.
        is_needed: Whether the rule needs reference samples.
    """

    def __init__(self, config: RunConfig, peer: int, given: Any) -> None:
        self._config = config
        size, words = config.reference_samples, (config.seed, peer)
        self.given = None if given is None else reference_of(given, size, words)
        self.shared: Callable[[int], ReferenceData] | None = None
        self.is_needed = False

    def fit(self, rule: BoundRule, judge: Callable[..., Any] | None) -> Callable[[int], Any] | None:
        """Return the function that selects the batch of a round for the script's ``judge``. Return
        None if ``judge`` takes no batch.

        Raises: ConfigError: The script has passed a reference, but its ``judge`` has no parameter
            for a batch.
        """
        takes_batch = judge is not None and needs_batch(judge)
        if judge is not None and self.given is not None and not takes_batch:
            raise ConfigError(
                "there is a reference, but judge has no parameter for a batch of its samples",
                "judge=lambda batch: loss_fn(model(batch[0]), batch[1])",
            )
        self.is_needed = takes_batch and rule.needs_trainer
        if self.given is not None and not rule.needs_trainer and self._config.peers_max > 1:
            warnings.warn(UNUSED_REFERENCE.format(rule.name), stacklevel=3)
        return self.batch if takes_batch else None

    def check(self) -> None:
        """Raise ConfigError if the rule needs reference samples and there are none."""
        if self.is_needed:
            self.find()

    def batch(self, round_id: int) -> Any:
        """Return the reference batch for a round."""
        return self.find().batch(round_id)

    def find(self) -> ReferenceData:
        """Return the reference data. Raises ConfigError: There are none."""
        if self.given is None:
            if self.shared is None:
                raise ConfigError(
                    f"the rule {self._config.aggregator} judges updates by reference samples, "
                    "but there are none",
                    "write gossip.init(reference=dataset), or peer.shard(loader) of a data set "
                    "with an index",
                )
            self.given = self.shared(self._config.reference_samples)
        return self.given


def reference_of(data: Any, size: int, words: Sequence[object]) -> ReferenceData:
    """Return reference data made from ``data``, the argument of ``gossip.init``: a data set, a
    DataLoader or an iterable of samples.

    Raises: ConfigError: ``data`` has another type, is empty, or is an iterable with too many
        samples for the memory.
    """
    collate: Collate = default_collate
    if isinstance(data, DataLoader):
        data, collate = data.dataset, data.collate_fn
    if not isinstance(data, IterableDataset) and (
        hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ):
        return ReferenceData(data, collate, size, words)
    if not isinstance(data, Iterable):
        raise ConfigError(
            f"reference is a data set or an iterable of samples, not {type(data).__name__}",
            "write gossip.init(reference=dataset)",
        )
    samples = list(islice(data, STREAM_MAX + 1))
    if len(samples) > STREAM_MAX:
        raise ConfigError(
            f"the reference has more than {STREAM_MAX} samples and no index",
            f"pass the first ones: gossip.init(reference=itertools.islice(data, {STREAM_MAX}))",
        )
    return ReferenceData(samples, collate, size, words)


def needs_batch(judge: Callable[..., Any]) -> bool:
    """Whether the user's ``judge`` has a parameter for a batch. Otherwise it selects its own batch.

    Raises: ConfigError: ``judge`` is not callable, or has more than one required argument.
    """
    try:
        parameters = inspect.signature(judge).parameters.values()
    except ValueError:  # a builtin may have no signature
        return False
    except TypeError:
        raise ConfigError(
            f"prepare: the judge is a {type(judge).__name__}, not a function",
            "a loader goes to peer.shard",
        ) from None
    required = [each for each in parameters if each.default is each.empty and each.kind <= 1]
    if len(required) > 1:
        raise ConfigError(
            f"judge has {len(required)} arguments",
            "judge=lambda batch: loss_fn(model(batch[0]), batch[1]), or one without an argument "
            "that draws its own batch",
        )
    return bool(required)
