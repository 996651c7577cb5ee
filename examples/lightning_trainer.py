"""The Trainer of Lightning with gossip. Added lines are marked with (gossip).

gossip run -n 4 examples/lightning_trainer.py         # pip install 'gossip-train[lightning]'
"""

import argparse
import hashlib
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gossip.integrations.lightning import GossipStrategy  # (gossip)


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch: Any, at: int) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, at: int) -> None:
        inputs, targets = batch
        self.log("accuracy", (self.net(inputs).argmax(1) == targets).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=1e-2, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return [optimizer], [{"scheduler": self.schedule, "interval": "step"}]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=1024)
    options = parser.parse_args()

    x = torch.randn(options.samples + 256, 8, generator=torch.Generator().manual_seed(0))
    train, test = x[:-256], x[-256:]
    loader = DataLoader(TensorDataset(train, train[:, :4].argmax(1)), batch_size=8, shuffle=True)
    test_loader = DataLoader(TensorDataset(test, test[:, :4].argmax(1)), batch_size=64)

    model = Classifier()
    trainer = pl.Trainer(
        strategy=GossipStrategy(),  # (gossip)
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        log_every_n_steps=8,
        enable_progress_bar=False,
        default_root_dir="trained",
    )
    trainer.fit(model, loader, test_loader)

    content = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    rate, planned = model.schedule.get_last_lr()[0], int(trainer.estimated_stepping_batches)
    print(f"planned {planned} made {trainer.global_step} rate {rate:.3g} model {digest}")


if __name__ == "__main__":
    main()
