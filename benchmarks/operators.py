"""What functions and whole forwards take on sharded tensors, above the same on plain tensors.

    python -m benchmarks.operators [--ranks 2] [--rounds 25] [--sessions 4] [NAME ...]
        [--device cuda]

The tensors are tiny and gradients are on, so what counts is Python: a function's microseconds are
those of any size. Each rank calls it on a sharded batch from a DataLoader and on a plain tensor of
its own rows, in turn in one process; the forwards (with loss, in eval(), torchvision's and
Transformers' models where installed) run in a session and outside of it, in turn. Times are the
rank's own CPU time, the best of all rounds, of rank 0: they hold on a busy machine. A function that
gathers is marked; the ranks' waiting for each other is not counted. Above the tables stands what a
bare `__torch_function__` takes: machines differ by it, so the median is told in such calls, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

from autoddp.comm import accelerator
from autoddp.comm.group import Group
from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from tests.support.ranks import run_ranks

CALLS = 200  # of a function, between two looks at the clock
WARM, TIMES = 3, 13  # forwards in a session
TOKENS, LENGTH = 100, 16
MEMBERS = ("x.shape", "x.size(0)")  # read more often than any function is called; not in the median
NO_FUNCTION = ("__get__", "__set__", "size", "dim", "numel", "is_floating_point")


class Inputs(NamedTuple):
    """Tensors that the functions are called on; all but the tokens have a graph behind them."""

    x: Tensor  # batch, 4, 8
    turned: Tensor  # batch, 8, 4
    image: Tensor  # batch, 4, 4, 4
    heads: Tensor  # batch, 2, 4, 4
    keys: Tensor  # the same, with the last two dimensions swapped
    mask: Tensor  # batch, 4, 8
    tokens: Tensor  # batch, 4


def batch_of(rows: int) -> list[Tensor]:
    """The features, the images and the tokens of a batch."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(rows, 4, 8, generator=generator)
    images = torch.randn(rows, 4, 4, 4, generator=generator)
    return [features, images, torch.randint(TOKENS, (rows, 4), generator=generator)]


