"""Loads rules by name: built in, registered, or from an entry point, a module or a file.

    suspicion                   A name from ``names()``. trimmed-mean and trimmed_mean are the same.
    multi_krum:m=3,f=1          A name with options. Their types are those of the signature.
    my_rules.py:my_rule         A function in a file, relative to the working directory.
    package.module:my_rule:k=2  A function in a module. The module's name need not have a dot.
    bucketing:s=2+nnm+krum      Pre-aggregations, then a rule. Each part is written as above.

The names are available without an import of torch, so that ``--help`` is quick.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from gossip.errors import ConfigError, TooFewUpdates, UnknownName
from gossip.interpreter import importing_users_modules
from gossip.specs import describe_error, load_named, option_types, read_value, split_options

if TYPE_CHECKING:
    from torch import Tensor

    from .base import RowFunction, Rule, Updates, Verdict
    from .composing import PreAggregation

Registered = TypeVar("Registered", bound="Rule | PreAggregation")
log = logging.getLogger(__name__)
ENTRY_POINTS = "gossip.aggregators"
TRIED_COORDINATES = 8
_NEVER_OPTIONS = frozenset({"center", "previous", "evaluate", "gradient"})
"""Parameters that are never options: tensors and functions that only the runtime has."""

_FAMILIES = {
    "means": ("mean",),
    "guarded": ("guarded_mean",),
    "coordinates": ("median", "trimmed_mean", "meamed", "phocas", "sign_majority"),
    "distances": ("krum", "multi_krum", "bulyan", "mda"),
    "selecting": ("monna", "faba", "cge"),
    "clipped": ("centered_clipping", "self_centered_clipping"),
    "spectral": ("smea", "caf", "dnc", "spectral_clipping"),
    "weiszfeld": ("geometric_median", "rfa"),
    "reweighting": ("suspicion", "suspicion_literal", "huber", "cauchy"),
    "descent": ("zeno", "zeno_pp", "fltrust", "judged_clipping"),
}
_BUILT_IN = {name: home for home, rules in _FAMILIES.items() for name in rules}
_PRE_AGGREGATIONS = dict.fromkeys(("nnm", "bucketing", "clipping", "arc"), "mixing")
_registered: dict[str, Rule | PreAggregation] = {}


@dataclass(frozen=True, slots=True)
class BoundRule:
    """Rule with values for its options, as a node runs it.

    Attributes:
        name: The rule's name, without options.
        spec: Argument of ``load``. It loads the same rule in every process with the same files.
        options: Options in the spec. They override arguments of the runtime: ``f=1`` overrides
            the run's f.
    """

    name: str
    rule: Rule
    options: Mapping[str, Any] = field(default_factory=dict)
    spec: str = ""

    @property
    def needs(self) -> frozenset[str]:
        """Arguments that the runtime must supply: ``Rule.needs`` without those that the options
        fix."""
        return self.rule.needs - frozenset(self.options)

    @property
    def needs_trainer(self) -> bool:
        return self.rule.needs_trainer

    @property
    def judges_directions(self) -> bool:
        """Whether the rule compares updates with the judge's gradient. Then a peer's update does
        not stand out only because its data differ from the others'. Under a rule that uses the loss
        (Zeno), updates from rare data stand out too."""
        return "gradient" in self.needs

    @property
    def needs_center(self) -> bool:
        """Whether the rule needs the local update, which only gossip topologies have."""
        center = self.rule.parameters.get("center")
        return center is not None and center.default is inspect.Parameter.empty

    @property
    def whole_vector(self) -> bool:
        return self.rule.whole_vector

    @property
    def by_pointer(self) -> bool:
        """Whether the rule reads separate vectors where they are; otherwise they are stacked
        first."""
        return self.rule.takes_rows or not self.rule.whole_vector

    @property
    def cross_shard(self) -> bool:
        """Whether updates may be cut into shards, for which the servers make a common decision."""
        return self.rule.by_sums is not None

    @property
    def discerning(self) -> bool:
        return self.rule.discerning

    @property
    def robust(self) -> bool:
        """Whether the rule declares a bound on how far attackers can move the aggregate."""
        return bool(self.rule.robust)

    @property
    def from_rows(self) -> RowFunction | None:
        """The rule's function for separate rows (``Rule.of_rows``). None if there is no such
        function, or if options are set."""
        return None if self.options else self.rule.from_rows

    def at_least(self, f: int, *, centered: bool = False) -> int:
        """Return the smallest number of updates for f Byzantine peers; an ``f`` in the options
        takes precedence. ``centered``: whether the local update is trusted."""
        return self.rule.least(
            int(self.options.get("f", f)), centered=centered, options=self.options
        )

    def check(self, f: int, n: int, *, centered: bool = False) -> None:
        """Try the rule on n synthetic updates, and reject it if it would fail in the first round.

        An exception that is not a ConfigError is only logged: a third-party rule may need vectors
        of a certain length, and the length is not known yet.

        Raises:
            TooFewUpdates: The rule needs more than n updates to tolerate f Byzantine peers.
            ConfigError: An option covers fewer than f Byzantine peers, or is out of range.
        """
        import torch

        fixed = self.options.get("f", self.rule.fixed_f)
        if fixed is not None and fixed < f:
            raise ConfigError(
                f"{self.spec or self.name} tolerates f={fixed} Byzantine peers, and the run has "
                f"f={f}",
                f"leave out f={fixed}",
            )
        need = self.at_least(f, centered=centered)
        if n < need:
            works = min(f, n) - 1
            while works >= 0 and self.at_least(works, centered=centered) > n:
                works -= 1
            hint = f"start at least {need} peers"
            hint += f" with --topology random-k:k={need - 1}" * centered
            hint += f", or use -f {works}" * (works >= 0)
            raise TooFewUpdates(self.name, f, need, n, hint)
        generator = torch.Generator().manual_seed(0)
        updates = 1.0 + torch.randn(n, TRIED_COORDINATES, generator=generator)
        middle = updates.mean(dim=0)
        available = {
            "f": f,
            "center": updates[0].clone() if centered or self.needs_center else None,
            "evaluate": lambda step: float((step - middle).square().sum()),
            "gradient": middle,
            "learning_rate": 0.1,
            "round_id": 0,
        }
        try:
            self.explain(updates, **available)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001
            why = f"{type(error).__name__}: {error}"
            log.info("rule cannot be tried: rule=%s reason=%s", self.name, why)

    def check_model_differences(self) -> None:
        """Reject a rule that cannot aggregate model differences.

        Raises: ConfigError: The rule rescales updates to the length of the judge's gradient
            (option ``lengths``).
        """
        stages = _stages(self.spec)
        last = load(stages[-1]) if len(stages) > 1 else self
        parameter = last.rule.parameters.get("lengths")
        if parameter is None or last.options.get("lengths", parameter.default) != "gradient":
            return
        spec = re.sub(r"\blengths\s*=\s*gradient\b", "lengths=updates", self.spec or self.name)
        if "lengths" not in last.options:
            spec = f"{spec.rstrip().rstrip(':')}{',' if last.options else ':'}lengths=updates"
        raise ConfigError(
            f"the rule {self.name} makes updates as long as the judge's gradient; with local steps "
            "or an outer step, updates are model differences, which have another length",
            f"write {spec}",
        )

    def explain(self, updates: Updates, **available: Any) -> Verdict:
        """Run the rule with the available arguments that it has as parameters.

        Args:
            updates: ``(n, d)``, one row per peer, all finite; or n vectors.
            available: Values of the arguments in ``base.AVAILABLE``; None for an argument that the
                caller does not have.
        Raises: ConfigError: The rule needs an argument that the caller does not have.
        """
        return self.rule.explain(updates, **self.chosen(available))

    def measure(self, updates: Updates, start: int, **available: Any) -> tuple[float, ...]:
        """Return the outlyingness of ``updates[start:]``, which come from peers in quarantine. The
        rule treats them like the other updates. If the rule fails, the result is empty, because
        these updates may be invalid.

        Args:
            updates, available: As for ``explain``.
        """
        try:
            return tuple(self.rule.measure(updates, start, **self.chosen(available)).tolist())
        except Exception:  # noqa: BLE001 - an update of a quarantined peer must not end a round
            return ()

    def __call__(self, updates: Updates, **available: Any) -> Tensor:
        return self.rule(updates, **self.chosen(available))

    def chosen(self, available: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for a call of the rule. Raises ConfigError: The rule needs an
        argument that the caller does not have."""
        needs = self.rule.needs
        chosen = {
            key: value for key, value in available.items() if key in needs and value is not None
        }
        chosen.update(self.options)
        for need in sorted(needs.difference(chosen)):
            if self.rule.parameters[need].default is inspect.Parameter.empty:
                raise ConfigError(
                    f"rule {self.name} needs {need}, which is not available here",
                    _WHERE_FROM.get(need),
                )
        return chosen

    def __repr__(self) -> str:
        return f"<rule {self.spec or self.name}>"


