"""Creates the data for ``run_scripts.py`` from files of the user (a part of MNIST and a
text) and random sentences, with tiny models and tokenizers for them. Nothing is downloaded."""

from __future__ import annotations

import argparse
import json
import random
import struct
from importlib import import_module
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from numpy.lib.format import read_array

WORDS = [f"w{at}" for at in range(100)]
CONFIGS = """---
configs:
- config_name: mrpc
  data_files:
  - {split: train, path: mrpc/train.jsonl}
  - {split: validation, path: mrpc/validation.jsonl}
---
"""
METRIC = """import datasets
import evaluate
import numpy as np


class Glue(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": float((np.array(predictions) == np.array(references)).mean()), "f1": 0}
"""


def make_mnist(work: Path, file: Path) -> None:
    """Write 2,048 training images and 1,000 test images in the format that torchvision reads."""
    raw = work / "mnist/MNIST/raw"
    raw.mkdir(parents=True)
    (work / "MNIST").symlink_to("mnist/MNIST")
    for kind, name, count in (("train", "train", 2048), ("t10k", "test", 1000)):
        for key, ending in (("x", "images-idx3"), ("y", "labels-idx1")):
            with ZipFile(file) as arrays, arrays.open(f"{key}_{name}.npy") as opened:
                array = read_array(opened, allow_pickle=False)[:count].astype(np.uint8)
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (raw / f"{kind}-{ending}-ubyte").write_bytes(head + array.tobytes())


def make_text(work: Path, file: Path) -> None:
    """Write the characters of a text as nanoGPT and llama2.c read them."""
    text = file.read_text()
    characters = sorted(set(text))
    numbers = {character: at for at, character in enumerate(characters)}
    ids = np.array([numbers[character] for character in text], dtype=np.uint16)
    for folder in ("shakespeare_char", "tok64"):
        (work / folder).mkdir()
    cut = int(0.9 * len(ids))
    ids[:cut].tofile(work / "shakespeare_char/train.bin")
    ids[cut:].tofile(work / "shakespeare_char/val.bin")
    # nanoGPT reads the size of the vocabulary from a pickled dict.
    meta = f"(dVvocab_size\nI{len(characters)}\ns."
    (work / "shakespeare_char/meta.pkl").write_text(meta)
    for at, part in enumerate(np.array_split(np.minimum(ids, 63), 5)):
        part.tofile(work / f"tok64/data{at:02}.bin")


def write_lines(file: Path, rows: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps(row) for row in rows))


def make_sentences(work: Path) -> None:
    """Write pairs of sentences and sequences of words, with a BERT and a Llama of two layers."""
    transformers, tokenizers = import_module("transformers"), import_module("tokenizers")

    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "max_position_embeddings": 64}
    bert, llama = work / "cwd/accelerate/bert-base-cased", work / "cwd/peft/tiny-llama"
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    known = {word: at for at, word in enumerate([*marks, *WORDS])}
    transformers.BertTokenizer(vocab=known).save_pretrained(bert)
    config = transformers.BertConfig(vocab_size=len(known), **small)
    transformers.BertForSequenceClassification(config).save_pretrained(bert)
    known = {word: at for at, word in enumerate(["<unk>", "</s>", *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    named = {"unk_token": "<unk>", "eos_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(llama)
    config = transformers.LlamaConfig(vocab_size=len(known), **small)
    transformers.LlamaForCausalLM(config).save_pretrained(llama)

    def pair(at: int) -> dict[str, object]:
        same = random.random() < 0.5
        first, second = WORDS[:50] if same else WORDS[50:], WORDS
        texts = [" ".join(random.choices(each, k=6)) for each in (first, second)]
        return {"sentence1": texts[0], "sentence2": texts[1], "label": int(same), "idx": at}

    glue = work / "cwd/accelerate/nyu-mll/glue"
    for split, count in (("train", 640), ("validation", 64)):
        write_lines(glue / f"mrpc/{split}.jsonl", [pair(at) for at in range(count)])
    (glue / "README.md").write_text(CONFIGS)
    (work / "cwd/accelerate/glue").mkdir()
    (work / "cwd/accelerate/glue/glue.py").write_text(METRIC)
    for split, count in (("train", 2048), ("test", 64)):
        starts = [random.randrange(100) for _ in range(count)]
        texts = [" ".join(WORDS[(start + 3 * at) % 100] for at in range(16)) for start in starts]
        write_lines(work / f"cwd/peft/guanaco/{split}.jsonl", [{"text": text} for text in texts])


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the data of run_scripts.py.")
    parser.add_argument("work", type=Path, help="folder to make")
    parser.add_argument("--mnist", type=Path, required=True, help="mnist.npz of Keras")
    parser.add_argument("--text", type=Path, required=True, help="such as tinyshakespeare.txt")
    options = parser.parse_args()
    random.seed(0)
    options.work.mkdir(parents=True)
    make_mnist(options.work, options.mnist)
    make_text(options.work, options.text)
    make_sentences(options.work)


if __name__ == "__main__":
    main()
