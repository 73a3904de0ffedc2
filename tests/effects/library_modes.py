"""Unusual ways in which libraries touch the disk; test_overlay_modes.py installs it as a package.

`pause()` stands for whatever a rank may be early or late by.
"""

import contextlib
import errno
import functools
import glob
import mmap
import os
import shutil
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch


def _raised(act, *args, **kwargs):
    """What Python says, names and all."""
    try:
        return "no error", repr(act(*args, **kwargs))[:60]
    except OSError as error:
        return type(error).__name__, error.errno, error.filename, error.filename2, str(error)
    except ValueError as error:
        return type(error).__name__, str(error)


def longest_name(folder):
    """As a lock asks before it chooses the name of its file."""
    return os.statvfs(folder).f_namemax, os.pathconf(folder, "PC_NAME_MAX")


def locked_folders(pause):
    """A folder is asked for its limits as soon as it is made, as for a lock in it."""
    seen = []
    for turn in range(4):
        os.makedirs(f"cache/{turn}/sub")
        seen += longest_name(f"cache/{turn}/sub"), os.statvfs(f"cache/{turn}").f_namemax
        pause()
    return seen


def wrong_names(pause):
    """What is there already, what is not, and what is of another kind."""
    os.makedirs("made/full/sub")
    Path("made/file").write_text("a")
    os.symlink("nowhere", "made/dangling")
    seen = []
    for act, *args in (
        (open, "made/file", "x"),
        (open, Path("made/file"), "xb"),
        (open, b"made/file", "x"),
        (open, "made/dangling", "x"),
        (open, "made/none", "r+"),
        (open, "made/none", "r"),
        (open, "made/none/below", "w"),
        (open, "made/full", "w"),
        (open, "made/full", "a"),
        (open, "", "w"),
        (open, "", "r"),
        (open, "made/file/below", "w"),
        (os.mkdir, "made/full"),
        (os.mkdir, Path("made/none/below")),
        (os.mkdir, ""),
        (os.makedirs, "made/file"),
        (os.remove, "made/none"),
        (os.remove, "made/full"),
        (os.rmdir, "made/full"),
        (os.rmdir, "made/file"),
        (os.rmdir, b"made/none"),
        (os.rename, "made/none", "made/other"),
        (os.rename, "made/file", "made/full"),
        (os.rename, "made/full", "made/file"),
        (os.rename, "made/full", "made/full/sub/deep"),
        (os.replace, "made", "made/full"),
        (os.link, "made/none", "made/other"),
        (os.link, "made/file", "made/full"),
        (os.symlink, "said", "made/file"),
        (os.symlink, "said", "made/none/below"),
        (os.truncate, "made/none", 1),
        (os.chmod, "made/none", 0o600),
        (os.stat, "made/none"),
        (os.stat, ""),
        (os.path.exists, ""),
        (os.path.exists, "made/file\0"),
        (os.access, "", os.R_OK),
        (os.listdir, "made/none"),
        (os.listdir, "made/file"),
        (os.scandir, "made/none"),
        (os.readlink, "made/file"),
        (longest_name, "made/none"),
        (os.stat, "made/" + "x/" * 3000),
        (os.path.exists, "x/" * 200_000),
        (os.path.exists, "made/" + "x" * 300),
        (os.chdir, "made/none"),
        (os.open, "made/file", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        (os.open, "made/none", os.O_WRONLY),
        (shutil.rmtree, "made/none"),
        (shutil.copyfile, "made/none", "made/other"),
        (shutil.copytree, "made/full", "made/full"),
    ):
        pause()
        seen.append((getattr(act, "__name__", ""), args, _raised(act, *args)))
    return seen, sorted(os.listdir("made"))


def failed_names(pause):
    """A change that fails leaves what was there, for who is late, too."""
    os.makedirs("full/below")
    Path("there").write_text("old")
    seen = []
    for _ in range(3):
        for source, target in (
            ("missing", "there"),
            ("there", "full"),
            ("full", "there"),
            ("full/below", "full"),
        ):
            seen.append(
                (_raised(os.rename, source, target), os.path.exists(source), os.path.exists(target))
            )
            pause()
        seen.append(Path("there").read_text())
        pause()
    return seen


def modes(pause):
    """In every mode of `open`, by every kind of name."""
    seen = []
    for turn in range(3):
        if turn:
            with open("plus", "r+") as file:
                seen.append(file.read())
                file.write(f"{turn}")
        with open(Path("plus"), "a+") as file:
            file.write("a+")
            file.seek(0)
            seen.append((file.read(), file.name))
        pause()
        with open(b"bytes", "wb", buffering=0) as file:
            file.write(b"raw%d" % turn)
            seen.append((Path("bytes").read_bytes(), file.name))
        with open("line", "a", buffering=1) as file:
            file.write("one\n")
            seen.append(Path("line").read_text())
            file.write("two")
        pause()
        with open("secret", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"by an opener {turn}")
        seen.append((Path("secret").read_text(), oct(os.stat("secret").st_mode)))
        folder = os.open(".", os.O_RDONLY)
        with open("below", "a", opener=functools.partial(os.open, dir_fd=folder)) as file:
            file.write(f"{turn}")
        seen.append((Path("below").read_text(), "below" in os.listdir(".")))
        pause()
        os.mkdir(f"fd{turn}", dir_fd=folder)
        number = os.open(f"fd{turn}/x", os.O_CREAT | os.O_WRONLY, dir_fd=folder)
        os.write(number, b"through a folder")
        with open(number, "wb", closefd=False) as file:
            file.write(b" and on")
        os.close(number)
        seen.append(os.stat(f"fd{turn}/x", dir_fd=folder).st_size)
        os.rename(f"fd{turn}/x", f"fd{turn}/y", src_dir_fd=folder, dst_dir_fd=folder)
        os.close(folder)
        pause()
        seen.append((os.listdir(b"."), sorted(os.listdir(f"fd{turn}")))[1])
        seen.append(sorted(entry.name for entry in os.scandir(b".")))
        seen.append(
            sorted(
                (e.name, e.path, e.is_file(), e.stat().st_size) for e in os.scandir() if e.is_file()
            )
        )
        with open("mapped", "w+b") as file:
            file.write(b"0123456789")
            file.flush()
            with mmap.mmap(file.fileno(), 0) as memory:
                memory[2:4] = b"ab"
        seen.append(Path("mapped").read_bytes())
        pause()
    return seen


def places(pause):
    """Relative names while the folder changes, links to folders, `..`, a home of its own."""
    home = os.getcwd()
    seen = []
    for turn in range(3):
        os.makedirs(f"real{turn}/in", exist_ok=True)
        os.symlink(f"real{turn}", f"link{turn}")
        pause()
        Path(f"link{turn}/in/../a").write_text(f"{turn}")
        with open(f"link{turn}/a", "a") as file:
            file.write("+")
        seen.append(Path(f"real{turn}/a").read_text())
        os.chdir(f"link{turn}")
        pause()
        Path("b").write_text("b")
        Path("../top").write_text(f"top {turn}")
        os.rename("b", "in/c")
        seen.append((os.path.relpath(os.getcwd(), home), sorted(glob.glob("**", recursive=True))))
        os.chdir(home)
        shutil.copytree(f"link{turn}", f"copied{turn}")
        seen.append(sorted(str(path) for path in Path(f"copied{turn}").rglob("*")))
        pause()
        shutil.move(f"copied{turn}", f"real{turn}/moved")
        with tempfile.TemporaryDirectory(dir=".") as beside:
            Path(beside, "x").write_text("x")
            shutil.move(f"{beside}/x", f"x{turn}")
        seen.append(sorted(name for name in os.listdir(".")))
        shutil.rmtree(f"real{turn}/in")
        seen.append(sorted(os.walk(f"real{turn}")))
        os.unlink(f"link{turn}")
        pause()
    return seen


def threads(pause):
    """Several threads at once write and list."""
    failed = []

    def work(name):
        try:
            for turn in range(20):
                os.makedirs(f"of-{name}/{turn}")
                Path(f"of-{name}/{turn}/a").write_text(f"{turn}")
                os.rename(f"of-{name}/{turn}/a", f"of-{name}/{turn}/b")
                names = os.listdir(f"of-{name}")  # as far as rank 0 has come, or further
                if Path(f"of-{name}/{turn}/b").read_text() != f"{turn}" or str(turn) not in names:
                    failed.append((name, turn))
        except Exception as error:
            failed.append(repr(error))

    workers = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for worker in workers:
        worker.start()
    for turn in range(20):
        Path(f"main{turn % 3}").write_text(f"{turn}")
        os.listdir(".")
        pause() if turn % 5 == 0 else None
    for worker in workers:
        worker.join()
    return failed


def by_a_thread(top, old=True):
    """What a thread finds of files it makes, renames and removes; no pattern: ranks are apart."""
    os.makedirs(top)
    for name in ("a", "b"):
        with open(f"{top}/{name}", "x") as file:
            file.write(name)
    if not old:
        return []
    found = [entries(top)]
    os.remove("old/removed")
    os.rename("old/renamed", f"{top}/renamed")
    found += [entries("old"), text(f"{top}/renamed")]
    try:
        os.remove("old/removed")
    except OSError as error:
        found.append(type(error).__name__)
    return found


def entries(top):
    """The names in a folder."""
    return sorted(os.listdir(top))


def there(path):
    """Whether anything has that name."""
    return os.path.exists(path)


def remove(path):
    """A file."""
    os.remove(path)


def text(path):
    """A file's content."""
    with open(path) as file:
        return file.read()


def children(pause):
    """A process forked by the library."""
    Path("before").write_text("from the parent")
    seen = []
    for turn in range(3):
        pause()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                # its own name: what rank 0's child has made is in no record, and may be found
                name = f"of-child-{os.getpid()}"
                with open(name, "a") as file:
                    file.write(Path("before").read_text() + f" {turn}\n")
                code = 0 if Path(name).read_text().count("\n") == 1 else 2
                os.remove(name)
            finally:
                os._exit(code)
        seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        Path("before").write_text(f"from the parent {turn}")
    return seen


def inside_exceptions(pause):
    """What is raised in the midst of writing closes the file, with what was written."""
    seen = []
    for turn in range(3):
        try:
            with open("half", "a") as file:
                file.write(f"{turn}")
                raise KeyError(turn)
        except KeyError:
            pause()
        seen.append(Path("half").read_text())
        try:
            os.rename("half", "none/half")
        except OSError as error:
            seen.append((error.errno == errno.ENOENT, error.filename, error.filename2))
        pause()
    return seen


def much(pause):
    """Many changes in a row, of one name."""
    held = len(os.listdir("/proc/self/fd"))
    for turn in range(40):
        Path("new").write_text(f"{turn}" * 1000)
        os.replace("new", "kept")
        Path("link").unlink(missing_ok=True)
        os.link("kept", "link")
        os.rename("link", "link2")
        os.rename("link2", "link")
    pause()
    return Path("kept").read_text()[:4], Path("link").read_text()[:4], held > 0


def nothing_lost(pause):
    """What cannot be opened keeps what it holds, a large file, too."""
    seen = []
    for turn in range(2):
        for name, size in (("small", 10), ("large", 3 << 20)):
            Path(name).write_text(f"{turn}" * size)
            pause()
            for mode, more in (
                ("x", {}),
                ("wr", {}),
                ("w", {"what": 1}),
                ("wb", {"encoding": "utf-8"}),
            ):
                with contextlib.suppress(OSError, ValueError, TypeError):
                    Path(name).open(mode, **more).close()
                seen.append((name, mode, os.path.getsize(name), Path(name).read_text()[:3]))
            with contextlib.suppress(FileExistsError):
                os.open(name, os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_WRONLY)
            os.symlink(name, f"{name}{turn}")
            with contextlib.suppress(OSError):
                os.open(f"{name}{turn}", os.O_NOFOLLOW | os.O_TRUNC | os.O_WRONLY)
            pause()
            seen.append((os.path.getsize(name), Path(name).read_text()[:3]))
    return seen


def grown_and_rewritten(pause):
    """Added to, and written anew, in one go: a rank that is late reads what was there before."""
    Path("log").write_text("header\n")
    Path("moved").write_text("header\n")
    seen = []
    for turn in range(3):
        pause()
        seen.append((Path("log").read_text(), Path("moved").read_text()))
        for name in ("log", "moved"):
            with open(name, "a") as file:
                file.write(f"{turn}\n")
        rows = Path("log").read_text()
        if turn == 1:
            os.remove("log")
        Path("log").write_text(f"new {turn}\n" + rows)
        os.rename("moved", "other")
        Path("moved").write_text(Path("other").read_text() * 2)
        os.truncate("log", 15)
    return seen, Path("log").read_text()


def read_in_c(pause):
    """Read back past Python's open: by a map of memory, by Rust, by numpy."""
    seen = []
    for turn in range(3):
        torch.save({"x": torch.full((3,), turn)}, "a.pt")
        Path("a.txt").write_text(f"{turn} 2")
        np.save("a.npy", np.arange(turn, 4))
        np.arange(turn, 4).tofile("a.raw")
        pause()
        if find_spec("safetensors"):
            from safetensors.torch import load_file, safe_open, save_file

            save_file({"x": torch.full((3,), turn)}, "a.safetensors")
            seen.append(load_file("a.safetensors")["x"].tolist())
            with safe_open("a.safetensors", framework="pt") as file:
                seen.append(file.get_tensor("x").tolist())
        pause()
        seen.append(torch.load("a.pt", mmap=True)["x"].tolist())
        seen.append(np.loadtxt("a.txt").tolist())
        seen.append(np.load("a.npy", mmap_mode="r").tolist())
        seen.append(np.fromfile("a.raw", dtype=np.int64).tolist())
        pause()
    return seen


PATTERNS = (
    *(wrong_names, failed_names, modes, places, threads, children, inside_exceptions, much),
    *(nothing_lost, grown_and_rewritten, read_in_c, locked_folders),
)
