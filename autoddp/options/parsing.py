"""Parse the texts of options into names and numbers."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from autoddp.errors import BadInput
from autoddp.options import Options, table
from autoddp.options.row import flag

Values = dict[str, Any]  # of options, by name
# torch 2.11 to 2.15 share a store between rounds of a rendezvous, which later nodes do not find
NO_SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def parse(field: Field[Any], text: Any) -> Values:
    """Parse the text, or the texts, of an option; return its value by name.

    Raises:
        BadInput: The text is not a whole number, but the option takes one; or a range of nodes.
    """
    kind = str(field.type)
    if field.name == "nnodes" and ":" in text:
        raise BadInput(
            f"--nnodes is {text}, but nodes that come and go need torchrun; run on each node "
            f"{NO_SHARED_STORE}=1 torchrun --nnodes {text} --nproc-per-node RANKS "
            "--rdzv-backend c10d --rdzv-endpoint HOST:PORT -m autoddp run SCRIPT"
        )
    if kind.startswith("int"):
        return {field.name: integer(flag(field.name), text)}
    return {field.name: split(text) if kind.startswith("tuple") else text}


def to_arguments(options: Options, command: str) -> list[str]:
    """Return the options of a command that are not the default, as arguments."""
    arguments = []
    for declared, _ in table(command):
        value = getattr(options, declared.name)
        if value != declared.default:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            arguments += [flag(declared.name)] if value is True else [flag(declared.name), text]
    return arguments


def split(texts: list[str] | None) -> tuple[str, ...]:
    """Split the comma-separated texts of an option that takes names."""
    return tuple(name for text in texts or () for name in text.split(",") if name)


def integer(name: str, text: str) -> int:
    """Parse a whole number.

    Raises:
        BadInput: The text is not a whole number.
    """
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"{name} is {text!r}; it takes a whole number") from None


def check_no_run(shared: Values, **own: object) -> None:
    """Check that no option of a run is used with --recordings; `own` are the command's own options.

    Raises:
        BadInput: An option of a run is used.
    """
    defaults = vars(Options()) | {"quiet": shared["quiet"]}
    used = own | {name: value != defaults[name] for name, value in shared.items()}
    for name in (name for name, is_used in used.items() if is_used):
        option = "-m" if name == "module" else flag(name)
        raise BadInput(f"{option} has no effect with --recordings, which runs nothing; remove it")
