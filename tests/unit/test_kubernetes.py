"""``gossip kubernetes``: what it writes, checked against what is kept here and the rules of the kinds, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 - whether a rule goes with so many peers is then found out in this process
from kube import read

from gossip.launch import cli

GOLDEN = Path(__file__).with_name("golden") / "kubernetes.yaml"
WORDS = ["--aggregator", "mean", "train.py", "--lr", "0.1", "a b", "$(HOME)", 'no: "x"']
ASKED = ["-n", "8", "--image", "reg/img:1", "--claim", "data", "--name", "my-run", "--gpus", "1", "--workdir", "/app"]


@pytest.fixture
def gossip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)  # the script is not on this machine

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gossip", "kubernetes", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code if isinstance(ended.value.code, int) else 0, said.out, said.err

    return call


def test_the_manifest_is_this(gossip: Any, tmp_path: Path) -> None:
    code, out, err = gossip(*ASKED, "--", *WORDS)
    assert (code, err) == (0, "")
    assert out == GOLDEN.read_text()
    assert gossip(*ASKED, "-o", str(tmp_path / "job.yaml"), "--", *WORDS)[:2] == (0, "")
    assert (tmp_path / "job.yaml").read_text() == out


def test_it_keeps_the_rules_of_an_indexed_job_whose_pods_may_fail() -> None:
    service, job = read(GOLDEN.read_text())
    spec, template = job["spec"], job["spec"]["template"]
    assert (service["apiVersion"], service["kind"], service["spec"]["clusterIP"]) == ("v1", "Service", "None")
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["subdomain"] == service["metadata"]["name"], "else pods have no names"
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert spec["completions"] == spec["parallelism"] == 8, "all peers run at once"
    assert "backoffLimit" not in spec, "of all pods together: it would end the others"
    assert spec["maxFailedIndexes"] <= spec["completions"]
    assert template["spec"]["restartPolicy"] == "Never", "as a limit per index and a policy for failures need it"
    actions = {rule["action"] for rule in spec["podFailurePolicy"]["rules"]}
    assert actions == {"FailIndex", "Ignore"}, "FailJob would end the others"
    (container,) = template["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in template["spec"]["volumes"]}
    assert all(isinstance(variable.get("value", ""), str) for variable in container["env"])
    assert container["args"][-3:] == ["a b", "$$(HOME)", 'no: "x"'], "a word of the script's is not a variable of Kubernetes'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "--agregator", "krum", "train.py"], "--agregator"),
        (["--", "--aggregator", "kurm", "train.py"], "Did you mean 'krum'?"),
        (["--", "--run-dir", "/x", "train.py"], "run_dir is set (flag)"),
        (["--", "-n", "3", "train.py"], "peers is set (flag)"),
        (["--name", "My_Run", "train.py"], "small letters, digits and -"),
        (["--name", "x" * 49, "train.py"], "48 at most"),
        (["--mount", "shared", "train.py"], "is no path from the root"),
    ],
)
def test_what_every_pod_would_find_is_found_before(gossip: Any, words: list[str], said: str) -> None:
    code, out, err = gossip("-n", "2", "--image", "i", "--claim", "c", *words)
    assert code
    assert not out
    assert said in err
