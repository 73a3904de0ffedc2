"""A real SLURM of two nodes on this machine, for tests: our munged, slurmctld and two slurmd."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.cli import environ
from tests.support.ports import free_port

NEEDS = (
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "scontrol",
    "scancel",
    "squeue",
    "sinfo",
)
CONFIGURATION = """
ClusterName=autoddp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
KillWait=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
PATIENCE = 180.0  # seconds, beside two other tests on two cores


class Slurm:
    """Up until `down`."""

    def __init__(self) -> None:
        missing = [name for name in NEEDS if shutil.which(name) is None]
        if missing or os.geteuid():
            pytest.skip(
                f"no SLURM ({', '.join(missing) or 'it takes root'}): "
                f"apt-get install slurm-wlm munge"
            )
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)  # munge insists
        self.environ = environ({"SLURM_CONF": str(self.folder / "slurm.conf")})
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._up()
        except AssertionError as error:  # none of our code has run yet
            logs = [
                path.read_text(errors="replace").splitlines()[-1:]
                for path in self.folder.glob("*.log")
            ]
            self.down()
            pytest.skip(f"SLURM cannot be had here: {error}; {logs}")
        except BaseException:
            self.down()
            raise

    def call(
        self, *words: object, check: bool = True, timeout: float = PATIENCE, **more: str
    ) -> str:
        """What a command says."""
        done = subprocess.run(
            [str(word) for word in words],
            env=self.environ | more,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if not check else "")

    def submit(self, folder: Path, command: str, *options: str) -> str:
        """A batch job's number; what it says is in folder/out."""
        script = folder / "batch.sh"
        script.write_text(f"#!/bin/bash\n{command}\n")
        options = (*options, f"--output={folder}/out", "--open-mode=append", f"--chdir={folder}")
        return self.call("sbatch", "--parsable", *options, script).strip()

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, CANCELLED ..."""
        told = self.call("scontrol", "-o", "show", "job", job)
        return told.partition("JobState=")[2].split()[0]

    def ended(self, job: str) -> str:
        """Its state, once it has ended."""
        self.until(
            lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        )
        return self.state(job)

    def idle(self) -> bool:
        """Whether the nodes are there, and no job runs or ends on one."""
        return self.call("sinfo", "-h", "-N", "-o", "%t", check=False).split() == ["idle"] * 2

    def until(self, holds, what: str = "a job does not come to its end") -> None:
        """Wait for it."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"{what}\n{self.call('squeue', check=False)}"
            time.sleep(0.25)

    def down(self) -> None:
        """End all of it."""
        if self._processes:
            self.call("scancel", "--user=root", check=False)
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _up(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        for folder in ("state", "spool"):
            (self.folder / folder).mkdir()
        (munge / "key").write_bytes(os.urandom(64))
        (munge / "key").chmod(0o400)
        names = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        self._start(
            "munged",
            "--foreground",
            "--force",
            *(f"--{option}={munge / name}" for option, name in names.items()),
        )
        self.until(lambda: (munge / "socket").exists(), "munged does not come up")
        text = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            folder=self.folder,
            ports=[free_port() for _ in range(3)],
        )
        (self.folder / "slurm.conf").write_text(text)
        self._start("slurmctld", "-D", "-i")
        for node in ("n1", "n2"):
            self._start("slurmd", "-D", "-N", node)
        self.until(self.idle, "the nodes do not come up")

    def _start(self, *command: str) -> None:
        with open(self.folder / f"{Path(command[0]).name}-{len(self._processes)}.log", "wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, env=self.environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )
            )
