"""Random trainings: a model of two to five layers, a loss, an optimizer, some habits of scripts.

    python random_trainings.py FIRST COUNT
"""
import copy
import random
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
C, L, K = 4, 6, 5  # channels, length, classes


class Act(nn.Module):
    def __init__(self, f, inner=None):
        super().__init__()
        self.f, self.inner = f, inner

    def forward(self, x):
        return self.f(x) if self.inner is None else self.f(self.inner, x)


def act(f):
    return lambda: Act(f)


def over(make, f):
    return lambda: Act(f, make())


LAYERS = {
    "linear": lambda: nn.Linear(L, L),
    "conv": lambda: nn.Conv1d(C, C, 3, padding=1),
    "grouped conv": lambda: nn.Conv1d(C, C, 3, padding=1, groups=2),
    "transposed conv": lambda: nn.ConvTranspose1d(C, C, 3, padding=1),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(L, L)),
    "BatchNorm": lambda: nn.BatchNorm1d(C),
    "BatchNorm, cumulative": lambda: nn.BatchNorm1d(C, momentum=None),
    "LayerNorm": lambda: nn.LayerNorm(L),
    "GroupNorm": lambda: nn.GroupNorm(2, C),
    "InstanceNorm": lambda: nn.InstanceNorm1d(C, affine=True),
    "dropout": lambda: nn.Dropout(0.3),
    "channels dropout": lambda: nn.Dropout1d(0.3),
    "gelu": lambda: nn.GELU(),
    "prelu": lambda: nn.PReLU(),
    "in place": lambda: nn.Sequential(nn.Linear(L, L), nn.ReLU(inplace=True)),
    "softmax": act(lambda x: x.softmax(-1) * x),
    "residual": over(lambda: nn.Linear(L, L), lambda m, x: x + m(x).tanh()),
    "lstm": over(lambda: nn.LSTM(L, L, batch_first=True), lambda m, x: m(x)[0]),
    "gru, time first": over(lambda: nn.GRU(L, L), lambda m, x: m(x.transpose(0, 1))[0].transpose(0, 1)),
    "encoder": lambda: nn.TransformerEncoderLayer(L, 2, 8, dropout=0.1, batch_first=True),
    "attention": over(lambda: nn.MultiheadAttention(L, 2, dropout=0.1, batch_first=True), lambda m, x: m(x, x, x)[0]),
    "pooled": act(lambda x: x - F.avg_pool1d(x, 3, 1, 1)),
    "embedding": over(lambda: nn.Embedding(L, L), lambda m, x: x + m(x.argmax(-1))),
    "flat": over(lambda: nn.Linear(C * L, C * L), lambda m, x: m(x.flatten(1)).view(x.shape)),
    "over the batch": act(lambda x: x - x.mean(0, keepdim=True)),
    "noise": act(lambda x: x + 0.1 * torch.randn_like(x)),
    "half written": act(lambda x: written(x)),
}


def written(x):
    x = x.clone()
    x[:, 0] *= 2
    x[x.detach() > 1.5] = 1.5
    return x


def classes(h, y):
    return h.mean(1)[:, :K], y


LOSSES = {
    "mse": lambda h, y: F.mse_loss(h, h.detach().roll(1, 1)),
    "smooth": lambda h, y: F.smooth_l1_loss(h, h.detach().flip(2)),
    "huber sum": lambda h, y: F.huber_loss(h, torch.zeros_like(h), reduction="sum") / 10,
    "cross entropy": lambda h, y: F.cross_entropy(*classes(h, y)),
    "smoothed": lambda h, y: F.cross_entropy(*classes(h, y), label_smoothing=0.1),
    "ignored": lambda h, y: F.cross_entropy(h.mean(1)[:, :K], torch.where(y == 1, -100, y)),
    "weighted": lambda h, y: F.cross_entropy(*classes(h, y), weight=torch.linspace(0.5, 2, K)),
    "dense": lambda h, y: F.cross_entropy(h.mean(1)[:, :K], F.one_hot(y, K).double() * 0.9 + 0.02),
    "nll": lambda h, y: F.nll_loss(h.mean(1)[:, :K].log_softmax(1), y),
    "bce": lambda h, y: F.binary_cross_entropy_with_logits(h.mean((1, 2)), (y > 2).double()),
    "kl": lambda h, y: F.kl_div(h.log_softmax(-1), h.detach().flip(1).softmax(-1), reduction="batchmean"),
    "cosine": lambda h, y: F.cosine_embedding_loss(h[:, 0], h[:, 1], (y > 2) * 2 - 1),
    "triplet": lambda h, y: F.triplet_margin_loss(h[:, 0], h[:, 1], h[:, 2]),
    "margin": lambda h, y: F.multi_margin_loss(*classes(h, y)),
    "gaussian": lambda h, y: F.gaussian_nll_loss(h[:, 0], h[:, 1].detach(), h[:, 2].exp()),
    "contrastive": lambda h, y: F.cross_entropy(h[:, 0] @ h[:, 1].T, torch.arange(len(h))),
    "halves": lambda h, y: halves(h),
    "mean and deviation": lambda h, y: h.mean().square() + h.flatten(1).std(0).mean(),
    "each sample": lambda h, y: (F.mse_loss(h, torch.ones_like(h), reduction="none").mean((1, 2)) * y).mean(),
    "largest": lambda h, y: h.flatten(1).topk(3).values.mean() + h.logsumexp(2).mean(),
}


