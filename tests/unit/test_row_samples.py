"""Members of a stage count by their samples, and neighbours by the plan, though rules weigh no
rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from gossip import aggregators
from gossip.core import Aggregate, Payload, Row
from gossip.node.weighing import by_pull, by_samples


def work(*rows: tuple[list[float], int]) -> Aggregate:
    made = [
        Row(peer, Payload(np.array(numbers, np.float32), 4 * len(numbers)), samples)
        for peer, (numbers, samples) in enumerate(rows)
    ]
    return Aggregate(1, 0, 0, tuple(made), 0)


def test_the_mean_of_weighed_rows_is_that_over_all_samples() -> None:
    rows = [([1.0, -4.0], 6), ([3.0, 0.5], 2), ([-2.0, 8.0], 4)]
    weighed = by_samples(work(*rows))
    updates = torch.stack([torch.from_numpy(row.payload.data) for row in weighed.rows])
    found = aggregators.load("mean")(updates, f=0)
    expected = sum(samples * torch.tensor(numbers) for numbers, samples in rows) / 12
    torch.testing.assert_close(found, expected)
    assert [row.samples for row in weighed.rows] == [6, 2, 4]


def test_rows_of_equal_samples_stay_as_they_are() -> None:
    for given in (work(([1.0], 3), ([2.0], 3)), work(([1.0], 0), ([2.0], 0)), work()):
        assert by_samples(given) is given


def test_the_mean_of_pulled_rows_has_the_weights_of_the_plan() -> None:
    given = work(([1.0, -4.0], 1), ([3.0, 0.5], 1), ([-2.0, 8.0], 1))
    rows = tuple(
        replace(row, pull=pull) for row, pull in zip(given.rows, (1.0, 0.5, 1.0), strict=True)
    )
    pulled = by_pull(replace(given, rows=rows, own=0, outside=rows[1:2]))
    updates = torch.stack([torch.from_numpy(row.payload.data) for row in pulled.rows])
    expected = torch.tensor([1.0, -4.0]) / 2 + torch.tensor([3.0, 0.5]) / 6
    expected += torch.tensor([-2.0, 8.0]) / 3
    torch.testing.assert_close(aggregators.load("mean")(updates, f=0), expected)
    assert pulled.outside[0].payload.data.tolist() == [2.0, -1.75]
    assert by_pull(pulled) is pulled, "a row is moved once"


def test_rows_are_not_pulled_without_an_own_one_nor_to_what_is_not_finite() -> None:
    given = work(([1.0], 1), ([np.inf], 1))
    rows = tuple(replace(row, pull=0.5) for row in given.rows)
    without = replace(given, rows=rows)
    assert by_pull(without) is without
    pulled = by_pull(replace(without, own=0))
    assert pulled.rows[1].payload is rows[1].payload
