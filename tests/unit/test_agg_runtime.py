"""Every rule where it runs: in the node, on the trainer's bench, in the simulator; and a rule of
one's own in all of them."""

from __future__ import annotations

import os
import select
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossip.aggregators import Rule, ShardedRule, Verdict, load, names, pre_aggregations, rule
from gossip.aggregators.registry import BoundRule
from gossip.config import resolve
from gossip.core.events import Aggregate, Aggregated, Payload, Row
from gossip.core.settings import TrustSettings
from gossip.errors import ConfigError, TooFewUpdates, UnknownName
from gossip.ipc import messages as control
from gossip.launch.demo import swarms as demo
from gossip.launch.local import runs
from gossip.node import reducer as node_reduce
from gossip.node.reducer import Reducer, TrainerJudge
from gossip.node.worker import Worker
from gossip.run import fitting
from gossip.testing import check_aggregator
from gossip.training.judging import JudgeService, LossJudge
from gossip.training.layout import Layout
from gossip_lab.simulation.campaign import play
from gossip_lab.simulation.schedules.schedule import Schedule

N, D, F = 11, 40, 2
COMPOSED = [
    f"{name}+{last}" for name in pre_aggregations() for last in ("mean", "median", "multi_krum")
]
TEN_LINES = """import numpy as np
from gossip.aggregators import Gram, gram_rule, rule

@rule
def midrange(updates, *, f):
    kept = updates.sort(dim=0).values[f : len(updates) - f]
    return (kept[0] + kept[-1]) / 2

@gram_rule
def central(gram: Gram, *, f, k: int = 3):
    return gram.even(np.median(gram.squared_distances(), axis=1).argsort()[:k])
"""


def reduced(
    spec: str,
    updates: np.ndarray | list[np.ndarray],
    *,
    own: int | None = None,
    mix: bool = False,
    round_id: int = 4,
    previous: Payload | None = None,
) -> Aggregated:
    """What the node answers the core."""
    told: list[Aggregated] = []
    worker = Worker()
    try:
        rows = tuple(Row(peer, Payload(row, row.nbytes), 32) for peer, row in enumerate(updates))
        for row in rows:
            row.payload.data.setflags(write=False)  # as they come from the network
        reducer = Reducer(load(spec), worker, told.append, centered=own is not None)
        reducer.reduce(Aggregate(7, round_id, 0, rows, F, own, mix, previous))
        if not told:
            finish(worker)
    finally:
        worker.close()
    return told[0]


def finish(worker: Worker) -> None:
    poller = select.poll()
    poller.register(worker.fd, select.POLLIN)
    poller.poll(60_000)
    worker.finish()


def cloud(n: int = N, seed: int = 0) -> np.ndarray:
    """Liars first."""
    generator = np.random.default_rng(seed)
    x = (1 + 0.3 * generator.standard_normal((n, D))).astype(np.float32)
    x[:F] = -20 * x[:F]
    return x


@pytest.mark.parametrize("spec", [*names(), *COMPOSED])
def test_every_rule_runs_in_the_node_as_peers_come_and_go(spec: str) -> None:
    rule = load(spec)
    if rule.needs_trainer:
        return  # the bench has those
    for n in (13, 11, 17, 12):
        found = reduced(spec, cloud(n), own=n - 1 if rule.needs_center else None)
        need = rule.at_least(F, centered=rule.needs_center)
        if n < need:
            assert found.payload is None
            assert f"needs {need} updates" in found.reason
            continue
        assert found.payload is not None, found.reason
        again = reduced(spec, cloud(n), own=n - 1 if rule.needs_center else None)
        assert found.payload.digest == again.payload.digest, "the same bits, whoever serves"
        assert len(found.weights) == len(found.outlyingness) == n
        if rule.rule.robust:
            assert np.linalg.norm(found.payload.data - 1) < np.sqrt(D), spec


def reduced_with(spec: str, outside: np.ndarray, large: bool = False) -> Aggregated:
    """Peers in quarantine have sent ``outside``."""
    told: list[Aggregated] = []
    rows, beside = (
        tuple([Row(start + at, Payload(row, row.nbytes), 32) for at, row in enumerate(given)])
        for start, given in ((0, cloud()[F:]), (N, outside))
    )
    worker = Worker()
    try:
        reducer = Reducer(load(spec), worker, told.append, centered=False)
        reducer.reduce(Aggregate(7, 4, 0, rows, F, outside=beside))
        if not told:
            finish(worker)
    finally:
        worker.close()
    return told[0]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("spec", ["suspicion", "krum", "trimmed_mean", "nnm+median", "mean"])
