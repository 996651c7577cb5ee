"""Products of float32 matrices at full precision, whatever precision the script has set in
torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_inside = 0
_before: list[Any] = []


@contextmanager
def full() -> Iterator[None]:
    """Compute matrix products in the dtype of their factors in this context.

    PyTorch recommends ``torch.set_float32_matmul_precision("medium")`` for training. With it,
    factors are rounded to bfloat16 on processors that are faster with bfloat16, and to TF32 on
    GPUs. Updates that are close to each other would become equal. This context sets the precision
    for all threads of the process, until the last thread leaves the context.
    """
    global _inside
    with _lock:
        if not _inside:
            _before[:] = _read()
            _write(["ieee", "ieee"] if _BY_BACKEND else ["highest"])
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _write(_before)


# torch 2.9 has a setting for each backend. If a script uses such a setting, the old functions
# raise.
_BACKENDS = (torch.backends.mkldnn, torch.backends.cuda)
_BY_BACKEND = all(
    hasattr(getattr(backend, "matmul", None), "fp32_precision") for backend in _BACKENDS
)


def _read() -> list[Any]:
    if _BY_BACKEND:
        return [backend.matmul.fp32_precision for backend in _BACKENDS]
    return [torch.get_float32_matmul_precision()]


def _write(values: list[Any]) -> None:
    if not _BY_BACKEND:
        torch.set_float32_matmul_precision(values[0])
        return
    for backend, value in zip(_BACKENDS, values, strict=True):
        backend.matmul.fp32_precision = value
