"""A small classification task with its own model, for the workers of these tests."""

from __future__ import annotations

from types import SimpleNamespace

import torch

FEATURES, CLASSES = 12, 3


class SmallNet(torch.nn.Module):
    """Two layers, called like a Hugging Face model."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = torch.nn.Linear(FEATURES, 24)
        self.norm = torch.nn.LayerNorm(24)
        self.drop = torch.nn.Dropout(dropout)
        self.last = torch.nn.Linear(24, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> SimpleNamespace:
        logits = self.last(self.drop(torch.relu(self.norm(self.first(x)))))
        loss = None
        if labels is not None:
            loss = torch.nn.functional.cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


def rows(count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """`count` points whose class is their largest coordinate of the first three."""
    x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return {"x": x, "labels": x[:, :CLASSES].argmax(dim=1)}
