"""`%%autoddp`: a cell of plain code runs on ranks; what it sets is there in the notebook after.

`%autoddp` is the line that has all following cells do so, see `cells`.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import shlex
from typing import TYPE_CHECKING, Any, NoReturn, cast

from autoddp.comm.place import HERE
from autoddp.decorator import run
from autoddp.decorator.cells import LINE_MAGIC, STOPS, Cells
from autoddp.errors import BadInput
from autoddp.options import Options, table
from autoddp.options.given import read
from autoddp.options.row import DECORATOR, flag
from autoddp.process.script import strip
from autoddp.report import users_frame
from autoddp.report.places import cell

if TYPE_CHECKING:
    from types import CodeType

MAGIC = "%%autoddp"
PROGRAMS = ("system", "getoutput")  # methods of the session, of which IPython makes `!command`


class OptionLine(argparse.ArgumentParser):
    """The parser of the line behind `%%autoddp`, which takes the options of `@distributed`."""

    def error(self, message: str) -> NoReturn:
        """Refuse the options of a cell.

        Raises:
            BadInput: Always.
        """
        raise BadInput(message)


def load(session: Any) -> None:
    """Make `%%autoddp` and `%autoddp` known to an IPython session, for `%load_ext autoddp`."""
    if "autoddp" in session.magics_manager.magics["line"]:
        return  # loaded again, with a job under way or without
    cells = Cells(session)

    def autoddp(line: str, text: str | None = None) -> Any:
        """Run the cell on ranks: %%autoddp --nproc 4, with the options of `autoddp run`.

        As a line, have the cells that follow run on ranks which live on, until `%autoddp stop`.
        """
        try:
            if text is not None:
                cells.check_none()
                return run(CellCall(session, text), (), {}, options(line))
            return cells.stop() if line.strip() in STOPS else cells.begin(options(line, LINE_MAGIC))
        except BaseException as error:
            strip(error)
            raise

    autoddp._ipython_magic_output_can_be_silenced = True  # type: ignore[attr-defined]
    session.register_magic_function(autoddp, "line_cell", "autoddp")


def options(line: str, magic: str = MAGIC) -> Options:
    """Read the options behind `%%autoddp` or `%autoddp`.

    Raises:
        BadInput: One does not exist, or does not take that value.
    """
    parser = OptionLine(add_help=False, allow_abbrev=False)
    rows = list(table(DECORATOR))
    for field, row in rows:
        kind = str(field.type)
        action = (
            "store_true" if kind == "bool" else "append" if kind.startswith("tuple") else "store"
        )
        parser.add_argument(
            *(row.flags or (flag(field.name),)), dest=field.name, action=action, default=None
        )
    try:
        given = parser.parse_args(shlex.split(line))
    except (BadInput, ValueError) as error:
        raise BadInput(f"{magic} {line}: {error}; it takes the options of @distributed") from None
    shared: dict[str, Any] = {}
    for field, _ in rows:
        value = getattr(given, field.name)
        if value is not None:
            shared |= read(field, value)
    return Options(**shared)


class CellCall:
    """The code of a cell as a function: it sets variables of the notebook, and returns a value."""

    def __init__(self, session: Any, text: str) -> None:
        # lines are numbered as they are shown: the first is the magic's own, and IPython drops
        # those that are empty at the beginning
        empty = sum(1 for _ in itertools.takewhile(lambda line: not line.strip(), text.split("\n")))
        source = "\n" * (1 + empty) + session.transform_cell(text)
        name = session.compile.cache(source, _number(session), raw_code=f"{MAGIC}\n{text}")
        self.__qualname__ = cell(name)
        self.__globals__: dict[str, Any] = session.user_ns
        parsed = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        tree = cast("ast.Module", parsed)
        refuse_programs(tree, self.__qualname__)
        ends = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._body = compile(tree, name, "exec", dont_inherit=True)
        self._last: CodeType | None = None
        if isinstance(ends, ast.Expr):
            self._last = compile(ast.Expression(ends.value), name, "eval", dont_inherit=True)

    def __call__(self) -> Any:
        exec(self._body, self.__globals__)
        value = None if self._last is None else eval(self._last, self.__globals__)
        if HERE.world is not None:
            from autoddp.decorator.wholes import make_whole  # with torch

            make_whole(self.__globals__)
        return value


def _number(session: Any) -> int:
    """Return the number of the cell that runs now; the session's may be that of the next."""
    frame = users_frame()
    found = re.search(r"\d+", cell(frame.f_code.co_filename)) if frame is not None else None
    return int(found[0]) if found else int(session.execution_count)


def refuse_programs(tree: ast.AST, cell: str) -> None:
    """Refuse a line that begins with `!`: IPython would start the program on every rank.

    Raises:
        BadInput: There is such a line.
    """
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in PROGRAMS
            and ast.unparse(node.func.value) == "get_ipython()"
        ):
            raise BadInput(
                f"{cell}, line {node.lineno}: a program that is started by ! would run once "
                "for each rank; start it in another cell, or by subprocess.run"
            )
