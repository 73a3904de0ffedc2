"""Small members of well-known families of models, each with data and its usual loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

ROWS, BATCH = 23, 9  # batches of 9, 9 and 5 rows: uneven on 2 ranks, and the last one on 3
CLASSES, TOKENS, LENGTH = 5, 97, 12


@dataclass(frozen=True)
class Subject:
    """A model, the data that it is trained on, and the loss of a batch of these."""

    net: nn.Module
    data: TensorDataset
    loss: Callable[..., Tensor]


def images(net: nn.Module, size: int = 32, loss: Callable[..., Tensor] | None = None) -> Subject:
    """Classify images of noise."""
    data = TensorDataset(torch.randn(ROWS, 3, size, size), torch.randint(CLASSES, (ROWS,)))
    return Subject(net, data, loss or classify)


def classify(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of what the model gives for `x`."""
    return F.cross_entropy(net(x), y)


def sentences(length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Return tokens that are padded with 0 at the end, and the mask of those that are not."""
    lengths = torch.randint(length // 3, length + 1, (ROWS, 1))
    mask = (torch.arange(length) < lengths).long()
    return torch.randint(3, TOKENS, (ROWS, length)) * mask, mask


def catalogue() -> dict[str, Callable[[], Subject]]:
    """Return all models by name; a library is imported when one of its models is made."""
    from benchmarks.models import plain, text, timm_images, torchvision_images

    found: dict[str, Any] = {}
    for module in (torchvision_images, timm_images, text, plain):
        found |= module.MODELS
    return found