CENTER_HINT = (
    "only gossip topologies have a local update to start from; use such a topology, or another rule"
)
_WHERE_FROM = {
    "center": CENTER_HINT,
    "previous": "give it the default None: the first round has no last aggregate",
    "evaluate": (
        "the trainer has no loss to evaluate: pass a loss to peer.prepare, or use a rule that "
        "needs no loss"
    ),
    "gradient": (
        "the trainer has no loss to evaluate: pass a loss to peer.prepare, or use a rule that "
        "needs no loss"
    ),
}


def names() -> tuple[str, ...]:
    """Return the names of all rules that ``load`` finds without a path, ascending."""
    others = {*_BUILT_IN, *_registered, *_entry_points()}
    return tuple(
        sorted(
            name
            for name in others
            if name not in _PRE_AGGREGATIONS and not _is_pre(_registered.get(name))
        )
    )


def pre_aggregations() -> tuple[str, ...]:
    """Return the names of all pre-aggregations, ascending. ``names`` lists unregistered
    pre-aggregations of entry points."""
    return tuple(
        sorted({*_PRE_AGGREGATIONS, *(name for name, part in _registered.items() if _is_pre(part))})
    )


def check(spec: str) -> None:
    """Check the names in ``spec``, as far as possible without importing torch. Raises UnknownName
    or ConfigError."""
    *before, last = _stages(spec)
    for stage, known in [
        *((stage, (*pre_aggregations(), *_entry_points())) for stage in before),
        (last, names()),
    ]:
        place, function, _ = _split(stage)
        if function and _is_name(place) and not _is_module(place):
            raise ConfigError(
                f"there is neither a rule nor a module {place!r}",
                f"write path/to/{place}.py:{function} for a rule in a file; known names: "
                f"{', '.join(known)}",
            )
        if not function and _is_name(place) and _plain(place) not in known:
            raise UnknownName("aggregator" if stage is last else "pre-aggregation", place, known)


