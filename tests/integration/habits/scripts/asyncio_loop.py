"""The script trains within ``asyncio.run``, beside another task."""

import asyncio

import habit
import torch

import gossip


async def tick():
    while True:
        await asyncio.sleep(0.001)


async def main():
    model = habit.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    peer = gossip.init()
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(habit.loader())
    other = asyncio.ensure_future(tick())
    for _ in peer.epochs(2, save="ckpt", every=10):
        for x, y in loader:
            habit.step(model, optimizer, x, y)
            await asyncio.sleep(0)
            habit.pause(peer)
    other.cancel()
    habit.done(peer, model)


asyncio.run(main())
