"""A peer's whole training state as bytes: parameters, buffers, optimizer, and what else is to be kept. Never pickle.

The bytes are a safetensors file: the tensors, and one JSON document under the metadata key ``gossip`` that says where each
belongs. Equal states give equal bytes, so states are compared by digest.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, TypeAlias

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from gossip.core.messages import DIGEST_BYTES
from gossip.errors import ConfigError, UnsupportedModel

FORMAT = 1
_KEY = "gossip"
_DOCUMENT_BYTES_MAX = 64 * 2**20

Tensors: TypeAlias = dict[str, Tensor]


class StateMismatch(ConfigError):
    """A packed state does not fit this model or optimizer. Nothing was changed."""


def pack_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: Mapping[str, Any]) -> bytes:
    """Packs the model's state (persistent buffers included), the optimizer's, and ``extra``.

    Args:
        extra: Tensors, numbers, strings, None, lists, tuples and dicts of such.
    Raises: UnsupportedModel: Something is none of these; the message says where.
    """
    tensors: Tensors = {}
    document = {
        "format": FORMAT,
        "model": _encode(dict(model.state_dict()), "model", tensors),
        "optimizer": _encode(optimizer.state_dict(), "optimizer", tensors),
        "extra": _encode(dict(extra), "extra", tensors),
    }
    # One metadata key only: the order of several would be random.
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    data: bytes = safetensors.torch.save(tensors, {_KEY: text})
    return data


def state_digest(data: bytes | memoryview) -> bytes:
    """16 bytes over a packed state."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def unpack_state(data: bytes | memoryview, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Loads a packed state into ``model`` and ``optimizer``; both keep their identity, and parameters their storage.

    Returns: what was packed as ``extra``.
    Raises: StateMismatch: It does not fit, and the first difference is named; neither the model nor the optimizer was changed.
    """
    data = bytes(data)
    document, tensors = _read(data)
    try:
        states = [_decode(document[part], tensors) for part in ("model", "optimizer", "extra")]
    except (KeyError, TypeError, IndexError) as error:
        raise StateMismatch(f"the packed state is damaged: {type(error).__name__}: {error}") from error
    of_model, of_optimizer, extra = states
    if not all(isinstance(state, dict) for state in states):
        raise StateMismatch("the packed state is damaged: a part is not a dict")
    _compare_model(of_model, model)
    _compare_optimizer(of_optimizer, optimizer)
    before = optimizer.state, optimizer.param_groups
    try:
        optimizer.load_state_dict(of_optimizer)
    except Exception as error:
        # Every optimizer has checks of its own. It makes new dicts and leaves the ones it had as they were.
        optimizer.state, optimizer.param_groups = before
        raise StateMismatch(f"the optimizer refuses the packed state: {type(error).__name__}: {error}") from error
    model.load_state_dict(of_model)
    found: dict[str, Any] = extra
    return found


# --- bytes ----------------------------------------------------------------------------------------------------------------


def _read(data: bytes) -> tuple[dict[str, Any], Tensors]:
    try:
        (length,) = struct.unpack_from("<Q", data)
        if length > min(len(data), _DOCUMENT_BYTES_MAX):
            raise StateMismatch("the packed state is damaged: its header is longer than it is")
        document = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_KEY])
        tensors: Tensors = safetensors.torch.load(data)
    except (struct.error, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        if isinstance(error, StateMismatch):
            raise
        raise StateMismatch(f"the packed state is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StateMismatch("the packed state is of another version of gossip", "run the same version on all peers")
    return document, tensors


def _encode(value: Any, where: str, tensors: Tensors) -> Any:
    """JSON for ``value``; each tensor goes into ``tensors`` under the path at which it was found."""
    match value:
        case Tensor():
            if value.layout != torch.strided or value.is_meta:
                raise UnsupportedModel(f"{where} is a {value.layout} tensor on {value.device}: only dense ones can be kept")
            assert where not in tensors, f"two keys of {where} read the same"
            # Copied, so that tied parameters do not share memory in the file, and in the plain order.
            tensors[where] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            return {"tensor": where}
        case bool() | int() | float() | str() | None:
            return value
        case list():
            return [_encode(item, f"{where}.{at}", tensors) for at, item in enumerate(value)]
        case tuple():
            return {"tuple": [_encode(item, f"{where}.{at}", tensors) for at, item in enumerate(value)]}
        case dict():
            for key in value:
                if not isinstance(key, str | int):
                    raise UnsupportedModel(f"{where} has a key of type {type(key).__name__}: only str and int can be kept")
            # As pairs, because keys may be numbers; in an order that does not tell when they came.
            keys = sorted(value, key=lambda key: (isinstance(key, str), key))
            return {"dict": [[key, _encode(value[key], f"{where}.{key}", tensors)] for key in keys]}
    raise UnsupportedModel(
        f"{where} is a {type(value).__name__}, which cannot be handed to a peer that joins",
        "only tensors, numbers, strings, None, lists, tuples and dicts can",
    )


def _decode(value: Any, tensors: Tensors) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = itertools.islice(value.items(), 2)
    match kind:
        case "tensor":
            return tensors[content]
        case "tuple":
            return tuple(_decode(item, tensors) for item in content)
        case "dict":
            return {key: _decode(item, tensors) for key, item in content}
    raise KeyError(kind)


# --- does it fit? ---------------------------------------------------------------------------------------------------------


def _compare_model(state: dict[str, Any], model: torch.nn.Module) -> None:
    own = model.state_dict()
    for name in [*own, *state]:
        if name not in state:
            raise StateMismatch(f"the packed state has no {name}, the model has", "all peers must build the same model")
        if name not in own:
            raise StateMismatch(f"the packed state has {name}, the model has not", "all peers must build the same model")
        theirs, ours = state[name], own[name]
        if not isinstance(ours, Tensor):
            continue  # A module's own extra state, which only the module understands.
        if not isinstance(theirs, Tensor) or theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            raise StateMismatch(
                f"{name} is {_describe(theirs)} in the packed state and {_describe(ours)} in the model",
                "all peers must build the same model",
            )


def _compare_optimizer(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    hint = "all peers must build the same optimizer"
    groups, own = state.get("param_groups"), optimizer.state_dict()["param_groups"]
    if not isinstance(groups, list) or not isinstance(state.get("state"), dict):
        raise StateMismatch("the packed state is damaged: it holds no optimizer")
    if len(groups) != len(own):
        raise StateMismatch(f"the packed state has {len(groups)} parameter groups, the optimizer {len(own)}", hint)
    for at, (theirs, ours) in enumerate(zip(groups, own, strict=True)):
        if not isinstance(theirs, dict) or theirs.get("params") != ours["params"]:
            raise StateMismatch(f"group {at} of the packed optimizer holds other parameters than ours", hint)
        missing = optimizer.defaults.keys() - theirs.keys()
        if missing:
            raise StateMismatch(f"group {at} of the packed optimizer lacks {', '.join(sorted(missing))}", hint)
        # What is not of the optimizer itself was added by a scheduler, which one side may not have made yet.
        theirs.update({key: value for key, value in ours.items() if key not in theirs})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, entries in state["state"].items():
        if not isinstance(key, int) or not 0 <= key < len(parameters) or not isinstance(entries, dict):
            raise StateMismatch(f"the packed optimizer has a state for parameter {key!r}, which ours does not have", hint)
        for name, value in entries.items():
            # Momenta and the like are as large as their parameter; counters are single numbers.
            if isinstance(value, Tensor) and value.dim() > 0 and value.numel() > max(1, parameters[key].numel()):
                raise StateMismatch(f"{name} of parameter {key} is {_describe(value)}, larger than the parameter", hint)


def _describe(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