def _is_module(place: str) -> bool:
    with importing_users_modules():
        return place in sys.modules or importlib.util.find_spec(place) is not None


def places(spec: str) -> tuple[str, ...]:
    """Return the file path or module name in which each part of ``spec`` is defined, in order.
    Third-party packages are not imported."""
    found = []
    for stage in _stages(spec):
        place, function, _ = _split(stage)
        name = _plain(place)
        home = _BUILT_IN.get(name) or _PRE_AGGREGATIONS.get(name)
        if function:
            found.append(place)
        elif name in _registered:
            found.append(str(_registered[name].function.__module__))
        elif home is not None:
            found.append(f"{__package__}.{home}")
        elif name in (points := _entry_points()):
            found.append(points[name].module)
    return tuple(found)


def register(rule: Registered) -> Registered:
    """Register a rule or pre-aggregation under its name in this process. Returns ``rule``, so that
    it can be a decorator above ``@rule``.

    Raises: ConfigError: Another rule or pre-aggregation has that name.
    """
    name = _plain(rule.name)
    if name in _BUILT_IN or name in _PRE_AGGREGATIONS or _registered.get(name, rule) is not rule:
        raise ConfigError(f"there is a rule {name!r} already", "rename yours: @rule(name=...)")
    _registered[name] = rule
    return rule


def load(spec: str) -> BoundRule:
    """Return the rule that ``spec`` names, with the options in ``spec``.

    A name is looked up among the registered and built-in rules first, then among entry points.

    Raises:
        UnknownName: There is no such rule or option; the message suggests the nearest name.
        ConfigError: The file, module or function cannot be loaded, or an option has a wrong value.
    """
    from .base import Rule

    stages = _stages(spec)
    if len(stages) == 1:
        part, options = _load_part(spec, last=True)
        if not isinstance(part, Rule):
            raise ConfigError(
                f"{part.name} prepares updates and is not a rule by itself",
                f"write {spec}+trimmed_mean, or another rule",
            )
        return BoundRule(part.name, part, options, spec)
    from .composing import Stage, compose

    rule = compose(
        *(
            Stage(*_load_part(stage, last=number == len(stages)))
            for number, stage in enumerate(stages, 1)
        )
    )
    return BoundRule(rule.name, rule, {}, spec)


