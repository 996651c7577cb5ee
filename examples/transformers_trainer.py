"""The Trainer of Hugging Face with gossip. Added lines are marked with (gossip).

gossip run -n 4 examples/transformers_trainer.py      # pip install 'gossip-train[transformers]'
"""

import argparse
import hashlib

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from gossip.integrations.transformers import GossipTrainer  # (gossip) instead of Trainer


class Sums(Dataset):
    """Texts of sixteen digits. Each digit is the last digit of the sum of the two digits before
    it."""

    def __init__(self, texts: int) -> None:
        digits = torch.randint(0, 10, (texts, 2), generator=torch.Generator().manual_seed(0))
        while digits.shape[1] < 16:
            digits = torch.cat([digits, digits[:, -2:].sum(1, keepdim=True) % 10], 1)
        self.texts = digits

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.texts[at], "labels": self.texts[at]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=1024)
    options = parser.parse_args()

    shape = {"vocab_size": 10, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=None, eos_token_id=None))
    arguments = TrainingArguments(
        "trained",
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        logging_steps=16,
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = GossipTrainer(model, arguments, train_dataset=Sums(options.texts))
    trainer.train()

    content = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    rate = trainer.lr_scheduler.get_last_lr()[0]
    state = trainer.state
    print(f"planned {state.max_steps} made {state.global_step} rate {rate:.3g} model {digest}")


if __name__ == "__main__":
    main()
