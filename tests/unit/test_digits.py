"""What ``gossip demo`` trains on."""

from __future__ import annotations

import numpy as np

from gossip.launch.demo import digits


def test_the_digits_that_are_read_without_scikit_learn_are_those_of_scikit_learn() -> None:
    # One process needs it, which takes a second to import.
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    read = digits._read_digits()
    np.testing.assert_array_equal(read[:, :-1], pixels)
    np.testing.assert_array_equal(read[:, -1], labels)
    split = digits.load_digits()
    assert (len(split.train), len(split.test_images), len(split.test_labels)) == (1437, 360, 360)
    assert 0.0 == float(split.test_images.min()) < float(split.test_images.max()) == 1.0