class Functions:
    """The thirty functions that models call most, and two members of a tensor, by name."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        weight, self.square = (nn.Parameter(torch.randn(8, 8)) for _ in range(2))
        bias, scale = (nn.Parameter(torch.ones(8)) for _ in range(2))
        filters, table = nn.Parameter(torch.randn(4, 4, 3, 3)), nn.Parameter(torch.randn(TOKENS, 8))
        mean, variance = torch.zeros(4), torch.ones(4)
        channel_scale, channel_bias = (nn.Parameter(torch.ones(4)) for _ in range(2))
        norm = (mean, variance, channel_scale, channel_bias, False)
        self.by_name: dict[str, Callable[[Inputs], Any]] = {
            "F.linear": lambda i: F.linear(i.x, weight, bias),
            "F.conv2d": lambda i: F.conv2d(i.image, filters, None, 1, 1),
            "q @ k": lambda i: i.heads @ i.keys,
            "torch.bmm": lambda i: torch.bmm(i.x, i.turned),
            "x + x": lambda i: i.x + i.x,
            "x * 2.0": lambda i: i.x * 2.0,
            "x / 2.0": lambda i: i.x / 2.0,
            "F.relu": lambda i: F.relu(i.x),
            "F.gelu": lambda i: F.gelu(i.x),
            "F.silu": lambda i: F.silu(i.x),
            "torch.sigmoid": lambda i: torch.sigmoid(i.x),
            "F.softmax(x, -1)": lambda i: F.softmax(i.x, -1),
            "F.log_softmax(x, -1)": lambda i: F.log_softmax(i.x, -1),
            "F.layer_norm": lambda i: F.layer_norm(i.x, (8,), scale, bias, 1e-5),
            "F.batch_norm, eval": lambda i: F.batch_norm(i.image, *norm),
            "F.dropout, eval": lambda i: F.dropout(i.x, 0.1, False),
            "F.embedding": lambda i: F.embedding(i.tokens, table),
            "x.transpose(1, 2)": lambda i: i.x.transpose(1, 2),
            "x.permute(0, 2, 1)": lambda i: i.x.permute(0, 2, 1),
            "x.view(-1, 4, 2, 4)": lambda i: i.x.view(-1, 4, 2, 4),
            "x.flatten(1)": lambda i: i.x.flatten(1),
            "x.unsqueeze(1)": lambda i: i.x.unsqueeze(1),
            "x[:, 0]": lambda i: i.x[:, 0],
            "x[..., :4]": lambda i: i.x[..., :4],
            "torch.cat((x, x), 1)": lambda i: torch.cat((i.x, i.x), 1),
            "x.split(4, -1)": lambda i: i.x.split(4, -1),
            "x.mean(-1)": lambda i: i.x.mean(-1),
            "x.masked_fill": lambda i: i.x.masked_fill(i.mask, 0.0),
            "F.max_pool2d": lambda i: F.max_pool2d(i.image, 2),
            "F.scaled_dot_product_attention": lambda i: F.scaled_dot_product_attention(
                i.heads, i.heads, i.heads
            ),
            "x.shape": lambda i: i.x.shape,
            "x.size(0)": lambda i: i.x.size(0),
        }

    def inputs(self, features: Tensor, images: Tensor, tokens: Tensor) -> Inputs:
        x = F.linear(features, self.square)
        heads = x.view(-1, 4, 2, 4).transpose(1, 2)
        image = images * self.square[0, 0]
        turned, keys = x.transpose(1, 2), heads.transpose(-1, -2)
        return Inputs(x, turned, image, heads, keys, features > 0, tokens)


class Forward(NamedTuple):
    """A model, the columns of its data, and its loss."""

    model: nn.Module
    columns: list[Tensor]
    loss: Callable[..., Tensor]


def mlp(rows: int) -> Forward:
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    return Forward(model, [torch.randn(rows, 20), torch.randint(10, (rows,))], classified)


def resnet50(rows: int) -> Forward:
    from torchvision.models import resnet50

    model = resnet50(num_classes=10, width_per_group=4)
    return Forward(model, [torch.randn(rows, 3, 8, 8), torch.randint(10, (rows,))], classified)


def gpt2(rows: int) -> Forward:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=TOKENS,
        n_positions=32,
        n_embd=32,
        n_layer=12,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Forward(GPT2LMHeadModel(config), [sequences(rows)], continued)


def llama(rows: int) -> Forward:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return Forward(LlamaForCausalLM(config), [sequences(rows)], continued)


def bert(rows: int) -> Forward:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=TOKENS,
        hidden_size=32,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=4,
    )
    lengths = torch.arange(rows)[:, None] % 12 + 4
    mask = (torch.arange(LENGTH) < lengths).long()
    columns = [sequences(rows) * mask, mask, torch.randint(4, (rows,))]
    return Forward(BertForSequenceClassification(config), columns, labelled)


def sequences(rows: int) -> Tensor:
    return torch.randint(1, TOKENS, (rows, LENGTH))


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def continued(model: nn.Module, x: Tensor) -> Tensor:
    return model(input_ids=x, labels=x).loss


def labelled(model: nn.Module, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    return model(input_ids=x, attention_mask=mask, labels=y).loss


FORWARDS_BY_NAME: dict[str, Callable[[int], Forward]] = {
    "MLP, 3 layers": mlp,
    "ResNet-50": resnet50,
    "GPT-2, 12 layers": gpt2,
    "Llama, 16 layers": llama,
    "BERT, 12 layers": bert,
}


class Found(NamedTuple):
    """Seconds of a call on plain and on sharded tensors."""

    plain: float
    sharded: float
    note: str = ""
    functions: int = 0


class Bare(Tensor):
    """A tensor that answers every function with nothing."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return None


def seconds(call: Callable[[], Any], times: int) -> float:
    """CPU time of this thread for one of so many calls."""
    accelerator.synchronize()
    began = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - began) / times


def of_bare_function(rounds: int) -> float:
    """Seconds of a function that only asks a class in Python, which tells how fast Python is."""
    bare = torch.ones(2).as_subclass(Bare)
    return min(seconds(bare.neg, CALLS) for _ in range(rounds))


def of_functions(group: Group, device: str, names: list[str], rounds: int) -> dict[str, Found]:
    """Of each function, by all ranks at once."""
    with torch.device(device):
        functions, found, size = Functions(), {}, 4 * group.size
    columns = batch_of(size)
    with session(group.world, Options(placement="sharded"), group, Report()):
        (batch,) = DataLoader(TensorDataset(*columns), batch_size=size)
        assert type(batch[0]) is not Tensor, "the batch is not sharded"
        sharded = functions.inputs(*(column.to(device) for column in batch))
        plain = functions.inputs(*(column[:4].clone().to(device) for column in columns))
        for name in names:
            found[name] = of_function(functions.by_name[name], plain, sharded, rounds)
    return found


