"""A numba type for vectors of eight, 16 or 32 float32, and the operations on it that the kernels
use. The compiler cuts a vector that is longer than a register.

The compiler need not vectorize a loop over columns; with this type it must. Addresses are plain
integers, so rows may be separate. Only compiled code may call these functions; importing the module
imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.types.containers import UniTuple
from numba.extending import intrinsic, register_model

from .network import RUNS, comparators

WIDTH = 8
STEP = 4 * WIDTH  # bytes of a vector
TILE_ROWS, TILE_COLUMNS = 4, 3

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)


class Lanes(types.Type):
    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"Lanes{width}")


lanes = Lanes(WIDTH)
SAME = object()
"""Type of vectors of any width. All operands and the result then have the same width."""


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _vector(of.width))


def _vector(width: int) -> Any:
    return ir.VectorType(ir.FloatType(), width)


def _operation(result: Any, *takes: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic from a function ``(builder, *values) -> value``. ``result`` and ``takes``:
    types of the value and of the arguments; with ``types.void`` the intrinsic returns nothing."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = emit(builder, *args)
            return context.get_dummy_value() if result is types.void else value

        def typed(*given: Any) -> Any:
            same: Any = next((each for each in given if isinstance(each, Lanes)), None)
            made, *operands = [same if each is SAME else each for each in (result, *takes)]
            return made(*operands), codegen

        if len(takes) == 1:
            return intrinsic(lambda typing, a: typed(a))
        if len(takes) == 2:
            return intrinsic(lambda typing, a, b: typed(a, b))
        if len(takes) == 3:
            return intrinsic(lambda typing, a, b, c: typed(a, b, c))
        return intrinsic(lambda typing, a, b, c, d: typed(a, b, c, d))

    return decorate


def _of_widths(emit: Callable[..., Any], *takes: Any) -> list[Any]:
    """Make an intrinsic for each of the three widths from ``emit``, a function
    ``(builder, *values, width=...) -> vector``."""
    return [
        _operation(Lanes(width), *takes)(partial(emit, width=width))
        for width in (WIDTH, 2 * WIDTH, 4 * WIDTH)
    ]


def _function(builder: Any, name: str, result: Any, *takes: Any) -> Any:
    return cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(result, list(takes)), name
    )


def _pointer(builder: Any, address: Any, to: Any) -> Any:
    return builder.inttoptr(address, to.as_pointer())


@intrinsic
def address_of(typing: Any, pointer: Any) -> Any:
    """Return a pointer as an integer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], _INT64)

    return types.int64(pointer), codegen


def _load(builder: Any, address: Any, width: int = WIDTH) -> Any:
    value = builder.load(_pointer(builder, address, _vector(width)))
    value.align = 4
    return value


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, _pointer(builder, address, value.type)).align = 4


load, load_two, load_four = _of_widths(_load, types.int64)
store = _operation(types.void, types.int64, SAME)(_store)


