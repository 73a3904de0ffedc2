"""A recommender whose daemon processes sample for ever, until `close`; then a thread reads ahead."""
import queue
import threading
from multiprocessing import Process, Queue

import numpy as np
import torch
from torch import nn

torch.set_default_dtype(torch.float64)


def sample_function(users, batch_size, result_queue, seed):
    draw = np.random.default_rng(seed)
    while True:
        uids = draw.integers(0, len(users), batch_size)
        batch = [(u, users[u][:-1], users[u][1:], draw.integers(0, 50, 8)) for u in uids]
        result_queue.put(zip(*batch))


class WarpSampler:
    def __init__(self, users, batch_size=32, n_workers=1):
        self.result_queue = Queue(maxsize=n_workers * 10)
        self.processors = []
        for _ in range(n_workers):
            args = (users, batch_size, self.result_queue, np.random.randint(2e9))
            self.processors.append(Process(target=sample_function, args=args))
            self.processors[-1].daemon = True
            self.processors[-1].start()

    def close(self):
        for p in self.processors:
            p.terminate(), p.join()


class Net(nn.Embedding):
    def forward(self, seq, pos, neg):  # get numpy
        x = super().forward(torch.LongTensor(seq)).cumsum(1)
        return [(x * super(Net, self).forward(torch.LongTensor(y))).sum(-1) for y in (pos, neg)]


def step(batch):
    p, n = net(*map(np.array, list(batch)[1:]))
    loss = nn.functional.softplus(n - p).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())


np.random.seed(0), torch.manual_seed(0)
sampler, net = WarpSampler(np.random.randint(0, 50, (100, 9))), Net(50, 8)
optimizer, ready = torch.optim.SGD(net.parameters(), 0.1), queue.Queue(2)
for _ in range(5):
    step(sampler.result_queue.get())
get = sampler.result_queue.get
threading.Thread(target=lambda: [ready.put(get()) for _ in range(5)]).start()
for _ in range(5):
    step(ready.get())
sampler.close()
