"""In which schedules does a mutant make any difference? A copy of the package that says so while it
plays what it always plays.

A mutant that leaves every value that is computed as it was cannot be caught, and need not be
played. So where a mutant changes an expression, the copy computes both and takes its own; where it
changes statements, coming there counts. One run of this copy speaks for all mutants at once.

It says too much rather than too little: where a call could change something (all but those named
below), coming there counts. What it takes for granted: that looking something up in a table, or
whether it is in one, changes nothing there, that attributes are no iterators, that of two equal
numbers, texts or records either will do, and that nothing of a run is computed at import.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from catalogue import Mutant, placed, plant, source

PROBES = '''"""Which mutants made a difference since this was emptied, by number."""

from math import copysign

differing: set[int] = set()
# The mutant whose value is being computed: only what else it changes on the way is looked at.
_asked = None


def reached(*mutants):
    """They do something else from here on."""
    differing.update(mutants if _asked is None else {_asked}.intersection(mutants))


def asked(*others):
    """What the mutants would have here: (number, value) of each that is not known to differ yet,
    (number,) of one that fails."""
    global _asked
    found, before = [], _asked
    for mutant, compute in others:
        if mutant not in differing and before in (None, mutant):
            _asked = mutant
            try:
                found.append((mutant, compute()))
            except Exception:
                found.append((mutant,))
            finally:
                _asked = before
    return found


def _compared(others, compute, same):
    try:
        ours = compute()
    except BaseException:
        differing.update(mutant for mutant, *_ in others)
        raise
    for mutant, *theirs in others:
        try:
            if not theirs or not same(theirs[0], ours):
                differing.add(mutant)
        except Exception:
            differing.add(mutant)
    return ours


def _same_value(one, other):
    """What is in them may be changed later: there, two that are equal now are not the same."""
    kind = type(other)
    if type(one) is not kind:
        return False
    if kind in (tuple, list):
        return len(one) == len(other) and all(map(_same_thing, one, other))
    if kind is dict:
        return _same_value([*one.items()], [*other.items()])
    return bool(one == other) and (kind is not float or copysign(1.0, one) == copysign(1.0, other))


def _same_thing(one, other):
    # What may be changed has no hash.
    return one is other or (hash(other) is not None and _same_value(one, other))


def value(others, compute):
    return _compared(others, compute, _same_value)


def thing(others, compute):
    return _compared(others, compute, _same_thing)


def truth(others, compute):
    return _compared(others, compute, lambda one, other: bool(one) is bool(other))
'''
GOES_THROUGH = {
    "all",
    "any",
    "dict",
    "frozenset",
    "list",
    "max",
    "min",
    "next",
    "reversed",
    "set",
    "sorted",
    "sum",
    "tuple",
}
BUILTINS = GOES_THROUGH | {"bool", "float", "int", "isinstance", "len"}
LOOKS = {"at", "difference", "digest_of", "get", "intersection", "items", "keys", "length", "log10"}
LOOKS |= {
    "needed_by_rule",
    "skip_reason",
    "speaks_on",
    "statements",
    "unheard",
    "union",
    "values",
    "_majority",
    "_measured",
}
LOOKS_BEGIN = ("is_", "_is_", "has_", "_has_", "may_", "_may_", "can_", "_can_")
"""Functions and methods that leave everything as it is,"""
CHANGE = {
    "_is_crowded",
    "_is_patience_over",
    "is_first_request",
}
"""but for these."""
FRESH = (ast.Call, ast.GeneratorExp)
WHOLE = (
    ast.BoolOp,
    ast.Compare,
    ast.UnaryOp,
    ast.BinOp,
    ast.IfExp,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.Tuple,
    ast.List,
)
"""What differs within one of these differs for the rest of the program by the value
of the whole only."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression of ours, and what a mutant has in its place."""

    ours: ast.expr
    theirs: ast.expr
    is_truth: bool

    @property
    def asked_by(self) -> str:
        if self.is_truth:
            return "truth"
        # What is only referred to may be changed later: two that are equal now are not the same.
        return "value" if _is_new(self.ours) and _is_new(self.theirs) else "thing"


@dataclass(frozen=True, slots=True)
class Point:
    """Before the statement ``at`` of ``body``."""

    body: list[ast.stmt]
    at: int


Place = Value | Point


