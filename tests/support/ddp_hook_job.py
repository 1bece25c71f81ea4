"""Train one model twice by PyTorch's DDP, with gloo's all-reduce and with a hook, and compare the gradients."""

from __future__ import annotations

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

import penstock

STEPS = 12


def model() -> torch.nn.Module:
    """Return a model whose gradients fill several of DDP's buckets."""
    torch.manual_seed(1)
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(64, 512), torch.nn.ReLU(), linear(512, 512), linear(512, 10))


def main() -> None:
    """Compare each step's gradients."""
    with penstock.session() as session, session.distributed():
        theirs = DistributedDataParallel(model(), bucket_cap_mb=0.25)
        plain = model()
        ours = DistributedDataParallel(plain, bucket_cap_mb=0.25)
        ours.register_comm_hook(None, session.aggregate(plain).ddp_hook())
        equal, apart = 0, 0.0
        for step in session.iterations(range(STEPS)):
            torch.manual_seed(100 * step + session.rank)
            rows = torch.randn(32, 64)
            for each in (theirs, ours):
                each.zero_grad()
                each(rows).square().mean().backward()
            pairs = [(a.grad, b.grad) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True)]
            equal += all(torch.equal(a, b) for a, b in pairs)
            apart = max(apart, *(float((a - b).abs().max()) for a, b in pairs))
        sys.stdout.write(f"rank {session.rank}: {equal} of {STEPS} steps equal, {apart:.3g} apart at most\n")


if __name__ == "__main__":
    main()
