"""Building blocks of rules, limited by memory bandwidth: ranks of each coordinate, inner products
and weighted sums of rows.

They are pure functions over ``Rows``, in two implementations with the same results. Compiled
kernels (numba, the extra ``fast``) are used for large float32 updates on the CPU. Plain kernels
(torch and numpy) are used for all other updates, and if numba is not installed. ``backend()``
returns the implementation in use; GOSSIP_KERNELS=plain or GOSSIP_KERNELS=fast selects it. Kernels
use at most as many threads as torch. They do not check that updates are finite; for finite updates
no result is NaN.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gossip.errors import AggregationError, ConfigError
from gossip.interpreter import python_command

from . import cache_folder, forks, network, plain
from .rows import (
    Rows,
    check_listed,
    check_stored,
    tensor_of,
)

__all__ = [
    "Rows",
    "backend",
    "between",
    "compile_apart",
    "do_without",
    "gram",
    "is_prepared",
    "majority",
    "middle",
    "mixed",
    "nearest",
    "prepare",
    "squared_distances_to",
    "weighted_sum",
]

log = logging.getLogger(__name__)
forks.watch()
SMALL = 2**18
"""Number of elements below which plain kernels are used. For so few elements they take one or two
milliseconds, and loading numba would take half a second."""
Survivors = NDArray[np.float64] | None
_forced = ""


def backend() -> Literal["fast", "plain"]:
    """Return the implementation for float32 rows on the CPU.

    Raises: ConfigError: GOSSIP_KERNELS names an implementation that does not exist.
    """
    return _backend(_forced or os.environ.get("GOSSIP_KERNELS", ""))


@functools.cache
def _backend(wanted: str) -> Literal["fast", "plain"]:
    if wanted not in ("", "fast", "plain"):
        raise ConfigError(f"GOSSIP_KERNELS={wanted!r} is neither 'fast' nor 'plain'")
    there = importlib.util.find_spec("numba") is not None
    if wanted == "fast" and not there:
        raise ConfigError(
            "GOSSIP_KERNELS=fast, but numba is not installed", "pip install 'gossip-train[fast]'"
        )
    return "fast" if there and wanted != "plain" else "plain"


def is_prepared(n: int, d: int) -> bool:
    """Whether all kernels for n float32 updates of d coordinates are loaded."""
    return (
        backend() == "plain"
        or not _worth_compiling(n * d)
        or f"{__name__}.compiled_sums" in sys.modules
    )


def prepare(n: int, d: int) -> tuple[str, ...]:
    """Load the kernels that n float32 updates of d coordinates need. Compile them first if they are
    not in the cache.

    This takes less than a second, or 6 to 13 s with compilation. Without this call, the first call
    of a rule takes this time. If several processes call it at once, only one process compiles.
    Returns: the names of the kernels that this process has compiled.
    """
    if is_prepared(n, d):
        return ()
    from . import compiled_cache, compiled_ranks, compiled_sums

    log.debug("kernels are ready: modules=%s,%s", compiled_ranks.__name__, compiled_sums.__name__)
    try:
        cache_folder.mark_complete()
    except OSError as error:
        log.info("kernels cannot be kept: reason=%s", error)
    return tuple(compiled_cache.compiled)


def compile_apart(n: int, d: int, patience_s: float) -> bool:
    """Compile in a separate process the kernels that ``prepare`` loads, so that other threads of
    this process are not blocked.

    Returns: whether all kernels were compiled within ``patience_s`` seconds. Otherwise the
        compilation continues.
    """
    folder, until = cache_folder.folder(), time.monotonic() + patience_s
    if folder is None or cache_folder.is_complete():
        return folder is not None
    program = f"import {__name__} as kernels; kernels.prepare({int(n)}, {int(d)})"
    try:
        with cache_folder.alone(folder, "turn", patience_s):
            if cache_folder.is_complete():
                return True
            if time.monotonic() >= until:
                return False
            compiler = subprocess.Popen(
                python_command("-c", program),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            return compiler.wait(max(0.0, until - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        return False
    except OSError as error:
        log.info("kernels cannot be kept: reason=%s folder=%s", error, folder)
        return False


def do_without() -> None:
    """Use the plain kernels in this process from now on, regardless of GOSSIP_KERNELS."""
    global _forced
    _forced = "plain"


def _kernels(rows: Rows, values: int = 1) -> Any:
    """Return the module of kernels for ``rows``. ``values``: number of values of each column that
    are ranked."""
    if (
        not _worth_compiling(rows.n * rows.d)
        or backend() == "plain"
        or values > network.ROWS_MAX
        or rows.addresses() is None
    ):
        return plain
    from . import fast

    return fast


def _worth_compiling(elements: int) -> bool:
    """Whether updates with so many elements are worth the compiled kernels. Nothing but the size
    matters, so equal updates always use the same kernels."""
    return elements >= SMALL or os.environ.get("GOSSIP_KERNELS") == "fast"


def between(
    rows: Rows, low: int, high: int, count_survivors: int = 0, matrix: ArrayLike | None = None
) -> tuple[Tensor, Survivors]:
    """Return the mean of the sorted values low..high of each column: medians and trimmed means.

    Args:
        low, high: Ranks from 0, both included.
        count_survivors: If above 0, count for each row the columns in which its value was in that
            range; ties count. The columns are divided into this number of equal parts, each with
            counts of its own.
        matrix: ``(m, n)``, weights of m sums of the rows. These sums replace the rows, and are
            never stored.
    Returns: ``(d,)`` in the dtype and on the device of the rows; and the counts or None. Counts are
        float64 ``(n,)``, ``(m,)`` with a matrix, ``(parts, n)`` with several parts.
    """
    weights, m = _matrix(rows, matrix)
    _check(0 <= low <= high < m, f"ranks {low}..{high} of {m} values")
    aggregate, survived = _kernels(rows, m).between(rows, low, high, count_survivors, weights)
    return aggregate, survived


def nearest(
    rows: Rows,
    count: int,
    around: tuple[int, int],
    count_survivors: int = 0,
    matrix: ArrayLike | None = None,
) -> tuple[Tensor, Survivors]:
    """Return the mean of the ``count`` values of each column that are nearest to a center: the mean
    of the sorted values with the ranks ``around``.

    If two values are equally near, the smaller value is used.

    Args:
        around: The ranks (low, high) of the center; ``middle(m)`` for the median.
        count_survivors, matrix: As in ``between``.
    Returns: As ``between``.
    """
    weights, m = _matrix(rows, matrix)
    _check(
        1 <= count <= m and 0 <= around[0] <= around[1] < m,
        f"{count} of {m} values around ranks {around}",
    )
    aggregate, survived = _kernels(rows, m).nearest(rows, count, around, count_survivors, weights)
    return aggregate, survived


def majority(
    rows: Rows, count_survivors: int = 0, matrix: ArrayLike | None = None
) -> tuple[Tensor, Survivors]:
    """Return the sign of most rows in each column: 1 or -1; 0 for a tie. A row survives in the
    columns in which it has that sign.

    Args:
        count_survivors, matrix: As in ``between``.
    Returns: As ``between``.
    """
    weights, _ = _matrix(rows, matrix)
    aggregate, survived = _kernels(rows).majority(rows, count_survivors, weights)
    return aggregate, survived


def middle(m: int) -> tuple[int, int]:
    """Return the ranks (low, high) of the middle values among m."""
    return (m - 1) // 2, m // 2


def gram(
    rows: Rows, reference: Tensor | None = None, points: Sequence[Tensor | None] = ()
) -> NDArray[np.float64]:
    """Return ``(m, m)`` inner products of all vectors, after subtraction of a reference. The
    vectors are the rows, followed by the points. The result is finite.

    Args:
        reference: ``(d,)``; zero by default. Precision is lost if rows are farther from it than
            from each other.
        points: Further vectors, ``(d,)`` each; None is the zero vector.
    """
    for vector in (reference, *points):
        _check(
            vector is None or vector.shape == (rows.d,),
            f"a vector that is not of shape ({rows.d},)",
        )
    found: NDArray[np.float64] = _kernels(rows).gram(rows, reference, points)
    return found


def squared_distances_to(rows: Rows, center: Tensor | None = None) -> NDArray[np.float64]:
    """Return ``(n,)`` squared Euclidean distances of the rows to ``center`` (``(d,)``), or to zero.
    The result is finite."""
    _check(
        center is None or center.shape == (rows.d,), f"a center that is not of shape ({rows.d},)"
    )
    found: NDArray[np.float64] = _kernels(rows).squared_distances_to(rows, center)
    return found


def weighted_sum(rows: Rows, weights: ArrayLike) -> Tensor:
    """Return the sum of the rows with ``weights`` ``(n,)``: ``(d,)`` in the dtype and on the device
    of the rows. The result is finite.
    """
    factors = np.ascontiguousarray(weights, dtype=np.float64)
    _check(factors.shape == (rows.n,), f"{factors.shape} weights for {rows.n} rows")
    result: Tensor = _kernels(rows).weighted_sum(rows, factors)
    return result


def mixed(rows: Rows, matrix: ArrayLike) -> Tensor:
    """Return ``(m, d)``: m sums of the rows with the weights ``matrix`` ``(m, n)``."""
    factors = np.ascontiguousarray(matrix, dtype=np.float64)
    _check(
        factors.ndim == 2 and factors.shape[1] == rows.n,
        f"a matrix {factors.shape} for {rows.n} rows",
    )
    return plain.mixed(rows, factors)


def _matrix(rows: Rows, matrix: ArrayLike | None) -> tuple[NDArray[Any] | None, int]:
    if matrix is None:
        return None, rows.n
    weights = np.ascontiguousarray(
        matrix, dtype=np.float64 if rows.dtype == torch.float64 else np.float32
    )
    _check(
        weights.ndim == 2 and weights.shape[1] == rows.n,
        f"a matrix {weights.shape} for {rows.n} rows",
    )
    return weights, len(weights)


def _check(fine: bool, what: str) -> None:
    if not fine:
        raise AggregationError(f"kernels do not support {what}")
