"""``gossip hosts --plan``: which host has which peers of the plan, and from where they go on."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from gossip.config import PipelineConfig, Resolved, resolve
from gossip.errors import ConfigError
from gossip.launch.cli import app
from gossip.launch.ssh import planned, resuming
from gossip.launch.ssh.hostcheck import HostReport
from gossip.launch.ssh.hostlist import Host, load, parse_file, parse_list, place
from gossip.launch.ssh.survey import HostSurvey
from gossip_pipelines.planning import PipelinePlan, PlannedStage, write_plan

MODEL = "0123456789abcdef"
NAMES = ("lab3", "lab1", "lab2")  # by their numbers: the first stage is lab3's
CUT = ((0, 1), (2, 5))


def by_plan(hosts: tuple[Host, ...]) -> dict[str, Any]:
    return place(planned.by_plan(hosts, NAMES, "plan.toml"))


def test_hosts_have_the_peers_of_their_names_in_whatever_order_they_stand() -> None:
    assert by_plan(parse_list("lab1,me@lab2,lab3")) == {"lab1": (1,), "lab2": (2,), "lab3": (0,)}
    assert by_plan(parse_list("lab1.local,lab2,lab3.example.org")) == {
        "lab1.local": (1,),
        "lab2": (2,),
        "lab3.example.org": (0,),
    }


def test_peers_are_named_for_hosts_on_the_command_line_and_in_a_host_file() -> None:
    listed = parse_list("lab1=10.0.0.1,lab3=me@10.0.0.2,lab2=10.0.0.1")
    assert by_plan(listed) == {"10.0.0.1": (1, 2), "10.0.0.2": (0,)}
    file = "10.0.0.1 peers=lab2,lab1 workdir=/scratch\nme@10.0.0.2:2222 peers=lab3\n"
    filed = parse_file(file, "hosts.txt")
    assert by_plan(filed) == {"10.0.0.1": (1, 2), "10.0.0.2": (0,)}
    found = planned.by_plan(filed, NAMES, "plan.toml")
    assert [(host.slots, host.peers) for host in found] == [(2, ("lab1", "lab2")), (1, ("lab3",))]
    assert found[0].workdir == "/scratch"


def test_this_machine_has_the_peer_of_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "lab3.local")
    assert by_plan(parse_list("lab1,localhost,lab2")) == {
        "lab1": (1,),
        "localhost": (0,),
        "lab2": (2,),
    }


def test_a_host_that_the_plan_leaves_out_starts_nothing_and_is_named() -> None:
    hosts = parse_list("lab1,lab2,lab3,lab4")
    found = planned.by_plan(hosts, NAMES, "plan.toml")
    assert [host.name for host in found] == ["lab1", "lab2", "lab3"]
    assert planned.unplanned(hosts, found) == (
        "! nothing is started on lab4: the plan has no peer there"
    )
    assert planned.unplanned(hosts[:3], found) == ""


@pytest.mark.parametrize(
    ("hosts", "said", "hint"),
    [
        (
            "10.0.0.1,lab1",
            r"no host has the peers lab3, lab2: plan\.toml has lab3, lab1, lab2, the hosts are "
            r"10\.0\.0\.1, lab1; 10\.0\.0\.1 has no peer",
            "-H lab3=HOST,lab1=lab1,lab2=HOST",
        ),
        (
            "lab1=a,lab2=b,lab4=c",
            r"c: plan\.toml has no peer lab4\. Did you mean 'lab",
            "lab3, lab1",
        ),
        ("lab1=a,lab2=b,lab3=c,lab1=c", "the peer lab1 of plan.toml would be on a and on c", "-H"),
        ("lab1,lab2,lab3:2", r"lab3 gets 2 peers, but plan\.toml has 1 there: lab3", "lab3=lab3"),
    ],
)
def test_hosts_that_do_not_fit_the_plan_are_refused_with_both_named(
    hosts: str, said: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        by_plan(parse_list(hosts))
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("lab1=a:2", "has one name for 2 peers"),
        ("-x=a", "'-x' is not a name of a peer"),
        ("=a", "'' is not a name of a peer"),
        ("lab1=", "is neither a host nor a file"),
        ("lab1=a,a", "a is listed twice"),
    ],
)
def test_names_of_peers_that_cannot_be_are_refused(hosts: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_list(hosts)


def test_names_of_peers_without_a_plan_are_refused() -> None:
    planned.check_unnamed(parse_list("a:2,b"))
    with pytest.raises(ConfigError, match="lab1 at a is the name of a peer, but there is no plan"):
        planned.check_unnamed(parse_list("lab1=a,lab2=a"))


def test_a_dry_run_names_the_peers_of_each_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = (PlannedStage((0, 1), ("lab3",)), PlannedStage((2, 5), ("lab1", "lab2")))
    (tmp_path / "plan.toml").write_text(write_plan(PipelinePlan(MODEL, 8, 4, 1, 0.1, stages)))
    monkeypatch.chdir(tmp_path)
    words = ["hosts", "-H", "lab1=a,lab2=a,lab3=b", "--plan", "plan.toml", "--dry-run"]
    app([*words, "--", "train.py"], standalone_mode=False)
    told = capsys.readouterr().out
    assert "host    a: peers 1 (lab1, stage 1) 2 (lab2, stage 1)" in told
    assert "host    b: peers 0 (lab3, stage 0)" in told
    with pytest.raises(ConfigError, match="--resume auto: the folder"):
        app([*words, "--resume", "auto", "--", "train.py"], standalone_mode=False)


# --- going on ------------------------------------------------------------------------------------


def part(step: int, stage: int, cut: Any = CUT, model: str = MODEL) -> dict[str, Any]:
    stages = [list(layers) for layers in cut]
    return {"step": step, "stage": stage, "stages": stages, "model": model, "folder": "/x"}


def resume(said: str, **parts: list[dict[str, Any]]) -> tuple[Resolved, dict[str, str], HostReport]:
    plan = PipelineConfig.model_validate(
        {
            "model": MODEL,
            "micro_batches": 8,
            "samples": 4,
            "names": NAMES,
            "stages": [{"layers": (0, 1), "peers": (0,)}, {"layers": (2, 5), "peers": (1, 2)}],
        }
    )
    resolved = resolve({"peers": 3, "pipeline": plan.model_dump(), "resume": said})
    resolved, asked = resuming.put_off(resolved)
    assert (resolved.config.resume, asked) == ("", said)
    saved = {
        name: {"folder": f"/{name}/saved", "parts": own, "error": ""} for name, own in parts.items()
    }
    hosts = planned.by_plan(parse_list(",".join(parts)), NAMES, "plan.toml")
    found = HostSurvey(HostReport(), {}, [], {}, saved)
    resolved, resumes = resuming.from_hosts(resolved, asked, hosts, found)
    return resolved, resumes, found.report


def test_all_hosts_go_on_from_the_newest_step_that_all_stages_have() -> None:
    resolved, resumes, report = resume(
        "saved",
        lab3=[part(4, 0), part(8, 0)],
        lab1=[part(4, 1), part(8, 1), part(12, 1)],
        lab2=[part(4, 1)],
    )
    assert report.failed == []
    assert resolved.config.resume == "saved@8"
    assert resumes["lab3"] == "/lab3/saved@8|others"
    told = [(line.about, line.text) for line in report.lines]
    assert told == [
        ("resume", "step 8 of saved: lab3 has layers 0-1; lab1 has layers 2-5"),
        ("lab2", "copies the state of stage 1 from lab1"),
    ]


def test_a_host_without_its_layers_is_refused_where_nobody_of_its_stage_has_them() -> None:
    other = ((0, 2), (3, 5))
    _, _, report = resume("saved@4", lab3=[part(4, 0, other)], lab1=[part(4, 1, other)], lab2=[])
    assert [(line.about, line.text) for line in report.failed] == [
        ("lab1", "lacks layers 2-5 of stage 1: it has 3-5"),
        ("lab2", "lacks layers 2-5 of stage 1: it has none"),
    ]
    both = [part(4, 0, other), part(4, 1, other)]
    _, _, report = resume("saved", lab3=[part(4, 0, other)], lab1=both, lab2=[])
    assert report.failed == [], "lab1 has all layers that stage 1 has now"


@pytest.mark.parametrize(
    ("said", "parts", "told"),
    [
        ("saved", {"lab3": [part(4, 0)], "lab1": [], "lab2": []}, "no step of saved is complete"),
        (
            "saved",
            {"lab3": [part(4, 0)], "lab1": [part(8, 1)], "lab2": []},
            "lab3: stage 0 @4; lab1: stage 1 @8; lab2: nothing in /lab2/saved",
        ),
        (
            "saved@8",
            {"lab3": [part(4, 0)], "lab1": [part(4, 1)], "lab2": []},
            "no set of stages in saved has the whole model of step 8",
        ),
        (
            "saved",
            {"lab3": [part(4, 0, CUT, "f" * 16)], "lab1": [part(4, 1, CUT, "f" * 16)], "lab2": []},
            "has checkpoints of the model ffffffffffffffff, and the plan is for 0123456789abcdef",
        ),
        (
            "saved",
            {"lab3": [part(4, 0)], "lab1": [part(4, 1, ((0, 2), (3, 5)))], "lab2": []},
            "no step of saved is complete",
        ),
    ],
)
def test_nothing_starts_where_no_step_is_whole_or_it_is_another_model(
    said: str, parts: dict[str, Any], told: str
) -> None:
    _, _, report = resume(said, **parts)
    assert [line.level for line in report.lines] == ["fail"]
    assert told in report.lines[0].text


def test_what_a_host_says_of_its_parts_is_not_taken_on_trust() -> None:
    wrong = [{"step": -1}, {**part(4, 0), "stages": [[0, 1], [3, 5]]}, {**part(4, 0), "stage": 2}]
    _, _, report = resume("saved", lab3=wrong, lab1=[part(4, 1)], lab2=[])
    assert "no step of saved is complete" in report.failed[0].text


def test_a_host_file_may_name_peers(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("a peers=lab1,la%b\n")
    with pytest.raises(ConfigError, match=r"hosts.txt:1: 'la%b' is not a name of a peer"):
        load(str(path))
