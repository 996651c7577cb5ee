"""A loop of Accelerate with gossip. Added lines are marked with (gossip).

gossip run -n 4 examples/accelerate_loop.py           # pip install 'gossip-train[accelerate]'
"""

import argparse
import hashlib

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gossip  # (gossip)
from gossip.integrations.accelerate import prepare  # (gossip)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=1024)
    options = parser.parse_args()

    x = torch.randn(options.samples, 8, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    peer = gossip.init()  # (gossip)
    model, optimizer, loader = prepare(peer, accelerator, model, optimizer, loader)  # (gossip)
    planned = 2 * len(loader) // 2
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, planned)
    peer.keep(schedule=schedule)  # (gossip)

    for _ in peer.epochs(2):  # (gossip) instead of range
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
                optimizer.step()
                if accelerator.sync_gradients:
                    schedule.step()
                optimizer.zero_grad()

    content = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    rate, main_one = schedule.get_last_lr()[0], accelerator.is_main_process
    print(f"planned {planned} made {peer.step} rate {rate:.3g} model {digest} main {main_one}")


if __name__ == "__main__":
    main()
