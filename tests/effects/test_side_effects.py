"""Scripts with side effects, run by the command, equal one process."""

import gzip
import os
import zipfile

import torch


def test_a_disk_error_is_shown_once_with_the_users_path(tmp_path, warm):
    script = tmp_path / "s.py"
    script.write_text("import os\nos.makedirs('x')\nopen('x', 'w')\n")
    alone = warm.run("python", str(script), folder=tmp_path / "alone")
    ranks = warm.run("autoddp", "run", "-q", "--nproc", "2", str(script), folder=tmp_path / "ranks")
    assert (ranks.code, ranks.err) == (alone.code, alone.err)
    assert "IsADirectoryError: [Errno 21] Is a directory: 'x'" in ranks.err


def test_a_script_killed_while_it_saves_leaves_the_old_checkpoint(tmp_path, warm):
    script = tmp_path / "s.py"
    script.write_text(
        "import os, torch\n"
        "torch.save({'n': 0}, 'last.pt')\n"
        "class Deadly:\n"
        "    def __reduce__(self):\n"
        "        os.kill(os.getpid(), 9)\n"
        "torch.save({'n': torch.zeros(1000), 'x': Deadly()}, 'last.pt')\n"
    )
    done = warm.run("autoddp", "run", "--nproc", "2", str(script), folder=tmp_path / "ranks")
    assert done.code == 128 + 9
    assert torch.load(tmp_path / "ranks" / "last.pt") == {"n": 0}
    assert os.listdir(tmp_path / "ranks") == ["last.pt"]


LEFT = """
import csv, gzip, logging, sys, zipfile, os
log = open("log", "w")
log.write("to the end")
table = csv.writer(open("table", "w", newline=""))
table.writerow([1, 2])
packed = gzip.open("packed.gz", "wt")
packed.write("packed")
archive = zipfile.ZipFile("archive.zip", "w")
archive.writestr("name", "text")
handler = logging.FileHandler("logging")
logging.getLogger().addHandler(handler)
logging.warning("said")
class Run:
    def __init__(self):
        self.me, self.file = self, open("run", "w")
    def __del__(self):
        self.file.write("over")
        self.file.close()
        os.mkdir("made")
        print("deleted", file=sys.__stdout__, flush=True)
run = Run()
"""


def test_files_left_open_are_closed_as_by_python(tmp_path, warm):
    (tmp_path / "left.py").write_text(LEFT)
    done = warm.run(
        "autoddp", "run", "--nproc", "2", str(tmp_path / "left.py"), folder=tmp_path / "ranks"
    )
    assert done.code == 0, done.err
    assert done.out == "deleted\n"
    assert [line for line in done.err.splitlines() if not line.startswith("[autoddp]")] == []
    ranks = tmp_path / "ranks"
    texts = {name: (ranks / name).read_text() for name in ("log", "table", "logging", "run")}
    assert texts == {"log": "to the end", "table": "1,2\n", "logging": "said\n", "run": "over"}
    assert (ranks / "made").is_dir()
    assert gzip.decompress((ranks / "packed.gz").read_bytes()) == b"packed"
    assert zipfile.ZipFile(ranks / "archive.zip").read("name") == b"text"
