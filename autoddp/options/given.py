"""Read options that were typed: text that becomes names and numbers, or an error."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from autoddp.errors import BadInput
from autoddp.options import Options, table
from autoddp.options.row import flag

Given = dict[str, Any]  # options of the table, by their names
# torch 2.11 to 2.15 share a store between rounds, of which a later node does not learn
APART = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def read(field: Field[Any], given: Any) -> Given:
    """Read what was typed for an option: the value by its name.

    Raises:
        BadInput: It is no whole number where one is required, or a range of nodes.
    """
    kind = str(field.type)
    if field.name == "nnodes" and ":" in given:
        raise BadInput(
            f"--nnodes is {given}, but nodes that come and go are torchrun's; run on each node "
            f"{APART}=1 torchrun --nnodes {given} --nproc-per-node RANKS --rdzv-backend c10d "
            "--rdzv-endpoint HOST:PORT -m autoddp run SCRIPT"
        )
    if kind.startswith("int"):
        return {field.name: whole(flag(field.name), given)}
    return {field.name: split(given) if kind.startswith("tuple") else given}


def as_typed(options: Options, taker: str) -> list[str]:
    """Return the options of one taker that are not the default, as the command line has them."""
    words = []
    for declared, _ in table(taker):
        value = getattr(options, declared.name)
        if value != declared.default:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words += [flag(declared.name)] if value is True else [flag(declared.name), text]
    return words


def split(given: list[str] | None) -> tuple[str, ...]:
    """Split the texts of an option that takes names, with commas or several times."""
    return tuple(name for some in given or () for name in some.split(",") if name)


def whole(name: str, text: str) -> int:
    """Read a whole number.

    Raises:
        BadInput: It is none.
    """
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"{name} is {text!r}; it takes a whole number") from None


def check_no_run(shared: Given, **own: object) -> None:
    """Check that no option of a run is given with --recordings: `own` are the command's own.

    Raises:
        BadInput: One is.
    """
    plain = vars(Options()) | {"quiet": shared["quiet"]}
    asked = own | {name: value != plain[name] for name, value in shared.items()}
    for name in (name for name, given in asked.items() if given):
        named = "-m" if name == "module" else flag(name)
        raise BadInput(f"{named} is given with --recordings, where nothing is run; leave it out")
