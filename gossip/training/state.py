"""Packs a peer's whole training state into bytes, without pickle. The state has the parameters, the
buffers, the optimizer's state, and the objects of ``Session.keep``.

A state is a ``StateBundle`` of parts. Each part is a file in the safetensors format. Checkpoints
and states for joining peers have different parts. A per-peer state (``own_state``) is a single
part. A joining peer receives four parts: ``base`` has the parameters that no round changes.
``state`` has the other parameters and the optimizer's state, which are equal on all peers after the
same commits. ``settings`` has values that the scripts set: learning rates, and objects of
``Session.keep``. ``own`` has the buffers of the sending peer, such as the running statistics of a
BatchNorm. A part has one JSON document, under the metadata key ``gossip``. The document names the
place of each tensor. Equal states have equal bytes, so digests of states can be compared. The base
is a separate part because it rarely changes: an unchanged base is neither saved nor sent again.

Parameters and persistent buffers are read from the modules, because a script may override
``model.state_dict()`` to save only a part. ``model.state_dict()`` is used only for entries in
addition to these, such as the extra state of a module.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, BinaryIO, TypeAlias

import safetensors
import safetensors.torch
import torch
from blake3 import blake3
from torch import Tensor

from gossip.core import DIGEST_BYTES
from gossip.errors import ConfigError, UnsupportedModel
from gossip.run import checkpoints

from .unprepared import parameters_of

FILES = ("base", "state", "settings", "own")
TRAINING_FILE = "training.safetensors"
BLOCK_BYTES = 4 * 2**20
"""Size of the blocks in which a state is written, in bytes."""
_KEY = "gossip"
_DOCUMENT_BYTES_MAX = 64 * 2**20
_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
_ALIGNMENT = 8
_DAMAGED = (KeyError, TypeError, IndexError, ValueError, RecursionError)
"""Exceptions that occur while reading a document that is damaged, or that gossip has not
written."""
_OF_PARAMETER = re.compile(r"^(?:optimizer|local\.state)\.([0-9]+)\.(\S+)")
"""Start of an error message about an optimizer's state for one parameter."""
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Tensors: TypeAlias = dict[str, Tensor]
CheckExtra: TypeAlias = Callable[[dict[str, Any]], object]
"""Function that gets the extra state, and raises StateMismatch if it cannot be loaded."""


class StateMismatch(ConfigError):
    """A packed state does not fit this model or optimizer. Nothing was changed."""


def _unchecked(extra: dict[str, Any]) -> None:
    """Accept any extra state."""


