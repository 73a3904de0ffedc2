"""Models that scripts write themselves of torch's own parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import TensorDataset

from benchmarks.models import CLASSES, LENGTH, ROWS, TOKENS, Subject, classify, sentences


class Recurrent(nn.Module):
    """Two layers that read sentences, time or the batch first."""

    def __init__(self, kind: str, batch_first: bool, both: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(TOKENS, 16)
        self.body = getattr(nn, kind)(
            16, 24, 2, dropout=0.2, batch_first=batch_first, bidirectional=both
        )
        self.head = nn.Linear(48 if both else 24, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids if self.batch_first else ids.t())
        out, _ = self.body(x)
        return self.head(out[:, -1] if self.batch_first else out[-1])


class Packed(Recurrent):
    """The same by packed sequences, which leave padding out."""

    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids != 0).sum(1).cpu()
        x = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        out, (last, _) = self.body(x)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return self.head(out.mean(1)) + self.head(last[-1])


class CharRnn(nn.Module):
    """A language model whose state goes from one batch to the next, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(TOKENS, 16), nn.LSTMCell(16, 24)
        self.head = nn.Linear(24, TOKENS)

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.zeros(ids.size(0), 24)
        c = torch.zeros_like(h)
        steps = []
        for t in range(ids.size(1)):
            h, c = self.cell(self.embed(ids[:, t]), (h, c))
            steps.append(self.head(h))
        return torch.stack(steps, 1)


class Positions(nn.Module):
    """Sines of the position, as in torch's tutorial: time first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        at = torch.arange(40).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(40, 1, width)
        table[:, 0, 0::2], table[:, 0, 1::2] = torch.sin(at * rate), torch.cos(at * rate)
        self.register_buffer("table", table)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.table[: x.size(0)])


class Encoder(nn.Module):
    """A TransformerEncoder with padding and, if asked, a causal mask."""

    def __init__(self, batch_first: bool = True, causal: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=batch_first)
        self.batch_first, self.causal = batch_first, causal
        self.embed, self.place = nn.Embedding(TOKENS, 32), Positions(32)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.place(self.embed(ids.t()) * math.sqrt(32))
        x = x.transpose(0, 1) if self.batch_first else x
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1)) if self.causal else None
        padding = (
            torch.zeros(ids.shape).masked_fill(ids == 0, -math.inf) if self.causal else ids == 0
        )
        out = self.body(x, mask=mask, src_key_padding_mask=padding)
        return self.head(out.mean(1 if self.batch_first else 0))


class Translator(nn.Module):
    """An encoder and a decoder, `nn.Transformer`."""

    def __init__(self, batch_first: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed, self.place = nn.Embedding(TOKENS, 32, padding_idx=0), Positions(32)
        self.body = nn.Transformer(32, 4, 2, 2, 64, 0.1, batch_first=batch_first)
        self.head = nn.Linear(32, TOKENS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        into, out = (self.place(self.embed(ids.t())) for ids in (source, target))
        if self.batch_first:
            into, out = into.transpose(0, 1), out.transpose(0, 1)
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1), dtype=torch.bool)
        masks = {"tgt_mask": causal, "src_key_padding_mask": source == 0}
        masks |= {"tgt_key_padding_mask": target == 0, "memory_key_padding_mask": source == 0}
        y = self.head(self.body(into, out, **masks))
        return y if self.batch_first else y.transpose(0, 1)


class Attention(nn.Module):
    """Causal attention by hand or by torch's function, as small GPTs have it."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, -1))

    def forward(self, x: Tensor) -> Tensor:
        rows, time, width = x.size()
        parts = self.qkv(self.norm(x)).split(width, dim=2)
        q, k, v = (part.view(rows, time, 4, width // 4).transpose(1, 2) for part in parts)
        if self.by_hand:
            weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            weights = weights.masked_fill(self.mask[:, :, :time, :time] == 0, float("-inf"))
            y = self.dropout(F.softmax(weights, dim=-1)) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return x + self.out(y.transpose(1, 2).contiguous().view(rows, time, width))


class Gpt(nn.Module):
    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, 32), nn.Embedding(LENGTH, 32)
        self.body = nn.Sequential(*(Attention(by_hand) for _ in range(2)))
        self.head = nn.Linear(32, TOKENS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids) + self.place(torch.arange(ids.size(1)))))


def twice(into: int, out: int) -> nn.Sequential:
    """Two convolutions with BatchNorm."""
    pairs = ((into, out), (out, out))
    return nn.Sequential(
        *(
            part
            for a, b in pairs
            for part in (
                nn.Conv2d(a, b, 3, padding=1, bias=False),
                nn.BatchNorm2d(b),
                nn.ReLU(inplace=True),
            )
        )
    )


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList((twice(3, width), twice(width, 2 * width)))
        self.middle = twice(2 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.last = nn.ModuleList((twice(4 * width, 2 * width), twice(3 * width, width)))
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        up = self.up(self.middle(F.max_pool2d(second, 2)))
        high, wide = second.size(2) - up.size(2), second.size(3) - up.size(3)
        up = F.pad(up, [wide // 2, wide - wide // 2, high // 2, high - high // 2])
        up = self.last[0](torch.cat([second, up], 1))
        up = F.interpolate(up, first.shape[2:], mode="bilinear", align_corners=True)
        return self.head(self.last[1](torch.cat([first, up], 1)))


def read(net: nn.Module) -> Subject:
    """Classify padded sentences."""
    ids, _ = sentences()
    return Subject(net, TensorDataset(ids, torch.randint(CLASSES, (ROWS,))), classify)


def of_tokens(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a language model."""
    out = net(x)
    return F.cross_entropy(out.reshape(-1, out.size(-1)), y.reshape(-1), ignore_index=0)


def spoken(net: nn.Module) -> Subject:
    """Tell the next token."""
    ids, _ = sentences(LENGTH + 1)
    return Subject(net, TensorDataset(ids[:, :-1], ids[:, 1:]), of_tokens)


def translated(net: nn.Module) -> Subject:
    """Tell the next token of another sentence."""

    def loss(net: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        out = net(source, target[:, :-1])
        return F.cross_entropy(out.transpose(1, 2), target[:, 1:], ignore_index=0)

    return Subject(net, TensorDataset(sentences()[0], sentences()[0]), loss)


def unet() -> Subject:
    data = TensorDataset(torch.randn(ROWS, 3, 22, 22), torch.randint(CLASSES, (ROWS, 22, 22)))
    return Subject(UNet(), data, classify)


MODELS: dict[str, Callable[[], Subject]] = {
    "mlp": lambda: Subject(
        nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES)),
        TensorDataset(torch.randn(ROWS, 20), torch.randint(CLASSES, (ROWS,))),
        classify,
    ),
    **{
        f"{kind} {'batch' if first else 'time'} first": partial(
            lambda kind, first: read(Recurrent(kind, first, both=kind == "GRU")), kind, first
        )
        for kind in ("LSTM", "GRU", "RNN")
        for first in (True, False)
    },
    "packed LSTM": lambda: read(Packed("LSTM", True)),
    "LSTMCell": lambda: spoken(CharRnn()),
    "TransformerEncoder": lambda: read(Encoder()),
    "TransformerEncoder time first": lambda: read(Encoder(False, causal=True)),
    "nn.Transformer": lambda: translated(Translator()),
    "nn.Transformer batch first": lambda: translated(Translator(True)),
    "small gpt": lambda: spoken(Gpt(False)),
    "small gpt by hand": lambda: spoken(Gpt(True)),
    "U-Net": unet,
}
