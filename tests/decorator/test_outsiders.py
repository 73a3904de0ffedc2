"""Other processes and hosts cannot disturb a job, or an error reports it."""

from __future__ import annotations

import http.server
import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from autoddp import torch_internals
from autoddp.comm.timeout import Timeout
from autoddp.errors import BadInput
from autoddp.launch.rendezvous import listen
from autoddp.process import network

pytestmark = pytest.mark.slow

LISTENING = "0A"  # in /proc/net/tcp


def addresses(port):
    """The addresses that listen at a port, as the kernel lists them."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == LISTENING and int(number, 16) == port:
                found.append(address)
    return found


def test_the_store_of_one_node_is_not_on_the_network():
    assert addresses(torch_internals.store_behind(listen()).port) == ["0100007F"]


SCRIPT = """
import os, socket, sys
import torch
import autoddp
from pathlib import Path

found = list(Path(sys.argv[1]).glob("autoddp-*"))
private = bool(found) and not any(at.stat().st_mode & 0o077 for at in found)
launcher = str(os.getppid())
job = [launcher, *Path("/proc", launcher, "task", launcher, "children").read_text().split()]
own = set()
for process in job:
    for number in os.listdir(f"/proc/{process}/fd"):
        try:
            own.add(os.readlink(f"/proc/{process}/fd/{number}"))
        except OSError:
            pass
x = torch.utils.data.DataLoader(torch.arange(8.0).view(8, 1), batch_size=4)
for batch in x:
    sent = 0
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
        address, _, port = local.partition(":")
        if state == "0A" and address == "0100007F" and f"socket:[{inode}]" in own:
            sent += 1
            try:
                stranger = socket.create_connection(("127.0.0.1", int(port, 16)), 1)
                stranger.sendall(b"x" * 5000)
                stranger.close()
            except OSError:
                pass
    print(batch.sum().item(), private, sent > 0)
"""


def test_garbage_at_all_ports_does_not_end_a_job_and_its_folders_are_private(warm, tmp_path):
    """Only ports and folders of the job are used."""
    (tmp_path / "job.py").write_text(SCRIPT)
    with tempfile.TemporaryDirectory(prefix="ad") as folder:  # a short path: sockets lie in it
        done = warm.run(
            *("autoddp", "run", "-n", "2", str(tmp_path / "job.py"), folder),
            folder=tmp_path / "run",
            env=os.environ | {"TMPDIR": folder},
        )
    assert done.code == 0, done.err
    assert done.out == "6.0 True True\n22.0 True True\n"


def test_a_log_is_not_written_through_a_link(warm, tmp_path):
    (tmp_path / "job.py").write_text("print('hello')")
    (tmp_path / "logs").mkdir()
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "logs" / "rank1.log").symlink_to(tmp_path / "precious")
    done = warm.run(
        *(
            "autoddp",
            "run",
            "-n",
            "2",
            "--log-dir",
            str(tmp_path / "logs"),
            str(tmp_path / "job.py"),
        ),
        folder=tmp_path / "run",
    )
    assert done.code == 2
    assert "but rank1.log in it cannot be written" in done.err
    assert (tmp_path / "precious").read_text() == "kept"
    assert stat.S_ISLNK((tmp_path / "logs" / "rank1.log").lstat().st_mode)


def test_another_server_at_the_masters_port_is_reported():
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.RequestHandlerClass.log_message = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(BadInput, match="which is no node 0 of a job; give the port"):
            network.await_store("127.0.0.1", server.server_port, Timeout(9, print), "node 0")
        server.shutdown()
