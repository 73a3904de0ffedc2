"""Batches of tensors that a process sends by torch's own queue, asked for without waiting."""
import queue
import time

import torch
import torch.multiprocessing as mp


def tensors(results, seen):
    for i in range(3):
        results.put({"x": torch.full((200, 10), float(i)), "i": i})
    seen.wait()


results, seen = mp.get_context("fork").Queue(), mp.get_context("fork").Event()
sender, got = mp.get_context("fork").Process(target=tensors, args=(results, seen)), []
sender.start()
while len(got) < 3:
    try:
        got.append(results.get_nowait())
    except queue.Empty:
        time.sleep(0.01)
seen.set()
sender.join()
print([(x["i"], x["x"].sum().item()) for x in got], sender.exitcode)