class StateFile:
    """Safetensors file that is not written yet. ``write`` reads the tensors."""

    def __init__(self, document: Mapping[str, Any], names: Sequence[str] = ()) -> None:
        """``names``: names of the optimizer's parameters, for error messages.

        Raises: UnsupportedModel: A value cannot be saved; the message names its place.
        """
        tensors: Tensors = {}
        try:
            plain = {name: _encode(value, name, tensors) for name, value in document.items()}
        except UnsupportedModel as error:
            found = _OF_PARAMETER.match(error.message)
            if found is None or int(found[1]) >= len(names):
                raise
            place = f"{found[2]} of {names[int(found[1])]}, in the optimizer's state,"
            raise UnsupportedModel(place + error.message[found.end() :], error.hint) from None
        text = json.dumps(
            {"format": checkpoints.FORMAT, **plain}, separators=(",", ":"), sort_keys=True
        )
        header: dict[str, Any] = {"__metadata__": {_KEY: text}}
        self._tensors: list[tuple[int, int, Tensor]] = []  # start and end offset of each tensor
        end = 0
        # Tensors with the largest elements come first, so that each tensor is aligned to the size
        # of its elements.
        for where, tensor in sorted(
            tensors.items(), key=lambda named: (-named[1].element_size(), named[0])
        ):
            start, end = end, end + tensor.numel() * tensor.element_size()
            self._tensors.append((start, end, tensor))
            header[where] = {
                "dtype": _DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [start, end],
            }
        data = json.dumps(header, separators=(",", ":")).encode()
        data += b" " * (-len(data) % _ALIGNMENT)
        self._header = struct.pack("<Q", len(data)) + data
        self.length = len(self._header) + end
        """Number of bytes of the file itself. ``nbytes`` also includes the padding before the next
        file."""
        self.nbytes = _aligned(self.length)
        self.has_tensors = bool(tensors)

    def write(self, memory: memoryview) -> None:
        """Copy the file into ``memory``, which has ``nbytes`` zero bytes."""
        begin = len(self._header)
        memory[:begin] = self._header
        for start, end, tensor in self._tensors:
            if start < end:
                flat = torch.frombuffer(memory[begin + start : begin + end], dtype=tensor.dtype)
                flat.view(tensor.shape).copy_(tensor)

    def blocks(self) -> Iterator[memoryview]:
        """Yield the file in blocks. A block is a view of a tensor's memory, or a copy if the tensor
        is not on the CPU. A non-contiguous tensor is copied as a whole first."""
        yield memoryview(self._header)
        for start, end, tensor in self._tensors:
            if start < end:
                row = tensor.resolve_conj().resolve_neg().reshape(-1)
                if row.stride(0) != 1:
                    row = row.clone(memory_format=torch.contiguous_format)
                for part in torch.split(row, max(1, BLOCK_BYTES // row.element_size())):
                    yield part.cpu().view(torch.uint8).numpy().data

    def digest(self) -> bytes:
        """Return a digest of the file, 16 bytes. The file is not built in memory for this."""
        found = blake3(max_threads=torch.get_num_threads())
        for block in self.blocks():
            found.update(block)
        return found.digest(DIGEST_BYTES)


class StateBundle(dict[str, StateFile]):
    """Parts of a state; the key is the name of a part. The tensors are read only when a part is
    written."""

    @property
    def nbytes(self) -> int:
        """Number of bytes of all parts, including the padding between them."""
        return sum(part.nbytes for part in self.values())

    def write(self, memory: memoryview) -> None:
        """Pack the present state into ``memory``, which has ``nbytes`` zero bytes."""
        at = 0
        for part in self.values():
            part.write(memory[at : at + part.nbytes])
            at += part.nbytes

    def digest(self) -> bytes:
        """Return a digest of the packed state, 16 bytes. The state is not packed for this."""
        parts = b"".join([part.digest() for part in self.values()])
        return blake2b(parts, digest_size=DIGEST_BYTES).digest()


def plan_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Any],
    trained: Sequence[Tensor] | None = None,
    kept: Mapping[str, Any] = MappingProxyType({}),
) -> StateBundle:
    """Return the bundle for a joining peer. It has the model's parameters and persistent buffers,
    the optimizer's state, and ``extra``.

    Args:
        extra: Extra state: tensors, numbers, strings, None, or lists, tuples and dicts of them.
        trained: Parameters that rounds change; None means all.
        kept: Objects with states in ``extra``. Buffers of modules may differ between peers.
    Raises: UnsupportedModel: A value has another type. The message names its place.
    """
    of_optimizer, names = optimizer_document(optimizer), names_of(model, optimizer)
    groups = of_optimizer.pop("groups")
    parameters, own = model_document(model)
    base = _select_base(parameters, trained)
    moved = {name: each for name, each in parameters.items() if name not in base}
    equal, buffers = dict(extra), {}
    for name, thing in kept.items():
        state = equal.get(name)  # a module may return anything
        if isinstance(thing, torch.nn.Module) and isinstance(state, dict):
            places = {key for key in _buffer_places(thing) if isinstance(state.get(key), Tensor)}
            buffers[name] = {key: state[key] for key in places}
            equal[name] = {key: value for key, value in state.items() if key not in places}
    return StateBundle(
        base=StateFile({"model": base}),
        state=StateFile({"model": moved, **of_optimizer}, names),
        settings=StateFile({"groups": groups, "extra": equal, "buffers": _forms_of(buffers)}),
        own=StateFile({"model": own, "buffers": buffers}),
    )


def _forms_of(buffers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, list[Any]]]:
    """Return the dtype and shape of each buffer. Peers attest these, but not the values."""
    return {
        name: {key: [str(each.dtype), *each.shape] for key, each in of_module.items()}
        for name, of_module in buffers.items()
    }


def sizes_of(bundle: StateBundle) -> tuple[tuple[int, ...], int]:
    """Return sizes in bytes: first a tuple with the size of ``base`` and ``state`` together and
    that of each other part, then the size of ``base``, or 0 if it has no tensors."""
    base, state, *others = [part.nbytes for part in bundle.values()]
    return (base + state, *others), base if bundle["base"].has_tensors else 0


