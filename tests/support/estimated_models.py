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


class _Recurrent(nn.Module):
    def __init__(self, kind: str, layers: int, *, bidirectional: bool) -> None:
        super().__init__()
        layer: Any = getattr(nn, kind)
        self.layers = layer(64, 256, layers, batch_first=True, bidirectional=bidirectional)
        self.out = nn.Linear(512 if bidirectional else 256, 10)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.layers(sequence)[0][:, -1])
        return scores


def _recurrent(kind: str, layers: int, *, bidirectional: bool = False) -> Make:
    return training(
        model=lambda: _Recurrent(kind, layers, bidirectional=bidirectional),
        optimizer=torch.optim.RMSprop,
        batch=lambda: (torch.randn(32, 50, 64), torch.randint(0, 10, (32,))),
        loss=functional.cross_entropy,
    )


def lstm() -> Make:
    """Two LSTM layers of 256 with RMSprop, 32 rows of 50 steps."""
    return _recurrent("LSTM", 2)


def lstm_both_ways() -> Make:
    """Two LSTM layers that read in both directions."""
    return _recurrent("LSTM", 2, bidirectional=True)


def gru() -> Make:
    """Two GRU layers."""
    return _recurrent("GRU", 2)


class _Residual(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.past = nn.Sequential(nn.Conv2d(channels, out, 1, 2, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.second(self.first(x)) + self.past(x))


def residual() -> Make:
    """Three residual blocks with SGD and momentum, 32 pictures of 64 x 64."""
    blocks = ((3, 32), (32, 64), (64, 128))
    return training(
        model=lambda: nn.Sequential(
            *(_Residual(*block) for block in blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
        ),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        batch=lambda: (torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))),
        loss=functional.cross_entropy,
    )


def embedding() -> Make:
    """Means of 8 of 100,000 words of width 64, with Adam: nearly all of it is the table, its gradient and its state."""
    return training(
        model=lambda: nn.Sequential(nn.EmbeddingBag(100_000, 64), nn.Linear(64, 10)),
        optimizer=torch.optim.Adam,
        batch=lambda: (torch.randint(0, 100_000, (64, 8)), torch.randint(0, 10, (64,))),
        loss=functional.cross_entropy,
    )


def accumulating() -> Make:
    """Four small batches for each step of the optimizer."""

    def make() -> Step:
        model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10))
        descent = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step() -> None:
            for _ in range(4):
                scores = model(torch.randn(64, 784))
                (functional.cross_entropy(scores, torch.randint(0, 10, (64,))) / 4).backward()
            descent.step()
            descent.zero_grad()

        return step

    return make


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


def recurrent_on_gpu() -> Step:
    """Run two LSTM layers of 256 over 50 steps of 32 rows, on a GPU that need not be there."""
    model = nn.LSTM(64, 256, 2, batch_first=True).to("cuda")

    def step() -> None:
        model(torch.randn(32, 50, 64, device="cuda"))[0].sum().backward()

    return step


def onednn_is_on() -> bool:
    """Say whether torch uses oneDNN."""
    return bool(torch._C._get_mkldnn_enabled())  # type: ignore[attr-defined]


def lstm_workspace_bytes(steps: int, rows: int, inputs: int, hidden: int) -> int:
    """Return what the kernel of an LSTM layer really keeps."""
    state, gates = torch.zeros(rows, hidden), 4 * hidden
    weights = torch.zeros(gates, inputs), torch.zeros(gates, hidden), torch.zeros(gates), torch.zeros(gates)
    layer: Any = torch.ops.aten.mkldnn_rnn_layer
    flags = (False, [], 2, hidden, 1, True, False, False, True)
    return int(layer(torch.zeros(steps, rows, inputs), *weights, state, state, *flags)[3].nbytes)


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