def _stages(spec: str) -> list[str]:
    """Return the parts of ``spec`` between plus signs. The plus sign in a number (``1e+3``) does
    not separate parts."""
    return [stage.strip() for stage in re.split(r"(?<![0-9][eE])\+", spec)]


def _load_part(spec: str, last: bool) -> tuple[Rule | PreAggregation, dict[str, Any]]:
    place, function, options_text = _split(spec)
    part: Rule | PreAggregation
    if not function:
        part = _by_name(_plain(place), spec, last)
    else:
        found = load_named(place, function, "rule", _is_rule_candidate, anew=True)
        part = _as_rule(found, function, place)
    return part, _parse_options(part, options_text)


def _parse_options(part: Rule | PreAggregation, text: str) -> dict[str, Any]:
    """Return the options in ``key=value,key=value``, with the types in the signature.

    Raises: UnknownName: There is no such option. ConfigError: A value cannot be read, or a required
        option is missing.
    """
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    settable = {
        key: parameter
        for key, parameter in [*part.parameters.items()][1:]
        if key not in _NEVER_OPTIONS and parameter.kind not in variadic
    }
    kinds = option_types(part.function, settable)
    options = {
        key: read_value(part.name, key, value, kinds[key])
        for key, value in split_options(part.name, text.split(","), settable).items()
    }
    for key, parameter in settable.items():
        if key not in {*options, *part.needs} and parameter.default is parameter.empty:
            raise ConfigError(
                f"rule {part.name} needs a value for {key!r}", f"write {part.name}:{key}=..."
            )
    return options


def _is_pre(part: object) -> bool:
    return part is not None and not hasattr(part, "explain")


def _is_name(place: str) -> bool:
    return not (place.endswith(".py") or "/" in place or "." in place)


def _split(spec: str) -> tuple[str, str, str]:
    """Split ``place[:function][:options]``. A part that contains ``=`` has the options."""
    place, *rest = (part.strip() for part in spec.strip().split(":", 2))
    by_name = _is_name(place)
    if not place:
        raise ConfigError(f"{spec!r} does not name a rule", f"known: {', '.join(names())}")
    if not by_name and (not rest or not rest[0] or "=" in rest[0]):
        raise ConfigError(
            f"{spec!r} does not name the function of {place} that is the rule",
            f"write {place}:name_of_the_function",
        )
    if not rest:
        return place, "", ""
    if "=" in rest[0] or not rest[0]:
        if len(rest) > 1:
            raise ConfigError(
                f"{spec!r}: options are separated by commas", f"write {place}:{rest[0]},{rest[1]}"
            )
        return place, "", rest[0]
    if by_name and _plain(place) in (*names(), *pre_aggregations()):
        raise ConfigError(
            f"{spec!r}: option {rest[0]!r} has no value", f"write {place}:{rest[0]}=..."
        )
    return place, rest[0], rest[1] if len(rest) > 1 else ""


def _plain(name: str) -> str:
    return name.strip().replace("-", "_")


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {
        _plain(point.name): point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)
    }


def _by_name(name: str, spec: str, last: bool) -> Rule | PreAggregation:
    if name in _registered:
        return _registered[name]
    home = _BUILT_IN.get(name) or _PRE_AGGREGATIONS.get(name)
    if home is not None:
        built_in: Rule | PreAggregation = getattr(
            importlib.import_module(f".{home}", __package__), name
        )
        return built_in
    point = _entry_points().get(name)
    if point is None:
        raise (
            UnknownName("aggregator", name, names())
            if last
            else UnknownName("pre-aggregation", name, pre_aggregations())
        )
    try:
        found = point.load()
    except Exception as error:
        raise ConfigError(
            f"aggregator {name!r} comes from {point.value}, which cannot be imported: "
            f"{describe_error(error)}"
        ) from error
    return _as_rule(found, name, spec)


def _is_rule_candidate(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _as_rule(found: Any, name: str, place: str) -> Rule | PreAggregation:
    from .base import Rule, rule
    from .composing import PreAggregation

    if isinstance(found, Rule | PreAggregation):
        return found
    if not _is_rule_candidate(found):
        raise ConfigError(
            f"{name} of {place} is not a rule but {type(found).__name__}",
            "a rule is a function (updates, *, f) -> Tensor, decorated with @rule or not",
        )
    _check_signature(found, name, place)
    return rule(name=_plain(name))(found)


def _check_signature(function: Callable[..., Any], name: str, place: str) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if not positional:
        raise ConfigError(
            f"{name} of {place} takes no updates", "a rule is a function (updates, *, f) -> Tensor"
        )
