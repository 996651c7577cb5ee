"""A numba type for vectors of eight float32, and the operations on it that the kernels use.

The compiler need not vectorize a loop over columns; with this type it must. Addresses are plain
integers, so rows may be separate. Only compiled code may call these functions; importing the module
imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from .network import RUNS, comparators

WIDTH = 8
STEP = 4 * WIDTH  # bytes of a vector

_VECTOR = ir.VectorType(ir.FloatType(), WIDTH)
_BITS = ir.IntType(WIDTH)
_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
_UNSET = ir.Constant(_VECTOR, ir.Undefined)


class Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name=f"Lanes{WIDTH}")


lanes = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _VECTOR)


def _operation(result: Any, *takes: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic from a function ``(builder, *values) -> value``. Without a result the
    intrinsic returns nothing."""

    def make(emit: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = emit(builder, *args)
            return context.get_dummy_value() if result is types.void else value

        return codegen

    def decorate(emit: Callable[..., Any]) -> Any:
        codegen = make(emit)
        if len(takes) == 1:
            return intrinsic(lambda typing, a: (result(*takes), codegen))
        if len(takes) == 2:
            return intrinsic(lambda typing, a, b: (result(*takes), codegen))
        if len(takes) == 3:
            return intrinsic(lambda typing, a, b, c: (result(*takes), codegen))
        return intrinsic(lambda typing, a, b, c, d: (result(*takes), codegen))

    return decorate


def _function(builder: Any, name: str, result: Any, *takes: Any) -> Any:
    return cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(result, list(takes)), name
    )


def _pointer(builder: Any, address: Any, to: Any) -> Any:
    return builder.inttoptr(address, to.as_pointer())


@intrinsic
def address_of(typing: Any, pointer: Any) -> Any:
    """Return the number of a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], _INT64)

    return types.int64(pointer), codegen


def _load(builder: Any, address: Any) -> Any:
    value = builder.load(_pointer(builder, address, _VECTOR))
    value.align = 4
    return value


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, _pointer(builder, address, _VECTOR)).align = 4


load = _operation(lanes, types.int64)(_load)
store = _operation(types.void, types.int64, lanes)(_store)


def _splat(builder: Any, number: Any) -> Any:
    single = builder.insert_element(_UNSET, number, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(
        single, _UNSET, ir.Constant(ir.VectorType(_INT32, WIDTH), [0] * WIDTH)
    )


@_operation(lanes, types.int64)
def spread(builder: Any, address: Any) -> Any:
    """Return the value at one address in all lanes."""
    return _splat(builder, builder.load(_pointer(builder, address, ir.FloatType())))


@_operation(lanes, types.float32)
def splat(builder: Any, number: Any) -> Any:
    return _splat(builder, number)


@_operation(lanes, lanes, lanes)
def add(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b)


@_operation(lanes, lanes, lanes)
def sub(builder: Any, a: Any, b: Any) -> Any:
    return builder.fsub(a, b)


@_operation(lanes, lanes, lanes)
def mul(builder: Any, a: Any, b: Any) -> Any:
    return builder.fmul(a, b)


@_operation(lanes, lanes, lanes, lanes)
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c with one rounding."""
    return builder.call(
        _function(builder, f"llvm.fma.v{WIDTH}f32", _VECTOR, _VECTOR, _VECTOR, _VECTOR), [a, b, c]
    )


def _extreme(builder: Any, which: str, a: Any, b: Any) -> Any:
    """Return minnum or maxnum. A comparison and a selection would become a masked store if the
    result replaces an operand, which takes some processors twenty times as long. Operands have no
    NaN, and either of two zeros may be returned.
    """
    found = _function(builder, f"llvm.{which}.v{WIDTH}f32", _VECTOR, _VECTOR, _VECTOR)
    return builder.call(found, [a, b], fastmath=("nnan", "nsz"))


@_operation(lanes, lanes, lanes)
def least(builder: Any, a: Any, b: Any) -> Any:
    return _extreme(builder, "minnum", a, b)


@_operation(lanes, lanes, lanes)
def most(builder: Any, a: Any, b: Any) -> Any:
    return _extreme(builder, "maxnum", a, b)


