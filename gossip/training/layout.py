"""Layout of the flat float32 vector of all trainable parameters. Copies gradients and parameters
into the vector and back.

The vector has the elements of all parameters, and then one mark per parameter. In an update, the
mark shows whether the parameter has a gradient. The difference matters: an optimizer does not
change a parameter without a gradient, but moves a parameter with a zero gradient (momentum, weight
decay). If no contributor has a gradient for a parameter, the mark of the aggregate is 0, and the
parameter gets no gradient.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossip.core import DIGEST_BYTES
from gossip.errors import UnsupportedModel
from gossip.vectors import cut_layers

from .staging import Staging
from .unprepared import parameters_of

_MOVABLE = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
BLOCK_NUMBERS = 2**17
"""Number of elements in a block, which is copied and then checked while it is in the CPU cache."""
PRESENT = 2.0**-40
"""Mark of a parameter with a gradient, in an update. The value is too small to change norms of
updates or distances between them."""


class _Group(NamedTuple):
    """Consecutive parameters, from ``first`` to ``last`` (exclusive), and the start and end of
    their elements in the flat vector."""

    first: int
    last: int
    start: int
    stop: int


class Layout:
    """Order of a model's trainable parameters in the flat vector, fixed at construction.

    A trainable parameter requires a gradient and belongs to the optimizer. Shared (tied) parameters
    appear once. Parameters that are frozen when the layout is made do not appear. Half-precision
    parameters are exchanged in float32.

    Attributes:
        parameters: Parameters in the order of ``model.named_parameters()``.
        trained: Number of elements before the first mark: the elements of all parameters, and in a
            fragment (``cut``) zeros as padding.
        elements: Length of the flat vector.
        marks: Number of marks, one per parameter.
        shapes: Shapes of the parameters.
        has_views: Whether gradients of parameters can be views of the flat vector.
        digest: Digest of names, shapes and dtypes, 16 bytes. Peers with different digests cannot
            train together.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Raises: UnsupportedModel: A parameter cannot be exchanged. The message names the
        parameter."""
        owned = {id(parameter) for parameter in parameters_of(optimizer)}
        named = [
            (name, p) for name, p in model.named_parameters() if p.requires_grad and id(p) in owned
        ]
        of_model = {id(parameter) for parameter in model.parameters()}
        strangers = len(owned - of_model)
        if strangers:
            raise UnsupportedModel(
                f"the optimizer holds {strangers} parameter(s) that the model does not have",
                "put everything that is trained into one module, and prepare that module",
            )
        if not named:
            raise UnsupportedModel(
                "the optimizer trains none of the model's parameters",
                "build the optimizer from model.parameters()",
            )
        for name, parameter in named:
            _check(name, parameter)
        devices = {str(parameter.device) for _, parameter in named}
        if len(devices) > 1:
            raise UnsupportedModel(
                f"the parameters are on several devices: {', '.join(sorted(devices))}",
                "put all parameters on one device",
            )
        self._left_out = [
            (name, p)
            for name, p in model.named_parameters()
            if not p.requires_grad and id(p) in owned
        ]
        self._others: tuple[torch.nn.Parameter, ...] = ()  # trainable parameters of other fragments
        self._arrange(named)
        self.device = self.parameters[0].device
        if self.trained == 0:
            raise UnsupportedModel("all trainable parameters are empty")
        text = "\n".join(f"{name} {tuple(p.shape)} {p.dtype}" for name, p in named)
        self.digest = blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
        self._direct = self.device.type == "cpu"
        self._staging = Staging(self.device)  # used if the device is not the CPU
        self.has_views = self._direct and all(
            p.dtype == torch.float32 and p.is_contiguous() for p in self.parameters
        )
        # Vector of the shared memory of which the gradients are views, if any. All fragments share
        # this list.
        self._lent: list[Tensor] = []

    def _arrange(
        self, named: Sequence[tuple[str, torch.nn.Parameter]], trained: int = 0, marks: int = 0
    ) -> None:
        """Set the parameters of the vector. ``trained`` and ``marks``: minimum numbers of elements
        and of marks."""
        self.names = tuple(name for name, _ in named)
        self.parameters = tuple(parameter for _, parameter in named)
        self.shapes = tuple(tuple(parameter.shape) for parameter in self.parameters)
        self._sizes = [parameter.numel() for parameter in self.parameters]
        self._numbers = sum(self._sizes)
        self.trained, self.marks = max(trained, self._numbers), max(marks, len(named))
        self.elements = self.trained + self.marks
        self._groups = tuple(_grouped(self._sizes))
        self._cut: dict[int, tuple[Tensor, list[Tensor]]] = {}

    # --- fragments --------------------------------------------------------------------------------

    def cut(self, fragments: int) -> tuple[Layout, ...]:
        """Cut the model between its layers, and return a layout for the parameters of each
        fragment.

        All vectors are padded with zeros to the length of the longest fragment, so vectors have the
        same length in every round. A step on one fragment sets ``.grad`` of all other parameters to
        None.

        Raises: UnsupportedModel: There are fewer layers than fragments.
        """
        if fragments == 1:
            return (self,)
        layers: dict[str, list[int]] = {}
        for at, name in enumerate(self.names):
            layers.setdefault(name.rpartition(".")[0], []).append(at)
        if len(layers) < fragments:
            raise UnsupportedModel(
                f"{fragments} fragments, and the model has {len(layers)} layers with parameters",
                f"--fragments {len(layers)} or fewer; --local-steps must be a multiple of it",
            )
        found = list(layers.values())
        dealt = cut_layers([sum(self._sizes[at] for at in each) for each in found], fragments)
        chosen = [sorted(at for layer in each for at in found[layer]) for each in dealt]
        numbers = max(sum(self._sizes[at] for at in each) for each in chosen)
        marks = max(map(len, chosen))
        return tuple([_Fragment(self, each, numbers, marks) for each in chosen])

    # --- gradients --------------------------------------------------------------------------------

    def gradients(self) -> list[Tensor]:
        """Return the gradient of each parameter, in order and detached; zeros if it has none.

        Raises: UnsupportedModel: A gradient is sparse, or belongs to a parameter that was frozen
            when the layout was made.
        """
        for name, parameter in self._left_out:
            if parameter.grad is not None:
                raise UnsupportedModel(
                    f"{name} has a gradient, but was frozen when the model was prepared: it is "
                    "not exchanged",
                    "set requires_grad when you call peer.prepare, and freeze it afterwards",
                )
        found: list[Tensor] = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros((), dtype=parameter.dtype, device=self.device).expand(
                    parameter.shape
                )
            elif gradient.is_sparse:
                name = self.names[len(found)]
                raise UnsupportedModel(
                    f"the gradient of {name} is sparse", "make the embedding with sparse=False"
                )
            found.append(gradient.detach() if gradient.requires_grad else gradient)
        return found

    def flatten_gradients(self, out: Tensor) -> bool:
        """Copy all gradients into ``out``, ``(elements,)`` float32 on the CPU. A missing gradient
        becomes zeros, with the mark 0. Return whether all elements are finite."""
        gradients, finite = self.gradients(), True
        assert out.shape == (self.elements,)
        if self._direct:
            for part in self._gather(gradients, out):
                finite = finite and _is_finite(part)
        else:
            finite = self._staging.gather(gradients, out)
        if self._numbers + len(self.parameters) < self.elements:  # padding of a short fragment
            out[self._numbers :] = 0.0
        marks = out[self.trained : self.trained + len(self.parameters)]
        marks.fill_(PRESENT)
        for at, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                marks[at] = 0.0
        return finite

    def scatter_gradients(self, flat: Tensor) -> None:
        """Copy ``flat``, ``(elements,)`` float32, into the parameters' ``.grad``. No reference to
        ``flat`` remains.

        Gradients that are marked as missing become None.
        """
        self._leave_others_alone()
        pieces = self._pieces(self._arrive(flat))
        marks = flat[self.trained : self.trained + len(self.parameters)].tolist()
        into, values = [], []
        for at, parameter in enumerate(self.parameters):
            if not marks[at]:
                parameter.grad = None
                continue
            gradient = parameter.grad
            # An expanded gradient, such as that of a sum, has several elements at one address.
            if gradient is None or gradient.requires_grad or 0 in gradient.stride():
                gradient = parameter.grad = torch.empty_like(parameter, requires_grad=False)
            into.append(gradient)
            values.append(pieces[at])
        if into:
            _copy_all(into, values)

    def point_gradients(self, flat: Tensor) -> None:
        """Set the parameters' ``.grad`` to views of ``flat``, ``(elements,)`` float32 (needs
        ``has_views``).

        Gradients that are marked as missing become None.
        """
        self._leave_others_alone()
        parts = torch.split(flat[: self._numbers], self._sizes)
        present = (flat[self.trained : self.trained + len(self.parameters)] != 0).tolist()
        for parameter, part, here in zip(self.parameters, parts, present, strict=True):
            parameter.grad = part.view(parameter.shape) if here else None

    def lend_gradients(self, flat: Tensor) -> None:
        """Set the gradients to views of ``flat``. The script may read these gradients until
        ``reclaim_gradients`` is called."""
        self.point_gradients(flat)
        self._lent[:] = [flat]

    def reclaim_gradients(self) -> bool:
        """If the script still references the memory of ``lend_gradients``, make this memory
        private, because it is about to change. Return whether the script references it."""
        if not self._lent:
            return False
        flat = self._lent.pop()
        if _count_uses(flat.untyped_storage()) <= _USES_ALONE:
            return False
        flat.mul_(1.0)  # writing to a page makes it private to this mapping (copy-on-write)
        return True

    def release_gradients(self) -> bool:
        """Drop the parameters' gradients, unless the script references a gradient or its memory.
        Return whether they were dropped. A gradient that the script references must receive the
        aggregate in place. Other gradients may be replaced by new tensors.
        """
        held = [parameter.grad for parameter in self.parameters]
        lent = {each.untyped_storage().data_ptr() for each in self._lent}
        if any(
            g is not None and g.untyped_storage().data_ptr() not in lent and _shares_memory(g)
            for g in held
        ):
            return False
        references = [None if gradient is None else weakref.ref(gradient) for gradient in held]
        for parameter in self.parameters:
            parameter.grad = None
        held.clear()
        kept = [None if reference is None else reference() for reference in references]
        if all(gradient is None for gradient in kept):
            return True
        for parameter, gradient in zip(self.parameters, kept, strict=True):
            parameter.grad = gradient
        return False

    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Return a new ``(elements,)`` float32 vector on the CPU, made of one gradient per
        parameter. A missing gradient is None."""
        out = torch.zeros(self.elements)
        pieces = torch.split(out[: self._numbers], self._sizes)
        for piece, tensor in zip(pieces, tensors, strict=True):
            if tensor is not None:
                piece.copy_(tensor.detach().reshape(-1))
        out[self.trained : self.trained + len(tensors)] = torch.tensor(
            [0.0 if tensor is None else PRESENT for tensor in tensors]
        )
        return out

    def _leave_others_alone(self) -> None:
        """Set the gradients of all other fragments to None, so that no step changes the parameters
        of these fragments."""
        for parameter in self._others:
            parameter.grad = None

    # --- parameters -------------------------------------------------------------------------------

    def flatten_parameters(self, out: Tensor) -> None:
        """Copy all parameters into ``out``, ``(elements,)`` float32 on the CPU."""
        assert out.shape == (self.elements,)
        with torch.no_grad():
            if self._direct:
                for _ in self._gather(self.parameters, out):
                    continue
            else:
                self._staging.gather(self.parameters, out)
        out[self._numbers :] = 0.0

    def add_to_parameters(self, delta: Tensor, scale: float) -> None:
        """Compute ``parameters += scale * delta`` for ``delta``, ``(elements,)`` float32."""
        with torch.no_grad():
            for parameter, piece in zip(
                self.parameters, self._pieces(self._arrive(delta)), strict=True
            ):
                parameter.add_(piece.to(parameter.dtype), alpha=scale)

    def copy_parameters(self) -> list[Tensor]:
        """Return a copy of each parameter."""
        return [parameter.detach().clone() for parameter in self.parameters]

    def set_parameters(self, values: Iterable[Tensor]) -> None:
        """Copy one tensor into each parameter."""
        with torch.no_grad():
            _copy_all(list(self.parameters), list(values))

    # --- copies -----------------------------------------------------------------------------------

    def _gather(self, tensors: list[Tensor] | tuple[Tensor, ...], out: Tensor) -> Iterator[Tensor]:
        """Copy all tensors into ``out``. Yield each part of ``out`` as soon as it is filled, while
        it is in the CPU cache."""
        pieces = self._pieces(out)
        for group in self._groups:
            whole, first = out[group.start : group.stop], tensors[group.first]
            if len(whole) <= BLOCK_NUMBERS or not first.is_contiguous():
                _copy_all(pieces[group.first : group.last], tensors[group.first : group.last])
                yield whole
                continue
            parts = torch.split(first.view(-1), BLOCK_NUMBERS)
            for into, part in zip(torch.split(whole, BLOCK_NUMBERS), parts, strict=True):
                into.copy_(part)
                yield into

    def _arrive(self, flat: Tensor) -> Tensor:
        assert flat.shape == (self.elements,)
        return flat if self._direct else self._staging.arrive(flat)

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        """Return views of ``flat`` in the parameters' shapes. Views of registered slots are cached,
        because every round needs them."""
        known = self._cut.get(id(flat))
        if known is not None:
            return known[1]  # the cache keeps the vector alive, so its id is unique
        parts = torch.split(flat[: self._numbers], self._sizes)
        pieces = [piece.view(p.shape) for piece, p in zip(parts, self.parameters, strict=True)]
        if self._direct:
            if len(self._cut) >= 64:
                self._cut.clear()
            self._cut[id(flat)] = flat, pieces
        return pieces

    def lend_slots(self, slots: Iterable[Tensor]) -> None:
        """Register vectors of the shared memory, ``(elements,)`` float32, that other methods will
        copy from or to."""
        self._staging.lend(slots)

    def forget_slots(self) -> None:
        """Drop all registered vectors and cached views, so that the memory can be freed."""
        self._cut.clear()
        self._staging.close()


