"""The script cannot tell: run by `python`, in this process (1 rank) and in a fork (2 ranks)."""

from __future__ import annotations

import pytest

from tests.support.cli import fork_cli, run_cli, run_python

pytestmark = pytest.mark.slow

PROBE = '''"""What a script can see of how it was started."""
import logging, multiprocessing, os, signal, sys, threading
import sibling
print(__name__, __file__, sys.argv, sys.path[0], __package__, __doc__)
print(getattr(__spec__, "name", None), type(__loader__), __loader__.path, type(__builtins__))
print(sys.path, os.getcwd(), sorted(globals()), vars(sys.modules["__main__"]) is globals())
print(multiprocessing.current_process().name, multiprocessing.parent_process())
print(multiprocessing.get_start_method(allow_none=True), threading.enumerate()[0].name)
print([str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)])
print(logging.root.handlers, logging.root.manager.disable, sys.excepthook is sys.__excepthook__)
print(sys.stdin.name, sys.stdin.encoding, sys.stdin.fileno(), sys.stdin.readline())
print(sys.stdin.read())
print(repr(sys.stdout), sys.stdout.isatty(), sys.flags, sys.getrecursionlimit())
print(sorted(set(os.environ) - {"LC_CTYPE"}), sibling.VALUE)
'''

ENDINGS = {
    "exit 3": "import sys; sys.exit(3)",
    "exit why": "import sys; sys.exit('why')",
    "raises": "def f():\n    raise ValueError('why')\n\nf()",
    "raises from": "try:\n    1 / 0\nexcept ArithmeticError as e:\n    raise KeyError('x') from e",
    "syntax": "x = (1,\ny = 2 3",
    "null byte": "x = 1\nprint('a')\0 + 1\n",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0], a[1])\n1 / 0",
    "atexit": "import atexit\natexit.register(print, 'at exit')\nprint('end')\nraise OSError(5)",
    "thread": "import threading, time\ndef work():\n    time.sleep(0.3)\n    print('late')\n"
    "threading.Thread(target=work).start()",
}


@pytest.fixture
def project(tmp_path):
    """A script, its sibling, and a package."""
    (tmp_path / "sibling.py").write_text("VALUE = 7\n")
    (tmp_path / "probe.py").write_text(PROBE)
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 8\n")
    (package / "__main__.py").write_text("from . import other\nprint(__name__, other.VALUE)\n")
    (package / "probe.py").write_text("from . import other\n" + PROBE.split('"""')[2])
    return tmp_path


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(
    "how",
    [
        ("probe.py", "a", "--nproc", "3", "--help", "-v", "--", "x"),
        ("./probe.py",),
        ("-m", "pkg.probe", "--help"),
        ("-m", "pkg", "-q"),
    ],
    ids=lambda how: how[-1] if how[0] != "-m" else how[1],
)
def test_the_script_sees_what_python_shows_it(project, nproc, how):
    plain = run_python(*how, cwd=project, stdin="line\nrest\n")
    ours = run_cli("run", "--nproc", nproc, *how, cwd=project, stdin="line\nrest\n")
    assert plain.rc == 0, plain.err
    assert (ours.out, ours.theirs, ours.rc) == (plain.out, plain.err, plain.rc)


@pytest.mark.parametrize("ending", ENDINGS)
def test_it_ends_as_under_python(tmp_path, ending):
    script = tmp_path / "ends.py"
    script.write_text(ENDINGS[ending])
    plain = run_python(script)
    ours = run_cli("run", "--nproc", 1, script)
    assert (ours.out, ours.theirs, ours.rc) == (plain.out, plain.err, plain.rc)


@pytest.mark.parametrize(
    "ending", ["exit 3", "exit why", "raises from", "atexit", "thread", "syntax", "null byte"]
)
def test_ranks_end_as_one_process(tmp_path, ending):
    script = tmp_path / "ends.py"
    script.write_text(ENDINGS[ending])
    plain = run_python(script)
    ours = fork_cli("run", "--nproc", 2, script)
    assert (ours.out, ours.theirs, ours.rc) == (plain.out, plain.err, plain.rc)
    assert len(ours.ours) == 1, "one line at the start, and no second account of the failure"


CHILDREN = """
import multiprocessing as mp, os, pickle, sys

class Point:
    def __init__(self, x): self.x = x

def square(x): return os.environ.get("RANK"), x * x

if __name__ == "__main__":
    mp.set_start_method("spawn")
    print(pickle.loads(pickle.dumps(Point(3))).x, Point.__module__)
    for method in ("spawn", "fork"):
        with mp.get_context(method).Pool(1) as pool:
            print(method, pool.map(square, [2, 3]))
    process = mp.Process(target=print, args=("child",))
    process.start()
    process.join()
    print(process.exitcode)
"""


@pytest.mark.parametrize("nproc", [1, 2])
def test_children_and_pickles_of_the_script(tmp_path, nproc):
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    plain = run_python(script)
    ours = run_cli("run", "-q", "--nproc", nproc, script)
    assert plain.rc == 0, plain.err
    assert (ours.out, ours.err, ours.rc) == (plain.out, plain.err, 0)
