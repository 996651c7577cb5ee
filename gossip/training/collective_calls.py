"""Collective operations of a script, which all peers call at the same point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from gossip.core import COLLECTED_BYTES_MAX
from gossip.errors import ConfigError

from .collectives import (
    Collectives,
    Means,
    means_of,
    numbers_of,
    pack_object,
    write_whole,
)
from .peer_status import PeerStatus


class CollectiveCalls(PeerStatus):
    """Collective operations of a ``Session``."""

    _collectives: Collectives

    def mean(self, **numbers: Any) -> Means:
        """Return the mean over the live peers of each metric, like the all-reduce in DDP scripts.
        All peers call it with the same names, and get the same result.

        If ``f`` > 0 this is the trimmed mean, without the ``f`` largest and ``f`` smallest values
        of each metric. So ``f`` Byzantine peers cannot move it out of the range of honest values. A
        Byzantine server of the round can still forge values of other peers (``docs/data.md``).

        Args:
            numbers: Numbers, or tensors with one element.
        Returns: A dict of means by name. Its attribute ``peers`` lists the contributing peers.
        Raises: ConfigError: A value is not a number, or the run is not rolling.
        """
        collectives, own = self._collective("mean"), numbers_of(numbers)
        means = means_of(collectives.collect("mean", pack_object(own)), own, collectives.f)
        collectives.answered = means.peers
        return means

    def gather(self, value: Any) -> dict[int, Any]:
        """Collect a value from each live peer. All peers call it, and get the same result.

        Args:
            value: None, bool, int, float, str, bytes, or lists and dicts of them; at most 24 KiB
                for all peers together.
        Returns: A dict of values by peer. Tuples become lists.
        Raises: ConfigError: The value has another type or is too large, or the run is not rolling.
        """
        return self._collective("gather").objects("gather", pack_object(value))

    def broadcast(self, value: Any = None) -> Any:
        """Return the value of the lowest live peer that passes a value other than None. All peers
        call it, and get the same result. That lowest peer may be Byzantine.

        Args:
            value: As for ``gather``, at most 12 KiB.
        Returns: The value, or None if all peers passed None.
        Raises: ConfigError: As ``gather``.
        """
        most = COLLECTED_BYTES_MAX // 2
        given = self._collective("broadcast").objects("broadcast", pack_object(value), most)
        return next((each for each in given.values() if each is not None), None)

    def any(self, flag: bool) -> bool:
        """Whether more than ``f`` live peers have passed True, so that ``f`` Byzantine peers cannot
        stop training. All peers call it, and get the same result.

        Raises: ConfigError: The run is not rolling.
        """
        collectives = self._collective("any")
        given = collectives.objects("any", pack_object(bool(flag)))
        byzantine = min(collectives.f, len(given) - 1)
        return sum([each is True for each in given.values()]) > byzantine

    def barrier(self) -> tuple[int, ...]:
        """Wait until all live peers have called it, but at most ``round_timeout_s``.

        Returns: Peers that have called it.
        Raises: ConfigError: The run is not rolling.
        """
        self._collective("barrier").collect("barrier", b"")
        return self.answered

    def save(self, path: str | Path, content: bytes | str | dict[str, Tensor]) -> bool:
        """Write a file once, atomically and durably, on one live peer. If that peer dies, another
        peer writes it. All peers call it.

        Args:
            path: Path of the file, on the host of the writing peer.
            content: Bytes, a text, or a dict of tensors, which is written as a safetensors file.
        Returns: Whether the file was written. If not, the reason is printed, and training
            continues.
        Raises: ConfigError: ``content`` has another type, or the run is not rolling.
        """
        operations = self._collective("save")
        place, data = Path(path).absolute(), _content_of(content)
        why = operations.once(lambda: write_whole(place, data()))
        if why:
            self._run.notify(f"cannot save {place}: {why}")
        return not why

    @property
    def answered(self) -> tuple[int, ...]:
        """Peers that contributed to the last collective operation, ascending."""
        return self._collectives.answered

    def _collective(self, operation: str) -> Collectives:
        """Check that ``operation`` can be called now. Return the object that performs it. Raises
        ConfigError: ``operation`` cannot be called now."""
        self._run.check_no_pipeline(operation)
        self._steps.check_prepared(operation)
        if not self._run.config.is_rolling:
            raise ConfigError(
                f"{operation} needs rolling rounds: gossip rounds have no commit",
                "gossip run --topology rolling",
            )
        return self._collectives


def _content_of(content: object) -> Callable[[], bytes]:
    """Return a function that makes the bytes of the file on the writing peer. Raises ConfigError:
    ``content`` has another type."""
    match content:
        case bytes():
            return lambda: content
        case str():
            return lambda: content.encode()
        case dict() if all(
            isinstance(name, str) and isinstance(each, Tensor) for name, each in content.items()
        ):
            return lambda: safetensors.torch.save(
                {name: tensor.detach().clone().contiguous() for name, tensor in content.items()}
            )
    raise ConfigError(
        f"save received a {type(content).__name__}",
        "pass bytes, a text, or a dict of tensors such as model.state_dict()",
    )
