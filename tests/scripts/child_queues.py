"""Workers that get tasks from a queue, and actors that a learner asks by pipes."""
import multiprocessing as mp

import numpy

CONTEXT = mp.get_context("fork")


def work(tasks, results):
    for number, row in iter(tasks.get, None):
        results.put((number, float(row.sum())))
        tasks.task_done()
    tasks.task_done()


def actor(connection, scale):
    total = 0.0
    while True:
        what, x = connection.recv()
        if what == "close":
            connection.send(total)
            return
        total += float(numpy.sum(x)) * scale
        connection.send((what, total))


def started(target, *arguments):
    found = [CONTEXT.Process(target=target, args=given) for given in arguments]
    return [each for each in found if each.start() is None]


def end(processes):
    return [each.exitcode for each in processes if each.join() is None]


tasks, results = CONTEXT.JoinableQueue(), CONTEXT.SimpleQueue()
for i in range(20):  # more than a pipe holds
    tasks.put((i, numpy.full(2000, float(i))))
workers = started(work, (tasks, results), (tasks, results))
tasks.put(None), tasks.put(None)
tasks.join()
print(sorted(results.get() for _ in range(20)), results.empty(), end(workers))

pipes = [CONTEXT.Pipe() for _ in range(2)]
actors = started(actor, *((there, k + 1) for k, (_, there) in enumerate(pipes)))
ends = [here for here, there in pipes if there.close() is None]
for step in range(3):
    for here in ends:
        here.send(("step", numpy.ones(5) * step))
    print([here.recv() for here in ends])
ends[1].send(("one", 1.0))
print(mp.connection.wait(ends, 60) == [ends[1]], ends[0].poll(), ends[1].recv())
for here in ends:
    here.send(("close", None))
    print(here.recv())
try:
    ends[0].recv()
except EOFError:
    print("the end", end(actors))
