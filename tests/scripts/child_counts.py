"""Processes that count, share a lock and train one model, and a script that looks at it."""
import multiprocessing
import time

import torch

CONTEXT = multiprocessing.get_context("fork")


def count(value, rows, lock, places, begun):
    begun.set()
    for _ in range(100):
        with value.get_lock():
            value.value += 1
    with lock:
        rows[:] = [x + 1 for x in rows]
    places.release()


def hog(model, step):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(step)


def started(target, *arguments):
    found = [CONTEXT.Process(target=target, args=given) for given in arguments]
    return [each for each in found if each.start() is None]


def end(processes):
    return [each.exitcode for each in processes if each.join() is None]


value, rows, lock = CONTEXT.Value("i", 0), CONTEXT.Array("d", 3), CONTEXT.Lock()
places, begun = CONTEXT.Semaphore(2), CONTEXT.Event()
counters = []
for _ in range(4):
    places.acquire()
    counters += started(count, (value, rows, lock, places, begun))
print(begun.wait(60), begun.is_set())
while value.value < 400:
    time.sleep(0.01)
print(end(counters), rows[:])
torch.manual_seed(0)
model = torch.nn.Linear(2, 2).double()
model.share_memory()
before = model.weight.sum().item()
print(end(started(hog, (model, 1.0))), model.weight.sum().item() - before)
