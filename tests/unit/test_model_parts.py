"""One model file of those of a pipeline's stages."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from gossip.errors import ConfigError
from gossip.run import checkpoints, join_parts

NAME = "model.safetensors"


def part(folder: Path, stage: int, data: bytes) -> checkpoints.Checkpoint:
    path = checkpoints.write(folder / f"stage-{stage}", 5, {NAME: data}, {}, 1)
    return checkpoints.open_at(path)


def test_tensors_of_all_types_are_joined_as_they_are(tmp_path: Path) -> None:
    models: list[dict[str, Tensor]] = [
        {"0.weight": torch.randn(3, 5), "0.seen": torch.tensor([True, False, True])},
        {"1.weight": torch.randn(7).bfloat16(), "1.none": torch.empty(0, 4)},
        {"2.count": torch.tensor(2**40), "2.weight": torch.randn(2, 2, dtype=torch.float64)},
    ]
    parts = [part(tmp_path, at, save(model)) for at, model in enumerate(models)]
    join_parts(parts, tmp_path / "whole")
    found = load_file(tmp_path / "whole")
    expected = models[0] | models[1] | models[2]
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)
    data = (tmp_path / "whole").read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    for name, each in json.loads(data[8 : 8 + length]).items():
        assert (8 + length + each["data_offsets"][0]) % expected[name].element_size() == 0


def test_joining_takes_the_memory_of_a_chunk(tmp_path: Path) -> None:
    chunk = checkpoints.CHUNK_BYTES
    parts = [part(tmp_path, at, save({f"{at}": torch.ones(chunk)})) for at in range(2)]
    tracemalloc.start()
    try:
        join_parts(parts, tmp_path / "whole")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "whole").stat().st_size > 8 * chunk
    assert peak < 3 * chunk


def file_of(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"short", "is not a safetensors file"),
        (struct.pack("<Q", 2**60), "its header has 1152921504606846976 bytes"),
        (file_of(b"[1]"), "is not a safetensors file"),
        (file_of(b'{"a": 3}'), "its tensor a has no valid position in the file"),
        (
            file_of(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"123"),
            "its tensor a has no valid position in the file",
        ),
        (
            file_of(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}', b"123"),
            "its tensor a has no valid position in the file",
        ),
        (save({"0.weight": torch.ones(1)}), "another stage has 0.weight, too"),
    ],
)
def test_what_is_no_part_of_the_model_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    parts = [part(tmp_path, 0, save({"0.weight": torch.ones(2)})), part(tmp_path, 1, data)]
    with pytest.raises(ConfigError, match=said):
        join_parts(parts, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stage-0", "stage-1"]
