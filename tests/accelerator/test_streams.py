"""Streams, recorded graphs, several devices and the end of a job: what only accelerators have."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs
from tests.accelerator.test_jobs import HEAD
from tests.support.same import same_run

pytestmark = pytest.mark.slow


RECORDED = """
side = torch.Stream(device=D)
a, b = next(iter(DataLoader(data, 16)))
with side:
    a, b = a.to(D), b.to(D)
whole = a.clone() if len(sys.argv) == 1 else a.data_ptr()  \
# with an argument, the batch is gathered and lent
a.record_stream(torch.accelerator.current_stream())
from autoddp.view.sharded_tensor import ShardedTensor
whole = a.based.whole
held = [a._local] + ([whole] if whole is not None else [])
said = [where for where, _ in torch.simulated.native.recorded_streams()]
print(type(a) is ShardedTensor, len(held), {x.data_ptr() for x in held} == set(said))
"""


def test_what_is_recorded_on_a_stream_is_all_memory_of_the_batch(tmp_path):
    """Else a block is handed out again while the stream reads it: the rows', or the gathered."""
    path = jobs.script("import sys\n" + HEAD + RECORDED, tmp_path)
    rows = jobs.ranks(path, tmp_path)
    assert rows.out == "True 1 True\n", rows.err
    assert "gathers: record_stream" not in rows.err
    both = jobs.ranks(path, tmp_path, arguments=("gathered",))
    assert both.out == "True 2 True\n", both.err


UNSEEN = """
class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.data.mul_(3)  # as a kernel that gets an address
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g


for a, b in DataLoader(data, 16):
    a = a.to(D)
    some, w = a[:, :2], torch.ones(20, 3, device=D, requires_grad=True)
    print(some.tolist()[0])
    kept = a @ w  # saves `a`, of which torch sees no write
    print(Tripled.apply(a).sum().item(), some.tolist()[0], a.sum().item())
    kept.sum().backward()
    print(w.grad.sum().item())
"""


def test_a_write_that_torch_does_not_see_reaches_the_rows_and_all_views(tmp_path):
    path = jobs.script(HEAD + UNSEEN, tmp_path)
    same_run(jobs.alone(path, tmp_path), jobs.ranks(path, tmp_path), 1e-9)


READ_ASIDE = """
net = mlp().to(D)
side = torch.Stream(device=D)
for a, b in DataLoader(data, 16):
    loss = F.mse_loss(net(a.to(D)), F.one_hot(b.to(D), 4).to(a.dtype))
    before = len(torch.simulated.native.waiting_streams())
    with side:
        print(f"{loss.item():.12f}")
    print(side.stream_id in torch.simulated.native.waiting_streams()[before:])
"""


def test_a_loss_that_is_read_on_another_stream_is_waited_for(tmp_path):
    path = jobs.script(HEAD + READ_ASIDE, tmp_path)
    got = jobs.ranks(path, tmp_path)
    lines = got.out.splitlines()
    assert lines[1::2] == ["True"] * 5, got.out + got.err
    assert lines[::2] == jobs.alone(path, tmp_path).out.splitlines()[::2]


GRAPH = """
net = nn.Sequential(mlp(0.3), nn.BatchNorm1d(4)).to(D)
a, b = x[:16].to(D), data.tensors[1][:16].to(D)  # static inputs, as graphs want them
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
step(net, optimizer, a, b)
step(net, optimizer, a, b)
native, module = torch.simulated.native, torch.simulated
before, sent = native.counts(), len(native.collectives())
module.recording = True
loss = F.cross_entropy(net(a), b)
optimizer.zero_grad()
loss.backward()
optimizer.step()
module.recording = False
after = native.counts()
print([after[name] - before[name] for name in ("reads", "to_host")], \
len(native.collectives()) - sent)
print(f"{loss.item():.12f}", torch.rand(1, device=D).item())
"""


def test_what_is_recorded_for_a_graph_runs_whole_and_plain(tmp_path):
    """To read a value, draw by another generator or meet other ranks would spoil the recording."""
    path = jobs.script(HEAD + GRAPH, tmp_path)
    got = jobs.ranks(path, tmp_path)
    same_run(jobs.alone(path, tmp_path), got, 1e-9)
    assert "[0, 0] 0" in got.out


LAST = """
import atexit, gc
from autoddp.comm.group import Group
group = next(each for each in gc.get_objects() if type(each) is Group)
group.all_reduce(torch.ones(3, device=D))
mark = torch.Event(D)
mark.record()
print(mark.query())
atexit.register(lambda: print(mark.query()))
"""


def test_a_rank_stays_until_its_device_has_done_all(tmp_path):
    """Another rank's device may still read what is there."""
    path = jobs.script(HEAD + LAST, tmp_path)
    got = jobs.ranks(path, tmp_path, SIMULATED_LAG="1000")
    assert (got.code, got.out) == (0, "False\nTrue\n"), got.err
