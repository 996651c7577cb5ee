"""Prints a digest of all trained parameters when a process ends, if PROBED is set."""

import atexit
import os
from typing import Any

if "PROBED" in os.environ:
    import hashlib

    import torch

    # A torchvision for CUDA has no operators if torch is a CPU build, and its import would fail.
    _library: Any = torch.library.Library  # has no types
    _library = _library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    _made: list[torch.optim.Optimizer] = []
    _create = torch.optim.Optimizer.__init__

    def _remember(self: torch.optim.Optimizer, *arguments: Any, **options: Any) -> None:
        _made.append(self)
        _create(self, *arguments, **options)

    def _print_digest() -> None:
        digest, seen = hashlib.sha256(), set()
        for optimizer in _made:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    digest.update(parameter.detach().float().cpu().numpy().tobytes())
        if seen:
            print(f"PARAMETERS {len(seen)} {digest.hexdigest()[:16]}", flush=True)

    torch.optim.Optimizer.__init__ = _remember  # type: ignore[method-assign]
    atexit.register(_print_digest)
