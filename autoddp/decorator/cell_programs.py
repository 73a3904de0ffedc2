"""Programs that a cell starts by `!`, by `%pip` or by `%%bash` run once, on rank 0, for all."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoddp.effects.engine import Effects

INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)  # what IPython keeps of a program that was


@contextmanager
def run_once(session: Any, effects: Effects) -> Iterator[None]:
    """Replace what IPython makes of such lines and cells, inside; all ranks have its outcome."""
    from IPython.utils.text import LSString, SList

    system, getoutput = session.system, session.getoutput

    def run(cmd: str) -> None:
        text = session.var_expand(cmd, depth=1)  # of the frame that calls this

        def act() -> Any:
            _as_it_is(session, system, text)
            code = session.user_ns.get("_exit_code")
            if code in INTERRUPTED:  # which is the cell's end on the other ranks
                raise KeyboardInterrupt
            return code

        session.user_ns["_exit_code"] = effects.do_on_rank0("!", act, _all)

    def read(cmd: str, split: bool = True, depth: int = 0) -> Any:
        text = session.var_expand(cmd, depth=depth + 1)

        def act() -> Any:
            found = _as_it_is(session, getoutput, text, split)
            return list(found) if split else str(found)

        found = effects.do_on_rank0("!", act, _all)
        return SList(found) if split else LSString(found)

    with ExitStack() as undo:
        for name, function in (("system", run), ("getoutput", read)):
            setattr(session, name, function)
            undo.callback(delattr, session, name)
        _replace_scripts(session, effects, undo)
        yield


def _replace_scripts(session: Any, effects: Effects, undo: ExitStack) -> None:
    """Replace `%%script` and what is made of it, like `%%bash`."""
    manager = session.magics_manager
    plain = session.find_magic("script", "cell")
    scripts, cells = plain.__self__, manager.magics["cell"]

    def shebang(line: str, cell: str) -> None:
        def act() -> dict[str, str]:
            before = dict(session.user_ns)
            plain(line, cell)
            texts = ((k, v) for k, v in session.user_ns.items() if isinstance(v, str))
            return {name: text for name, text in texts if before.get(name) is not text}

        session.user_ns.update(effects.do_on_rank0("%%script", act, _all))

    shebang.parser = plain.parser  # type: ignore[attr-defined]  # it looks there for its options
    scripts.shebang = shebang
    undo.callback(delattr, scripts, "shebang")
    undo.callback(cells.__setitem__, "script", cells["script"])
    cells["script"] = shebang


def _all(found: Any) -> Any:
    """Return all that rank 0 has found, for the others."""
    return found


def _as_it_is(session: Any, act: Callable[..., Any], *args: Any) -> Any:
    """Call one of the session's methods with a text whose variables are expanded already."""
    session.var_expand = lambda cmd, **_: cmd
    try:
        return act(*args)
    finally:
        del session.var_expand
