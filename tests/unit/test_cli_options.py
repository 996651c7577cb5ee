from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_calls import Gossip, gossip_command
from typer.main import get_command

from gossip.config import RunConfig, resolve
from gossip.errors import ConfigError, OutOfMemory, RunExists, TooFewUpdates, UnknownName
from gossip.launch import options
from gossip.launch.cli import commands as cli, layout
from gossip.launch.demo import swarms as demo
from gossip.launch.local import feasible
from gossip.run import fitting


@pytest.fixture
def gossip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gossip:
    """The command, in this process."""
    return gossip_command(monkeypatch, capsys)


def test_help_imports_neither_torch_nor_anything_else_that_is_slow() -> None:
    code = (
        "import sys\nsys.argv = ['gossip', '--help']\nfrom gossip.launch.cli.commands import "
        "main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "slow = {'torch', 'numpy', 'pydantic', 'psutil', 'sklearn'} & "
        "set(sys.modules)\n"
        "assert not slow, slow"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout


def test_the_list_of_commands_is_whole(gossip: Gossip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = gossip("--help").stdout
    assert "Train SCRIPT with several peers on this machine\n" in told
    assert "..." not in told.partition("Train:")[2]


def test_an_error_is_broken_at_words_on_a_terminal(
    gossip: Gossip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    whole = gossip("demo", "--aggregator", "krumm").stderr
    monkeypatch.setattr("gossip.launch.report.words.line_width", lambda out: 60)
    lines = gossip("demo", "--aggregator", "krumm").stderr.splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()) == " ".join(whole.split())


def test_checking_a_run_leaves_torch_out_of_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("def mine(updates):\n    return updates[0]\n")
    code = (
        "import sys\nfrom gossip.config import resolve\nfrom gossip.errors import ConfigError\n"
        "from gossip.launch.cli import commands\n"
        "from gossip.launch.demo import swarms\nfrom gossip.launch.local import runs, supervisor\n"
        "try:\n    runs.settle(resolve({'peers': 4, 'aggregator': 'rules.py:nothing'}), 'x')\n"
        "except ConfigError as error:\n    print(error, error.hint)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "unknown rule of rules.py 'nothing' known: mine\n", (
        "the other process is not heard"
    )


def test_version_is_printed(gossip: Gossip) -> None:
    done = gossip("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("gossip 0.")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("run", "--faults", "none.toml", "x.py"),
            "cannot read the fault plan none.toml: No such file or directory\n",
        ),
        (("run", "--config", "none.toml", "x.py"), "cannot read the settings none.toml"),
        (("run", "--quorum", "some", "x.py"), "'majority' or 'available'"),
        (("run", "--name", "a/b", "x.py"), "name = 'a/b': it must be a plain word"),
        (("run", "--name", "..", "x.py"), "name = '..'"),
        (("run", "-n", "4", "--room", "2", "x.py"), "room = 2: 4 peers start"),
        (("run", "missing.py"), "there is no script missing.py"),
        (("run", "--nproc_per_node", "4", "x.py"), "did you mean -n?"),
        (("hosts", "-H", "a", "--nproc_per_node", "4"), "gossip hosts --help lists them"),
        (("logs",), "missing argument 'run'\n  hint: gossip ls lists runs; then "),
        (("join", "127.0.0.1", "--", "x.py"), ", or HOST:PORT of a join server"),
        (("run", "."), "is a folder, not a script"),
        (("run", "--run-dir", "full", "x.py"), "the run folder"),
        (
            ("run", "-n", "8", "--aggregator", "zeno:b=1", "-f", "4", "x.py"),
            "zeno leaves out b=1 updates, but f=4 of them may be",
        ),
        (("run", "-n", "1024", "x.py"), "1024 peers need about"),
        (("run", "--resume", "none", "x.py"), "there is no run or folder of checkpoints 'none'"),
        (("run", "--resume", "full@5", "x.py"), "there is no checkpoint in"),
        (
            ("run", "--deterministic", "--topology", "random-k", "x.py"),
            "deterministic = True: random-k rounds do not wait for",
        ),
        (
            ("run", "--batch-policy", "fixed_global", "--topology", "ring", "x.py"),
            "batch_policy = fixed_global: ring rounds do not agree on the number of",
        ),
        (
            ("run", "--deterministic", "--slices", "speed", "x.py"),
            "slices = speed (flag): batches then depend on the speed of",
        ),
        (
            ("run", "-n", "4", "--deterministic", "--min-peers", "3", "x.py"),
            "deterministic: with min_peers = 3 of 4",
        ),
        (
            ("hosts", "-H", "localhost:2", "--resume", "none@3", "x.py"),
            "there is no run or folder of checkpoints 'none'",
        ),
        (("run", "--aggregator", "rules.py:nothing", "x.py"), "rules.py"),
        (("demo", "--aggregator", "suspicoin"), "Did you mean 'suspicion'?"),
        (("demo", "--topology", "rimg"), "Did you mean 'ring'?"),
        (("demo", "--track", "tensorbord"), "Did you mean 'tensorboard'?"),
        (("demo", "--fault", "crash:3@5000"), "there is no round 5000"),
        (("demo", "--peers", "4", "--fault", "nan:7"), "there is no peer 7"),
    ],
)
def test_misuse_gets_two_or_three_lines_and_exit_code_2(
    gossip: Gossip, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "x.py").write_text("")
    (tmp_path / "rules.py").write_text("def mine(updates):\n    return updates[0]\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("")
    done = gossip(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) <= 3
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists(), "nothing is left behind by a run that was refused"


def test_the_help_of_a_setting_says_what_it_is_by_default() -> None:
    for name, kind in {"peers": options.Peers, **options.SETTINGS}.items():
        key = options.SETTING_OF.get(name, name)
        default = RunConfig.model_fields[key].default if key in RunConfig.model_fields else None
        if isinstance(default, bool) or name == "room" or default in (None, "", ()):
            continue  # off; or what there is in its place is said in words
        said = f"{default:g}" if isinstance(default, int | float) else default
        help_text = kind.__metadata__[0].help
        assert f"{said} by default" in help_text or f"{said} (the default)" in help_text, name


def test_an_unknown_option_is_the_users_error(gossip: Gossip) -> None:
    done = gossip("run", "--pears", "4", "x.py")
    assert done.returncode == 2
    assert "--pears" in done.stderr


def test_show_config_names_value_and_source_only(gossip: Gossip, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("seed = 7\n")
    done = gossip(
        "run", "-n", "5", "--config", "run.toml", "--show-config", "train.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["peers"] == ["5", "flag"]
    assert rows["seed"] == ["7", "run.toml"]
    assert rows["quorum"] == ["majority", "default"]
    as_json = json.loads(
        gossip("run", "-n", "5", "--show-config", "--json", "train.py", cwd=tmp_path).stdout
    )
    assert as_json["peers"] == {"value": 5, "source": "flag"}


def test_faults_of_a_plan_and_of_flags_add_up(gossip: Gossip, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('[[fault]]\nkind = "crash"\npeer = 1\nround = 5\n')
    done = gossip(
        *shlex.split("run --faults plan.toml --fault nan:2 --show-config --json t.py"), cwd=tmp_path
    )
    assert json.loads(done.stdout)["faults"]["value"] == ["crash:1@5", "nan:2"]


def test_f_is_what_rule_and_peers_allow_unless_it_is_given() -> None:
    assert fitting.check_rule(resolve({"peers": 8, "aggregator": "median"})).config.f == 2
    assert fitting.check_rule(resolve({"peers": 1, "aggregator": "mean"})).config.f == 0
    for rule, peers, f, works in (("krum", 4, 2, 0), ("median", 6, 4, 2)):
        with pytest.raises(TooFewUpdates) as caught:
            fitting.check_rule(resolve({"peers": peers, "aggregator": rule, "f": f}))
        assert str(caught.value.hint).endswith(f" peers, or use -f {works}")
        fitting.check_rule(resolve({"peers": peers, "aggregator": rule, "f": works}))
    with pytest.raises(TooFewUpdates) as caught:  # krum needs three peers for none
        fitting.check_rule(resolve({"peers": 2, "aggregator": "krum", "f": 1}))
    assert caught.value.hint == "start at least 5 peers"
    with pytest.raises(ConfigError, match="no honest peer is left"):
        fitting.check_rule(resolve({"peers": 4, "aggregator": "mean", "f": 4}))


def test_more_peers_than_the_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemory) as caught:
        feasible.check_memory(10**6)
    assert caught.value.exit_code == 2
    feasible.check_memory(0)


def test_names_are_checked_with_hyphens_or_underscores() -> None:
    fitting.check_names("random-k:k=2", "trimmed-mean")
    fitting.check_names("random_k", "my_rules.py:my_rule")
    with pytest.raises(UnknownName):
        fitting.check_names("rolling", "trimmed_men")


def test_a_folder_that_was_there_is_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o755)
    feasible.make_run_folder(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    (tmp_path / "b").mkdir()
    (tmp_path / "b").chmod(0o777)

    def denied(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", denied)
    with pytest.raises(
        ConfigError, match=r"other users can read the run folder .*/b \(mode 0777\)"
    ):
        feasible.make_run_folder(tmp_path / "b")


def test_a_run_folder_must_be_new_or_empty(tmp_path: Path) -> None:
    feasible.make_run_folder(tmp_path / "a" / "b")
    feasible.make_run_folder(tmp_path / "a" / "b")
    with pytest.raises(RunExists):
        feasible.make_run_folder(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunExists):
        feasible.make_run_folder(tmp_path / "file")


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        (8, ("sign_flip:5,6*10", "crash:server@200")),
        (4, ("sign_flip:2*10", "crash:server@200")),
        (16, ("sign_flip:11,12,13,14*10", "crash:server@200")),
        (3, ("crash:server@200",)),
        (2, ()),
        (1, ()),
    ],
)
def test_the_demo_lets_a_quarter_lie_and_kills_one(peers: int, expected: tuple[str, ...]) -> None:
    assert demo.standard_faults(peers, 400) == expected


def test_the_demo_tolerates_as_many_liars_as_its_plan_has() -> None:
    made = demo.settle({"peers": 16})
    assert made.config.f == 4
    assert demo.is_standard(made)
    assert not demo.is_standard(demo.settle({"aggregator": "krum"}))


def test_in_a_gossip_topology_the_rule_must_do_with_what_one_peer_gets() -> None:
    with pytest.raises(TooFewUpdates) as caught:
        fitting.check_rule(
            resolve({"peers": 16, "topology": "random-k:k=2", "aggregator": "krum", "f": 4})
        )
    assert caught.value.got == 3
    topology, f = "random-k:k=10", 0
    hint = f"start at least 11 peers with --topology {topology}, or use -f {f}"
    assert caught.value.hint == hint
    for given in ({"topology": topology, "f": 4}, {"topology": "random-k:k=2", "f": f}):
        fitting.check_rule(resolve({"peers": 16, "aggregator": "krum", **given}))


@pytest.mark.parametrize(
    ("topology", "attackers", "expected"),
    [
        ("random-k", 2, "random-k:k=5"),
        ("random_k", 4, "random-k:k=7"),
        ("random-k", 0, "random-k"),
        ("random-k:k=3", 2, "random-k:k=3"),
        ("rolling", 2, "rolling"),
    ],
)
def test_the_demo_gives_each_peer_more_honest_neighbours_than_liars(
    topology: str, attackers: int, expected: str
) -> None:
    assert demo.enough_neighbours(topology, attackers, 8) == expected


def test_an_option_behind_the_run_to_join_is_not_taken_for_a_script(gossip: Gossip) -> None:
    done = gossip("join", "127.0.0.1:9", "--timeout", "2")
    assert done.returncode == 2
    assert "--timeout follows the run: options come before the run" in done.stderr


SAID = {
    "--topology": ("rolling:shards=2", "topology", "rolling:shards=2"),
    "--aggregator": ("median", "aggregator", "median"),
    "--encoding": ("topk:0.05", "encoding", "topk:0.05"),
    "--sender": ("momentum", "sender", "momentum"),
    "--byzantine": ("1", "f", 1),
    "--fault": ("nan:2", "faults", ["nan:2"]),
    "--rounds": ("7", "rounds", 7),
    "--seed": ("8", "seed", 8),
    "--run-dir": ("there", "run_dir", "there"),
    "--name": ("mine", "name", "mine"),
    "--quorum": ("available", "quorum", "available"),
    "--no-trust": (None, "trust", False),
    "--reference": ("64", "reference_samples", 64),
    "--batch-policy": ("fixed_global", "batch_policy", "fixed_global"),
    "--slices": ("equal", "slices", "equal"),
    "--server-weights": ("0:4,1:2", "server_weights", "0:4,1:2"),
}
SAID_OF_A_RUN = {
    **SAID,
    "--room": ("9", "room", 9),
    "--local-steps": ("20", "local_steps", 20),
    "--outer": ("heavy_ball", "outer", "heavy_ball:lr=0.7,momentum=0.9"),
    "--fragments": ("4", "fragments", 4),
    "--overlap": ("1", "overlap", 1),
    "--min-peers": ("5", "min_peers", 5),
    "--patience": ("2.5", "patience_s", 2.5),
    "--on-minority": ("continue", "on_minority", "continue"),
    "--on-divergence": ("heal", "on_divergence", "heal"),
    "--start-timeout": ("33", "start_timeout_s", 33.0),
    "--round-timeout": ("4", "round_timeout_s", 4.0),
    "--resume": ("auto", "resume", "auto"),
    "--deterministic": (None, "deterministic", True),
    "--drills": (None, "drills", True),
    "--no-keys": (None, "keys", False),
    "--insecure": (None, "insecure", True),
}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("run", "-n", "5"), SAID_OF_A_RUN),
        (("hosts", "-H", "localhost:5"), SAID_OF_A_RUN),
        (("demo", "-n", "5"), SAID),
    ],
)
def test_what_is_said_of_a_run_counts_wherever_it_is_started(
    gossip: Gossip,
    tmp_path: Path,
    command: tuple[str, ...],
    said: dict[str, tuple[str | None, str, object]],
) -> None:
    words = [
        word for option, (value, *_) in said.items() for word in (option, value) if word is not None
    ]
    script = [] if command[0] == "demo" else ["train.py"]
    done = gossip(*command, "--show-config", "--json", *words, *script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    found = {name: (shown[name]["value"], shown[name]["source"]) for _, name, _ in said.values()}
    assert found == {name: (value, "flag") for _, name, value in said.values()}
    assert len(SAID_OF_A_RUN) == len(options.SETTINGS) - 3, (
        "all but --faults, which is a file of what --fault says, and two options of a plan"
    )


SCHEDULERS = [
    ("slurm", "-N", "{n}"),
    ("condor", "-n", "{n}"),
    ("kubernetes", "-n", "{n}", "--image", "x"),
    ("kubernetes", "-n", "{n}", "--image", "x", "--claim", "c"),
]


@pytest.mark.parametrize("command", SCHEDULERS, ids=" ".join)
def test_what_tasks_are_told_fits_as_many_as_there_will_be(
    gossip: Gossip, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text("")
    for n, weights, code in (("8", "6:2", 0), ("2", "3:2", 2)):
        done = gossip(
            *(word.format(n=n) for word in command),
            "--",
            "--server-weights",
            weights,
            "train.py",
            cwd=tmp_path,
        )
        assert done.returncode == code, done.stderr
        assert code == 0 or "there is no peer 3 of 2" in done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("run -n 2 --lr 0.1 -f 1 train.py x", "gossip run -n 2 -f 1 train.py --lr 0.1 x"),
        ("hosts -H a --lr=0.1 train.py", "gossip hosts -H a train.py --lr=0.1"),
        ("run --agregator mean train.py", "did you mean --aggregator?"),
        ("run --lr 0.1", "gossip run --help lists them"),
        ("run --shift -0.1 train.py", "gossip run train.py --shift -0.1"),
        ("run --net net.py train.py", "gossip run --help lists them"),
    ],
)
def test_an_option_of_the_script_before_the_script_gets_the_right_command(
    gossip: Gossip, words: str, hint: str
) -> None:
    done = gossip(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{hint}\n")


def test_help_has_every_command_in_a_section(gossip: Gossip) -> None:
    shown = gossip("-h").stdout
    sections = re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE)
    assert sections == ["Options", *layout.SECTIONS], "and none is left for the last one"
    listed = re.findall(r"^  (\w+)  ", shown, re.MULTILINE)
    assert set(listed) == {name for names in layout.SECTIONS.values() for name in names.split()}


def test_the_options_of_a_run_are_in_sections(gossip: Gossip) -> None:
    sections = re.findall(r"^(\w[\w ]*):$", gossip("run", "-h").stdout, re.MULTILINE)
    assert sections == [*layout.OPTIONS, "More"]
    known = {option.name for option in get_command(cli.app).commands["run"].params}  # type: ignore[attr-defined]
    assert {name for names in layout.OPTIONS.values() for name in names.split()} <= known


def test_a_missing_script_is_the_most_similar_one(gossip: Gossip, tmp_path: Path) -> None:
    for name in ("train.py", "model.py"):
        (tmp_path / name).write_text("")
    assert "did you mean train.py?" in gossip("run", "trian.py", cwd=tmp_path).stderr
    assert "in that folder: model.py, train.py" in gossip("run", "x.py", cwd=tmp_path).stderr