def plant_probes(mutants: Sequence[Mutant], folder: Path) -> Path:
    """As ``catalogue.plant``: a copy with ``gossip.mutant_probes`` to ask. A mutant's number is its
    place in ``mutants``."""
    plant(None, folder)
    changed: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, mutant in enumerate(mutants):
        for file, text in mutant.texts().items():
            changed[file].append((number, text))
    always: set[int] = set()
    for file, texts in changed.items():
        ours = ast.parse(source(file).read_text("utf-8"))
        placed(file, folder).write_text(_probed(ours, texts, always), "utf-8")
    (folder / "gossip/mutant_probes.py").write_text(
        f"{PROBES}\n\nalways = {sorted(always)}\n", "utf-8"
    )
    return folder


def _probed(ours: ast.Module, texts: Iterable[tuple[int, str]], always: set[int]) -> str:
    """The text of a module with probes. ``always`` takes those that differ at import:
    in a default, say."""
    in_runs = _computed_in_runs(ours)
    values: dict[ast.expr, list[tuple[int, Value]]] = defaultdict(list)
    points: dict[tuple[int, int], list[tuple[int, Point]]] = defaultdict(list)
    for number, text in texts:
        for place in places(ours, ast.parse(text)):
            if (place.ours if isinstance(place, Value) else place.body[0]) not in in_runs:
                always.add(number)
            elif isinstance(place, Value):
                values[place.ours].append((number, place))
            else:
                points[id(place.body), place.at].append((number, place))
    # From the last statement of a body to its first: what is put in moves those behind it.
    for _, found in sorted(points.items(), key=lambda each: -each[0][1]):
        body, at = found[0][1].body, found[0][1].at
        body.insert(at, ast.Expr(_call("reached", [ast.Constant(number) for number, _ in found])))
    tree = _Probing(values).visit(ours)
    assert isinstance(tree, ast.Module)
    start = next(at for at, node in enumerate(tree.body) if not _comes_first(node))
    tree.body.insert(start, ast.ImportFrom("gossip", [ast.alias("mutant_probes", "_probes")], 0))
    return ast.unparse(ast.fix_missing_locations(tree))


def _computed_in_runs(module: ast.Module) -> set[ast.AST]:
    """What is computed when a function is called, and not at import."""
    found: set[ast.AST] = set()
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            found.update(node for statement in function.body for node in ast.walk(statement))
    return found


def _comes_first(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _call(name: str, arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name("_probes", ast.Load()), name, ast.Load()), arguments, [])


def _lambda(computed: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), computed)


class _Probing(ast.NodeTransformer):
    def __init__(self, values: dict[ast.expr, list[tuple[int, Value]]]) -> None:
        self._values = values

    def visit(self, node: ast.AST) -> ast.AST:
        found = self._values.get(node, []) if isinstance(node, ast.expr) else []
        visited: ast.AST = self.generic_visit(node)
        for name in ("truth", "thing", "value"):
            asked: list[ast.expr] = []
            for number, place in found:
                if place.asked_by == name:
                    asked.append(
                        ast.Tuple([ast.Constant(number), _lambda(place.theirs)], ast.Load())
                    )
            if asked:
                assert isinstance(visited, ast.expr)
                visited = _call(name, [_call("asked", asked), _lambda(visited)])
        return visited


# --- where two trees differ -----------------------------------------------------------------------


def places(ours: ast.Module, theirs: ast.Module) -> list[Place]:
    """Where to look for a difference between what two modules do."""
    return _in_body(ours.body, theirs.body)


def _in_body(ours: list[ast.stmt], theirs: list[ast.stmt]) -> list[Place]:
    if len(ours) == len(theirs):
        found: list[Place] = []
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            within = _within(one, other, is_truth=False)
            found += [Point(ours, at)] if within is None else within
        return found
    pairs = list(zip(ours, theirs, strict=False))
    at = next((at for at, pair in enumerate(pairs) if not _same(*pair)), len(pairs))
    if len(ours) == len(theirs) + 1 and all(map(_same, ours[at + 1 :], theirs[at:])):
        gone = ours[at]  # a guard that is left out makes a difference where it holds
        if (
            isinstance(gone, ast.If)
            and not gone.orelse
            and _only_looks(gone.test)
            and not _names(gone.test)
        ):
            return [Value(gone.test, ast.Constant(False), is_truth=True)]
    return [Point(ours, at)]


