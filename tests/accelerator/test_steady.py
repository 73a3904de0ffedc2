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
kind = sys.argv[1]
if kind == "mlp":
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
data.tensors[1][::7] = -100  # as of padding: how many there are in a batch is its own
before, steps = None, 0
for epoch in range(7):
    for a, b in DataLoader(data, 24):
        loss = F.cross_entropy(net(a.to(D)), b.to(D))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps == 9:
            before = counts()
        if steps == 15:
            waiting = unread()  # not at the end, where a rank that is ahead says so
after = counts()
found = {name: (after[name] - before[name]) / (steps - 9) for name in after}
print(json.dumps(found | {"unread": waiting}))
"""
# times the operators of one process; a device with SyncBatchNorm's kernels has fewer with it
MORE = {"mlp": 2.5, "batchnorm": 4.5, "transformer": 2.0}


def counted(run):
    assert run.code == 0, run.err
    return json.loads(run.out.splitlines()[-1])


@pytest.mark.parametrize("kind", MORE)
def test_a_steady_step_waits_for_nobody(kind, tmp_path):
    """No value is read, nothing is copied to the host, no rank is asked or told anything."""
    path = jobs.script(HEAD + COUNTED, tmp_path)
    plain = counted(jobs.alone(path, tmp_path, kind))
    ours = counted(jobs.ranks(path, tmp_path, "--hang-timeout", "0", arguments=(kind,)))
    print(kind, plain, ours)
    assert (plain["reads"], plain["to_host"]) == (0, 0)
    assert [ours[name] for name in ("reads", "to_host", "sent", "unread")] == [0, 0, 0, 0]
    assert ours["kernels"] <= MORE[kind] * plain["kernels"]
