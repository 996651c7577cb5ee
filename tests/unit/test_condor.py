"""``gossip condor``: what it writes, against what is kept here and HTCondor's rules, and what it
refuses; jobs and their ads."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# whether a rule goes with so many peers is then found out in this process
import torch  # noqa: F401
from cli_calls import gossip_command
from condor import Description, read_dag, words

from gossip.config import resolve
from gossip.errors import ConfigError
from gossip.launch.schedulers.condor_job import condor_task, run_of
from gossip.run.keys import read_pair
from gossip.run.rendezvous import SeedFolder
from gossip.run.scheduler_env import Task, meet
from gossip_clusters.condor import peer as condor_peer, verdict as condor_verdict
from gossip_clusters.condor.contact import (
    COMES,
    DONE,
    Contact,
    ContactLine,
    NoContact,
    find_chirp,
    join_servers,
    next_incarnation,
    read_lines,
)
from gossip_clusters.condor.files import quoted

GOLDEN = Path(__file__).with_name("golden") / "condor"
WORDS = [
    *shlex.split("--aggregator mean --room 10 train.py --lr 0.1"),
    "a b",
    "$(HOME)",
    "$$(Memory)",
    'no: "x"',
    "it's",
    "",
]
ASKED = shlex.split("-n 3 --python /usr/bin/python3 --name my-run --gpus 1 --condor 'rank = Mips'")


@pytest.fixture
def gossip(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    return gossip_command(monkeypatch, capsys, "condor")


def written(folder: Path, root: Path) -> dict[str, str]:
    texts = {
        path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".sub", ".dag")
    }
    return {name: text.replace(str(root), "/home/me") for name, text in texts.items()}


@pytest.mark.parametrize("kind", ["contact", "shared"])
def test_the_files_are_these(gossip: Any, tmp_path: Path, kind: str) -> None:
    code, out, err = gossip(*ASKED, *(["--shared"] if kind == "shared" else []), "--", *WORDS)
    assert (code, err) == (0, "")
    assert f"condor_submit_dag {tmp_path}/condor-my-run/swarm.dag" in out
    found = written(tmp_path / "condor-my-run", tmp_path)
    assert found == {path.name: path.read_text() for path in (GOLDEN / kind).iterdir()}


@pytest.mark.parametrize("kind", ["contact", "shared"])
def test_they_keep_the_rules_of_submit_descriptions_and_dags(kind: str) -> None:
    texts = {path.name: path.read_text() for path in (GOLDEN / kind).iterdir()}
    read = {name: Description(text) for name, text in texts.items() if name.endswith(".sub")}
    nodes, final = read_dag(texts["swarm.dag"])
    assert final.name == "verdict.sub"
    assert read["verdict.sub"].commands["universe"] == "local", (
        "it takes no slot, and sees the folder"
    )
    assert {path.name for path, _ in nodes.values()} == {"peer.sub"}
    for name, (_, given) in nodes.items():
        (job,) = read["peer.sub"].jobs(9, given)
        assert (job["+GossipPeer"], job["+GossipPeers"]) == (name.removeprefix("peer"), "3"), (
            "a node is a peer, and one job"
        )
    alone = list(read["peer.sub"].jobs(9))
    assert [job["+GossipPeer"] for job in alone] == ["0", "1", "2"], (
        "without a DAG the number of the process says it"
    )
    assert len({job["output"] for job in alone}) == 3, "or one would overwrite that of another"
    assert words(alone[0]["arguments"])[-7:] == WORDS[-7:], (
        "a word of the script's is no macro of HTCondor's"
    )
    assert "+GossipPeer" not in read["more.sub"].attributes, (
        "who comes later is none of those that begin"
    )
    assert [len(list(read["more.sub"].jobs(9, given))) for given in ({}, {"count": "2"})] == [1, 2]


def test_the_key_goes_by_file_alone(gossip: Any, tmp_path: Path) -> None:
    assert gossip(*ASKED, "--", *WORDS)[0] == 0
    folder = tmp_path / "condor-my-run"
    key = folder / "swarm.key"
    pair = read_pair(key)  # which refuses one that others can read
    assert not any(pair.secret in path.read_text() for path in folder.iterdir() if path != key)
    commands = Description((folder / "peer.sub").read_text()).commands
    assert commands["encrypt_input_files"] == str(key)
    settings = json.loads((folder / "config.json").read_text())
    assert (settings["keys"], settings["peers"], settings["start_timeout_s"]) == (True, 3, 600.0)
    assert gossip(*ASKED, "--", *WORDS)[0] == 2, "a key is never overwritten"


def test_settings_that_stand_in_variables_go_with_the_jobs(
    gossip: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSIP_QUORUM", "available")
    assert gossip("-n", "2", "--shared", "train.py")[0] == 0
    said = Description((tmp_path / "condor-train" / "peer.sub").read_text()).commands
    assert words(said["environment"]) == ["OMP_NUM_THREADS=1", "GOSSIP_QUORUM=available"]
    assert words(said["arguments"])[3:] == ["run", "--start-timeout", "600", "train.py"]
    assert gossip("-n", "2", "-o", "other", "--", "--start-timeout", "5", "train.py")[0] == 0
    settings = json.loads((tmp_path / "other" / "config.json").read_text())
    assert (settings["quorum"], settings["start_timeout_s"]) == ("available", 5.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["tain.py"], "there is no script tain.py"),
        (["--", "-m", "train"], "without --shared, your packages are not"),
        (["--", "--agregator", "krum", "train.py"], "--agregator"),
        (["--", "--aggregator", "kurm", "train.py"], "Did you mean 'krum'?"),
        (["--", "--run-dir", "/x", "train.py"], "run_dir is set (flag)"),
        (["--", "-n", "3", "train.py"], "peers is set (flag)"),
        (["--", "--no-keys", "train.py"], "without keys any process that reaches them"),
        (["--", "--aggregator", "my.py:rule", "train.py"], "my.py"),
        (["--name", "a b", "train.py"], "letters, digits"),
        (["--input", "data.csv", "train.py"], "there is no data.csv"),
        (["-o", "a b", "train.py"], "cannot contain a path with ' '"),
        (["--condor", "rank = 1\nqueue", "train.py"], "is not one line"),
        (["--", "train.py", "two\nlines"], "more than one line"),
    ],
)
def test_what_every_job_would_find_is_found_before(
    gossip: Any, tmp_path: Path, given: list[str], said: str
) -> None:
    code, out, err = gossip("-n", "2", *given)
    assert code
    assert not out
    assert said in err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"], "something was written"


def fake(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_folder_of_another_submission_is_told_with_options_that_there_are(
    gossip: Any, tmp_path: Path
) -> None:
    (tmp_path / "condor-train").mkdir()
    (tmp_path / "condor-train" / "swarm.dag").touch()
    code, _, err = gossip("-n", "2", "train.py")
    assert (code, f"{tmp_path}/condor-train of another submission" in err) == (2, True)
    assert "hint: use -o FOLDER or another --name" in err
    assert "--run-dir" not in err


def test_it_is_sent_where_there_is_htcondor(
    gossip: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    code, _, err = gossip("-n", "2", "--submit", "train.py")
    assert (code, "there is no condor_submit_dag on this machine" in err) == (2, True)
    assert not (tmp_path / "condor-train").exists()
    tools = tmp_path.parent / f"{tmp_path.name}-bin"
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    fake(
        tools,
        "condor_submit_dag",
        f"echo \"$*\" > {tools}/sent; echo '1 job(s) submitted to cluster 77.'",
    )
    code, out, err = gossip("-n", "2", "--submit", "train.py")
    assert (code, err) == (0, "")
    assert (tools / "sent").read_text() == f"{tmp_path}/condor-train/swarm.dag\n"
    assert "stop: condor_rm 77" in out
    fake(tools, "condor_submit_dag", "echo 'ERROR: no schedd' >&2; exit 1")
    code, _, err = gossip("-n", "2", "-o", "again", "--submit", "train.py")
    assert (code, "rejects" in err, "ERROR: no schedd" in err) == (2, True, True)


def job_of(folder: Path, ad: str, machine: str = "") -> dict[str, str]:
    (folder / "job").write_text(ad)
    (folder / "machine").write_text(machine)
    return {"_CONDOR_JOB_AD": str(folder / "job"), "_CONDOR_MACHINE_AD": str(folder / "machine")}


def test_a_job_is_a_peer_where_its_ad_says_so_and_else_a_run_of_its_own(tmp_path: Path) -> None:
    ad = 'Owner = "me"\nClusterId = 81\nProcId = 2\nTotalSubmitProcs = 8\n'
    assert condor_task({}) is None
    assert condor_task(job_of(tmp_path, ad)) is None, (
        "eight jobs with other arguments each are eight runs"
    )
    machine = 'MyAddress = "<10.0.0.7:9618?addrs=10.0.0.7-9618+[fd00--7]-9618&alias=n7>"\n'
    given = job_of(tmp_path, f"{ad}GossipPeer = 2\nGossipPeers = 8\n", machine)
    task = condor_task(given)
    assert (task.run, task.peer, task.peers, task.one_host, task.comes_back) == (
        "condor-81",
        2,
        8,
        False,
        True,
    )
    assert task.towards == "10.0.0.7"
    six = condor_task(
        job_of(
            tmp_path, f"{ad}GossipPeer = 2\nGossipPeers = 8\n", 'MyAddress = "<[fd00::7]:9618>"\n'
        )
    )
    assert six.towards == "fd00::7"
    assert run_of({"ClusterId": "81", "DAGManJobId": "77"}) == "condor-77", (
        "nodes of a DAG have clusters of their own"
    )
    for wrong in (
        "GossipPeer = 8\nGossipPeers = 8\n",
        "GossipPeers = 8\n",
        "GossipPeer = x\nGossipPeers = 8\n",
    ):
        with pytest.raises(ConfigError, match="GossipPeer"):
            condor_task(job_of(tmp_path, ad + wrong))


def test_lives_are_counted_by_the_contact_file(tmp_path: Path) -> None:
    fake(tmp_path, "chirp", 'case "$1" in fetch) cat "$2";; put) cat >> "$7";; esac')
    here = Contact(str(tmp_path / "contact"), "condor-7", [str(tmp_path / "chirp")])
    other = Contact(str(tmp_path / "contact"), "condor-8", [str(tmp_path / "chirp")])
    for contact, peer, incarnation, what in (
        (here, 3, 0, COMES),
        (here, 3, 0, "10.0.0.5:4000"),
        (here, 3, 2, "10.0.0.5:4000"),  # its trainer has started its node anew, twice
        (other, 3, 9, "10.0.0.9:4000"),
        (here, 1, 0, "[fd00::7]:4001"),
        (here, 1, 0, DONE),
    ):
        contact.add(peer, incarnation, what)
    lines = here.read()
    assert len(lines) == 5, "of another run"
    assert join_servers(lines) == ("[fd00::7]:4001", "10.0.0.5:4000")
    here.add(3, 0, COMES)
    assert next_incarnation(here.read(), 3) == 3
    here.add(2, 0, COMES)
    assert next_incarnation(here.read(), 2) == 0
    here.add(2, 0, COMES)  # the first was evicted before it had a door
    assert next_incarnation(here.read(), 2) == 1
    assert read_lines("condor-7 x 0 a:1\nhalf a\n\ncondor-7 1 0 a:1 b\n") == []
    assert read_lines(str(ContactLine("condor-7", 1, 2, "a:1"))) == [
        ContactLine("condor-7", 1, 2, "a:1")
    ]


def test_a_contact_file_that_cannot_be_reached_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, "chirp", "echo 'chirp is off' >&2; exit 1")
    with pytest.raises(NoContact, match="put of /x/contact: chirp is off"):
        Contact("/x/contact", "r", [str(tmp_path / "chirp")]).add(0, 0, COMES)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(NoContact, match="there is no condor_chirp on this machine"):
        find_chirp()
    fake(tmp_path / "libexec", "condor_chirp", "")
    fake(tmp_path / "bin", "condor_config_val", f"echo {tmp_path}/libexec")
    assert find_chirp() == (f"{tmp_path}/libexec/condor_chirp",)


@pytest.mark.parametrize(
    ("others", "incarnation", "over"),
    [
        ([], 1, ""),  # the others have yet to come
        (["comes"], 1, ""),
        # who was evicted may come back, as long as this one waits for the start
        (["{gone}"], 0, ""),
        (["{gone}"], 1, "all of its peers were lost"),
        (["{gone}", "{here}"], 1, ""),
        (["{gone}", "done"], 0, "peers 4 finished"),
        (["{here}", "done"], 0, ""),
    ],
)
def test_who_comes_when_nobody_is_left_is_told_so(
    others: list[str], incarnation: int, over: str
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as here,
        socket.create_server(("127.0.0.1", 0)) as gone,
    ):
        ports = {
            name: "{}:{}".format(*end.getsockname())
            for name, end in (("here", here), ("gone", gone))
        }
        gone.close()
        own = ContactLine("condor-7", 1, 0, ports["here"])  # which another may have by now
        lines = [own, *(ContactLine("condor-7", 4, 0, what.format(**ports)) for what in others)]
        task = Task("HTCondor", "condor-7", 1, 8, one_host=False)
        if not over:
            condor_peer.check_going_on(task, lines, incarnation)
            return
        with pytest.raises(
            ConfigError, match=f"the run condor-7 is over: {over}, and no peer answers"
        ):
            condor_peer.check_going_on(task, lines, incarnation)


class Board:
    """A contact file that may be out of reach."""

    def __init__(self) -> None:
        self.lines: list[ContactLine] = []
        self.reached, self.asked = False, 0

    def add(self, peer: int, incarnation: int, what: str) -> None:
        self.asked += 1
        if not self.reached:
            raise NoContact("chirp is off")
        self.lines.append(ContactLine("condor-7", peer, incarnation, what))

    def read(self) -> list[ContactLine]:
        self.asked += 1
        return [*self.lines, ContactLine("condor-7", 0, 0, "10.0.0.5:4000")]


def test_a_job_says_where_it_is_in_each_life_and_does_not_flood_who_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condor_peer, "LOOK_S", 0.0)
    said: list[str] = []
    met: list[tuple[str, ...]] = []
    join_server = SimpleNamespace(address="", missing=[0], meet=met.append)
    run: Any = SimpleNamespace(
        ongoing=SimpleNamespace(folder=tmp_path, screen=SimpleNamespace(print_line=said.append)),
        join_server=join_server,
    )
    board: Any = Board()
    seeds = SeedFolder(tmp_path / "seeds", 3, 8)

    async def looks(count: int) -> None:
        for _ in range(count):
            # as each of its calls is in a thread, and each look a turn of the loop
            await asyncio.to_thread(lambda: None)

    async def play() -> None:
        keeping = asyncio.create_task(condor_peer.keep_in_contact(run, board, 3, 1))
        await looks(20)
        assert board.asked == 0, "there is no door yet"
        join_server.address = "10.0.0.7:4000"
        await looks(20)
        assert (board.asked, said) == (1, ["! chirp is off"]), "it asked again at once"
        board.reached = True
        # its trainer has started its node anew: that is not to wait
        seeds.announce("tcp://10.0.0.7:1", "", 2)
        await looks(20)
        assert board.lines == [ContactLine("condor-7", 3, 2, "10.0.0.7:4000")]
        assert met == [("10.0.0.5:4000", "10.0.0.7:4000")]
        asked = board.asked
        await looks(20)
        assert board.asked == asked, "somebody is missing, and it was asked a moment ago"
        monkeypatch.setattr(condor_peer, "AGAIN_S", 0.0)
        seeds.announce("tcp://10.0.0.7:1", "", 3)
        await looks(20)
        assert len(met) > 2, "nobody looks who else has come"
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(play())


def test_words_come_to_a_job_as_they_were_typed() -> None:
    typed = ["a b", "", "it's", 'q"x', "$(HOME)", "$$(Memory)", "$5", "x\ty", "'", '"']
    assert words(expanded(quoted(typed))) == typed


def expanded(text: str) -> str:
    (job,) = Description(f"executable = x\narguments = {text}\nqueue\n").jobs(1)
    return job["arguments"]


def test_the_last_node_ends_well_when_peers_came_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("_CONDOR_JOB_AD", raising=False)
    assert condor_verdict.main() == 2
    monkeypatch.setenv(
        "_CONDOR_JOB_AD", job_of(tmp_path, "ClusterId = 99\nDAGManJobId = 77\n")["_CONDOR_JOB_AD"]
    )
    assert condor_verdict.main() == 1, "no job has begun"
    folder = meet(
        Task("HTCondor", "condor-77", 0, 2, one_host=True), resolve({"aggregator": "mean"}), ["x"]
    ).folder
    (folder / "events-0.jsonl").write_text(
        '{"t":1.0,"wall":9.0,"peer":0,"event":"exited","code":1}\n'
    )
    assert condor_verdict.main() == 1, "nobody came to the end"
    (folder / "events-1.jsonl").write_text(
        '{"t":0.0,"wall":8.0,"peer":1,"event":"spawned","pid":1,"incarnation":0}\n'
        '{"t":0.5,"wall":8.5,"peer":1,"event":"round","round":3,"alive":2}\n'
        '{"t":1.0,"wall":9.0,"peer":1,"event":"exited","code":0}\n'
    )
    (folder / "events.jsonl").write_text("")  # of somebody who joined by the folder
    assert condor_verdict.main() == 0
    assert "finished: 1; not: 0" in capsys.readouterr().out