def of_function(
    function: Callable[[Inputs], Any], plain: Inputs, sharded: Inputs, rounds: int
) -> Found:
    out = function(sharded)
    first = out[0] if isinstance(out, (tuple, list)) else out
    times = [
        (
            seconds(lambda: function(plain), CALLS),
            seconds(lambda: function(sharded), CALLS),
        )
        for _ in range(rounds)
    ]
    note = "gathers" if type(first) is Tensor else ""
    return Found(*(min(column) for column in zip(*times, strict=True)), note)


class Counted(TorchFunctionMode):
    """Counts the functions that are called inside, without members."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += getattr(func, "__name__", "") not in NO_FUNCTION
        return func(*args, **(kwargs or {}))


def of_forward(group: Group, device: str, name: str, sessions: int) -> Found | str:
    """Of a forward with its loss, by all ranks at once; or why there is none."""
    torch.manual_seed(0)
    size = 4 * group.size
    try:
        model, columns, loss = FORWARDS_BY_NAME[name](size)
    except ImportError as missing:
        return f"skipped: {missing}"
    model.eval().to(device)
    mine = [column[:4].clone().to(device) for column in columns]
    plain, sharded = [], []
    for _ in range(sessions):
        plain += timed(loss, model, [mine] * TIMES)
        with session(group.world, Options(placement="sharded"), group, Report()):
            many = TensorDataset(*(torch.cat([column] * TIMES) for column in columns))
            batches = DataLoader(many, batch_size=size)
            on_device = ([column.to(device) for column in batch] for batch in batches)
            sharded += timed(loss, model, on_device)
    with Counted() as counted:
        loss(model, *mine)
    return Found(min(plain), min(sharded), functions=counted.count)


def timed(
    loss: Callable[..., Tensor], model: nn.Module, batches: Iterable[list[Tensor]]
) -> list[float]:
    """Seconds of each forward after the first ones, each of a batch as in a training."""
    return [seconds(partial(loss, model, *batch), 1) for batch in batches][WARM:]


def show_functions(found: dict[str, Found], bare: float) -> None:
    print("\n| function | plain us | sharded us | extra us | |\n|---|---|---|---|---|")
    for name, (plain, sharded, note, _) in found.items():
        plain, sharded = plain * 1e6, sharded * 1e6
        print(f"| `{name}` | {plain:.2f} | {sharded:.2f} | {sharded - plain:.2f} | {note} |")
    extra = [(f.sharded - f.plain) * 1e6 for name, f in found.items() if name not in MEMBERS]
    if extra:
        median = statistics.median(extra)
        calls = f"{median / bare / 1e6:.1f} bare calls"
        print(f"\nmedian of {len(extra)} functions: {median:.2f} us extra, {calls}")


def show_forward(name: str, found: Found | str) -> None:
    if isinstance(found, str):
        print(f"| {name} | {found} | | | | |", flush=True)
        return
    plain, sharded = found.plain * 1e3, found.sharded * 1e3
    each = (sharded - plain) * 1e3 / found.functions
    cells = f"{found.functions} | {plain:.2f} | {sharded:.2f} | {sharded - plain:.2f} | {each:.1f}"
    print(f"| {name} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="a part of a function's or a model's name")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--device", default="cpu", help="the kind of the tensors")
    given = parser.parse_args()

    def wanted(name: str) -> bool:
        return not given.names or any(part.lower() in name.lower() for part in given.names)

    bare = of_bare_function(given.rounds)
    print(f"A bare `__torch_function__` takes {bare * 1e6:.2f} us here.", flush=True)
    functions = [name for name in Functions().by_name if wanted(name)]
    if functions:
        found = run_ranks(of_functions, given.ranks, given.device, functions, given.rounds)[0]
        show_functions(found, bare)
    forwards = [name for name in FORWARDS_BY_NAME if wanted(name)]
    if forwards:
        print("\n| forward | functions | plain ms | sharded ms | extra ms | us a function |")
        print("|---|---|---|---|---|---|", flush=True)
    for name in forwards:
        answers = run_ranks(
            of_forward, given.ranks, given.device, name, given.sessions, timeout=600
        )
        show_forward(name, answers[0])


if __name__ == "__main__":
    main()
