"""Processes that write shared segments, a manager's tables, and files."""
import multiprocessing as mp
import os
import sys
from multiprocessing import shared_memory

import numpy

CONTEXT = mp.get_context("fork")


def segment(names, name):
    made = shared_memory.SharedMemory(create=True, size=80)
    numpy.ndarray((10,), buffer=made.buf)[:] = 7
    names.put(made.name)
    made.close()
    found = shared_memory.SharedMemory(name=name)
    numpy.ndarray((10,), buffer=found.buf)[:] += 3
    found.close()


def fill(table, found, number):
    table[number] = number * number
    found.append(number)
    with open(f"part{number}.txt", "w") as file:
        file.write(f"{number}\n")


def started(target, *arguments):
    found = [CONTEXT.Process(target=target, args=given) for given in arguments]
    return [each for each in found if each.start() is None]


def end(processes):
    return [each.exitcode for each in processes if each.join() is None]


names = CONTEXT.Queue()
mine = shared_memory.SharedMemory(f"mine{os.getpid()}", create=True, size=80)
view = numpy.ndarray((10,), buffer=mine.buf)
view[:] = 1
makers = started(segment, (names, mine.name))
theirs = shared_memory.SharedMemory(name=names.get())
print(end(makers), numpy.ndarray((10,), buffer=theirs.buf).sum(), view.sum())
del view
for each in (mine, theirs):
    each.close()
    each.unlink()

with CONTEXT.Manager() as manager:
    table, found = manager.dict(), manager.list()
    print(end(started(fill, *((table, found, k) for k in range(3)))), open("part2.txt").read())
    print(sorted(table.items()), sorted(found), sorted(k for k in table))
print(end(started(sys.exit, (3,))), mp.active_children())
