"""`%%autoddp`: run a cell of plain code on ranks, and keep its variables in the notebook."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from typing import Any, cast

from autoddp.comm.place import HERE
from autoddp.decorator import choose, run
from autoddp.errors import BadInput
from autoddp.options import Options, table
from autoddp.options.given import read
from autoddp.options.row import DECORATOR, flag
from autoddp.process.script import strip
from autoddp.report import users_frame
from autoddp.report.places import cell

MAGIC = "%%autoddp"
PROGRAM = re.compile(r"\bget_ipython\(\)\.(system|getoutput)\(")  # what IPython makes of `!`


def load(session: Any) -> None:
    """Register `%%autoddp` with an IPython session, for `%load_ext autoddp`."""

    def autoddp(line: str, text: str) -> Any:
        """Run the cell on ranks: %%autoddp --nproc 4, with the options of `@distributed`."""
        try:
            return run(CellCall(session, text), (), {}, options(line))
        except BaseException as error:
            strip(error)
            raise

    autoddp._ipython_magic_output_can_be_silenced = True  # type: ignore[attr-defined]
    session.register_magic_function(autoddp, "cell", "autoddp")


def options(line: str) -> Options:
    """Read the options behind `%%autoddp`.

    Raises:
        BadInput: One does not exist, or does not take that value.
    """
    known = {name: f for f, row in table(DECORATOR) for name in row.flags or (flag(f.name),)}
    found: dict[str, Any] = {}
    try:
        words = iter(shlex.split(line))
        for word in words:
            name, equals, value = word.partition("=")
            field = known[name]
            if field.type == "bool" and not equals:
                found[field.name] = True
                continue
            value = value if equals else next(words)
            several = str(field.type).startswith("tuple")
            more = read(field, [value] if several else value)
            found |= {field.name: found.get(field.name, ()) + more[field.name]} if several else more
    except (KeyError, StopIteration, ValueError) as error:
        what = "a value is missing" if isinstance(error, StopIteration) else f"{error} is no option"
        raise BadInput(f"%%autoddp {line}: {what}; it takes the options of @distributed") from None
    return choose(found)


class CellCall:
    """The code of a cell as a function: it sets variables of the notebook, and returns a value."""

    def __init__(self, session: Any, text: str) -> None:
        # lines are numbered as they are shown: the first is the magic's own, and IPython drops
        # those that are empty at the beginning
        empty = sum(1 for _ in itertools.takewhile(lambda line: not line.strip(), text.split("\n")))
        source = "\n" * (1 + empty) + session.transform_cell(text)
        frame = users_frame()  # of the cell that runs now; the session's number may be the next's
        shown = re.search(r"\d+", cell(frame.f_code.co_filename)) if frame is not None else None
        number = int(shown[0]) if shown else session.execution_count
        name = session.compile.cache(source, number, raw_code=f"{MAGIC}\n{text}")
        self.__qualname__ = cell(name)
        self.__globals__: dict[str, Any] = session.user_ns
        for at, line in enumerate(source.split("\n"), 1):
            if PROGRAM.search(line):
                raise BadInput(
                    f"{self.__qualname__}, line {at}: a program that is started by ! would run "
                    "once for each rank; start it in another cell, or by subprocess.run"
                )
        made = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        tree = cast("ast.Module", made)
        ends = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        value = ends.value if isinstance(ends, ast.Expr) else ast.Constant(None)
        last = ast.fix_missing_locations(ast.Expression(value))
        self._body = compile(tree, name, "exec", dont_inherit=True)
        self._last = compile(last, name, "eval", dont_inherit=True)

    def __call__(self) -> Any:
        exec(self._body, self.__globals__)
        value = eval(self._last, self.__globals__)
        if HERE.world is not None:
            from autoddp.decorator.wholes import make_whole  # with torch

            make_whole(self.__globals__, set())
        return value
