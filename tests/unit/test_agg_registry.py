"""Rules by name, from a file, from a module; and what they are given."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gossip.aggregators
from gossip.aggregators import Rule, load, names, register, registry, rule
from gossip.aggregators.registry import check
from gossip.errors import ConfigError, UnknownName

TEN_LINES = '''
from dataclasses import dataclass

import torch
from gossip.aggregators import rule


@dataclass
class Window:
    size: int = 1


@rule(at_least=lambda f: f + 1)
def nearest_zero(updates, *, f, window: int = 1):
    """The update of least norm."""
    return updates[updates.norm(dim=1).argmin()].clone()


def plain(updates, *, f):
    return updates.median(dim=0).values


def _hidden(updates):
    return updates[0]


number = 7
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_rules.py").write_text(TEN_LINES)
    (tmp_path / "aggregators.py").write_text(
        "raise RuntimeError('this file has nothing to do with it')\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_and_attacks_are_known_without_importing_torch() -> None:
    code = (
        "import sys\n"
        "from gossip.aggregators import attacks, names, registry\n"
        "assert 'zeno_pp' in registry.names() and names() == registry.names()\n"
        "attacks.names(), attacks.make('sign_flip', 3)\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_name_loads_under_its_own_name_with_hyphens_or_underscores() -> None:
    for name in names():
        for spelled in (name, name.replace("_", "-"), f" {name} "):
            assert load(spelled).name == name


def test_every_public_name_is_what_it_says() -> None:
    for name in gossip.aggregators.__all__:
        assert getattr(gossip.aggregators, name) is not None
    for name in names():
        assert isinstance(getattr(gossip.aggregators, name), Rule), (
            "no module hides the rule of its name"
        )
    with pytest.raises(AttributeError, match="no attribute 'krumm'"):
        gossip.aggregators.krumm  # noqa: B018


def test_a_misspelt_name_suggests_its_neighbour() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'trimmed_mean'"):
        load("trimed-mean")
    with pytest.raises(ConfigError, match="does not name a rule"):
        load("")


def test_options_are_typed_by_the_signature() -> None:
    assert load("multi_krum:m=3,f=1").options == {"m": 3, "f": 1}
    assert load("zeno:rho-over-lr=0.5,norm=mean, b=4").options == {
        "rho_over_lr": 0.5,
        "norm": "mean",
        "b": 4,
    }
    assert load("suspicion_literal:alpha=1").options == {"alpha": 1.0}
    assert load("multi_krum:m=none").options == {"m": None}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("krum:g=1", "unknown option of krum 'g'"),
        ("suspicion:step=1", "Did you mean 'steps'"),
        ("suspicion:steps=many", "steps='many' is not a whole number"),
        ("suspicion:steps", "option 'steps' has no value"),
        ("suspicion:steps=", "option 'steps=' has no value"),
        ("suspicion:steps=1,steps=2", "given twice"),
        ("suspicion:steps=1:f=2", "separated by commas"),
        ("suspicion:center=3", "unknown option of suspicion 'center'"),
        ("zeno:norm=most", "unknown value of zeno's norm 'most'"),
        ("fltrust:lengths=update", "unknown value of fltrust's lengths 'update'"),
        ("suspicion_literal:alpha=big", "is not a number"),
    ],
)
def test_a_bad_option_is_named(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(spec)


def test_a_rule_in_a_file_runs_beside_an_unrelated_aggregators_py(folder: Path) -> None:
    updates = torch.tensor([[3.0], [1.0], [2.0]])
    own = load("my_rules.py:nearest_zero:window=4")
    assert (own.name, own.options, own.at_least(2)) == ("nearest_zero", {"window": 4}, 3)
    assert float(own.explain(updates, f=1).aggregate) == 1.0
    assert float(load(f"{folder}/my_rules.py:plain").explain(updates, f=1).aggregate) == 2.0
    assert load("./my_rules.py:nearest-zero").name == "nearest_zero"
    assert "my_rules" not in sys.modules, "the file takes nobody's name"


def test_an_undecorated_function_is_a_rule_that_needs_an_honest_majority(folder: Path) -> None:
    plain = load("my_rules.py:plain")
    assert plain.at_least(3) == 7
    assert plain.whole_vector
    assert not plain.needs_trainer
    verdict = plain.explain(torch.tensor([[3.0], [1.0], [2.0], [90.0], [2.5]]), f=1)
    assert verdict.outlyingness[3] > 3


def test_a_rule_in_a_module_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    assert load("my_rules:nearest_zero:window=2").options == {"window": 2}
    assert load("gossip.aggregators.distances:krum").rule is gossip.aggregators.krum
    del sys.modules["my_rules"]  # for monkeypatch would put it back


@pytest.mark.parametrize(
    ("spec", "words", "hint"),
    [
        ("my_rule.py:plain", "there is no file", "my_rules.py"),
        ("my_rules.py:plian", "Did you mean 'plain'", "nearest_zero"),
        ("my_rules.py", "does not name the function", "my_rules.py:name"),
        ("my_rules.py:f=1", "does not name the function", "my_rules.py:name"),
        (
            "my_rules.py:number",
            "number of my_rules.py is not a rule but int",
            "a rule is a function",
        ),
        ("aggregators.py:plain", "RuntimeError: this file has nothing", "run it with python"),
        (
            "no_such_package.rules:plain",
            "cannot be imported: ModuleNotFoundError",
            "rules.py:plain",
        ),
        ("gossip.errors", "does not name the function", "gossip.errors:name"),
    ],
)
def test_what_cannot_be_loaded_says_why_and_what_to_do(
    folder: Path, spec: str, words: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(spec)
    assert hint in str(caught.value.hint)


def test_a_file_that_failed_leaves_no_half_module_behind(folder: Path) -> None:
    with pytest.raises(ConfigError):
        load("aggregators.py:plain")
    assert not [name for name in sys.modules if name.startswith("_gossip_file_aggregators")]


def test_a_file_with_a_state_is_run_anew_at_each_load(folder: Path) -> None:
    text = (
        "seen = []\ndef mine(updates, *, f):\n    seen.append(1)\n    return updates[0] * len(seen)"
    )
    (folder / "state.py").write_text(text)
    for _ in range(2):
        assert load("state.py:mine").rule(torch.ones(3, 2), f=0).tolist() == [1.0, 1.0]


def test_an_interrupt_while_a_file_is_loaded_leaves_no_half_module_behind(folder: Path) -> None:
    (folder / "stopped.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load("stopped.py:mine")
    assert not [name for name in sys.modules if name.startswith("_gossip_file_stopped")]


def test_a_registered_rule_is_found_by_name_and_never_takes_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_registered", {})

    @rule
    def first_row(updates: Tensor, *, f: int) -> Tensor:
        return updates[0].clone()

    with pytest.raises(UnknownName):
        load("first_row")  # @rule alone registers nothing
    assert register(first_row) is first_row
    assert register(first_row) is first_row
    assert load("first-row").rule is first_row
    assert "first_row" in names()
    with pytest.raises(ConfigError, match="there is a rule 'first_row' already"):
        register(rule(name="first-row")(lambda updates: updates[0]))
    with pytest.raises(ConfigError, match="there is a rule 'krum' already"):
        register(rule(name="krum")(lambda updates: updates[0]))


def test_rules_of_other_packages_come_through_their_entry_points(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    good = importlib.metadata.EntryPoint(
        "near-zero", "my_rules:nearest_zero", registry.ENTRY_POINTS
    )
    broken = importlib.metadata.EntryPoint("broken", "no_such_package:rule", registry.ENTRY_POINTS)
    theirs = importlib.metadata.EntryPoint("krum", "my_rules:plain", registry.ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [good, broken, theirs])
    assert load("near_zero:window=3").options == {"window": 3}
    assert {"near_zero", "broken"} < set(names())
    assert load("krum").rule is gossip.aggregators.krum, "a built-in rule keeps its name"
    with pytest.raises(
        ConfigError, match="comes from no_such_package:rule, which cannot be imported"
    ):
        load("broken")
    del sys.modules["my_rules"]  # for monkeypatch would put it back


def test_a_rule_gets_what_it_names_and_nothing_else() -> None:
    given: dict[str, object] = {}

    @rule
    def curious(
        updates: Tensor, *, f: int, learning_rate: float, center: Tensor | None = None, k: int = 2
    ) -> Tensor:
        given.update(f=f, learning_rate=learning_rate, center=center, k=k)
        return updates[0].clone()

    bound = registry.BoundRule("curious", curious, {"f": 1, "k": 5})
    bound.explain(
        torch.zeros(9, 2),
        f=3,
        learning_rate=0.5,
        center=None,
        evaluate=lambda step: 0.0,
        gradient=torch.zeros(2),
    )
    assert given == {"f": 1, "learning_rate": 0.5, "center": None, "k": 5}
    assert bound.needs == {"learning_rate", "center"}
    with pytest.raises(ConfigError, match="rule curious needs learning_rate"):
        bound.explain(torch.zeros(9, 2), f=3)


def test_a_rule_that_must_have_a_center_says_where_there_is_one() -> None:
    @rule
    def clipped(updates: Tensor, *, center: Tensor) -> Tensor:
        return center

    with pytest.raises(ConfigError, match="needs center") as caught:
        registry.BoundRule("clipped", clipped).explain(torch.zeros(3, 2), f=1)
    assert "gossip topologies" in str(caught.value.hint)


def test_an_option_without_default_must_be_given(folder: Path) -> None:
    (folder / "clip.py").write_text(
        "def clip(updates, *, radius):\n    return updates[0] * radius\n"
    )
    with pytest.raises(ConfigError, match="needs a value for 'radius'"):
        load("clip.py:clip")
    assert load("clip.py:clip:radius=2.5").options == {"radius": 2.5}


def test_the_least_n_follows_the_options() -> None:
    assert load("krum").at_least(2) == 7
    assert load("krum:f=1").at_least(2) == 5
    assert load("zeno:b=4").at_least(2) == 5
    assert load("mean").at_least(3) == 1
    assert load("suspicion").at_least(2) == 5
    assert load("suspicion").at_least(2, centered=True) == 3
    assert load("median").at_least(2, centered=True) == 5, (
        "a rule that takes no center gains nothing by it"
    )


def test_which_rules_need_the_trainer_and_which_may_be_cut_in_shards() -> None:
    loaded = [load(name) for name in names()]
    needing = {bound.name for bound in loaded if bound.needs_trainer}
    assert needing == {"zeno", "zeno_pp", "fltrust", "judged_clipping"}
    directions = {name for name in needing if load(name).judges_directions}
    assert directions == needing - {"zeno"}, "a loss says less of who has rare data"
    assert {bound.name for bound in loaded if not bound.whole_vector} == {
        *("mean", "guarded_mean", "median", "trimmed_mean", "meamed", "phocas", "sign_majority")
    }
    assert {bound.name for bound in loaded if not bound.discerning} == {"mean"}


def test_a_rule_that_returns_the_wrong_thing_is_named(folder: Path) -> None:
    (folder / "bad.py").write_text(
        "def bad(updates, *, f):\n    return updates\n\ndef worse(updates):\n    return 3.0\n"
    )
    bad, worse = load("bad.py:bad"), load("bad.py:worse")
    for call in (bad, bad.explain):
        with pytest.raises(
            ConfigError, match=r"rule bad returned \(3, 2\), not a tensor of shape \(2,\)"
        ):
            call(torch.zeros(3, 2), f=1)
    for call in (worse, worse.explain):
        with pytest.raises(ConfigError, match="rule worse returned float"):
            call(torch.zeros(3, 2), f=1)


def test_a_module_needs_no_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gossip_test_mymod.py").write_text(
        "def mine(updates, *, f, k=1):\n    return k * updates[0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    check("gossip_test_mymod:mine:k=2")
    check("nnm+gossip_test_mymod:mine")
    assert load("gossip_test_mymod:mine:k=2")(torch.ones(3, 2), f=0).tolist() == [2.0, 2.0]
    with pytest.raises(ConfigError, match=r"neither a rule nor a module 'gossip_test_other'"):
        check("gossip_test_other:mine")
    with pytest.raises(UnknownName, match="unknown aggregator 'gossip_test_mymod'"):
        check("gossip_test_mymod:k=2")
