"""What ``gossip demo`` trains on."""

from __future__ import annotations

import numpy as np
import torch

from gossip.launch.demo import digits


def test_the_digits_of_the_demo_are_those_of_scikit_learn() -> None:
    # One process needs it, which takes a second to import.
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    split = digits.load_digits()
    assert (len(split.train), len(split.test_images), len(split.test_labels)) == (1437, 360, 360)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(digits.SPLIT_SEED))
    images = torch.cat([split.test_images, split.train.tensors[0]])
    np.testing.assert_array_equal(images * 16, pixels[order])
    np.testing.assert_array_equal(
        torch.cat([split.test_labels, split.train.tensors[1]]), labels[order]
    )
