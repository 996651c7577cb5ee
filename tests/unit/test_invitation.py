"""The line that another machine pastes to join, and what is said before it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from gossip.config import RunConfig, resolve
from gossip.launch.local.invitation import Invitation, code_of, names_code, of_many_hosts

FAR = ["10.0.0.1:7000"]


def config(**options: Any) -> RunConfig:
    return resolve({"peers": 3, "room": 5, **options}).config


def line_of(given: RunConfig, join_servers: list[str], key: Path | None, *words: str) -> str:
    return (
        Invitation(given, join_servers, key, words or ["train.py"])
        .format_lines("room for 2 more", "only")[-1]
        .strip()
    )


def test_of_many_hosts_several_doors_and_the_key_to_copy_are_named(tmp_path: Path) -> None:
    given = config(keys=True)
    join_servers = [f"10.0.0.{number}:7000" for number in range(1, 5)]
    words = ["train.py", "--lr", "a b"]
    assert of_many_hosts(given, tmp_path, [*join_servers, ""], words) == [], "not all are there"
    assert (
        of_many_hosts(given.model_copy(update={"room": 3}), tmp_path, join_servers, words) == []
    ), "nobody else has room"
    seeds = "--seed 10.0.0.2:7000 --seed 10.0.0.3:7000"
    assert of_many_hosts(given, tmp_path, join_servers, words) == [
        f"room for 2 more, on any machine with train.py and a copy of {tmp_path}/swarm.key:",
        f"  gossip join --key swarm.key {seeds} 10.0.0.1:7000 -- train.py --lr 'a b'",
    ]
    (near,) = of_many_hosts(
        given.model_copy(update={"keys": None}), tmp_path, ["127.0.0.1:7"], words
    )
    assert near.startswith(
        "room for 2 more: gossip join 127.0.0.1:7 -- train.py --lr 'a b'   (on this machine; "
    )


def test_on_the_same_machine_the_key_is_named_where_it_lies(tmp_path: Path) -> None:
    given = config(keys=True)
    assert f"--key {tmp_path}/mine.key" in line_of(given, ["127.0.0.1:7"], tmp_path / "mine.key")
    assert f"--key {tmp_path}/mine.key" in line_of(given, ["[::1]:7"], tmp_path / "mine.key")
    assert "--key mine.key 10" in line_of(given, FAR, tmp_path / "mine.key")


def test_a_run_without_keys_is_joined_from_elsewhere_only_by_who_says_so() -> None:
    given = config(insecure=True)
    assert (
        line_of(given, FAR, None)
        == "room for 2 more: gossip join --insecure 10.0.0.1:7000 -- train.py"
    )
    assert "--insecure" not in line_of(given, ["127.0.0.1:7"], None)


def test_whoever_pastes_the_line_agrees_to_the_code_that_the_run_uses() -> None:
    given = config(keys=True).model_copy(
        update={"aggregator": "nnm+my rules.py:middle", "topology": "mine:ring:k=1"}
    )
    words = shlex.split(line_of(given, FAR, Path("/x/swarm.key")))
    assert words[2:8] == shlex.split(
        "--key swarm.key --code 'nnm+my rules.py:middle' --code mine:ring:k=1"
    )


def test_an_attack_of_a_file_is_code_that_a_newcomer_agrees_to() -> None:
    faults = ("attack:my_attacks.py:mine:1*2", "sign_flip:2")
    given = config(keys=True).model_copy(update={"faults": faults})
    assert code_of(given) == ["my_attacks.py:mine"]
    words = shlex.split(line_of(given, FAR, Path("/x/swarm.key")))
    assert words[4:6] == ["--code", "my_attacks.py:mine"]


@pytest.mark.parametrize(
    ("spec", "is_code"),
    [
        ("krum", False),
        ("bucketing:s=2+geometric_median", False),
        ("random-k:k=3", False),
        ("a.py:r", True),
        ("nnm+m:r:x=1", True),
    ],
)
def test_names_of_code_are_told_from_names_with_options(spec: str, is_code: bool) -> None:
    assert names_code(spec) == is_code
