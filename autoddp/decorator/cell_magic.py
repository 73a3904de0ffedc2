"""`%%autoddp`: run a cell on ranks, and keep its variables in the notebook."""

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
from autoddp.options.parsing import parse
from autoddp.options.row import DECORATOR, flag
from autoddp.process.script import strip
from autoddp.report import users_frame
from autoddp.report.places import cell

MAGIC = "%%autoddp"
PROGRAM = re.compile(r"\bget_ipython\(\)\.(system|getoutput)\(")  # IPython's code for `!`


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
    """Read the options after `%%autoddp`.

    Raises:
        BadInput: An option does not exist, or its value is wrong.
    """
    known = {name: f for f, row in table(DECORATOR) for name in row.flags or (flag(f.name),)}
    values: dict[str, Any] = {}
    try:
        words = iter(shlex.split(line))
        for word in words:
            name, equals, value = word.partition("=")
            field = known[name]
            if field.type == "bool" and not equals:
                values[field.name] = True
                continue
            value = value if equals else next(words)
            several = str(field.type).startswith("tuple")
            new = parse(field, [value] if several else value)
            values |= {field.name: values.get(field.name, ()) + new[field.name]} if several else new
    except (KeyError, StopIteration, ValueError) as error:
        what = "a value is missing" if isinstance(error, StopIteration) else f"no option {error}"
        raise BadInput(f"%%autoddp {line}: {what}; it takes the options of @distributed") from None
    return choose(values)


class CellCall:
    """The code of a cell as a function that sets variables of the notebook and returns a value."""

    def __init__(self, session: Any, text: str) -> None:
        # number the lines as shown: the first has the magic, and IPython drops empty ones after it
        empty = sum(1 for _ in itertools.takewhile(lambda line: not line.strip(), text.split("\n")))
        source = "\n" * (1 + empty) + session.transform_cell(text)
        frame = users_frame()  # of this cell; the session's count may be that of the next one
        shown = re.search(r"\d+", cell(frame.f_code.co_filename)) if frame is not None else None
        number = int(shown[0]) if shown else session.execution_count
        name = session.compile.cache(source, number, raw_code=f"{MAGIC}\n{text}")
        self.__qualname__ = cell(name)
        self.__globals__: dict[str, Any] = session.user_ns
        for at, line in enumerate(source.split("\n"), 1):
            if PROGRAM.search(line):
                raise BadInput(
                    f"{self.__qualname__}, line {at}: a program that is started by ! would run "
                    "once for each rank; start it in another cell, or with subprocess.run"
                )
        parsed = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        tree = cast("ast.Module", parsed)
        last_expr = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        value = last_expr.value if isinstance(last_expr, ast.Expr) else ast.Constant(None)
        last = ast.fix_missing_locations(ast.Expression(value))
        self._body = compile(tree, name, "exec", dont_inherit=True)
        self._last = compile(last, name, "eval", dont_inherit=True)

    def __call__(self) -> Any:
        exec(self._body, self.__globals__)
        value = eval(self._last, self.__globals__)
        if HERE.world is not None:
            from autoddp.decorator.wholes import gather_in_place  # imports torch

            gather_in_place(self.__globals__, set())
        return value
