"""Attention, and functions of layers that are made of others."""

from __future__ import annotations

from typing import Any

from torch.nn import functional as F  # the field's name for it

from autoddp.view.draws import DrawingCall
from autoddp.view.local_call import LocalCall
from autoddp.view.rules.arguments import arguments
from autoddp.view.rules.operands import UNCLEAR, aligned
from autoddp.view.rules.rows import of_rows, replaced
from autoddp.view.sharded_tensor import is_sharded
from autoddp.view.table import computed, rule


@rule("scaled_dot_product_attention")
def attention(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute attention of each row; with dropout the mask is drawn for all rows."""
    given = arguments(func, args, kwargs)
    inputs: dict[str, Any] = {name: given.get(name) for name in ("query", "key", "value")}
    lead = next(filter(is_sharded, inputs.values()), None)
    if lead is None or lead.shard_dim >= lead.dim() - (3 if given["enable_gqa"] else 2):
        return NotImplemented
    mine = {name: of_rows(x, lead) for name, x in inputs.items()}
    mask = given["attn_mask"]
    if mask is not None:
        fits = mask.dim() <= lead.dim()
        dim, sizes = lead.placement
        mine["attn_mask"] = aligned(mask, sizes, dim, lead.dim()) if fits else UNCLEAR
    if any(x is UNCLEAR for x in mine.values()):
        return NotImplemented
    args, kwargs = replaced(given, args, kwargs, mine)
    if given["dropout_p"]:
        return DrawingCall(args, kwargs, lead.placement, drawn=lead.placement)
    return LocalCall(args, kwargs, lead.placement)


@computed("multi_head_attention_forward", "gumbel_softmax")
def made_of_others(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the function's own body: it is made of others, each of which has its rule."""
    asked = ("has_torch_function", "has_torch_function_unary")
    before = [getattr(F, name) for name in asked]
    for name in asked:
        setattr(F, name, lambda given: False)
    try:
        return func(*args, **kwargs)
    finally:
        for name, function in zip(asked, before, strict=True):
            setattr(F, name, function)