class _Fragment(Layout):
    """Layout of some parameters in a vector with room for ``trained`` elements and ``marks``
    marks."""

    def __init__(self, whole: Layout, chosen: list[int], trained: int, marks: int) -> None:
        vars(self).update(vars(whole))
        self._arrange([(whole.names[at], whole.parameters[at]) for at in chosen], trained, marks)
        self._others = tuple([p for at, p in enumerate(whole.parameters) if at not in chosen])


def _shares_memory(gradient: Tensor) -> bool:
    """Whether another tensor, such as a flat buffer or a detached alias, may share the memory of
    ``gradient``."""
    storage = gradient.untyped_storage()
    if storage.nbytes() != gradient.numel() * gradient.element_size():
        return True
    return _count_uses(storage) > _USES_ALONE


def _count_uses(storage: Any) -> int:
    uses: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - there is no public one
    return uses


_ONE = torch.empty(1)
_USES_ALONE = _count_uses(_ONE.untyped_storage())
"""Use count, in this version of torch, of a storage that only one tensor references."""


def _grouped(sizes: Sequence[int]) -> Iterator[_Group]:
    """Yield groups of consecutive parameters. A group fits into a block, or is a single parameter
    that is longer than a block."""
    first = start = stop = 0
    for at, size in enumerate(sizes):
        if stop + size - start > BLOCK_NUMBERS and at > first:
            yield _Group(first, at, start, stop)
            first, start = at, stop
        stop += size
    yield _Group(first, len(sizes), start, stop)


