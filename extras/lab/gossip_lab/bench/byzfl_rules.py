"""byzfl's rules next to those of gossip, for comparison only: gossip does not need byzfl."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@functools.cache
def module() -> ModuleType | None:
    """Return ``byzfl.aggregators``, or None. The package itself is not imported, because it would
    import torchvision and two plotting libraries."""
    try:
        found = importlib.util.find_spec("byzfl")
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None:
        return None
    if "byzfl" not in sys.modules:
        package = ModuleType("byzfl")
        package.__path__ = [str(Path(found.origin).parent)]
        sys.modules["byzfl"] = package
    try:
        return importlib.import_module("byzfl.aggregators")
    except ImportError:
        return None


def call(spec: str, updates: Tensor, f: int) -> tuple[Callable[[], Any] | None, str]:
    """Return a function that runs byzfl's version of the rule ``spec`` on these updates. Return
    None and a reason if byzfl cannot run it; the reason is empty if byzfl lacks the rule or is not
    installed."""
    byzfl = module()
    if byzfl is None:
        return None, ""
    name, _, options = spec.replace("-", "_").partition(":")
    steps = (
        int(options.removeprefix("steps="))
        if options.startswith("steps=") and options[6:].isdigit()
        else 1
    )
    if options and name != "centered_clipping":
        return None, ""
    makers: dict[str, Callable[[], Any]] = {
        "mean": byzfl.Average,
        "median": byzfl.Median,
        "trimmed_mean": lambda: byzfl.TrMean(f=f),
        "meamed": lambda: byzfl.Meamed(f=f),
        "krum": lambda: byzfl.Krum(f=f),
        "multi_krum": lambda: byzfl.MultiKrum(f=f),
        "geometric_median": byzfl.GeometricMedian,
        "centered_clipping": lambda: byzfl.CenteredClipping(L=steps),
        "monna": lambda: byzfl.MoNNA(f=f),
        "nnm+trimmed_mean": lambda: _after(byzfl.NNM(f=f), byzfl.TrMean(f=f)),
        "nnm+krum": lambda: _after(byzfl.NNM(f=f), byzfl.Krum(f=f)),
    }
    if name not in makers:
        return None, ""
    if name.startswith("nnm"):
        import psutil

        n, d = updates.shape
        need = 4 * d * n * (n - f)  # byzfl copies the n - f neighbours of every row
        if need * 1.5 > psutil.virtual_memory().available:
            return None, f"needs {need / 2**30:.0f} GiB"
    made = makers[name]()
    return lambda: made(updates), ""


def _after(first: Any, then: Any) -> Callable[[Any], Any]:
    return lambda updates: then(first(updates))
