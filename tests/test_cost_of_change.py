"""What a change costs: how many files of the package a new rule, topology, fault, message,
encoding or field of a checkpoint touches.

Each is made in one copy of the package, as somebody would make it, and used there. So a count is
of a change that works. What is counted are files of the package: its tests and its pages come on
top (``docs/extending.md`` has all steps).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import zygote

ROOT = Path(__file__).resolve().parents[1]

Edit: TypeAlias = Callable[[str], str]
Change: TypeAlias = Mapping[str, Edit]
"""What is done to each file, by its path."""


def added(text: str) -> Edit:
    """A file that is new."""

    def edit(before: str) -> str:
        assert not before, "there is such a file already"
        return text

    return edit


def changed(*pairs: tuple[str, str]) -> Edit:
    """In place of the first of each pair, which is there once, comes the second."""

    def edit(before: str) -> str:
        for old, new in pairs:
            assert before.count(old) == 1, f"{before.count(old)} times in the file: {old}"
            before = before.replace(old, new)
        return before

    return edit


# --- the changes ----------------------------------------------------------------------------------

RULE = """
from torch import Tensor

from gossip.aggregators import rule


@rule(at_least=lambda f: 1, robust=False)
def toy_rule(updates: Tensor) -> Tensor:
    return updates.amax(dim=0)
"""

TOPOLOGY = """
from gossip.topologies import Plan, Roster, topology


@topology
def toy_topology(roster: Roster, round_id: int, seed: int) -> Plan:
    first, *others = sorted(roster.peers)
    return Plan(pushes={first: tuple(others), **dict.fromkeys(others, (first,))})
"""

FAULT = '''@declared("{peer}+{pause_s}", "2+50ms", real=True)
@dataclass(frozen=True, slots=True)
class ToyPause(Fault):
    """Before each update the peer does nothing for that long."""

    peer: int = of(Peer())
    pause_s: float = of(Seconds())


'''

ATTACK = '''@attack(strength=3.0, meaning="what is added")
def toy_shift(update: Tensor, *, strength: float) -> Tensor:
    """Adds the strength to each number."""
    return update + strength


'''

MESSAGE = '''@record
class ToyEcho:
    """Say this again."""

    word: str
    reply: bool


'''

ENCODING = """
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .encoding import Encoding, Place, finite, within


@dataclass(frozen=True)
class Toy(Encoding):
    \"\"\"Each number rounded to a multiple of a step.\"\"\"

    step: float = within(0.5, 0.001, 1000)

    def nbytes(self, elements: int) -> int:
        return 4 * elements

    def _write(self, vector: NDArray[np.float32], place: Place, raw: NDArray[np.uint8]) -> None:
        raw.view(np.float32)[:] = np.rint(vector / np.float32(self.step))

    def _read(self, raw: NDArray[np.uint8], place: Place, vector: NDArray[np.float32]) -> None:
        vector[:] = finite(raw.view(np.float32) * np.float32(self.step))