def test_what_is_outside_is_measured_as_if_it_counted_and_does_not_count(
    spec: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(node_reduce, "INLINE_ELEMENTS", 1)
    lies, honest = cloud()[:1], cloud(seed=5)[-1:]
    found = reduced_with(spec, np.concatenate([lies, honest]))
    alone = reduced(spec, cloud()[F:])
    assert found.payload.digest == alone.payload.digest
    assert (found.weights, found.outlyingness) == (alone.weights, alone.outlyingness)
    everybody = np.concatenate([cloud()[F:], lies, honest])
    options = {"f": F, "round_id": 4}
    expected = load(spec).explain(torch.from_numpy(everybody), **options).outlyingness[-2:]
    np.testing.assert_allclose(found.outside, expected.numpy(), rtol=1e-5)
    if spec != "mean":
        assert found.outside[0] > TrustSettings().outlying > found.outside[1]


def test_a_rule_that_fails_on_what_is_outside_makes_its_aggregate_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(self: Rule, updates: Any, start: int, **options: Any) -> torch.Tensor:
        raise ZeroDivisionError

    monkeypatch.setattr(Rule, "measure", fails)
    found = reduced_with("median", cloud()[:1])
    assert found.payload is not None, found.reason
    assert found.outside == ()


def cannot_add_up() -> Rule:
    @rule(discerning=False)
    def adding(updates, *, f):  # type: ignore[no-untyped-def]
        return updates.mean(dim=0)

    @adding.of_rows
    def fails(rows, out):  # type: ignore[no-untyped-def]
        raise ZeroDivisionError

    return adding


def returning(aggregate: torch.Tensor, weights: torch.Tensor, far: Any) -> Rule:
    return Rule(lambda updates, *, f: Verdict(aggregate, weights, far), name="own")


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (cannot_add_up(), "own failed: ZeroDivisionError"),
        (returning(torch.ones(D), torch.ones(N), None), "own failed: AttributeError"),
        (returning(torch.ones(D), torch.ones(N - 1), torch.ones(N)), "10 weights"),
        (returning(torch.ones(D), torch.ones(N), torch.ones(N + 1)), "12 values"),
        (returning(torch.ones(D + 1), torch.ones(N), torch.ones(N)), "an aggregate (41,)"),
    ],
)
def test_a_rule_that_fails_before_or_after_its_call_gives_a_reason(
    own: Rule, reason: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(node_reduce, "INLINE_ELEMENTS", 1)
        monkeypatch.setattr(node_reduce, "QUICK_ELEMENTS", 1)
    monkeypatch.setitem(globals(), "load", lambda spec: BoundRule(spec, own))
    found = reduced("own", cloud())
    assert found.payload is None
    assert reason in found.reason


@pytest.mark.parametrize("spec", ["judged_clipping", "zeno", "fltrust"])
def test_the_trainers_bench_measures_what_is_outside(spec: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    x = torch.randn(64, 5)
    layout = Layout(model, torch.optim.SGD(model.parameters(), 0.1))
    gradient = layout.flatten(torch.autograd.grad(model(x).square().mean(), [*model.parameters()]))
    sent = torch.cat([gradient.repeat(6, 1), -10 * gradient[None], gradient[None]]).numpy()
    rows = tuple([Row(peer, Payload(row, row.nbytes), 32) for peer, row in enumerate(sent)])
    answers: list[Aggregated] = []
    worker, questions = Worker(), list[tuple[control.JudgeCommand, int | None]]()
    judge = TrainerJudge(
        lambda asked, fd: questions.append((asked, None if fd is None else os.dup(fd))),
        worker,
        answers.append,
        lambda work, gradient: None,
    )
    service = JudgeService(
        LossJudge(model, layout, lambda: model(x).square().mean(), b"seed"),
        load(spec),
        layout.elements,
    )
    try:
        for outside in ((), rows[6:]):
            judge.reduce(Aggregate(1, 0, 0, rows[:6], 2, outside=outside))
            asked, fd = questions.pop()
            judge.judged(service.answer(asked, deque([] if fd is None else [fd]), 0.1))
    finally:
        judge.close()
        worker.close()
    alone, found = answers
    assert float(torch.from_numpy(alone.payload.data) @ gradient) > 0, "the aggregate descends"
    assert found.payload.digest == alone.payload.digest
    assert (found.weights, found.outlyingness) == (alone.weights, alone.outlyingness)
    assert alone.outside == ()
    assert found.outside[0] > TrustSettings().outlying > found.outside[1]


LARGE = (
    "median",
    "trimmed_mean",
    "krum",
    "geometric_median",
    "centered_clipping:steps=2",
    "nnm+trimmed_mean",
    "nnm+krum",
)


@pytest.mark.parametrize("spec", LARGE)
def test_large_updates_are_taken_where_they_lie_and_that_is_nothing_to_the_result(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reduce, "INLINE_ELEMENTS", N * D)
    d = 30_000
    apart = np.random.default_rng(1).standard_normal((N, d)).astype(np.float32)
    stacked = node_reduce._Rows.stack
    found = []
    with monkeypatch.context() as patched:
        patched.setattr(BoundRule, "by_pointer", False)
        found.append(reduced(spec, apart))
    monkeypatch.setattr(
        node_reduce._Rows, "stack", lambda *_: pytest.fail(f"{spec} was given a copy")
    )
    # each server has its own update elsewhere, and the others' where messages ended
    for gap in (0, 1, 4, 12):
        places = [
            np.empty(4 * d + 64, np.uint8)[gap * at % 64 :][: 4 * d].view(np.float32)
            for at in range(N)
        ]
        for place, row in zip(places, apart, strict=True):
            place[:] = row
        found.append(reduced(spec, places))
    monkeypatch.setattr(node_reduce._Rows, "stack", stacked)
    for other in found:
        assert other.payload is not None, other.reason
        assert other.payload.digest == found[0].payload.digest
        assert (other.weights, other.outlyingness) == (found[0].weights, found[0].outlyingness)
        assert all(not np.shares_memory(other.payload.data, place) for place in places)


@pytest.mark.parametrize("takes_rows", [False, True])
def test_a_rule_of_ones_own_has_large_updates_stacked_unless_it_takes_rows(
    takes_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reduce, "INLINE_ELEMENTS", 1)
    shapes = []

    @rule(name="peeping")
    def peeping(updates, *, f):  # type: ignore[no-untyped-def]
        shapes.append(getattr(updates, "shape", None))
        return Verdict(updates.row(0) if takes_rows else updates[0], torch.ones(N), torch.ones(N))

    peeping.takes_rows = takes_rows
    rows = tuple(Row(peer, Payload(row, row.nbytes), 32) for peer, row in enumerate(cloud()))
    worker = Worker()
    try:
        reducer = Reducer(BoundRule("peeping", peeping), worker, lambda _: None, centered=False)
        work = Aggregate(7, 0, 0, rows, F)
        told = reducer._run(work, reducer._large, reducer._results.of(work))
    finally:
        worker.close()
    assert shapes == [None if takes_rows else (N, D)]
    assert told.payload is not None, told.reason
    kept = [*(row.payload.data for row in rows), reducer._large._memory]
    assert not any(np.shares_memory(told.payload.data, memory) for memory in kept), (
        "it will be written where that lies"
    )


@pytest.mark.parametrize(
    "spec",
    [name for name in names() if load(name).needs_trainer] + ["bucketing:s=2+zeno", "nnm+fltrust"],
)
def test_rules_that_need_the_loss_run_on_the_trainers_bench(spec: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    x = torch.randn(64, 5)
    layout = Layout(model, torch.optim.SGD(model.parameters(), 0.1))
    bench = LossJudge(model, layout, lambda: model(x).square().mean(), b"seed")
    gradient = layout.flatten(torch.autograd.grad(model(x).square().mean(), [*model.parameters()]))
    rows = torch.cat([-10 * gradient.repeat(2, 1), gradient.repeat(4, 1)]).numpy()
    verdict = bench.explain(load(spec), control.JudgeCommand(1, 0, 6, 0, 2, -1, False), rows, 0.1)
    assert float(verdict.aggregate @ gradient) > 0, "the aggregate descends"


def test_a_rule_on_the_trainers_bench_draws_anew_in_each_round() -> None:
    model = torch.nn.Linear(5, 3)
    layout = Layout(model, torch.optim.SGD(model.parameters(), 0.1))
    bench = LossJudge(
        model,
        layout,
        lambda: torch.cat([p.flatten() for p in model.parameters()]).square().sum(),
        b"seed",
    )
    updates = np.random.default_rng(0).standard_normal((9, layout.elements)).astype(np.float32)
    rows = tuple(Row(peer, Payload(row, row.nbytes), 32) for peer, row in enumerate(updates[:8]))
    chosen = load("bucketing:s=2+zeno")
    told: list[list[float]] = []
    worker = Worker()
    judge = TrainerJudge(
        lambda asked, fd: told.append(bench.explain(chosen, asked, updates, 0.1).weights.tolist()),
        worker,
        lambda _: None,
        lambda work, gradient: None,
    )
    try:
        for ticket, round_id in enumerate((4, 5, 4)):
            judge.reduce(Aggregate(ticket, round_id, 0, rows, 1))
            judge.judged(control.JudgeReply(ticket, (), (), "answered"))
    finally:
        judge.close()
        worker.close()
    assert told[0] != told[1], "other buckets in another round"
    assert told[0] == told[2], "and only in another round"


def test_the_trainers_bench_has_the_weights_of_the_plan() -> None:
    worker = Worker()
    judge = TrainerJudge(
        lambda asked, fd: None, worker, lambda _: None, lambda work, gradient: None
    )
    own, other = np.float32([[1, 2], [5, 10]])
    rows = (Row(0, Payload(own, 8), 1), Row(1, Payload(other, 8), 1, pull=0.5))
    try:
        judge.reduce(Aggregate(1, 0, 0, rows, 1, own=0, outside=rows[1:]))
        assert judge._memory[:3].tolist() == [[1, 2], [3, 6], [3, 6]]
    finally:
        judge.close()
        worker.close()


class JudgedServer:
    """A node that serves two shards under a rule with a judge, and its trainer."""

    SIZES = (7, 13)

    def __init__(self) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        self.layout = Layout(model, torch.optim.SGD(model.parameters(), 0.1))
        assert self.layout.elements == sum(self.SIZES)
        self.asked: list[control.JudgeCommand] = []
        self.open: deque[control.JudgeCommand] = deque()
        self.answers: list[Aggregated] = []
        self.service = JudgeService(
            LossJudge(model, self.layout, self.loss, b"", lambda round_id: float(round_id)),
            load("judged_clipping"),
            self.layout.elements,
        )
        self.model, self.fds = model, deque[int]()
        self.worker = Worker()
        reducer = Reducer(load("judged_clipping"), self.worker, self.answers.append, centered=False)
        self.judge = TrainerJudge(self.ask, self.worker, self.answers.append, reducer.reduce)
        self.judge.prepare(self.SIZES)

    def loss(self, of_round: float) -> torch.Tensor:
        return sum(((1 + of_round) * p.square()).sum() for p in self.model.parameters())

    def gradient(self, round_id: int, shard: int) -> torch.Tensor:
        x = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        whole = torch.nn.functional.pad(2 * (1 + round_id) * x, (0, self.layout.elements - len(x)))
        return whole.split(self.SIZES)[shard]

    def ask(self, question: control.JudgeCommand, fd: int | None) -> None:
        self.asked.append(question)
        self.open.append(question)
        if fd is not None:
            self.fds.append(os.dup(fd))

    def trainer_answers(self) -> None:
        self.judge.judged(self.service.answer(self.open.popleft(), self.fds, 0.1))

    def work(self, ticket: int, round_id: int, shard: int, step: Any = "measure") -> Aggregate:
        vectors = np.random.default_rng(shard).standard_normal((4, self.SIZES[shard]))
        rows = tuple(
            Row(peer, Payload(vector, vector.nbytes), 32)
            for peer, vector in enumerate(vectors.astype(np.float32))
        )
        return Aggregate(ticket, round_id, shard, rows, 1, step=step)

    def measured(self, work: Aggregate, gradient: torch.Tensor) -> bytes:
        rows = np.stack([row.payload.data for row in work.rows])
        sharded = ShardedRule(load("judged_clipping"))
        return sharded.measure(torch.from_numpy(rows), gradient=gradient).tobytes()


def test_a_server_of_shards_asks_its_trainer_for_one_gradient_a_round() -> None:
    server = JudgedServer()
    try:
        works = [server.work(ticket, 3 + ticket // 3, ticket % 2) for ticket in range(6)]
        for work in works[:3]:  # of round 3: two shards, and one of them again
            server.judge.reduce(work)
        assert len(server.asked) == 1, "one question is open"
        server.trainer_answers()
        for work in works[3:]:
            server.judge.reduce(work)
        server.trainer_answers()
        assert [(asked.round_id, asked.rows) for asked in server.asked] == [(3, 0), (4, 0)]
        assert [found.ticket for found in server.answers] == list(range(6))
        for work, found in zip(works, server.answers, strict=True):
            expected = server.measured(work, server.gradient(work.round_id, work.shard))
            assert found.statistics == expected, found.reason
    finally:
        server.judge.close()
        server.worker.close()


def test_a_state_that_was_taken_over_has_a_gradient_of_its_own() -> None:
    server = JudgedServer()
    try:
        server.judge.reduce(server.work(0, 3, 0))
        server.trainer_answers()
        with torch.no_grad():
            server.model.weight += 1.0
        server.judge.forget()
        again = server.work(1, 3, 0)
        server.judge.reduce(again)
        server.trainer_answers()
        assert server.answers[1].statistics == server.measured(again, server.gradient(3, 0))
        assert server.answers[1].statistics != server.answers[0].statistics
    finally:
        server.judge.close()
        server.worker.close()


def test_a_gradient_that_cannot_be_had_is_the_servers_reason() -> None:
    server = JudgedServer()
    server.model.weight.requires_grad_(False).fill_(float("nan"))
    server.model.weight.requires_grad_(True)
    try:
        server.judge.reduce(server.work(0, 3, 0))
        server.trainer_answers()
        assert "the judge's own gradient is not finite" in server.answers[0].reason
    finally:
        server.judge.close()
        server.worker.close()


@pytest.mark.parametrize("spec", ["centered_clipping:steps=2", "nnm+centered_clipping"])
def test_a_rule_with_a_memory_starts_from_the_last_aggregate(spec: str) -> None:
    x = cloud()
    last = np.full(D, 0.9, np.float32)
    last.setflags(write=False)
    found, fresh = reduced(spec, x, previous=Payload(last, last.nbytes)), reduced(spec, x)
    assert found.payload is not None
    expected = load(spec)(torch.from_numpy(x.copy()), f=F, previous=torch.full((D,), 0.9))
    np.testing.assert_allclose(found.payload.data, expected, rtol=1e-6)
    assert np.linalg.norm(found.payload.data - 1) < 0.5 * np.linalg.norm(fresh.payload.data - 1)


@pytest.mark.parametrize("spec", ["monna", "self_centered_clipping", "nnm+monna"])
def test_a_rule_that_starts_from_the_own_update_is_refused_where_there_is_none(spec: str) -> None:
    assert "not available here" in reduced(spec, cloud()).reason
    with pytest.raises(ConfigError, match="needs the peer's own update, and rolling has none"):
        fitting.describe(spec, "rolling", 8)
    with pytest.raises(ConfigError, match="simulated trainers do not have"):
        play.rule_of(spec, 1)
    assert fitting.describe(spec, "full", 8)["name"] == spec
    assert reduced(spec, cloud(), own=N - 1, mix=True).payload is not None


def test_the_round_reaches_a_rule_that_draws() -> None:
    rounds = [
        reduced("bucketing:s=2+krum", cloud(17), round_id=round_id) for round_id in (1, 1, 2, 3, 4)
    ]
    assert rounds[0].payload.digest == rounds[1].payload.digest
    assert len({found.payload.digest for found in rounds}) > 1


def test_a_composition_is_checked_before_anything_starts() -> None:
    fitting.check_names("rolling", "nnm+trimmed-mean")
    fitting.check_names("rolling", "bucketing:s=2+my_rules.py:mine")
    with pytest.raises(UnknownName, match=r"unknown pre-aggregation 'nmm'\. Did you mean 'nnm'"):
        fitting.check_names("rolling", "nmm+krum")
    with pytest.raises(UnknownName, match="Did you mean 'krum'"):
        fitting.check_names("rolling", "nnm+krun")
    assert [load("bucketing:s=2+krum").at_least(f) for f in range(3)] == [5, 9, 13]
    assert fitting.describe("bucketing:s=2+krum", "rolling", 12)["f"] == 1


@pytest.mark.parametrize(
    ("spec", "f"),
    [
        ("zeno", 4),
        ("zeno:b=1", 1),
        ("multi_krum:m=13", 2),
        ("dnc:c=0.9", 4),
        ("dnc:c=0.4", 0),
        ("nnm:f=1+krum", 1),
        ("krum:f=2", 2),
    ],
)
def test_what_is_not_given_is_no_more_than_the_rules_own_arguments_cover(spec: str, f: int) -> None:
    assert fitting.describe(spec, "rolling", 16)["f"] == f


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("zeno:b=3", "zeno leaves out b=3 updates, but f=4"),
        ("multi_krum:m=13", "multi_krum needs 17 updates to tolerate f=4"),
        ("dnc:c=0.5", "dnc: c=0.5 leaves out 2 updates, but f=4"),
        ("krum:f=3", "krum:f=3 tolerates f=3 Byzantine peers, and the run has f=4"),
        ("nnm:f=3+krum", r"nnm:f=3\+krum tolerates f=3"),
        ("nnm:f=5+krum:f=3", r"tolerates f=3"),
        ("nnm+krum:f=0", "f=0 Byzantine peers, and the run has f=4"),
        ("clipping:radius=-1+mean", "radius must be above 0, not -1"),
    ],
)
def test_a_rule_whose_own_arguments_do_not_cover_f_is_refused_before_anything_starts(
    spec: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        fitting.describe(spec, "rolling", 16, 4)
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_a_rule_of_ones_own_is_tried_before_the_run_but_not_held_to_vectors_that_were_made_up(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(
        "from gossip.errors import AggregationError\n"
        "def few(updates, *, f, keep=2):\n"
        "    if keep > len(updates) - f:\n        raise AggregationError('keep takes in lies', "
        "'lower keep')\n"
        "    return updates[:keep].mean(dim=0)\n"
        "from gossip.aggregators import rule\n"
        "@rule(at_least=lambda f: 5 * f)\ndef many(updates, *, f):\n    return updates[0]\n"
        "def layers(updates, *, f):\n    return updates.view(len(updates), 10, "
        "-1).median(dim=0).values.flatten()\n"
    )
    few = f"{tmp_path}/own.py:few:keep=7"
    assert fitting.describe(few, "rolling", 8)["f"] == 0
    with pytest.raises(ConfigError, match="keep takes in lies"):
        fitting.describe(few, "rolling", 8, 2)
    assert fitting.describe(f"{tmp_path}/own.py:many", "rolling", 8)["f"] == 1
    assert fitting.describe(f"{tmp_path}/own.py:layers", "rolling", 8)["f"] == 2


def test_what_is_wrong_with_rule_and_f_is_the_same_error_in_this_process() -> None:
    for spec, f, kind in (("krum", 7, TooFewUpdates), ("zeno:b=1", 2, ConfigError)):
        with pytest.raises(kind):
            fitting.check_rule(resolve({"peers": 8, "aggregator": spec, "f": f}))
    assert fitting.check_rule(resolve({"peers": 8, "aggregator": "zeno:b=1"})).config.f == 1
    # whose plan has four liars
    demo_of_16 = demo.settle({"peers": 16, "aggregator": "zeno:b=1"})
    with pytest.raises(ConfigError, match="zeno leaves out b=1 updates, but f=4"):
        runs.settle(demo_of_16, "demo")


@pytest.mark.parametrize("name", ["midrange", "central", "central:k=2"])
def test_ten_lines_of_ones_own_run_everywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(TEN_LINES.splitlines()) <= 11
    (tmp_path / "my_rules.py").write_text(TEN_LINES)
    monkeypatch.chdir(tmp_path)
    spec = f"my_rules.py:{name}"
    check_aggregator(spec, strengths=2)
    check_aggregator(f"nnm+{spec}", strengths=2)
    assert reduced(spec, cloud()).payload is not None
    assert fitting.describe(spec, "rolling", 8)["f"] == 2
    schedule = Schedule(3, peers=5, aggregator=spec, active_s=2.0, duration_s=2.0)
    assert play.run(schedule).violation is None
