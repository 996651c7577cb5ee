"""Members of a stage count by their samples, though rules weigh no rows."""

from __future__ import annotations

import numpy as np
import torch

from gossip import aggregators
from gossip.core import Aggregate, Payload, Row
from gossip.node.weighing import by_samples


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