"""

CHANGES: dict[str, Change] = {
    # A user's own rule is such a file, too, wherever it lies.
    "rule": {"aggregators/toy.py": added(RULE)},
    "rule with a plain name": {
        "aggregators/toy_named.py": added(RULE.replace("toy_rule", "toy_named")),
        "aggregators/registry.py": changed(
            ('    "means": ("mean",),', '    "means": ("mean",),\n    "toy_named": ("toy_named",),')
        ),
    },
    "topology": {"topologies/toy.py": added(TOPOLOGY)},
    "topology with a plain name": {
        "topologies/toy_named.py": added(TOPOLOGY.replace("toy_topology", "toy_named")),
        "topologies/finding.py": changed(
            ("BUILT_IN = {", 'BUILT_IN = {"toy_named": "toy_named", ')
        ),
    },
    "fault": {
        "gossip/faults/kinds.py": changed(
            ("Blow: TypeAlias =", FAULT + "Blow: TypeAlias ="),
            ("RealFault: TypeAlias =", "RealFault: TypeAlias = ToyPause |"),
        ),
        "gossip/inject/faulty_trainer.py": changed(
            (
                "        self._drills = DrillFile(",
                """        self._pause_s = sum(
            fault.pause_s
            for fault in config.plan.for_peer(peer)
            if isinstance(fault, kinds.ToyPause)
        )
        self._drills = DrillFile(""",
            ),
            (
                "        now = time.monotonic()\n",
                "        time.sleep(self._pause_s)\n        now = time.monotonic()\n",
            ),
        ),
    },
    "attack on updates": {
        "aggregators/attacks/alone.py": changed(
            ("@attack()\ndef nan(", ATTACK + "@attack()\ndef nan(")
        )
    },
    "lie of a node": {
        "gossip/faults/world.py": changed(
            ("RESULT_ATTACKS = (\n", 'RESULT_ATTACKS = (\n    "toy_lie",\n')
        ),
        "gossip/inject/message_attacks.py": changed(
            (
                "@lie\ndef nan(",
                '''@lie
def toy_lie(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Sends half of its update."""
    return _tampered(attacker, letter, lambda update: update / 2)


@lie
def nan(''',
            )
        ),
    },
    "message": {
        "gossip/core/messages.py": changed(
            ("# --- rolling rounds ---", MESSAGE + "# --- rolling rounds ---"),
            ("    | AuditFinding\n)", "    | AuditFinding\n    | ToyEcho\n)"),
        ),
        "gossip/core/peer.py": changed(
            ("    StateRequest,\n    Update,", "    StateRequest,\n    ToyEcho,\n    Update,"),
            ("case Gossip() | Ping() |", "case ToyEcho() | Gossip() | Ping() |"),
        ),
        "gossip/core/membership/swim.py": changed(
            ("    Rumor,\n)", "    Rumor,\n    ToyEcho,\n)"),
            ("MembershipMessage: TypeAlias =", "MembershipMessage: TypeAlias = ToyEcho |"),
            (
                "        match message:\n            case Gossip(rumors):",
                """        match message:
            case ToyEcho(word, reply):
                if not reply:
                    effects.append(Send(sender, ToyEcho(word, True)))
            case Gossip(rumors):""",
            ),
        ),
        # mypy asks for it: each group of messages has a match that returns a text in each case
        "extras/lab/gossip_lab/simulation/campaign/chart.py": changed(
            ("_Joining = messages.Hello |", "_Joining = messages.ToyEcho | messages.Hello |"),
            (
                "        case messages.Hello():",
                """        case messages.ToyEcho(word):
            return f"ToyEcho {word}"
        case messages.Hello():""",
            ),
        ),
    },
    "encoding": {
        "gossip/vectors/toy.py": added(ENCODING),
        "gossip/vectors/encoding.py": changed(("BUILT_IN = {", 'BUILT_IN = {"toy": "toy:Toy", ')),
    },
    "field of a checkpoint": {
        "gossip/training/session.py": changed(
            (
                '            "writer": self.id,\n',
                '            "writer": self.id,\n            "toy": 7,\n',
            ),
            (
                "        self._load_extra_state(extra)\n        self._resume_own(folder, found)\n",
                """        self._load_extra_state(extra)
        self.toy = found.manifest["toy"]
        self._resume_own(folder, found)
""",
            ),
        ),
    },
}

USE = """
import json, time
from pathlib import Path

import numpy as np
import torch

import gossip
from gossip import aggregators, topologies
from gossip.config import RunConfig
from gossip.core import Aggregate, Envelope, Payload, Peer, Received, Row, Send, messages
from gossip.core import events, settings
from gossip.errors import BadFault
from gossip.faults import KINDS, plan
from gossip.inject import ByzantinePeer, FaultyTrainer
import gossip.inject.message_attacks
from gossip.inject.update_attacks import UpdateAttack
from gossip_lab.simulation.campaign.chart import describe_message
from gossip.topologies import Roster
from gossip.node.reducer import ResultWriter
from gossip.testing.transport_world import World
from gossip.training import UpdateEncoder
from gossip.transport import EncodedTransport, Hub, MemoryTransport, ZeroMQTransport, codec
from gossip.vectors import WireFormat, load_encoding

found = {"where": str(Path(gossip.__file__).parent)}

updates = torch.tensor([[1.0, 5.0], [3.0, 2.0], [2.0, 4.0]])
for what, spec in (
    ("rule", "gossip.aggregators.toy:toy_rule"),
    ("rule with a plain name", "toy-named"),
):
    found[what] = aggregators.load(spec)(updates).tolist()

roster = Roster((0, 1, 2))
for what, spec in (
    ("topology", "gossip.topologies.toy:toy_topology"),
    ("topology with a plain name", "toy-named"),
):
    pushes = topologies.load(spec)(roster, 0, 1).pushes
    found[what] = sorted([peer, list(to)] for peer, to in pushes.items())

def refusal(word):
    try:
        plan.parse(word)
    except BadFault as error:
        return f"{error} {error.hint}"

def table_of(word):
    told = plan.from_toml(plan.parse(word).to_toml())
    return told == plan.parse(word)

(pause,) = plan.parse("toy_pause:2+50ms")
config = RunConfig(peers=4, faults=("toy_pause:2+50ms",))
took_s = {}
for peer in (1, 2):
    begun = time.monotonic()
    FaultyTrainer(config, peer, None).computed(begun)
    took_s[peer] = time.monotonic() - begun
found["fault"] = {
    "read": [type(pause).__name__, pause.peer, pause.pause_s],
    "table": table_of("toy_pause:2+50ms"),
    "usage": KINDS["toy_pause"].usage,
    "listed": "toy_pause" in refusal("nonsense:2"),
    "refused": refusal("toy_pause:2*9"),
    "paused": [took_s[1] >= 0.05, took_s[2] >= 0.05],
}

(shift,) = plan.parse("toy_shift:1*2")
found["attack on updates"] = {
    "read": [type(shift).__name__, shift.attack, shift.strength],
    "usage": KINDS["toy_shift"].usage,
    "listed": "toy_shift" in refusal("nonsense:2"),
    "said": UpdateAttack(plan.parse("toy_shift:1*2"), 1, 0, 4, None)
    .tamper_with(np.array([1.0, -3.0], np.float32), 0, "update")
    .tolist(),
}

vector = np.array([1.0, -3.0], np.float32)
liar = ByzantinePeer(1, (0, 1, 2), lambda: None, None, ("toy_lie",))
update = messages.Update(b"lineage!", 0, 0, 0, b"", 1, None)
said = liar.disguise(0, Envelope(b"run", 1, 0, update), Payload(vector, 8, True))
found["lie of a node"] = {
    "read": plan.parse("toy_lie:1").byzantine == {1},
    "usage": KINDS["toy_lie"].usage,
    "listed": "toy_lie" in refusal("nonsense:2"),
    "said": said[0][2].data.tolist(),
}

echo = messages.ToyEcho("hello", False)
envelope = Envelope(b"run", 1, 0, echo)

def peer_of(topology):
    return Peer(
        0,
        0,
        settings.CoreSettings(b"run", b"lineage!", 1, (0, 1, 2)),
        topologies.load(topology),
        control="memory://0",
        bulk="memory://0b",
        seeds={1: ("memory://1", "memory://1b")},
    )

peer = peer_of("rolling")
peer.handle(events.Started(), 0.0)
came = codec.decode(codec.encode(envelope))
effects = peer.handle(Received(came.sender, came.incarnation, came.message), 0.1)
found["message"] = {
    "passed": came == envelope,
    "answered": Send(1, messages.ToyEcho("hello", True)) in effects,
    "drawn": describe_message(echo),
}

config = RunConfig(encoding="toy:0.25")
wire = WireFormat(load_encoding(config.encoding), 1, (4,), 4, 3)
vector = np.array([1.0, -0.3333333, 8000.1, 7.0], np.float32)
row = Row(0, Payload(vector, 16), 1)
work = Aggregate(1, 5, 0, (row,), 0)
made = ResultWriter(wire=lambda: wire).of(work).payload(vector)
told, memory = vector.copy(), np.empty(16, np.uint8)
UpdateEncoder(wire).encode(told, memory, 5)
update = Payload(told, 16, True, encoded=memory)
commit = messages.Commit(
    b"lineage!", 5, 0, 0, 0, 0, b"parent", made.digest, (), (), (0, 1), None, ""
)
push = messages.Push(b"lineage!", 5, "gradient", 1, None, b"")
cores = {}
for spec in ("rolling", "random-k"):
    rounds = cores[spec] = peer_of(spec).rounds
    rounds.prepare(wire.update_bytes, wire.result_bytes)

def size_of(sender, message):
    return cores["random-k" if isinstance(message, messages.Push) else "rolling"].payload_bytes(
        message
    )

hub = Hub()
found["encoding"] = {}
for kind, make in (
    ("memory", lambda *header: MemoryTransport(hub, *header[:4])),
    ("zeromq", lambda *header: ZeroMQTransport(*header[:4])),
    ("unix", lambda *header: ZeroMQTransport(*header[:4], same_host=True)),
):
    with World(lambda *header, make=make: EncodedTransport(make(*header), lambda: wire)) as world:
        sender, receiver = world.pair(size_of)
        for message, payload in ((commit, made), (push, update)):
            world.send(sender, 1, message, payload)
        came = world.wait_received(receiver, 2)
        found["encoding"][kind] = {
            "nbytes": [one.payload.nbytes for one in came],
            "same": [one.payload.data.tolist() == made.data.tolist() for one in came],
            "finite": all(one.payload.finite for one in came),
            "digest": came[0].payload.digest == commit.digest,
        }
found["encoding"]["vectors"] = [made.data.tolist(), told.tolist()]

found["field of a checkpoint"] = []
for resume in ("", "saved"):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = gossip.init(seed=1, resume=resume)
    session.prepare(model, optimizer)
    for step in session.steps(2 if resume else 1, save="saved"):
        model(torch.ones(1)).sum().backward()
        optimizer.step()
    session.close()
    found["field of a checkpoint"].append(getattr(session, "toy", None))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with all the changes in it."""
    root = tmp_path_factory.mktemp("house")
    # No linter, no launcher: nobody imports launch/ but the command line.
    for folder in ("gossip", "aggregators", "topologies", "extras"):
        shutil.copytree(ROOT / folder, root / folder, symlinks=True)
    for change in CHANGES.values():
        for path, edit in change.items():
            file = root / path
            before = file.read_text("utf-8") if file.exists() else ""
            after = edit(before)
            assert after != before, path
            file.write_text(after, "utf-8")
    return root


@pytest.fixture(scope="module")
def found(copy: Path) -> dict[str, Any]:
    """What each change does there."""
    done = zygote.run(
        [sys.executable, "-c", USE],
        cwd=copy,
        env={**os.environ, zygote.PACKAGE: str(copy)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["where"] == str(copy / "gossip"), "another copy of the package was imported"
    return told


def cost(change: str) -> int:
    """Files that it touches."""
    return len(CHANGES[change])


def test_a_rule_is_one_file_and_its_plain_name_another(found: dict[str, Any]) -> None:
    assert found["rule"] == found["rule with a plain name"] == [3.0, 5.0]
    assert cost("rule") == 1
    assert cost("rule with a plain name") == 2


def test_a_topology_is_one_file_and_its_plain_name_another(found: dict[str, Any]) -> None:
    plan = [[0, [1, 2]], [1, [0]], [2, [0]]]
    assert found["topology"] == found["topology with a plain name"] == plan
    assert cost("topology") == 1
    assert cost("topology with a plain name") == 2


def test_a_fault_is_declared_in_one_file_and_carried_out_in_another(found: dict[str, Any]) -> None:
    usage = "toy_pause:PEER+DURATION, for example toy_pause:2+50ms"
    told = found["fault"]
    assert usage in told.pop("refused")
    assert told == {
        "read": ["ToyPause", 2, 0.05],
        "table": True,
        "usage": usage,
        "listed": True,
        "paused": [False, True],
    }
    # Real runs have it then. The simulator carries faults out in a file of its own.
    assert cost("fault") == 2


def test_an_attack_on_updates_is_a_function_in_one_file(found: dict[str, Any]) -> None:
    usage = "toy_shift:PEERS*STRENGTH (what is added), for example toy_shift:5,6*3"
    assert found["attack on updates"] == {
        "read": ["ByzantineFault", "toy_shift", 2.0],
        "usage": usage,
        "listed": True,
        "said": [3.0, -1.0],
    }
    assert cost("attack on updates") == 1


def test_a_lie_of_a_node_is_named_in_one_file_and_told_in_another(found: dict[str, Any]) -> None:
    assert found["lie of a node"] == {
        "read": True,
        "usage": "toy_lie:PEERS, for example toy_lie:5,6",
        "listed": True,
        "said": [0.5, -1.5],
    }
    assert cost("lie of a node") == 2


def test_a_message_touches_four_files(found: dict[str, Any]) -> None:
    assert found["message"] == {"passed": True, "answered": True, "drawn": "ToyEcho hello"}
    assert cost("message") == 4


def test_an_encoding_of_updates_is_one_file_and_its_use_another(found: dict[str, Any]) -> None:
    passed = {"nbytes": [16, 16], "same": [True, True], "finite": True, "digest": True}
    told = found["encoding"]
    assert told.pop("vectors") == [[1.0, -0.25, 8000.0, 7.0]] * 2
    assert told == {"memory": passed, "zeromq": passed, "unix": passed}
    assert cost("encoding") == 2


def test_a_field_of_a_checkpoint_is_one_file(found: dict[str, Any]) -> None:
    """It is written with the first run and read with the second."""
    assert found["field of a checkpoint"] == [None, 7]
    assert cost("field of a checkpoint") == 1
