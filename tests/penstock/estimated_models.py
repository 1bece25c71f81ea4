"""Models for the dry estimate, and torch's profiler to hold it against. Needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from penstock.estimate import Make, Step, training


def mlp() -> Make:
    """784-2048-2048-10 with Adam, 256 rows."""
    return training(
        model=lambda: nn.Sequential(
            nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
        ),
        optimizer=torch.optim.Adam,
        batch=lambda: (torch.randn(256, 784), torch.randint(0, 10, (256,))),
        loss=functional.cross_entropy,
    )


def cnn() -> Make:
    """Three convolutions with batch norm and SGD with momentum, 64 pictures of 32 x 32."""
    return training(
        model=lambda: nn.Sequential(_block(3, 32), _block(32, 64), _block(64, 128), nn.Flatten(), nn.Linear(2048, 10)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        batch=lambda: (torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))),
        loss=functional.cross_entropy,
    )


def _block(channels: int, out: int) -> nn.Module:
    convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2))


class _Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(128, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.layers(self.embedding(tokens)))
        return logits.transpose(1, 2)


def transformer() -> Make:
    """Two layers of width 128 over 1,000 words with AdamW, 16 rows of 64 words."""
    return training(
        model=_Language,
        optimizer=torch.optim.AdamW,
        batch=lambda: (torch.randint(0, 1000, (16, 64)), torch.randint(0, 1000, (16, 64))),
        loss=functional.cross_entropy,
    )


def linear(optimizer: str, *, give_back: bool = False) -> Make:
    """Return 1024 x 1024 weights; with ``give_back``, no gradient outlives its iteration."""

    def make() -> Step:
        model = nn.Linear(1024, 1024, bias=False)
        descent: Any = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)

        def step() -> None:
            descent.zero_grad()
            model(torch.randn(8, 1024)).sum().backward()
            descent.step()
            if give_back:
                descent.zero_grad()

        return step

    return make


def moved(how: str) -> Make:
    """Return what `linear` is, built on the host and put on a device as scripts do."""

    def make() -> Step:
        model: Any = nn.Linear(1024, 1024, bias=False)
        model = model.cuda() if how == "cuda()" else model.to(torch.device(how) if how == "cuda" else how)
        descent = torch.optim.Adam(model.parameters(), lr=0.01)

        def step() -> None:
            descent.zero_grad()
            inputs = torch.randn(8, 1024).cuda() if how == "cuda()" else torch.randn(8, 1024, device=how)
            model(inputs).sum().backward()
            descent.step()

        return step

    return make


def huge() -> Step:
    """Keep a tebibyte."""
    kept = torch.empty(1 << 38)
    return lambda: kept * 2


def recurrent() -> Step:
    """Run two LSTM layers of 256 over 50 steps of 32 rows."""
    model = nn.LSTM(64, 256, 2, batch_first=True)

    def step() -> None:
        model(torch.randn(32, 50, 64))[0].sum().backward()

    return step


def reading() -> Step:
    """Read a loss, and branch on it."""
    model = nn.Linear(8, 1)

    def step() -> float:
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        return loss.item() if loss > 0 else 0.0

    return step


def profiled(make: Make, iterations: int = 3) -> tuple[int, int]:
    """Return P and the peak (bytes), from the allocations that torch's profiler saw; the first iteration aside."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = make()
        for _ in range(iterations):
            with record_function("iteration"):
                step()
    events = list(profiler.profiler.kineto_results.events())  # type: ignore[union-attr]
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == "iteration")[1:]
    total, left, peaks = 0, [0] * len(spans), [0] * len(spans)
    for at_ns, size in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        total += size
        for i, (begin_ns, end_ns) in enumerate(spans):
            peaks[i] = max(peaks[i], total) if begin_ns <= at_ns <= end_ns else peaks[i]
            left[i] = total if at_ns <= end_ns else left[i]
    return max(left), max(peaks)
