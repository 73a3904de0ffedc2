"""Functions without an OpInfo return or raise the same on rows and on the whole."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.ranks import run_ranks
from tests.view.compare import Counting, by_rows, difference

pytestmark = pytest.mark.slow

ARGUMENTS: list[tuple[Any, ...]] = [(), (1,), (0,), (0.5,), (1, 0), ("y",), ("y", "y"), ("i",)]
EXEMPT = {
    "resize": "deprecated, and refused as resize_ is",
    "resize_as": "deprecated, and refused as resize_ is",
    "resize_": "refused by name",
    "resize_as_": "refused by name",
    "set_": "refused by name",
    "as_strided_": "refused by name",
    "new_empty": "memory that nobody has written",
    "new": "memory that nobody has written",
    "new_tensor": "warns of what it copies",
    "empty_like": "memory that nobody has written",
    "data_ptr": "an address",
    "const_data_ptr": "an address",
    "has_torch_function_unary": "asks for subclasses of tensors",
    "has_torch_function_variadic": "asks for subclasses of tensors",
    "untyped_storage": "raw memory",
    "storage": "raw memory",
    "storage_type": "raw memory",
    "share_memory_": "raw memory",
    "apply_": "calls Python for each element in place",
    "backward": "see test_rows",
    "register_hook": "see test_rows",
    "register_post_accumulate_grad_hook": "see test_rows",
    "requires_grad_": "see test_rows",
    "retain_grad": "see test_rows",
}


def known() -> set[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    names = {op.name.split(".")[-1] for op in op_db} | {a.name for op in op_db for a in op.aliases}
    return names | {f"{name}_" for name in names}


def unknown() -> list[tuple[str, Any]]:
    """Public functions without an OpInfo."""
    have = known() | set(EXEMPT)
    found = [(n, getattr(Tensor, n)) for n in sorted(dir(Tensor)) if not n.startswith("_")]
    found += [(n, getattr(F, n)) for n in sorted(vars(F)) if not n.startswith("_") and n.islower()]
    return [(n, f) for n, f in found if callable(f) and n not in have and not isinstance(f, type)]


def outcome(function: Any, args: Any) -> Any:
    torch.manual_seed(1)
    try:
        return function(*args)
    except Exception as error:
        return error


def _survey(group: Any) -> tuple[int, list[str]]:
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    view, said, count = Counting(group), [], 0
    torch.manual_seed(0)
    inputs = [torch.randn(5, 4), torch.randint(0, 4, (5, 4)), torch.randn(5, 3, 4, 4)]
    for name, function in unknown():
        for x in inputs:
            for args in ARGUMENTS:
                others = {"y": x * 2, "i": torch.tensor([1, 0])}
                filled = [others.get(a, a) if isinstance(a, str) else a for a in args]
                one, rows = x.clone(), by_rows(x, view.even_sizes(5))
                want, got = outcome(function, (one, *filled)), outcome(function, (rows, *filled))
                if isinstance(want, Exception) or isinstance(got, Exception):
                    found = (
                        None
                        if type(want) is type(got)
                        else f"{got!r:.100} instead of {want!r:.100}"
                    )
                elif _opaque(want):
                    found = None
                else:
                    found = difference((want, one), (got, rows))
                    count += 1
                if found:
                    said.append(f"{name}{args} of {tuple(x.shape)} {x.dtype}: {found}")
    return count, said


def _opaque(value: Any) -> bool:
    """Convert values without equality: generators, iterators, arrays of other libraries."""
    return not isinstance(
        value, (Tensor, tuple, list, bool, int, float, complex, str, torch.dtype, type(None))
    )


def test_functions_without_an_opinfo_are_equal_on_rows():
    (count, said), *others = run_ranks(_survey, 2, timeout=240)
    print(f"\n{len(unknown())} functions without an OpInfo, {count} calls compared", end="")
    lines = said + [line for _, rank in others for line in rank]
    assert not lines, "\n".join(dict.fromkeys(lines))