def _splat(builder: Any, number: Any, width: int) -> Any:
    unset = ir.Constant(_vector(width), ir.Undefined)
    single = builder.insert_element(unset, number, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(
        single, unset, ir.Constant(ir.VectorType(_INT32, width), [0] * width)
    )


def _spread(builder: Any, address: Any, width: int) -> Any:
    """Return the value at one address in all lanes."""
    return _splat(builder, builder.load(_pointer(builder, address, ir.FloatType())), width)


splat, splat_two, splat_four = _of_widths(_splat, types.float32)
_, spread_two, spread_four = _of_widths(_spread, types.int64)


add, sub, mul = [
    _operation(SAME, SAME, SAME)(emit)
    for emit in (ir.IRBuilder.fadd, ir.IRBuilder.fsub, ir.IRBuilder.fmul)
]


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c with one rounding."""
    found = _function(builder, f"llvm.fma.v{a.type.count}f32", *[a.type] * 4)
    return builder.call(found, [a, b, c])


fma = _operation(SAME, SAME, SAME, SAME)(_fma)
tile = UniTuple(lanes, TILE_ROWS * TILE_COLUMNS)
"""Type of the twelve sums of products of four rows with three rows, in registers."""


@_operation(tile, types.int64)
def load_tile(builder: Any, address: Any) -> Any:
    value = builder.load(_pointer(builder, address, ir.ArrayType(_vector(WIDTH), len(tile))))
    value.align = 4
    return value


@_operation(types.void, types.int64, tile)
def store_tile(builder: Any, address: Any, value: Any) -> None:
    _store(builder, address, value)


@_operation(tile, tile, types.int64, types.int64, types.int64)
def add_products(builder: Any, sums: Any, first: Any, second: Any, stride: Any) -> Any:
    """Add to the sums the products of four vectors with three vectors, and return them.
    Consecutive vectors are ``stride`` bytes apart."""
    others = []
    for _ in range(TILE_COLUMNS):
        others.append(_load(builder, second))
        second = builder.add(second, stride)
    for row in range(TILE_ROWS):
        own = _load(builder, first)
        first = builder.add(first, stride)
        for at, other in enumerate(others, TILE_COLUMNS * row):
            added = _fma(builder, own, other, builder.extract_value(sums, at))
            sums = builder.insert_value(sums, added, at)
    return sums


def _extreme(builder: Any, which: str, a: Any, b: Any) -> Any:
    """Return the result of minnum or maxnum. If the result replaces an operand, a comparison and a
    selection would become a masked store, which takes twenty times as long on some processors. The
    operands have no NaN, and of 0 and -0 either may be returned.
    """
    found = _function(builder, f"llvm.{which}.v{a.type.count}f32", *[a.type] * 3)
    return builder.call(found, [a, b], fastmath=("nnan", "nsz"))


@_operation(SAME, SAME, SAME)
def least(builder: Any, a: Any, b: Any) -> Any:
    return _extreme(builder, "minnum", a, b)


@_operation(SAME, SAME, SAME)
def most(builder: Any, a: Any, b: Any) -> Any:
    return _extreme(builder, "maxnum", a, b)


@_operation(SAME, SAME, SAME, SAME, SAME)
def where_more(builder: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    """Return ``then`` in the lanes where a > b, ``otherwise`` in the others."""
    return builder.select(builder.fcmp_ordered(">", a, b), then, otherwise)


def _run(length: int) -> Any:
    """Return an intrinsic that reads one vector from each of ``length`` rows, sorts the vectors in
    the registers, and writes them ``stride`` bytes apart.

    The intrinsic returns a value other than 0 if an element is NaN, because sorting loses NaNs. One
    comparison of two elements detects a NaN in either.
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
        return builder.zext(_bits(builder, strange), _INT64)

    return sort_run


sort_sixteen, sort_eight, sort_four, sort_two = (_run(length) for length in RUNS)


def _bits(builder: Any, mask: Any) -> Any:
    return builder.bitcast(mask, ir.IntType(mask.type.count))


def _count(builder: Any, mask: Any) -> Any:
    bits = _bits(builder, mask)
    count = _function(builder, f"llvm.ctpop.i{mask.type.count}", bits.type, bits.type)
    return builder.zext(builder.call(count, [bits]), _INT64)


@_operation(types.int64, SAME, SAME, SAME)
def inside(builder: Any, value: Any, low: Any, high: Any) -> Any:
    """Return the number of lanes with low <= value <= high."""
    mask = builder.and_(
        builder.fcmp_ordered(">=", value, low), builder.fcmp_ordered("<=", value, high)
    )
    return _count(builder, mask)


@_operation(types.int64, SAME)
def beyond(builder: Any, value: Any) -> Any:
    """Return the number of lanes that are not finite."""
    zero = ir.Constant(value.type, [0.0] * value.type.count)
    return _count(builder, builder.fcmp_unordered("!=", builder.fsub(value, value), zero))


@_operation(types.int64, SAME)
def strange(builder: Any, value: Any) -> Any:
    """Return a value other than 0 if a lane is NaN."""
    return builder.zext(_bits(builder, builder.fcmp_unordered("uno", value, value)), _INT64)


@_operation(types.float32, SAME)
def total(builder: Any, value: Any) -> Any:
    """Return the sum of all lanes, in one fixed order."""
    half = value.type.count // 2
    while half:
        upper, lower = [
            builder.shuffle_vector(
                value, value, ir.Constant(ir.VectorType(_INT32, half), [*range(at, at + half)])
            )
            for at in (half, 0)
        ]
        value = builder.fadd(lower, upper)
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
    """Atomically add one to the int64 at an address, and return its previous value. So every thread
    gets a different value."""
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
