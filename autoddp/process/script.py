"""Run a file or a module as `python` would: the script cannot tell the difference."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import io
import os
import runpy
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, TracebackType

from autoddp.comm.place import HERE
from autoddp.errors import BadInput
from autoddp.process.frames import visible

INTERRUPTED = 130  # 128 + SIGINT: what a shell makes of a Python that Ctrl-C ended


@dataclass(frozen=True)
class Script:
    """The script to run: a file, or with `module` the name of a module; and its arguments."""

    name: str
    args: tuple[str, ...] = ()
    module: bool = False

    def find(self) -> str:
        """Find the file that will run, without importing anything.

        Raises:
            BadInput: There is no such file, or it cannot be read, or it is a notebook.
        """
        if self.module:
            return find_module(self.name)
        path = os.path.join(os.getcwd(), self.name)  # not normalised, as python's
        try:
            open(path, "rb").close()
        except OSError as error:
            why = f"{error.strerror}; give the path of a script, without python before it"
            raise BadInput(f"can't open file {path!r}: {why}") from None
        if path.endswith(".ipynb"):
            raise BadInput(f"{self.name} is a notebook; jupyter nbconvert --to script converts it")
        return path

    def folder(self) -> str:
        """Return the folder from which the script imports its own files."""
        if self.module:
            return os.getcwd()
        return os.path.dirname(os.path.realpath(self.find()))

    def run(self, whole_traceback: bool = False, ended: Sequence[Callable[[], None]] = ()) -> int:
        """Run the script in a fresh `__main__`, and print what python would print of its end.

        Args:
            whole_traceback: Leave autoddp's frames in tracebacks, to find a bug of autoddp.
            ended: Functions called when the script has ended, before what it raised is shown.

        Returns:
            Exit code that python would end with.
        """
        tempfile.tempdir = None  # the launcher has asked, and the script may say another first
        main = ModuleType("__main__")
        main.__dict__.update(__builtins__=builtins)
        if sys.version_info < (3, 14):
            main.__dict__.update(__annotations__={})
        sys.modules["__main__"] = main
        raised: BaseException | None = None
        try:
            self._run_module() if self.module else self._run_file()
        except BaseException as error:
            raised = error
        # no exception is being handled from here on: one that a hook raises has it as no context
        for act in ended:
            try:
                act()
            except BaseException as error:  # a signal handler's: torch has one for lost workers
                if raised is None or isinstance(raised, SystemExit):
                    raised = error
        if raised is None:
            return 0
        if isinstance(raised, SystemExit):
            return _system_exit(raised)
        if not whole_traceback:
            strip(raised)
        return _show(raised)

    def _run_file(self) -> None:
        path = self.find()
        sys.argv = [self.name, *self.args]
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.realpath(path))
        with open(path, "rb") as file:
            source = file.read()
        main = sys.modules["__main__"]
        loader = SourceFileLoader("__main__", path)
        main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
        exec(_compiled(source, path), main.__dict__)

    def _run_module(self) -> None:
        sys.argv = ["-m", *self.args]  # runpy puts the file's path in its place
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd()
        # what `python -m` itself calls: same frames in tracebacks, same words for what is missing
        runpy._run_module_as_main(self.name)  # type: ignore[attr-defined]


def _compiled(source: bytes, path: str) -> CodeType:
    """Compile a script; an error that names no file, of a null byte, gets its place as python's."""
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        if error.filename is not None or b"\0" not in source:
            raise
    *before, line = source.partition(b"\0")[0].split(b"\n")
    place = path, len(before) + 1, None, line.decode(errors="replace")
    raise SyntaxError("source code cannot contain null bytes", place)


def find_module(name: str) -> str:
    """Find the file of a module as `python -m` would, without importing anything.

    Raises:
        BadInput: There is no such module.
    """
    found = list(specs(name, sys.path if sys.flags.safe_path else [os.getcwd(), *sys.path[1:]]))
    if len(found) < len(name.split(".")):
        raise BadInput(f"no module named {name}; give its name without .py")
    if found[-1].submodule_search_locations is not None:
        return find_module(f"{name}.__main__")
    return found[-1].origin or name


def specs(name: str, places: Sequence[str]) -> Iterator[ModuleSpec]:
    """Yield the specs of a module's packages and its own, as far as they are there.

    Nothing is imported.
    """
    for part in name.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return
        yield spec
        places = list(spec.submodule_search_locations or ())


def finish(code: int) -> int:
    """Do what the interpreter does after the script: wait for threads, run `atexit`, flush.

    Returns:
        Exit code: `code`, or 120 in place of 0 where output could not be written.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except OSError:
            code = code or 120  # python's own code for output that could not be written
    return code


def forget() -> None:
    """Let go of the objects that the script could close, as the interpreter does at its end.

    Their `__del__` is called, too. A daemon thread, which the interpreter would stop before, needs
    its globals: then files are only flushed.
    """
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    sys.excepthook = sys.__excepthook__
    if len(threading.enumerate()) == 1:
        sys.last_type = sys.last_value = sys.last_traceback = None
        space = vars(sys.modules["__main__"])
        for name, value in list(space.items()):
            if not isinstance(value, type) and (
                hasattr(type(value), "close") or hasattr(type(value), "__del__")
            ):
                space[name] = None
        del value
        gc.collect()
    for found in reversed(gc.get_objects()):  # a file is made after the one that it writes to
        if issubclass(type(found), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            # closed, or its data is lost as at python's own end
            with contextlib.suppress(OSError, ValueError):
                found.flush()


def _system_exit(ending: SystemExit) -> int:
    if isinstance(ending.code, int | None):
        return (ending.code or 0) & 0xFF
    print(ending.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> int:
    """Print an exception like the interpreter at its outermost level, and return the exit code."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    # the script's own stream may wait for ranks that have raised nothing
    HERE.raised = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
        HERE.raised = None
        own = sys.__stderr__
        if HERE.world and HERE.world.rank and own is not None and sys.stderr is not own:
            # a stream that the script has made is lost on a rank above 0
            traceback.print_exception(error, file=own)
    except SystemExit as ending:
        return _system_exit(ending)
    except BaseException as broken:
        strip(broken)
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(broken), broken, broken.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def strip(error: BaseException) -> None:
    """Take autoddp's frames out of the tracebacks of an exception, its causes and contexts."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without_ours(current.__traceback__)
        pending += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        entries.append((traceback.tb_frame, traceback))
        traceback = traceback.tb_next
    kept = [entry for _, entry in visible(entries)]
    for entry, following in zip(kept, [*kept, None][1:], strict=True):
        entry.tb_next = following
    return kept[0] if kept else None
