"""In which schedules does a mutant make any difference? A copy of the package that says so while it plays what it always plays.

A mutant that leaves every value that is computed as it was cannot be caught, and need not be played. So where a mutant changes
an expression, the copy computes both and takes its own; where it changes statements, coming there counts. One run of this copy
speaks for all mutants at once.

What it says may be too much, never too little: where a call could change something (all but those named below), coming there
counts.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from catalogue import ROOT, Mutant, plant

PROBES = '''"""Which mutants made a difference since this was emptied, by number."""

from collections.abc import Hashable

differing: set[int] = set()
_asking = False


def reached(*mutants):
    """They do something else from here on."""
    if not _asking:
        differing.update(mutants)


def asked(*others):
    """What the mutants would have here: (number, value) of each that is not known to differ yet, (number,) of one that fails."""
    global _asking
    if _asking:
        return ()
    found, _asking = [], True
    for mutant, compute in others:
        if mutant not in differing:
            try:
                found.append((mutant, compute()))
            except Exception:
                found.append((mutant,))
    _asking = False
    return found


def value(others, ours):
    for mutant, *theirs in others:
        try:
            same = bool(theirs) and type(theirs[0]) is type(ours) and bool(theirs[0] == ours)
        except Exception:
            same = False
        if not same:
            differing.add(mutant)
    return ours


def thing(others, ours):
    for mutant, *theirs in others:
        if not theirs or (theirs[0] is not ours and not isinstance(ours, Hashable)):
            differing.add(mutant)
    return value(others, ours)


def truth(others, ours):
    for mutant, *theirs in others:
        if not theirs or bool(theirs[0]) is not bool(ours):
            differing.add(mutant)
    return ours
'''
GOES_THROUGH = {"all", "any", "dict", "frozenset", "list", "max", "min", "next", "reversed", "set", "sorted", "sum", "tuple"}
BUILTINS = GOES_THROUGH | {"bool", "float", "int", "isinstance", "len"}
LOOKS = BUILTINS | {"at", "difference", "digest_of", "get", "intersection", "items", "keys", "lacks", "length", "log10"}
LOOKS |= {
    "needed_by_rule",
    "said_so",
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
"""Functions and methods that leave everything as it is."""
WHOLE = (ast.BoolOp, ast.Compare, ast.UnaryOp, ast.BinOp, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.Tuple, ast.List)
"""What differs within one of these differs for the rest of the program by the value of the whole only."""


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
        return "thing" if isinstance(self.theirs, ast.Name | ast.Attribute | ast.Subscript) else "value"


@dataclass(frozen=True, slots=True)
class Point:
    """Before the statement ``at`` of ``body``."""

    body: list[ast.stmt]
    at: int


Place = Value | Point


def plant_probes(mutants: Sequence[Mutant], folder: Path) -> Path:
    """As ``catalogue.plant``: a copy with ``gossip.mutant_probes`` to ask. A mutant's number is its place in ``mutants``."""
    plant(None, folder)
    changed: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, mutant in enumerate(mutants):
        for file, text in mutant.texts(ROOT / "gossip").items():
            changed[file].append((number, text))
    always: set[int] = set()
    for file, texts in changed.items():
        ours = ast.parse((ROOT / "gossip" / file).read_text("utf-8"))
        (folder / "gossip" / file).write_text(_probed(ours, texts, always), "utf-8")
    (folder / "gossip/mutant_probes.py").write_text(f"{PROBES}\n\nalways = {sorted(always)}\n", "utf-8")
    return folder


def _probed(ours: ast.Module, texts: Iterable[tuple[int, str]], always: set[int]) -> str:
    """The text of a module with probes. ``always`` takes those whose difference is not one of each run: in a default, or kept."""
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
    start = next(at for at, node in enumerate(tree.body) if not _comes_first(node))
    tree.body.insert(start, ast.ImportFrom("gossip", [ast.alias("mutant_probes", "_probes")], 0))
    return ast.unparse(ast.fix_missing_locations(tree))


def _computed_in_runs(module: ast.Module) -> set[ast.AST]:
    """What is computed each time that a function is called: not what is computed at import, nor what is kept from run to run."""
    found: set[ast.AST] = set()
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            is_kept = any("cache" in ast.unparse(decorator) for decorator in function.decorator_list)
            found.update([] if is_kept else [node for statement in function.body for node in ast.walk(statement)])
    return found


def _comes_first(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _call(name: str, arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name("_probes", ast.Load()), name, ast.Load()), arguments, [])


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
                    nothing = ast.arguments([], [], None, [], [], None, [])
                    asked.append(ast.Tuple([ast.Constant(number), ast.Lambda(nothing, place.theirs)], ast.Load()))
            if asked:
                assert isinstance(visited, ast.expr)
                visited = _call(name, [_call("asked", asked), visited])
        return visited


# --- where two trees differ -------------------------------------------------------------------------------------------------


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
        if isinstance(gone, ast.If) and not gone.orelse and _only_looks(gone.test) and not _names(gone.test):
            return [Point(gone.body, 0)]
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
        decides = name in ("test", "ifs") or (isinstance(ours, ast.UnaryOp) and isinstance(ours.op, ast.Not))
        decides = decides or (is_truth and isinstance(ours, ast.BoolOp))
        for mine, its in zip(ones, others, strict=True):
            if not isinstance(mine, ast.AST) or not isinstance(its, ast.AST):
                within: list[Place] | None = [] if mine == its else None
            else:
                within = _within(mine, its, decides)
            if within is None:
                return None
            found += within
    return found


def _same(one: ast.AST, other: ast.AST) -> bool:
    return ast.dump(one) == ast.dump(other)


def _is_whole(ours: ast.AST) -> bool:
    is_builtin = isinstance(ours, ast.Call) and isinstance(ours.func, ast.Name) and ours.func.id in BUILTINS
    return is_builtin or isinstance(ours, WHOLE)


def _may_be_asked(ours: ast.AST, theirs: ast.AST, is_truth: bool) -> bool:
    for each in (ours, theirs):
        if not isinstance(each, ast.expr) or isinstance(each, ast.Starred | ast.Slice | ast.GeneratorExp | ast.FormattedValue):
            return False
        if not isinstance(getattr(each, "ctx", ast.Load()), ast.Load):
            return False
        if _names(each):
            return False  # what it names differs, too
    if any(isinstance(node, ast.Name) for node in _consumed(theirs)):
        return False  # it may be an iterator, of which nothing would be left
    # Of a call that changes something the value is not all: whether it is made matters, and it cannot be made to see.
    return _only_looks(ours) and _only_looks(theirs)


def _names(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(tree))


def _only_looks(tree: ast.AST) -> bool:
    return all(_is_look(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_look(function: ast.expr) -> bool:
    name = function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    return name in LOOKS or name.startswith(LOOKS_BEGIN)


def _consumed(tree: ast.AST) -> Iterator[ast.expr]:
    """What it goes through, one by one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension):
            yield node.iter
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GOES_THROUGH:
            yield from node.args
