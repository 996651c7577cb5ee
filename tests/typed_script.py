# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""A training script as users write it. ``make pyright`` checks it with all rules, and mypy does in
``make test``: nothing of the public API is of an unknown type, and a misspelt option is an error.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gossip


def main(epochs: int = 2) -> float:
    """Train a line, and return its loss."""
    peer = gossip.init(aggregator="mean", seed=1)
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    data = TensorDataset(x, 3 * x + 1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = peer.prepare(model, optimizer, clip_norm=1.0)
    loader = peer.shard(data, batch_size=8, num_workers=0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs * len(loader))
    peer.keep(scheduler=scheduler)

    @peer.each_step
    def clamp() -> None:
        model.weight.clamp_(-2.5, 2.5)

    @peer.on_membership_change
    def show(change: gossip.MembershipChange) -> None:
        died = ", ".join(f"peer {peer}" for peer in change.died)
        print(f"round {change.round_id}: {len(peer.roster)} peers, without {died or 'a death'}")

    loss = torch.zeros(())
    for epoch in peer.epochs(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()  # pyright: ignore[reportUnknownMemberType] - torch has no types here
            optimizer.step()  # pyright: ignore[reportUnknownMemberType]
            scheduler.step()
        if peer.is_main:
            peer.log(loss=loss, epoch=epoch)
    means = peer.mean(loss=loss)
    if peer.any(means["loss"] > 1.0) or peer.confirmed is False:
        print(f"step {peer.step} of {peer.roster_peers} peers {means.peers}: {peer.gather('bad')}")
    evaluated = DataLoader(data, batch_size=loader.batch_size)
    peer.save("model.safetensors", {"weight": model.weight, "bias": model.bias})
    peer.close()
    with torch.no_grad():
        return max(nn.functional.mse_loss(model(a), b).item() for a, b in evaluated)


def misspell() -> None:
    """Each line is found: without the error, its comment is one."""
    gossip.init(agregator="mean")  # type: ignore[call-arg]
    peer = gossip.init(quorum="most")  # type: ignore[arg-type]
    peer.shard([1], num_worker=1)  # type: ignore[call-arg]


if __name__ == "__main__":
    print(main())
