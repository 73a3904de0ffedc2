"""A job that comes to a fault in one of its phases: as a script, what stands in it is real.

`python faulty.py PHASE FAULT [CGROUP]` trains, evaluates, saves and ends; where it comes to the
phase, the victim of the fault notes the time by making a folder `fault` (through the C library:
nothing of autoddp's sees it) and meets its end.
"""

import atexit
import ctypes
import glob
import os
import signal
import sys
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset

import autoddp

PHASE, FAULT, CGROUP = (*sys.argv[1:], "")[:3]
libc = ctypes.CDLL(None)
written = (
    libc.write
)  # by a name of its own: what a data set calls must not look as if it kept state
rank, last = autoddp.rank(), autoddp.world_size() - 1
launcher = libc.getppid()
folder = os.path.abspath(os.getcwd()).encode()
inside = False  # an exception in the midst of a phase ends the script through others
SIGNALS = {"int": signal.SIGINT, "term": signal.SIGTERM}


made = libc.mkdir  # by a name that no reading of the source takes for an act


def note():
    made(folder + b"/fault", 0o755)


def fill():
    """In a group of its own with little memory: a real kill by the kernel."""
    number = libc.open(f"{CGROUP}/cgroup.procs".encode(), 1)
    me = str(libc.getpid()).encode()
    assert written(number, me, len(me)) == len(me)
    note()
    return bytearray(1 << 30)


def fault():
    victim = {"kill-first": 0, "raise-first": 0}.get(FAULT, last)
    if FAULT[:3] == "int" or FAULT[:4] == "term":
        if rank == 0:
            note()
            libc.kill(
                -launcher if FAULT.endswith("group") else launcher, SIGNALS[FAULT.partition("-")[0]]
            )
        time.sleep(0.4)
    elif rank != victim:
        return
    elif FAULT.startswith("kill"):
        note()
        libc.kill(launcher if FAULT == "kill-launcher" else libc.getpid(), signal.SIGKILL)
        time.sleep(60)
    elif FAULT == "segv":
        note()
        ctypes.string_at(0)
    elif FAULT == "oom":
        fill()
    elif FAULT == "exit":
        note()
        os._exit(7)
    elif FAULT.startswith("raise"):
        note()
        raise ValueError("the fault")


def at(phase):
    global inside
    if phase == PHASE and not inside:
        inside = True
        fault()


class Numbers(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        x = torch.full((3,), index / 48) + (torch.rand(3) if FAULT == "sample" else 0)
        here = "worker" if torch.utils.data.get_worker_info() else "loading"
        if index in (32, 39) and here == PHASE:  # in the fifth batch: four are requested ahead
            fault()  # not `at`: data sets that keep state are not fetched by rows
        if FAULT == "sample" and index == 23:
            note()
            raise ValueError("the fault")
        return x, x.sum()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(3, 1)

    def forward(self, x):
        at("forward")
        return self.line(x).squeeze(1)


def save(version):
    torch.save({"version": version, "big": torch.full((1 << 24,), float(version))}, "ckpt.pt")


def strike():
    """In the midst of the writing."""
    while not [1 for path in glob.glob(".ckpt.pt.*/*") if os.path.getsize(path) > 1 << 20]:
        time.sleep(0.0005)
    at("save")


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(Numbers(), batch_size=8, num_workers=2 if PHASE == "worker" else 0)
save(0)
atexit.register(at, "teardown")
for step, (x, y) in enumerate(loader):
    loss = torch.nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3:
        at("collective")
        loss.item()
with torch.no_grad():
    for x, y in loader:
        at("evaluation")
        torch.nn.functional.mse_loss(net(x), y).item()
if PHASE == "thread":
    thread = threading.Thread(target=at, args=["thread"])
    thread.start()
    thread.join()
if PHASE == "save":
    threading.Thread(target=strike, daemon=True).start()
save(1)
at("end")
print("through")