def _within(ours: ast.AST, theirs: ast.AST, is_truth: bool) -> list[Place] | None:
    """None: they differ in what is no value of this node."""
    if _same(ours, theirs):
        return []
    found = _below(ours, theirs, is_truth)
    if not _may_be_asked(ours, theirs, is_truth):
        return found
    if found is None or _is_whole(ours):
        assert isinstance(ours, ast.expr)
        assert isinstance(theirs, ast.expr)
        return [Value(ours, theirs, is_truth)]
    return found


def _below(ours: ast.AST, theirs: ast.AST, is_truth: bool) -> list[Place] | None:
    if type(ours) is not type(theirs) or isinstance(ours, ast.pattern | ast.JoinedStr | ast.Lambda):
        return None
    found: list[Place] = []
    for name in ours._fields:
        one, other = getattr(ours, name), getattr(theirs, name)
        if isinstance(one, list) and one and isinstance(one[0], ast.stmt):
            found += _in_body(one, other)
            continue
        ones, others = (one, other) if isinstance(one, list) else ([one], [other])
        if len(ones) != len(others):
            return None
        decides = name in ("test", "ifs") or (
            isinstance(ours, ast.UnaryOp) and isinstance(ours.op, ast.Not)
        )
        decides = decides or (is_truth and isinstance(ours, ast.BoolOp))
        for mine, its in zip(ones, others, strict=True):
            if not isinstance(mine, ast.AST) or not isinstance(its, ast.AST):
                within: list[Place] | None = [] if (type(mine), mine) == (type(its), its) else None
            else:
                within = _within(mine, its, decides)
            if within is None:
                return None
            found += within
    return found


def _same(one: object, other: object) -> bool:
    """Whether two trees say the same, wherever they stand."""
    if type(one) is not type(other):
        return False
    if isinstance(one, ast.AST):
        return all(
            _same(getattr(one, name, None), getattr(other, name, None)) for name in one._fields
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other or repr(one) == repr(other)


def _is_whole(ours: ast.AST) -> bool:
    is_builtin = (
        isinstance(ours, ast.Call) and isinstance(ours.func, ast.Name) and ours.func.id in BUILTINS
    )
    return is_builtin or isinstance(ours, WHOLE)


def _may_be_asked(ours: ast.AST, theirs: ast.AST, is_truth: bool) -> bool:
    for each in (ours, theirs):
        if not isinstance(each, ast.expr) or isinstance(
            each, ast.Starred | ast.Slice | ast.GeneratorExp | ast.FormattedValue
        ):
            return False
        if not isinstance(getattr(each, "ctx", ast.Load()), ast.Load):
            return False
        if _names(each):
            return False  # what it names differs, too
    if any(True for _ in _consumed(theirs)) or _goes_on(ours) or _goes_on(theirs):
        return False  # what has only a name may be an iterator, of which nothing would be left
    # Of a call that changes something the value is not all: whether it is made matters, and it
    # cannot be made to see.
    return _only_looks(ours) and _only_looks(theirs)


def _is_new(tree: ast.expr) -> bool:
    """Whether it makes what it gives, which nobody else has then."""
    if isinstance(tree, ast.Call):
        return isinstance(tree.func, ast.Name) and tree.func.id in {"dict", "list", "set", "sorted"}
    return isinstance(
        tree, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.SetComp | ast.DictComp
    )


def _names(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(tree))


def _only_looks(tree: ast.AST) -> bool:
    return all(_is_look(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_look(function: ast.expr) -> bool:
    if isinstance(function, ast.Name) and function.id in BUILTINS:
        return True
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name in LOOKS or (name.startswith(LOOKS_BEGIN) and name not in CHANGE)


def _consumed(tree: ast.AST) -> Iterator[ast.expr]:
    """What it goes through, one by one, and has not made itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension):
            yield from _given(node.iter)
        elif isinstance(node, ast.Starred):
            yield from _given(node.value)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in GOES_THROUGH
        ):
            for argument in node.args:
                yield from _given(argument)


def _given(tree: ast.expr) -> Iterator[ast.expr]:
    if isinstance(tree, ast.BoolOp):
        for value in tree.values:
            yield from _given(value)
    elif isinstance(tree, ast.IfExp):
        yield from (*_given(tree.body), *_given(tree.orelse))
    elif isinstance(tree, ast.Name):
        yield tree


def _goes_on(tree: ast.AST) -> bool:
    """Whether it takes the next of what is gone through elsewhere."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        isinstance(call.func, ast.Name)
        and call.func.id == "next"
        and not isinstance(call.args[0], FRESH)
        for call in calls
    )
