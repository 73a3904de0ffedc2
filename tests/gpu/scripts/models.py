"""The models that are timed, with a data set each; nothing but torch is needed, and no network."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

TINY = bool(os.environ.get("TINY"))  # to try the command itself without a GPU


class Synthetic(Dataset):
    """`count` samples, of which there are a few."""

    def __init__(self, count, *tensors):
        self.count, self.tensors = count, tensors

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return tuple(t[i % len(t)] for t in self.tensors)


def conv(into, out, size, stride=1):
    return nn.Sequential(nn.Conv2d(into, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out))


class Residual(nn.Module):
    """Two convolutions, or three of which the last gives four times as many channels."""

    def __init__(self, into, width, stride, deep):
        super().__init__()
        out = 4 * width if deep else width
        first, last = (conv(into, width, 1), conv(width, out, 1)) if deep else (conv(into, width, 3, stride), conv(width, out, 3))
        middle = [conv(width, width, 3, stride), nn.ReLU()] if deep else []
        self.body = nn.Sequential(first, nn.ReLU(), *middle, last)
        self.side = nn.Identity() if (into, stride) == (out, 1) else conv(into, out, 1, stride)

    def forward(self, x):
        return F.relu(self.body(x) + self.side(x))


def resnet(counts, deep, classes, small, width=64):
    """torchvision's ResNet; for `small` images the first convolution keeps their size."""
    layers = [conv(3, width, 3), nn.ReLU()] if small else [conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    into = width
    for stage, count in enumerate(counts):
        for number in range(count):
            layers.append(Residual(into, width << stage, 2 if stage and not number else 1, deep))
            into = (4 if deep else 1) * width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self, tokens, width, layers, heads, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)


def make(kind, steps):
    """The model, a data set for so many steps, the batch size and the number of workers."""
    torch.manual_seed(0)
    if kind == "gpt2":
        tokens, width, layers, length, batch = (512, 64, 2, 16, 4) if TINY else (50257, 768, 12, 1024, 8)
        text = torch.randint(tokens, (64, length + 1))
        net = GPT(tokens, width, layers, width // 64, length)
        return net, Synthetic(batch * steps, text[:, :-1].clone(), text[:, 1:].clone()), batch, 0
    if kind == "resnet50":
        net = resnet((1, 1, 1, 1), True, 1000, False, 4) if TINY else resnet((3, 4, 6, 3), True, 1000, False)
        size, batch, workers = (32, 8, 2) if TINY else (224, 128, 4)
    else:
        net = resnet((1, 1), False, 10, True, 8) if TINY else resnet((2, 2, 2, 2), False, 10, True)
        size, batch, workers = (8, 8, 0) if TINY else (32, 256, 4)
    return net, Synthetic(batch * steps, torch.randn(64, 3, size, size), torch.randint(10, (64,))), batch, workers
