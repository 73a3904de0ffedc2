"""A script that forks, waits and signals."""

import os
import signal
import sys

import torch

torch.save(torch.ones(2), f"net-{os.getpid() == os.getpid()}.pt")
child = os.fork()
if child == 0:
    with open("calls.txt", "a") as calls:
        calls.write("child\n")
    os._exit(5)
pid, status = os.waitpid(child, 0)
print(pid == child, os.waitstatus_to_exitcode(status), open("calls.txt").read())
if os.fork() == 0:
    sys.exit(7)  # a child that leaves as a script does
print(os.waitstatus_to_exitcode(os.wait()[1]))
print(os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "exit 4"))
sleeping = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "100")
os.kill(sleeping, signal.SIGKILL)
print(os.WTERMSIG(os.wait4(sleeping, 0)[1]))
started = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ)
print(os.waitid(os.P_PID, started, os.WEXITED).si_status)
for wrong in (lambda: os.execv("/no/such/program", ["x"]), lambda: os.waitpid(-1, 0)):
    try:
        wrong()
    except OSError as error:
        print(repr(error))