def halves(h):
    a, b = h.flatten(1).chunk(2, 1)
    return (F.normalize(a, dim=1) * F.normalize(b, dim=1)).sum(1).mean() + (a - b).pow(2).mean()


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, eps=1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, eps=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.005, eps=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.02, eps=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.5, eps=1e-3),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.005, eps=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.005, eps=1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.005, eps=1e-2),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.02),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=2),
}
HABITS = ("clip norm", "clip value", "accumulate", "average", "penalty", "frozen", "schedule", "mixup", "by hand",
          "evaluate", "twice", "checkpointed", "zeros", "drop last", "groups", "no momentum of the last")  # fmt: skip


def batches(data, habits, size):
    if "by hand" in habits:
        order = torch.randperm(len(data))
        for i in range(0, len(data), size):
            yield tuple(t[order[i : i + size]] for t in data.tensors)
    else:
        yield from DataLoader(data, size, shuffle=True, drop_last="drop last" in habits)


class Net(nn.Module):
    def __init__(self, layers, habits):
        super().__init__()
        self.layers, self.kept = nn.ModuleList(layers), "checkpointed" in habits

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            again = self.kept and k and self.training
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        return x


def train(seed):
    p = random.Random(seed)
    torch.manual_seed(seed)
    names = p.sample(sorted(LAYERS), p.randint(2, 5))
    loss_name, optimizer_name = p.choice(sorted(LOSSES)), p.choice(sorted(OPTIMIZERS))
    habits = set(p.sample(HABITS, p.randint(0, 4)))
    print(seed, *names, loss_name, optimizer_name, *sorted(habits), sep=", ")
    net = Net([nn.Linear(L, L), *(LAYERS[n]() for n in names)], habits)
    loss_of, size = LOSSES[loss_name], p.choice((7, 8, 10))
    if "frozen" in habits:
        net.layers[0].requires_grad_(False)
    weights = [w for w in net.parameters() if w.requires_grad] or [nn.Parameter(torch.ones(1))]
    grouped = "groups" in habits and optimizer_name != "LBFGS" and len(weights) > 1
    optimizer = OPTIMIZERS[optimizer_name]([{"params": weights[:1], "lr": 0.003}, {"params": weights[1:]}] if grouped else weights)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    average = copy.deepcopy(net)
    data = TensorDataset(torch.randn(22, C, L), torch.randint(K, (22,)))

    def step(x, y, scale=1.0):
        if "mixup" in habits:
            x = 0.7 * x + 0.3 * x[torch.randperm(len(x))]
        if "penalty" in habits:
            x = x.detach().clone().requires_grad_()
        h = net(x)
        loss = loss_of(h, y)
        if "penalty" in habits:
            (g,) = torch.autograd.grad(h.sin().sum(), x, create_graph=True)
            loss = loss + 0.1 * g.flatten(1).norm(dim=1).mean()
        if not loss.requires_grad:
            return loss
        (loss * scale).backward(retain_graph="twice" in habits)
        if "twice" in habits:
            (0.1 * loss.square()).backward()
        return loss

    count = 0
    for x, y in batches(data, habits, size):
        count += 1
        if optimizer_name == "LBFGS":
            def closure(x=x, y=y):
                optimizer.zero_grad()
                return step(x, y)

            print("  %.10g" % optimizer.step(closure).item())
            continue
        loss = step(x, y, 0.5 if "accumulate" in habits else 1.0)
        if "clip norm" in habits:
            print("  norm %.10g" % nn.utils.clip_grad_norm_(weights, 0.5).item())
        if "clip value" in habits:
            nn.utils.clip_grad_value_(weights, 0.1)
        if "accumulate" not in habits or count % 2 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none="zeros" not in habits)
        if "schedule" in habits:
            schedule.step()
        if "average" in habits:
            with torch.no_grad():
                for a, b in zip(average.parameters(), net.parameters()):
                    a.lerp_(b, 0.1)
        print("  %.10g" % loss.item())
    if "evaluate" in habits:
        net.eval()
        with torch.no_grad():
            right = sum((net(x)[:, 0, 0] > 0.1).eq(y > 2).sum().item() for x, y in DataLoader(data, 9))
        print("  right", right)
    print("  weights", *("%.9g" % w.detach().norm().item() for w in [*net.parameters(), *average.parameters()]))
    print("  buffers", *("%.9g" % b.double().sum().item() for b in net.buffers()), "%.9g" % torch.rand(1).item())


for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
    try:
        train(seed)
    except (RuntimeError, ValueError) as error:
        print("  refused:", type(error).__name__, str(error)[:60])
