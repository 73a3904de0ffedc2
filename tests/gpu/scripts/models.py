"""The models that are timed, with a loader each: a ResNet-50, a GPT of 100 million parameters, an MLP."""

import os

import torch
import torch.nn.functional as F
import torchvision
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

    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)


def make(kind, count):
    """The model, a data set of `count` samples, the batch size and the number of workers."""
    torch.manual_seed(0)
    if kind == "resnet50":
        net = torchvision.models.resnet18() if TINY else torchvision.models.resnet50()
        size, batch = (32, 8) if TINY else (224, 128)
        return net, Synthetic(count, torch.randn(64, 3, size, size), torch.randint(1000, (64,))), batch, 4
    if kind == "gpt":
        width, layers, length, batch = (32, 2, 16, 4) if TINY else (768, 12, 512, 16)
        text = torch.randint(512 if TINY else 32768, (64, length + 1))
        net = GPT(512 if TINY else 32768, width, layers, width // 64 or 1, length)
        return net, Synthetic(count, text[:, :-1].clone(), text[:, 1:].clone()), batch, 0
    width, batch = (64, 16) if TINY else (1024, 256)
    net = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    return net, Synthetic(count, torch.randn(64, 64), torch.randint(10, (64,))), batch, 0