def plan_checkpoint(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Any],
    trained: Sequence[Tensor] | None = None,
) -> StateBundle:
    """Return the bundle of a checkpoint. Its parts are named like their files.
    ``model.safetensors`` has the model's tensors under their own names, so that any program can
    load it. Only the parameters in ``base.safetensors`` are missing there.

    Args:
        trained: As for ``plan_state``.
    Raises: UnsupportedModel: A value cannot be saved. The message names its place.
    """
    parameters, own = model_document(model)
    base = _select_base(parameters, trained)
    rest = {name: each for name, each in {**parameters, **own}.items() if name not in base}
    training = {**optimizer_document(optimizer), "extra": dict(extra)}
    parts = {
        checkpoints.MODEL_FILE: StateFile(rest),
        TRAINING_FILE: StateFile(training, names_of(model, optimizer)),
    }
    return StateBundle({checkpoints.BASE_FILE: StateFile({**base}), **parts} if base else parts)


def _select_base(parameters: Tensors, trained: Sequence[Tensor] | None) -> Tensors:
    """Return the parameters that no round changes. A script may still change these parameters."""
    if trained is None:
        return {}
    moved = {id(each) for each in trained}
    return {name: each for name, each in parameters.items() if id(each) not in moved}


def optimizer_document(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's ``state_dict`` with other keys: ``state`` is under ``optimizer``,
    ``param_groups`` under ``groups``, and all further entries under ``more``.

    Raises: UnsupportedModel: The ``state_dict`` lacks ``state`` or ``param_groups``.
    """
    more = dict(optimizer.state_dict())
    try:
        found = {"optimizer": more.pop("state"), "groups": more.pop("param_groups")}
    except KeyError as error:
        raise UnsupportedModel(
            f"the state_dict of {type(optimizer).__name__} has no {error.args[0]}",
            "save all entries beside state and param_groups",
        ) from error
    return {**found, "more": more} if more else found


def read_optimizer(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``state_dict`` from which ``optimizer_document`` was made. Raises KeyError,
    TypeError."""
    more = dict(document.get("more", {}))
    return {**more, "state": document["optimizer"], "param_groups": document["groups"]}


def names_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of the optimizer's parameters, in the optimizer's order."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    held = enumerate(parameters_of(optimizer))
    return [known.get(id(each), f"parameter {at}") for at, each in held]


def model_document(model: torch.nn.Module) -> tuple[Tensors, dict[str, Any]]:
    """Return two dicts by name. The first has the parameters. The second has values that may differ
    between peers: persistent buffers, and additional entries of ``model.state_dict()``."""
    parameters: Tensors = dict(model.named_parameters(remove_duplicate=False))
    buffers: Tensors = {
        name: buffer
        for name, (module, key) in _buffer_places(model).items()
        if (buffer := getattr(module, key)) is not None
    }
    known = {**parameters, **buffers}
    held = {_place_of(tensor) for tensor in known.values()}
    added = {
        name: value
        for name, value in model.state_dict().items()
        # Skip aliases: a script may save the same memory under a second name.
        if name not in known and not (isinstance(value, Tensor) and _place_of(value) in held)
    }
    return parameters, {**buffers, **added}


def _place_of(tensor: Tensor) -> tuple[int, torch.Size]:
    return tensor.data_ptr(), tensor.shape


def _buffer_places(model: torch.nn.Module) -> dict[str, tuple[torch.nn.Module, str]]:
    """Return, for each persistent buffer, its module and its key in this module, by the name of the
    buffer. A buffer may be None."""
    return {
        f"{prefix}.{key}" if prefix else key: (module, key)
        for prefix, module in model.named_modules(remove_duplicate=False)
        # torch has no public API for buffers that are None or not persistent
        for key in vars(module).get("_buffers", ())
        if key not in vars(module)["_non_persistent_buffers_set"]
    }


def read_checkpoint(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the document of a checkpoint's files, which ``plan_checkpoint`` has planned. Raises
    StateMismatch: A file is damaged."""
    with _reading("the checkpoint"):
        documents = {name: _decode_file(data) for name, data in files.items()}
        of_model = {**documents.get(checkpoints.BASE_FILE, {}), **documents[checkpoints.MODEL_FILE]}
        return {**documents[TRAINING_FILE], "model": of_model}


def load_document(
    document: dict[str, Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    check: CheckExtra = _unchecked,
) -> dict[str, Any]:
    """Load a document into the model and the optimizer. Parameters keep their storage.

    Args:
        check: Function that is called with the extra state before any change. It may raise
            StateMismatch.
    Returns: The extra state in the document.
    Raises: StateMismatch: The document does not fit. The message has the first difference. Nothing
        was changed.
    """
    with _reading("the state"):
        of_model, extra = document["model"], document["extra"]
        of_optimizer = read_optimizer(document)
        if not isinstance(of_model, dict) or not isinstance(extra, dict):
            raise TypeError("a part is not a dict")
    check(extra)
    compare_model(of_model, model)
    before = optimizer.state, optimizer.param_groups
    load_optimizer(of_optimizer, optimizer, names_of(model, optimizer))
    try:
        load_model(of_model, model)
    except StateMismatch:
        optimizer.state, optimizer.param_groups = before
        raise
    return extra


def read_state_file(data: bytes) -> dict[str, Any]:
    """Return the document of a ``StateFile``. Raises StateMismatch: The state is damaged."""
    with _reading("it"):
        return _decode_file(data)


def _decode_file(data: bytes) -> dict[str, Any]:
    document, tensors = _read(data)
    return {key: _decode(part, tensors) for key, part in document.items()}


@contextmanager
def _reading(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn ``errors``, and exceptions that damaged data cause, into StateMismatch in the ``with``
    block."""
    try:
        yield
    except _DAMAGED + errors as error:
        if isinstance(error, StateMismatch):
            raise
        raise StateMismatch(f"{what} is damaged: {type(error).__name__}: {error}") from error


def read_some(
    file: BinaryIO, wanted: Callable[[str], bool], at_most: Mapping[str, Container[int]]
) -> dict[str, Any]:
    """Return the document of a ``StateFile``, but read only some of its tensors: the memory may not
    suffice for all layers.

    Args:
        file: Verified file.
        wanted: Function that returns whether to read the tensor with this path. Entries of the
            document with other tensors are omitted.
        at_most: Keys to keep of some dicts in the document, by the name of the dict.
    Raises: StateMismatch: The document is damaged.
    """
    place = f"/proc/self/fd/{file.fileno()}"
    with (
        _reading("it", AttributeError, safetensors.SafetensorError),
        safetensors.safe_open(place, framework="pt") as opened,
    ):
        document = json.loads(opened.metadata()[_KEY])
        # Copied, because a mapped tensor would change together with the file.
        tensors = {name: opened.get_tensor(name).clone() for name in filter(wanted, opened.keys())}
        if document.pop("format", None) != checkpoints.FORMAT:
            raise StateMismatch("the state was written by another version of gossip")
        for name, keys in at_most.items():
            document[name]["dict"] = [pair for pair in document[name]["dict"] if pair[0] in keys]
        known = {"", *tensors}
        return {
            key: _decode(part, tensors)
            for key, part in document.items()
            if not isinstance(part, dict) or part.get("tensor", "") in known
        }


def read_packed_state(
    data: bytes | memoryview, keeps: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Return the document of a packed state.

    Args:
        keeps: Optimizer with learning rates that replace those of the state. The extra state is
            then left out, too.
    Raises: StateMismatch: The state is damaged.
    """
    with _reading("the packed state", AttributeError):
        base, state, settings, own = [_decode_file(file) for file in split_state(bytes(data))]
        of_model = {**own["model"], **base["model"], **state["model"]}
        buffers, extra = own["buffers"], settings["extra"]
        if _forms_of(buffers) != settings.pop("buffers"):
            raise ValueError("buffers of kept modules have other shapes than is attested")
        for name in buffers:
            extra[name].update(buffers[name])
    if keeps is not None:
        settings = {"groups": keeps.state_dict()["param_groups"], "extra": {}}
    return {**state, **settings, "model": of_model}


def load_model(of_model: Mapping[str, Any], model: torch.nn.Module) -> None:
    """Load ``of_model``: parameters, buffers and additional entries of a ``model.state_dict()``.
    Values that are missing in ``of_model`` do not change. Parameters keep their storage.

    Raises: StateMismatch: A module rejects its extra state. Nothing else was changed.
    """
    parameters, places = dict(model.named_parameters(remove_duplicate=False)), _buffer_places(model)
    added = {
        name: value
        for name, value in of_model.items()
        if name not in parameters and name not in places
    }
    if added:
        before = {name: value for name, value in model.state_dict().items() if name in added}
        try:
            model.load_state_dict(added, strict=False)
        except Exception as error:  # a module may raise any exception
            model.load_state_dict(before, strict=False)
            raise StateMismatch(
                f"the model refuses {', '.join(sorted(added))}: {type(error).__name__}: {error}"
            ) from error
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in of_model:
                parameter.copy_(of_model[name])
        for name, (module, key) in places.items():
            if name not in of_model:
                continue
            buffer, value = getattr(module, key), of_model[name]
            if buffer is not None and buffer.shape == value.shape:
                buffer.copy_(value)
            else:  # a buffer has grown, or was None before the first step
                device = next(iter(parameters.values())).device if buffer is None else buffer.device
                setattr(module, key, value.to(device))


def load_optimizer(
    of_optimizer: dict[str, Any], optimizer: torch.optim.Optimizer, names: Sequence[str] = ()
) -> None:
    """Load another peer's ``optimizer.state_dict()`` bit for bit. torch casts the state of a
    parameter to the parameter's dtype; this function undoes the cast.

    Args:
        names: Names of the optimizer's parameters, for error messages.
    Raises: StateMismatch: The state does not fit. Nothing was changed.
    """
    _compare_optimizer(of_optimizer, optimizer)
    before, state = (optimizer.state, optimizer.param_groups), of_optimizer["state"]
    try:
        optimizer.load_state_dict(of_optimizer)
        loaded = optimizer.state_dict()["state"]
        for key, entries in state.items():
            if isinstance(entries, dict) and isinstance(own := loaded.get(key), dict):
                own.update(_moved(entries, own))
        difference = _first_difference(state, optimizer.state_dict()["state"], "")
    except Exception as error:
        # An optimizer may raise any exception. ``load_state_dict`` creates new dicts and leaves the
        # old ones unchanged, so these can be restored.
        optimizer.state, optimizer.param_groups = before
        raise StateMismatch(
            f"the optimizer refuses the packed state: {type(error).__name__}: {error}"
        ) from error
    if difference:
        optimizer.state, optimizer.param_groups = before
        key, _, rest = difference.partition(".")
        name = names[int(key)] if key.isdecimal() and int(key) < len(names) else f"parameter {key}"
        raise StateMismatch(
            f"the optimizer changes {rest or 'the state'} of {name} when it loads a packed state",
            "its load_state_dict must restore exactly what its state_dict returns",
        )


def _moved(theirs: Any, loaded: Any) -> Any:
    """Return a copy of ``theirs`` in which each tensor is on the device of the corresponding tensor
    in ``loaded``."""
    match theirs:
        case Tensor():
            return theirs.to(loaded.device) if isinstance(loaded, Tensor) else theirs
        case dict():
            known = loaded if isinstance(loaded, dict) else {}
            return {key: _moved(value, known.get(key)) for key, value in theirs.items()}
        case list() | tuple():
            own = list(loaded) if isinstance(loaded, list | tuple) else []
            pairs = itertools.zip_longest(theirs, own[: len(theirs)])
            return type(theirs)([_moved(*pair) for pair in pairs])
    return theirs


def _first_difference(theirs: Any, ours: Any, where: str) -> str:
    """Return the path of the first value of ``theirs`` that differs in ``ours``, or ""."""
    match theirs:
        case Tensor():
            return "" if isinstance(ours, Tensor) and _has_same_bits(theirs, ours) else where
        case dict() if isinstance(ours, dict):
            pairs = [(key, value, ours.get(key)) for key, value in theirs.items()]
        case list() | tuple() if isinstance(ours, list | tuple) and len(theirs) == len(ours):
            pairs = [(at, *pair) for at, pair in enumerate(zip(theirs, ours, strict=True))]
        case _:
            return "" if theirs == ours or theirs != theirs else where
    paths = (_first_difference(a, b, f"{where}.{key}".lstrip(".")) for key, a, b in pairs)
    return next((path for path in paths if path), "")


def _has_same_bits(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    a, b = [each.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return torch.equal(a, b)


# --- bytes ----------------------------------------------------------------------------------------


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _header(data: bytes, at: int) -> tuple[int, dict[str, Any]]:
    """Return the offset of the tensors in the file that starts at ``at``, and its header. Raises
    StateMismatch."""
    with _reading("the packed state", struct.error):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > min(len(data) - at, _DOCUMENT_BYTES_MAX):
            raise StateMismatch("the packed state is damaged: its header is longer than it is")
        header = json.loads(data[at + 8 : at + 8 + length])
    if not isinstance(header, dict):
        raise StateMismatch("the packed state is damaged: a header is not a dict")
    return at + 8 + length, header


def split_state(data: bytes) -> list[bytes]:
    """Return the files of a packed state in the order of ``FILES``, split by the lengths in their
    headers.

    Raises: StateMismatch: ``data`` is damaged.
    """
    files, at = [], 0
    for _ in FILES:
        begin, header = _header(data, at)
        with _reading("the packed state", OverflowError):
            entries = [entry for name, entry in header.items() if name != "__metadata__"]
            end = begin + max([int(entry["data_offsets"][1]) for entry in entries], default=0)
        if not at < end <= _aligned(end) <= len(data):
            raise StateMismatch(
                "the packed state is damaged: the length of a part does not match its header"
            )
        files.append(data[at:end])
        at = _aligned(end)
    if at != len(data):
        raise StateMismatch("the packed state is damaged: there are bytes after its parts")
    return files


def _read(data: bytes) -> tuple[dict[str, Any], Tensors]:
    """Return the document and the tensors of one part. The entry ``format`` is checked and removed.
    Raises StateMismatch."""
    _, header = _header(data, 0)
    with _reading("the packed state", safetensors.SafetensorError):
        document = json.loads(header["__metadata__"][_KEY])
        tensors: Tensors = safetensors.torch.load(data)
    if not isinstance(document, dict) or document.pop("format", None) != checkpoints.FORMAT:
        raise StateMismatch(
            "the packed state was written by another version of gossip",
            "run the same version on all peers",
        )
    return document, tensors


def _check_plain(value: Tensor, where: str) -> None:
    """Raise UnsupportedModel if the tensor is not a plain, dense tensor of a known dtype."""
    if value.layout != torch.strided or value.is_meta:
        raise UnsupportedModel(
            f"{where} is a {value.layout} tensor on {value.device}: only dense ones can be kept"
        )
    if value.dtype not in _DTYPES:
        raise UnsupportedModel(
            f"{where} is of type {value.dtype}, which cannot be sent to a joining peer"
        )
    if type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise UnsupportedModel(
            f"{where} is a {type(value).__name__}, which is not a plain tensor",
            "only plain tensors can be sent to a joining peer",
        )


def _encode(value: Any, where: str, tensors: Tensors) -> Any:
    """Return ``value`` as JSON types. Tensors are added to ``tensors``; the key is the path."""
    match value:
        case Tensor():
            _check_plain(value, where)
            while where in tensors:  # the path "a.b" may come from the key "a.b", or from b in a
                where += "'"
            tensors[where] = value.detach()
            # Keep the memory order, because it determines the rounding of sums.
            order = None if value.is_contiguous() else list(value.dim_order())
            return {"tensor": where} if order is None else {"tensor": where, "order": order}
        case bool() | int() | float() | str() | None:
            return value
        case list():
            return [_encode(item, f"{where}.{at}", tensors) for at, item in enumerate(value)]
        case tuple() if not hasattr(value, "_fields"):
            return {
                "tuple": [_encode(item, f"{where}.{at}", tensors) for at, item in enumerate(value)]
            }
        case dict():
            for key in value:
                if not isinstance(key, str | int):
                    raise UnsupportedModel(
                        f"{where} has a key of type {type(key).__name__}: only str and int can be "
                        "kept"
                    )
            # A dict becomes a list of pairs, because keys may be numbers. The pairs are sorted, so
            # that the result does not depend on the order of insertion.
            keys = sorted(value, key=lambda key: (isinstance(key, str), key))
            return {"dict": [[key, _encode(value[key], f"{where}.{key}", tensors)] for key in keys]}
    raise UnsupportedModel(
        f"{where} is a {type(value).__name__}, which cannot be sent to a joining peer",
        "only tensors, numbers, strings, None, lists, tuples and dicts can be",
    )


def _decode(value: Any, tensors: Tensors) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return _in_order(tensors[value["tensor"]], value.get("order"))
    ((kind, content),) = itertools.islice(value.items(), 2)
    match kind:
        case "tuple":
            return tuple(_decode(item, tensors) for item in content)
        case "dict":
            return {key: _decode(item, tensors) for key, item in content}
    raise KeyError(kind)


def _in_order(tensor: Tensor, order: Any) -> Tensor:
    """Return ``tensor`` with its dimensions stored in memory in this ``order``, outermost first.
    None leaves the tensor unchanged. Raises ValueError: ``order`` is not a permutation of the
    dimensions."""
    if order is None:
        return tensor
    if not isinstance(order, list) or sorted(order) != list(range(tensor.dim())):
        raise ValueError("the order of a tensor's dimensions is not a permutation")
    places = [order.index(dimension) for dimension in range(tensor.dim())]
    return tensor.permute(order).contiguous().permute(places)


# --- comparisons ----------------------------------------------------------------------------------


def compare_model(state: Mapping[str, Any], model: torch.nn.Module) -> None:
    """Raise StateMismatch if the packed values do not fit those of the model."""
    hint, places = "all peers must build the same model", _buffer_places(model)
    parameters, others = model_document(model)
    own = {**parameters, **others}
    for name in [*own, *state]:
        if name not in state:
            raise StateMismatch(f"the packed state has no {name}, but the model has", hint)
        if name not in own and name not in places:
            raise StateMismatch(f"the packed state has {name}, but the model does not", hint)
        theirs, ours = state[name], own.get(name)
        if name not in parameters and name not in places:
            continue  # Extra state of a module, which only the module can check.
        # A buffer of a script's module may have grown, or may be None until the first step. Buffers
        # of torch's modules keep their shapes.
        grows = name in places and _is_of_script(places[name][0])
        if ours is None and grows and isinstance(theirs, Tensor):
            continue
        if (
            not isinstance(theirs, Tensor)
            or ours is None
            or theirs.dtype != ours.dtype
            or theirs.dim() != ours.dim()
            or (theirs.shape != ours.shape and not grows)
        ):
            raise StateMismatch(
                f"{name} is {_describe(theirs)} in the packed state and {_describe(ours)} in the "
                "model",
                hint,
            )


def _is_of_script(module: torch.nn.Module) -> bool:
    """Whether the module's buffers come from the script. Buffers of torch's containers also come
    from the script, because these classes define no buffers."""
    return isinstance(module, _CONTAINERS) or not type(module).__module__.startswith("torch.")


def _compare_optimizer(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Raise StateMismatch if the parameter groups or their required keys differ. Shapes in the
    state of a parameter are not compared, because only the optimizer knows them."""
    hint = "all peers must build the same optimizer"
    groups, own = state.get("param_groups"), optimizer.state_dict()["param_groups"]
    entries = state.get("state")
    if not isinstance(groups, list) or not isinstance(entries, dict):
        raise StateMismatch("the packed state is damaged: it contains no optimizer")
    if len(groups) != len(own):
        raise StateMismatch(
            f"the packed state has {len(groups)} parameter groups, the optimizer {len(own)}", hint
        )
    for at, (theirs, ours) in enumerate(zip(groups, own, strict=True)):
        if not isinstance(theirs, dict) or theirs.get("params") != ours["params"]:
            raise StateMismatch(
                f"group {at} of the packed optimizer has other parameters than the local one", hint
            )
        # A default that the local group also lacks is not required: loading a state adds it.
        missing = (optimizer.defaults.keys() & ours.keys()) - theirs.keys()
        if missing:
            raise StateMismatch(
                f"group {at} of the packed optimizer lacks {', '.join(sorted(missing))}", hint
            )
        # Keys that a scheduler adds may be missing, because the scheduler may not exist yet on one
        # of the peers.
        theirs.update({key: value for key, value in ours.items() if key not in theirs})
    for key in {number for group in own for number in group["params"]} & entries.keys():
        if not isinstance(entries[key], dict):
            raise StateMismatch(
                f"the packed optimizer has a {_describe(entries[key])} as state of parameter {key}",
                hint,
            )


def _describe(value: Any) -> str:
    return (
        f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
    )
