"""``gossip kubernetes``: what it writes, checked against what is kept here and the rules of the
kinds, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# whether a rule goes with so many peers is then found out in this process
import torch  # noqa: F401
from cli_calls import gossip_command
from kube import read

from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.launch.registry.join_server import JoinServer
from gossip.launch.registry.registry import LISTENING, PeerEntry
from gossip.run.keys import make_pair, parse_pair, read_pair
from gossip_clusters.kubernetes import peer as kubernetes_peer

GOLDEN = Path(__file__).with_name("golden")
WORDS = ["--aggregator", "mean", "train.py", "--lr", "0.1", "a b", "$(HOME)", 'no: "x"']
ASKED = ["-n", "8", "--image", "reg/img:1", "--name", "my-run", "--gpus", "1", "--workdir", "/app"]
WAYS = {"kubernetes.yaml": (), "kubernetes_claim.yaml": ("--claim", "data")}


@pytest.fixture
def gossip(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Any:
    monkeypatch.chdir(tmp_path)  # the script is not on this machine
    return gossip_command(monkeypatch, capsys, "kubernetes")


def without_what_is_drawn(text: str) -> str:
    return re.sub(
        r'^  (config\.json|swarm\.key): ".*"$', r'  \1: "DRAWN"', text, flags=re.MULTILINE
    )


@pytest.mark.parametrize(("golden", "way"), WAYS.items())
def test_the_manifest_is_so(gossip: Any, tmp_path: Path, golden: str, way: tuple[str, ...]) -> None:
    code, out, err = gossip(*ASKED, *way, "--", *WORDS)
    assert (code, err) == (0, "")
    assert without_what_is_drawn(out) == (GOLDEN / golden).read_text()
    file = tmp_path / "job.yaml"
    file.write_text("older")
    file.chmod(0o644)
    assert gossip(*ASKED, *way, "-o", str(file), "--", *WORDS)[:2] == (0, "")
    assert without_what_is_drawn(file.read_text()) == (GOLDEN / golden).read_text()
    assert file.stat().st_mode & 0o777 == 0o600, "it holds the key"


@pytest.mark.parametrize("golden", WAYS)
def test_it_is_what_the_schemas_of_kubernetes_allow(golden: str) -> None:
    """In the releases from that whose rules it needs to the newest one known; a word that is in no
    schema is refused, too."""
    import kubernetes_validate

    for document in read((GOLDEN / golden).read_text()):
        for release in ("1.29", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(document, release, strict=True)


@pytest.mark.parametrize("golden", WAYS)
def test_it_keeps_the_rules_of_an_indexed_job_whose_pods_may_fail(golden: str) -> None:
    *secret, service, job = read((GOLDEN / golden).read_text())
    spec, template = job["spec"], job["spec"]["template"]
    assert (service["apiVersion"], service["kind"], service["spec"]["clusterIP"]) == (
        "v1",
        "Service",
        "None",
    )
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert (
        template["spec"]["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"]
    ), "else pods have no names"
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == (
        "batch/v1",
        "Job",
        "Indexed",
    )
    assert spec["completions"] == spec["parallelism"] == 8, "all peers run at once"
    assert "backoffLimit" not in spec, "of all pods together: it would end the others"
    assert spec["maxFailedIndexes"] <= spec["completions"]
    assert template["spec"]["restartPolicy"] == "Never", (
        "as a limit per index and a policy for failures need it"
    )
    actions = {rule["action"] for rule in spec["podFailurePolicy"]["rules"]}
    assert actions == {"FailIndex", "Ignore"}, "FailJob would end the others"
    (container,) = template["spec"]["containers"]
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert all(isinstance(variable.get("value", ""), str) for variable in container["env"])
    assert container["args"][-3:] == ["a b", "$$(HOME)", 'no: "x"'], (
        "a word of the script's is not a variable of Kubernetes'"
    )
    given = [volume["secret"] for volume in volumes.values() if "secret" in volume]
    assert [each["metadata"]["name"] for each in secret] == [each["secretName"] for each in given]
    assert all(each["defaultMode"] == 0o400 for each in given)
    assert all(
        each["immutable"]
        and each["kind"] == "Secret"
        and set(each["stringData"]) == {"config.json", "swarm.key"}
        for each in secret
    )


def test_settings_and_key_are_in_the_secret_and_nowhere_else(
    gossip: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOSSIP_MIN_PEERS", "5")
    (tmp_path / "mine.toml").write_text("patience_s = 3.0\n")
    code, out, err = gossip(*ASKED, "--", "--config", "mine.toml", *WORDS)
    assert (code, err) == (0, "")
    secret = read(out)[0]
    config = json.loads(secret["stringData"]["config.json"])
    assert (config["min_peers"], config["patience_s"]) == (5, 3.0), (
        "of this shell, and of a file here"
    )
    assert (config["peers"], config["name"], config["run_dir"], config["keys"]) == (
        8,
        "my-run",
        "",
        True,
    )
    assert config["start_timeout_s"] == 600, "pods begin when there are nodes and images for them"
    pair = parse_pair(secret["stringData"]["swarm.key"].encode(), "")
    assert out.count(pair.secret.replace("\\", "\\\\").replace('"', '\\"')) == 1
    mine = make_pair(tmp_path / "mine.key")
    out = gossip(*ASKED, "--", "--key", "mine.key", *WORDS)[1]
    assert parse_pair(read(out)[0]["stringData"]["swarm.key"].encode(), "") == mine, (
        "whoever has it joins"
    )
    out = gossip(*ASKED, "--", "--insecure", "--no-keys", *WORDS)[1]
    assert set(read(out)[0]["stringData"]) == {"config.json"}


def test_settings_of_this_shell_come_along_and_what_does_not_is_said(
    gossip: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOSSIP_SEED", "7")
    monkeypatch.setenv("GOSSIP_AGGREGATOR", "krum")  # and a flag says something else
    monkeypatch.setenv("GOSSIP_KEY", "/home/me/peer.key")
    (tmp_path / "mine.toml").write_text("patience_s = 3.0\n")
    code, out, err = gossip(*ASKED, "--claim", "data", "--", "--config", "mine.toml", *WORDS)
    assert code == 0
    (container,) = read(out)[1]["spec"]["template"]["spec"]["containers"]
    carried = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert carried == {"GOSSIP_LISTEN": None, "OMP_NUM_THREADS": "1", "GOSSIP_SEED": "7"}
    assert err.splitlines() == [
        "! every pod reads --config mine.toml, so the file must be in the image",
        "! not passed to the pods, because they describe this machine: GOSSIP_KEY",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "--agregator", "krum", "train.py"], "--agregator"),
        (["--", "--aggregator", "kurm", "train.py"], "Did you mean 'krum'?"),
        (
            ["--", "--run-dir", "/x", "train.py"],
            "run_dir is set (flag): the run's folder is /run/gossip/gossip",
        ),
        (
            ["--claim", "c", "--", "--run-dir", "/x", "train.py"],
            "run_dir is set (flag): the run's folder is /shared/runs/gossip",
        ),
        (["--", "-n", "3", "train.py"], "peers is set (flag)"),
        (["--", "--name", "x", "train.py"], "name is set (flag)"),
        (["--name", "My_Run", "train.py"], "lower-case letters, digits and -"),
        (["--name", "x" * 49, "train.py"], "at most 48"),
        (["--claim", "c", "--mount", "shared", "train.py"], "is not an absolute path"),
        (
            ["--mount", "/shared", "train.py"],
            "--mount is the path of a volume, but there is no volume",
        ),
        (["--", "--no-keys", "train.py"], "without keys any process that reaches them"),
        (["--", "-f", "1", "--aggregator", "krum", "train.py"], "krum"),
        (
            ["--claim", "c", "--", "-f", "1", "--aggregator", "krum", "train.py"],
            "krum needs 5 updates",
        ),
        (
            ["--claim", "c", "--", "--min-peers", "3", "train.py"],
            "min_peers = 3: only 2 peers start",
        ),
        (["-o", "nowhere/job.yaml", "train.py"], "cannot write nowhere/job.yaml: No such file"),
    ],
)
def test_what_every_pod_would_hit_is_found_before(gossip: Any, words: list[str], said: str) -> None:
    code, out, err = gossip("-n", "2", "--image", "i", *words)
    assert code
    assert not out
    assert said in err


@pytest.mark.parametrize(
    ("told", "lives"),
    [
        ({}, 0),
        ({"JOB_FAILURES": ""}, 0),
        ({"JOB_FAILURES": "2"}, 2),
        ({"JOB_FAILURES": "2", "JOB_FAILURES_IGNORED": "3"}, 5),
    ],
)
def test_a_pod_counts_those_before_it(told: dict[str, str], lives: int) -> None:
    assert kubernetes_peer.failed_before(told) == lives


@pytest.mark.parametrize(
    ("given", "needed", "patience_s"),
    [
        ({"peers": 4, "quorum": "available"}, 3, 120.0),
        ({"peers": 2}, 2, 120.0),
        ({"peers": 5, "start_timeout_s": 60.0}, 3, 60.0),
        ({"peers": 5, "min_peers": 2, "quorum": "available"}, 3, 10.0),
        ({"peers": 5, "min_peers": 4, "patience_s": 1.0}, 4, 1.0),
    ],
)
def test_a_pod_that_comes_back_does_not_begin_anew_without_most_of_the_others(
    given: dict[str, Any], needed: int, patience_s: float
) -> None:
    config = kubernetes_peer.coming_back(RunConfig(**{"start_timeout_s": 600.0, **given}))
    assert (config.needed_to_start, config.patience_s) == (needed, patience_s)
    assert config.start_timeout_s <= 120, "the job starts it again"


def test_names_that_nobody_knows_yet_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"t-0.t": "10.0.0.7", "t-2.t": "fd00::2"}

    def look_up(host: str, port: int, *options: Any) -> list[tuple[Any, ...]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[host], port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    found = asyncio.run(kubernetes_peer.resolve_names(["t-0.t", "t-1.t", "t-2.t"], 7421))
    assert found == ["10.0.0.7:7421", "[fd00::2]:7421"]


def test_only_who_is_missing_is_looked_up_and_ever_less_often() -> None:
    here: set[int] = {0, 2}
    sought = kubernetes_peer.PodLookups({peer: f"t-{peer}.t" for peer in range(3)})
    asked = {float(now): sought.due(here.__contains__, float(now)) for now in range(301)}
    assert {now: names for now, names in asked.items() if names} == {
        at: ["t-1.t"] for at in (5, 15, 35, 75, 135, 195, 255)
    }
    here.add(1)
    here.remove(0)
    assert [sought.due(here.__contains__, now) for now in (301.0, 305.0, 306.0)] == [
        [],
        [],
        ["t-0.t"],
    ]
    here.remove(1)
    assert sought.due(here.__contains__, 307.0) == [], (
        "it was here meanwhile: it rests from its loss on"
    )
    assert sought.due(here.__contains__, 312.0) == ["t-1.t"]


def test_a_pod_looks_up_who_is_missing_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has ended, or whose door answers, costs no look-up."""
    asked: list[str] = []
    monkeypatch.setattr(kubernetes_peer, "LOOK_S", 0.0)
    monkeypatch.setattr(kubernetes_peer, "AGAIN_S", 0.0)

    async def resolve_names(names: list[str], port: int) -> list[str]:
        asked.extend(names)
        return ["10.0.0.7:7421"]

    monkeypatch.setattr(kubernetes_peer, "resolve_names", resolve_names)
    join_servers = {1: b"a", 2: b"b", 3: b"c"}
    entries = {
        peer: PeerEntry(peer, 0, LISTENING, owner, ended=peer == 3)
        for peer, owner in join_servers.items()
    }
    met: list[str] = []

    async def some() -> None:
        ended = asyncio.get_running_loop().create_future()

        class FakeJoinServer:
            address = "10.0.0.1:7421"
            keeper = SimpleNamespace(entries=entries)
            remote_servers = SimpleNamespace(answers=lambda join_server: join_server == b"a")
            is_met = JoinServer.is_met

            def meet(self, addresses: list[str]) -> None:
                met.extend(addresses)
                if len(met) == 2:
                    ended.set_result(None)

        supervisor = SimpleNamespace(join_server=FakeJoinServer())
        names = {peer: f"t-{peer}.t" for peer in (1, 2, 3, 4)}
        keeping = asyncio.create_task(kubernetes_peer.keep_meeting(supervisor, names, 7421))
        await asyncio.wait_for(ended, 10)
        keeping.cancel()

    asyncio.run(some())
    assert set(asked) == {"t-2.t", "t-4.t"}
    assert met[0] == "10.0.0.7:7421"


def test_the_key_of_a_pod_is_for_its_owner_whatever_the_secrets_mode(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    pair, given = make_pair(tmp_path / "given" / "swarm.key"), tmp_path / "given" / "swarm.key"
    given.chmod(0o440)  # as Kubernetes makes it of 0400 for a pod with a group of its own
    assert (
        kubernetes_peer.copy_swarm_key(given, tmp_path) == pair == read_pair(tmp_path / "swarm.key")
    )
    with pytest.raises(ConfigError, match=r"cannot read the swarm key .*No such file") as refused:
        kubernetes_peer.copy_swarm_key(tmp_path / "missing", tmp_path)
    assert refused.value.hint is not None
    assert "--user" in refused.value.hint
