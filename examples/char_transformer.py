"""A transformer that learns to write character by character. It is trained on spelled-out numbers,
or on your own text.

gossip run -n 4 examples/char_transformer.py                      # one two three four ...
gossip run -n 4 examples/char_transformer.py --text FILE --steps 2000
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import gossip

ONES = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
ONES += "sixteen seventeen eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def in_words(number: int) -> str:
    """Return a number from 1 to 999, spelled out."""
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    words = [f"{ONES.split()[hundreds - 1]} hundred"] if hundreds else []
    if rest >= 20:
        words += [TENS.split()[tens - 2]] + ([ONES.split()[ones - 1]] if ones else [])
    elif rest:
        words.append(ONES.split()[rest - 1])
    return " ".join(words)


class Excerpts(Dataset):
    """Excerpts of a text. A sample is an excerpt and the excerpt that begins one character later,
    two tensors, (length,) int64."""

    def __init__(self, text: str, length: int) -> None:
        self.letters = sorted(set(text))
        self.codes = torch.tensor([self.letters.index(letter) for letter in text])
        self.length = length

    def __len__(self) -> int:
        return len(self.codes) - self.length

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.codes[at : at + self.length], self.codes[at + 1 : at + 1 + self.length]


class Writer(nn.Module):
    """Model from codes of characters, (batch, length), to scores of each next character, (batch,
    length, letters)."""

    def __init__(self, letters: int, length: int, width: int = 64) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scores = nn.Linear(width, letters)

    def forward(self, codes: Tensor) -> Tensor:
        length = codes.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.letter(codes) + self.place(torch.arange(length))
        return self.scores(self.layers(x, mask=mask, is_causal=True))


@torch.no_grad()
def write(model: Writer, data: Excerpts, begin: str, letters: int) -> str:
    """Continue a text with the most likely characters."""
    text = begin
    for _ in range(letters):
        codes = torch.tensor([[data.letters.index(letter) for letter in text[-data.length :]]])
        text += data.letters[int(model(codes)[0, -1].argmax())]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, help="a text to learn from")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--length", type=int, default=32)
    options = parser.parse_args()

    torch.manual_seed(0)
    counted = " ".join(in_words(number) for number in range(1, 1000))
    data = Excerpts(options.text.read_text() if options.text else counted, options.length)
    model = Writer(len(data.letters), options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    peer = gossip.init()
    model, optimizer = peer.prepare(model, optimizer)
    batches = iter(peer.shard(DataLoader(data, batch_size=16, shuffle=True)))
    for step in peer.steps(options.steps):
        codes, following = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(codes).transpose(1, 2), following)
        loss.backward()
        peer.log(loss=loss.item())
        optimizer.step()
        if peer.is_main and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.2f}")
    if peer.is_main:
        print(
            write(model, data, begin="".join(data.letters[int(c)] for c in data[0][0]), letters=60)
        )


if __name__ == "__main__":
    main()