def _is_finite(vector: Tensor) -> bool:
    """Return whether a vector ``(d,)`` on the CPU is finite, like ``gossip.vectors.is_finite``.
    This function uses torch, because suppressing numpy's warnings takes longer than reading a small
    vector."""
    squares = torch.dot(vector, vector).item()
    return math.isfinite(squares) or bool(torch.isfinite(vector).all())


def _copy_all(
    into: list[Tensor] | tuple[Tensor, ...], values: list[Tensor] | tuple[Tensor, ...]
) -> None:
    """Copy each tensor of ``values`` into the tensor at the same position of ``into``. A single
    call is several times faster than a loop if parameters are small."""
    torch._foreach_copy_(into, values)  # pyright: ignore[reportPrivateImportUsage]


def _check(name: str, parameter: Tensor) -> None:
    if torch.nn.parameter.is_lazy(parameter):
        raise UnsupportedModel(
            f"parameter {name} has no shape yet", "run the model on one batch before peer.prepare"
        )
    if parameter.is_meta:
        raise UnsupportedModel(
            f"parameter {name} is on the meta device: it has no values",
            "materialise the model first",
        )
    if parameter.layout != torch.strided:
        raise UnsupportedModel(
            f"parameter {name} is {parameter.layout}", "only dense parameters can be exchanged"
        )
    if parameter.dtype not in _MOVABLE:
        raise UnsupportedModel(
            f"parameter {name} is {parameter.dtype}, which cannot be exchanged as float32",
            "train in float32 or half precision",
        )
