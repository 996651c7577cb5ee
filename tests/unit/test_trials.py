"""Runs of the robustness table: what they learn from,
and what is told before and while they run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from gossip.errors import ConfigError, LocalError
from gossip.launch.cli import app
from gossip_lab import data_sets
from gossip_lab.bench import trial_store
from gossip_lab.bench.trials import Trial, TrialResult


def bench(folder: Path, *more: object, rules: str = "mean") -> None:
    """Of five workers, one a liar, unless ``more`` says otherwise."""
    sizes = [] if "--n" in more else ["--n", 5, "--f", 1]
    words = ["bench", "robustness", "--rules", rules, "--into", folder, *sizes, *more]
    words += ["--attacks", "none", "--seeds", "1", "--rounds", "5", "--no-plot"]
    CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)


def test_an_npz_file_is_read_and_a_wrong_one_refused(tmp_path: Path) -> None:
    images = np.arange(60, dtype=np.uint8).reshape(5, 3, 4)
    tests = {"x_test": images[:2], "y_test": [0, 1]}
    np.savez(tmp_path / "small.npz", x_train=images, y_train=[0, 1, 2, 1, 0], **tests)
    data = data_sets.load(str(tmp_path / "small.npz"))
    assert data.images.shape == (5, 12)
    assert float(data.images.max()) == pytest.approx(59 / 255)
    assert data.classes == 3
    np.savez(tmp_path / "other.npz", x=images)
    with pytest.raises(ConfigError, match=r"cannot read .*other.npz"):
        data_sets.load(str(tmp_path / "other.npz"))


@pytest.mark.parametrize(
    ("train", "test", "scale"),
    [
        (np.array([0, 255], np.uint8), np.array([0, 1], np.uint8), 255),
        (np.array([0, 1], np.uint8), np.array([1, 1], np.uint8), 1),
        (np.array([0.0, 255.0]), np.array([0.0, 1.0]), 255),
        (np.array([0.0, 1.0]), np.array([0.0, 1.2]), 1),
        (np.array([0.0, 1.5]), np.array([0.0, 0.5]), 1),
        (np.array([-0.4, 2.8]), np.array([-0.4, 0.9]), 1),
        (np.array([-9, 255]), np.array([0, 1]), 1),
    ],
)
def test_both_parts_are_scaled_alike_and_only_where_they_are_pixels(
    train: NDArray[Any], test: NDArray[Any], scale: int, tmp_path: Path
) -> None:
    labels = np.array([0, 1])
    rows = {"x_train": train.reshape(2, 1), "x_test": test.reshape(2, 1)}
    np.savez(tmp_path / "some.npz", **rows, y_train=labels, y_test=labels)
    data = data_sets.load(str(tmp_path / "some.npz"))
    for images, given in ((data.images, train), (data.test_images, test)):
        assert images.flatten().tolist() == pytest.approx((given / scale).tolist())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x_train": np.zeros((4, 0))}, "x_train of shape (4, 0) and type float64 is empty"),
        ({"x_test": np.full((2, 3), np.nan)}, "is empty, or has values that are not finite"),
        ({"x_train": np.array([["a"] * 3] * 4)}, "x_train of shape (4, 3) and type <U1 is empty"),
        ({"y_train": np.float64(3)}, "y_train of shape () and type float64 is empty"),
        ({"x_test": np.zeros((2, 5))}, "3 numbers to an image in x_train, 5 in x_test"),
        ({"y_train": np.eye(4)}, "4 images in x_train for labels of shape (4, 4) in y_train"),
        ({"y_test": np.zeros(3)}, "2 images in x_test for labels of shape (3,) in y_test"),
        ({"y_train": np.array([0, 1, -1, 1])}, "in y_train are whole numbers from 0 to 9999"),
        ({"y_train": np.array([0, 1, 0.5, 1])}, "labels in y_train are whole numbers"),
        ({"y_train": np.array([0, 1, 2**40, 1])}, "labels in y_train are whole numbers"),
        ({"y_test": np.array([0, 7])}, "y_test has the label 7, but y_train none above 1"),
    ],
)
def test_data_that_nothing_can_be_learnt_from_are_refused(
    changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    arrays = {"x_train": np.ones((4, 3)), "y_train": np.array([0, 1, 0, 1])}
    arrays |= {"x_test": np.ones((2, 3)), "y_test": np.array([0, 1]), **changed}
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ConfigError, match=re.escape(says)):
        data_sets.load(str(tmp_path / "data.npz"))


def test_what_is_wrong_with_data_and_page_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "a_file").write_text("")
    for option, value, says in (
        ("--data", tmp_path / "nowhere.npz", "no data set .*nowhere.npz: there is no"),
        ("--out", tmp_path / "a_file" / "page.md", "cannot write"),
        ("--out", tmp_path, "cannot write"),
    ):
        with pytest.raises(ConfigError, match=says):
            bench(tmp_path / "runs", option, value)
        assert not list(tmp_path.glob("runs/*"))


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_runs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match="cannot write to the folder /proc/self: "):
        bench(Path("/proc/self"))  # root may not write there either
    assert "to run" not in capfd.readouterr().err
    trial, outcome = Trial("mean"), TrialResult(0.9)
    with pytest.raises(ConfigError, match="cannot write /proc/self/mean-none"):
        trial_store.store_of(Path("/proc/self"), "digits").write(trial, dataclasses.asdict(outcome))


@pytest.mark.usefixtures("forked")
def test_samples_that_do_not_suffice_for_all_are_told_without_a_table(tmp_path: Path) -> None:
    few, labels = tmp_path / "few.npz", [0, 1, 0, 1]
    np.savez(few, x_train=np.eye(4), y_train=labels, x_test=np.eye(4), y_test=labels)
    says = (
        "8 honest workers alone cannot train: 4 samples for 8 honest workers: some would lack one"
    )
    with pytest.raises(ConfigError, match=says):
        bench(tmp_path / "runs", "--n", 10, "--f", 2, "--split", "sorted", "--data", few)


def test_a_process_that_is_killed_is_told_and_what_was_done_is_kept(tmp_path: Path) -> None:
    """By its rule, as the system does it for want of memory."""
    rule = tmp_path / "deadly.py"
    rule.write_text(
        "import os, signal\n\n\ndef keep(updates, *, f, round_id=0):\n    if round_id == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return updates.mean(0)\n"
    )
    with pytest.raises(
        LocalError, match=r"a process of the cells was killed, perhaps for lack of memory \(1 job\)"
    ):
        bench(tmp_path / "runs", rules=f"mean {rule}:keep")
    assert len(list(tmp_path.glob("runs/mean-*.json"))) == 2