@_operation(lanes, lanes, lanes, lanes, lanes)
def where_more(builder: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    """Return ``then`` in the lanes where a > b, ``otherwise`` in the others."""
    return builder.select(builder.fcmp_ordered(">", a, b), then, otherwise)


def _run(length: int) -> Any:
    """Read one vector of each of several rows, sort them in the registers, and write them
    ``stride`` bytes apart.

    It returns 0, or another number if one of the values is a NaN, which sorting loses. A comparison
    of two values detects a NaN in both.
    """

    @_operation(types.int64, types.int64, types.int64, types.int64, types.int64)
    def sort_run(builder: Any, rows: Any, at: Any, into: Any, stride: Any) -> Any:
        values = []
        for row in range(length):
            address = builder.load(
                _pointer(builder, builder.add(rows, ir.Constant(_INT64, 8 * row)), _INT64)
            )
            values.append(_load(builder, builder.add(address, at)))
        pairs = zip(values[::2], values[1::2], strict=True)
        strange = reduce(builder.or_, [builder.fcmp_unordered("uno", a, b) for a, b in pairs])
        for _, _, low, high in comparators(length):
            a, b = values[low], values[high]
            values[low], values[high] = (
                _extreme(builder, "minnum", a, b),
                _extreme(builder, "maxnum", a, b),
            )
        for value in values:
            _store(builder, into, value)
            into = builder.add(into, stride)
        return builder.zext(builder.bitcast(strange, _BITS), _INT64)

    return sort_run


sort_sixteen, sort_eight, sort_four, sort_two = (_run(length) for length in RUNS)


def _count(builder: Any, mask: Any) -> Any:
    ones = builder.call(
        _function(builder, f"llvm.ctpop.i{WIDTH}", _BITS, _BITS), [builder.bitcast(mask, _BITS)]
    )
    return builder.zext(ones, _INT64)


@_operation(types.int64, lanes, lanes, lanes)
def inside(builder: Any, value: Any, low: Any, high: Any) -> Any:
    """Return the number of lanes with low <= value <= high."""
    mask = builder.and_(
        builder.fcmp_ordered(">=", value, low), builder.fcmp_ordered("<=", value, high)
    )
    return _count(builder, mask)


@_operation(types.int64, lanes)
def beyond(builder: Any, value: Any) -> Any:
    """Return the number of lanes that are not finite."""
    return _count(
        builder,
        builder.fcmp_unordered(
            "!=", builder.fsub(value, value), ir.Constant(_VECTOR, [0.0] * WIDTH)
        ),
    )


@_operation(types.int64, lanes)
def strange(builder: Any, value: Any) -> Any:
    """Return 0, or another number if a lane is a NaN."""
    return builder.zext(builder.bitcast(builder.fcmp_unordered("uno", value, value), _BITS), _INT64)


@_operation(types.float32, lanes)
def total(builder: Any, value: Any) -> Any:
    """Return the sum of all lanes, in one fixed order."""
    half = WIDTH // 2
    while half:
        turned = ir.Constant(
            ir.VectorType(_INT32, WIDTH), [(lane + half) % WIDTH for lane in range(WIDTH)]
        )
        value = builder.fadd(value, builder.shuffle_vector(value, _UNSET, turned))
        half //= 2
    return builder.extract_element(value, ir.Constant(_INT32, 0))


@_operation(types.int64, types.int64)
def word(builder: Any, address: Any) -> Any:
    """Return the int64 at an address."""
    return builder.load(_pointer(builder, address, _INT64))


@_operation(types.float32, types.int64)
def number(builder: Any, address: Any) -> Any:
    """Return the float32 at an address."""
    return builder.load(_pointer(builder, address, ir.FloatType()))


@_operation(types.void, types.int64, types.float32)
def put(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, _pointer(builder, address, ir.FloatType()))


@_operation(types.void, types.int64, types.float64)
def put_double(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, _pointer(builder, address, ir.DoubleType()))


@_operation(types.int64, types.int64)
def draw_ticket(builder: Any, address: Any) -> Any:
    """Add one to the int64 at an address, and return its previous value, which is different for
    each thread."""
    return builder.atomic_rmw(
        "add", _pointer(builder, address, _INT64), ir.Constant(_INT64, 1), "monotonic"
    )


@_operation(types.void, types.int64, types.int64)
def add_at(builder: Any, address: Any, count: Any) -> None:
    builder.atomic_rmw("add", _pointer(builder, address, _INT64), count, "monotonic")


@_operation(types.void, types.int64)
def fetch_soon(builder: Any, address: Any) -> None:
    """Prefetch the cache line at an address; an invalid address has no effect."""
    byte = ir.IntType(8).as_pointer()
    ask = _function(builder, "llvm.prefetch.p0", ir.VoidType(), byte, _INT32, _INT32, _INT32)
    builder.call(
        ask, [builder.inttoptr(address, byte), *(ir.Constant(_INT32, flag) for flag in (0, 2, 1))]
    )


@njit
def hold(array: Any) -> None:
    """Keep an array alive until this call. Numba frees an array if only its address is used."""
