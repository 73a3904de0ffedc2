"""What a steady step costs besides its sums: the host runs ahead of the device and other ranks."""

from __future__ import annotations

import json

import pytest

from tests.accelerator import jobs
from tests.accelerator.test_jobs import HEAD

pytestmark = pytest.mark.slow

COUNTED = """
import array, fcntl, gc, json, sys, termios
from autoddp.comm.group import Group
from autoddp.comm.line import Line

sent = 0  # messages, and sums of what is on the host
send, start = Line.send, Group.start_all_reduce


def sending(line, message):
    global sent
    sent += 1
    send(line, message)


def starting(group, x, *more):
    global sent
    sent += x.is_cpu
    return start(group, x, *more)


def unread():
    \"\"\"Bytes that have come from other ranks and lie there.\"\"\"
    found = 0
    for line in gc.get_objects():
        if type(line) is Line:
            waiting = array.array("i", [0])
            fcntl.ioctl(line.socket, termios.FIONREAD, waiting)
            found += waiting[0] + len(line._held)
    return found


def counts():
    return torch.simulated.native.counts() | {"sent": sent}


Line.send, Group.start_all_reduce = sending, starting


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, g):
        return g / 2


kind = sys.argv[1]
if kind in ("mlp", "scaler", "custom function"):
    net = mlp()
elif kind == "batchnorm":
    layers = [m for w in (1, 4, 4) \
for m in (nn.Conv2d(w, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())]
    net = nn.Sequential(nn.Unflatten(1, (1, 4, 5)), *layers, nn.Flatten(), nn.Linear(80, 4))
else:
    layer = nn.TransformerEncoderLayer(20, 2, 40, dropout=0.1, batch_first=True)
    net = nn.Sequential(nn.Unflatten(1, (2, 10)), nn.Linear(10, 20), layer, nn.Flatten())
net = net.to(D)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(D, enabled=kind == "scaler")
data.tensors[1][::7] = -100  # as of padding: how many there are in a batch is its own
few = kind == "one row for each rank"
data, size = (TensorDataset(*(t[:6] for t in data.tensors)), 2) if few else (data, 24)
first, before, steps = None, None, 0
for epoch in range(7):
    for a, b in DataLoader(data, size):
        out = net(a.to(D))
        loss = F.cross_entropy(Halved.apply(out) if kind == "custom function" else out, b.to(D))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        steps += 1
        if steps == 4:
            first = counts()
        if steps == 5:  # the last but one in which ranks compare all weights
            checked = counts()["to_host"] - first["to_host"]
        if steps == 9:
            before = counts()
        if steps == 15:
            waiting = unread()  # not at the end, where a rank that is ahead says so
after = counts()
found = {name: (after[name] - before[name]) / (steps - 9) for name in after}
print(json.dumps(found | {"unread": waiting, "checked": checked}))
"""
# times the operators of one process; a device with SyncBatchNorm's kernels has fewer with it
MORE = {"mlp": 2.5, "batchnorm": 4.5, "transformer": 2.0}
MORE |= {"one row for each rank": 2.0, "custom function": 3.0, "scaler": 2.5}


def counted(run):
    assert run.code == 0, run.err
    return json.loads(run.out.splitlines()[-1])


@pytest.mark.parametrize("kind", MORE)
def test_a_steady_step_waits_for_nobody(kind, tmp_path):
    """No value is read, nothing is copied to the host, no rank is asked or told anything.

    In a step in which ranks compare their weights, all of these come to the host in one copy.
    """
    path = jobs.script(HEAD + COUNTED, tmp_path)
    plain = counted(jobs.alone(path, tmp_path, kind))
    ours = counted(jobs.ranks(path, tmp_path, "--hang-timeout", "0", arguments=(kind,)))
    print(kind, plain, ours)
    assert [plain[n] for n in ("reads", "to_host", "waits")] == [int(kind == "scaler"), 0, 0]
    for name in ("reads", "to_host", "waits", "sent", "unread"):
        assert (name, ours[name]) == (name, plain[name])
    assert (plain["checked"], ours["checked"]) == (0, 1)
    assert ours["to_device"] <= plain["to_device"]
    assert ours["kernels"] <= MORE[kind] * plain["kernels"]
