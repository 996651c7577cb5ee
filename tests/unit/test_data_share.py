"""Static shares of an epoch, for rounds without commits."""

import pytest

from gossip.core.ledger.data_share import DataShare, rounds_per_epoch


@pytest.mark.parametrize(
    ("peers", "samples_total", "batch"),
    [(1, 10, 3), (3, 100, 10), (8, 1437, 32), (7, 5, 2), (4, 33, 8)],
)
def test_every_position_of_an_epoch_is_read_once_by_somebody(
    peers: int, samples_total: int, batch: int
) -> None:
    rounds = rounds_per_epoch(peers, samples_total, batch)
    for epoch in range(2):
        read = []
        for round_id in range(epoch * rounds, (epoch + 1) * rounds):
            for rank in range(peers):
                share = DataShare(rank, peers, samples_total, batch).slice(round_id)
                assert share.epoch == epoch
                assert all(stop - start <= batch for start, stop in share.ranges)
                if rounds > 1:
                    assert sum(stop - start for start, stop in share.ranges) >= batch // 2, (
                        "a handful of samples"
                    )
                read += [at for start, stop in share.ranges for at in range(start, stop)]
        assert sorted(read) == list(range(epoch * samples_total, (epoch + 1) * samples_total))
