from __future__ import annotations

from pathlib import Path

import pytest

from gossip import config
from gossip.config import RunConfig, resolve
from gossip.core import Contribution, TrustSettings, TrustTable
from gossip.errors import BadFault, ConfigError


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in config.OPTIONS:
        monkeypatch.delenv(f"GOSSIP_{option.upper()}", raising=False)


def test_flag_beats_variable_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.toml"
    file.write_text('peers = 5\nseed = 5\naggregator = "median"\n')
    monkeypatch.setenv("GOSSIP_SEED", "6")
    monkeypatch.setenv("GOSSIP_AGGREGATOR", "mean")
    made = resolve({"aggregator": "krum", "rounds": None}, file, {"peers": 8, "topology": "ring"})
    got = {
        key: (getattr(made.config, key), made.sources[key])
        for key in ("aggregator", "seed", "peers", "topology", "rounds")
    }
    assert got == {
        "aggregator": ("krum", "flag"),
        "seed": (6, "GOSSIP_SEED"),
        "peers": (5, str(file)),
        "topology": ("ring", "default"),
        "rounds": (None, "default"),
    }


def test_faults_in_a_variable_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIP_FAULTS", "crash:3@5 nan:1,2")
    assert resolve({}).config.faults == ("crash:3@5", "nan:1,2")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("agregator = 'mean'\n", "unknown option 'agregator'. Did you mean 'aggregator'?"),
        ("peers = 0\n", "peers = 0"),
        ("peers = 'four'\n", "peers = 'four'"),
        ("quorum = 'some'\n", "'majority' or 'available'"),
        ("round_timeout_s = nan\n", "round_timeout_s"),
        ("peers = [\n", "cannot read the settings"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_value(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve({}, file)
    assert says in str(caught.value)
    assert "run.toml" in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the settings"):
        resolve({}, tmp_path / "none.toml")


def test_a_misspelt_variable_is_not_dropped_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIP_AGREGATOR", "mean")
    with pytest.raises(ConfigError, match="Did you mean GOSSIP_AGGREGATOR"):
        resolve({})


@pytest.mark.parametrize("name", ["GOSSIP_peers", "gossip_PEERS", "gossip_peers"])
def test_a_variable_in_another_case_is_not_dropped_in_silence(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "3")
    with pytest.raises(ConfigError, match=f"unknown variable {name}. Did you mean GOSSIP_PEERS"):
        resolve({})


def test_the_variables_of_a_peer_are_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PEER", "INCARNATION", "CONFIG", "STATUS_FD"):
        monkeypatch.setenv(f"GOSSIP_{name}", "1")
    assert resolve({}).config.peers == 4


def test_what_is_dumped_is_loaded_and_ignores_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (
        resolve({"faults": ("crash:1@2",)}).with_values("drawn", run="0123456789abcdef", f=1).config
    )
    made.dump(tmp_path / "config.json")
    monkeypatch.setenv("GOSSIP_PEERS", "99")
    assert RunConfig.load(tmp_path / "config.json") == made


def test_a_broken_dump_is_an_error_that_says_what(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"peers": 3, "pears": 4}')
    with pytest.raises(ConfigError, match="unknown option 'pears'"):
        RunConfig.load(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="not readable"):
        RunConfig.load(path)


def test_config_toml_names_every_source_and_can_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSIP_SEED", "6")
    made = resolve({"name": 'odd "name" \\ é', "faults": ("nan:1",)})
    path = tmp_path / "config.toml"
    path.write_text(made.to_toml(), "utf-8")
    monkeypatch.delenv("GOSSIP_SEED")
    assert "seed = 6  # GOSSIP_SEED" in made.to_toml()
    assert "mixing = 0.5  # default" in made.to_toml()
    assert resolve({}, path).config == made.config


def test_a_replayed_config_does_not_take_over_the_id_of_the_run(tmp_path: Path) -> None:
    made = resolve({}).with_values("drawn", run="0123456789abcdef")
    path = tmp_path / "config.toml"
    path.write_text(made.to_toml(), "utf-8")
    assert resolve({}, path).config.run == ""


def test_the_core_gets_what_was_asked_for() -> None:
    made = resolve({"peers": 5, "seed": 3, "quorum": "available", "mix_every": 2}).with_values(
        "x", run="00000000000000ff", f=1
    )
    settings = made.config.settings()
    assert (settings.peers, settings.seed, settings.f) == ((0, 1, 2, 3, 4), 3, 1)
    assert (settings.rounds.quorum, settings.gossip.mix_every) == ("available", 2)
    assert len(settings.run) == len(settings.lineage) == 8
    assert settings.run == bytes(7) + b"\xff"


def test_without_trust_who_stands_out_is_suspected_and_never_locked_up() -> None:
    made = resolve({"trust": False, "peers": 8}).with_values("x", run="00000000000000ff", f=2)
    for settings, locked in ((made.config.settings().trust, False), (TrustSettings(), True)):
        table, changes = TrustTable(settings, 2), []
        for round_id in range(60):
            judged = [Contribution(peer, 8, 0.1, 50.0 if peer < 2 else 1.0) for peer in range(8)]
            changes += table.observe_commit(round_id, judged, [], roster=range(8))
        assert table.suspected() == (0, 1)
        assert table.score(0) < 0.2 < table.score(2)
        assert "were outliers" in table.reasons(0)[0]
        assert bool(table.quarantined()) == locked
        assert table.may_serve(0) != locked
        assert {change.change for change in changes} <= {"suspected", "quarantined"}


def test_the_plan_is_checked_against_the_run() -> None:
    with pytest.raises(BadFault, match="there is no peer 9"):
        _ = resolve({"peers": 8, "faults": ("crash:9@50",)}).config.plan


def test_where_a_reference_was_asked_for_the_rule_judges_by_it_unless_one_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = resolve({"reference_samples": 64})
    assert made.config.aggregator == "judged_clipping"
    assert made.sources["aggregator"] == "reference_samples are given, and no aggregator"
    assert resolve({}).config.aggregator == "guarded_mean"
    assert resolve({"f": 0}).config.aggregator == "guarded_mean"
    rules = {(4, 1): "spectral_clipping", (3, 1): "suspicion", (8, 3): "suspicion"}
    for (peers, f), rule in rules.items():
        assert resolve({"peers": peers, "f": f}).config.aggregator == rule, "f of a quarter"
    assert resolve({"peers": 8, "f": 1, "topology": "ring"}).config.aggregator == "suspicion"
    assert resolve({"reference_samples": 64, "aggregator": "krum"}).config.aggregator == "krum"
    assert resolve({"reference_samples": 64, "topology": "ring"}).config.aggregator == "suspicion"
    assert resolve({"reference_samples": 64, "peers": 1}).config.aggregator == "guarded_mean"
    file = tmp_path / "run.toml"
    file.write_text('aggregator = "median"\nreference_samples = 32\n')
    assert resolve({}, file).config.aggregator == "median"
    file.write_text("reference_samples = 32\n")
    assert resolve({}, file).config.aggregator == "judged_clipping"
    monkeypatch.setenv("GOSSIP_AGGREGATOR", "mean")
    assert resolve({}, file).config.aggregator == "mean"
