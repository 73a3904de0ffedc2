"""The tolerance for two forwards of the same rows that differ by rounding alone."""

from __future__ import annotations

from typing import Any

import torch

LOW = 5e-2  # halves, times what a sum of many terms makes of it
TF32 = 1e-2
SINGLE = 1e-3
DOUBLE = 1e-7
OFF = {"none", "ieee"}


def tolerance(dtypes: set[torch.dtype], device: str) -> float:
    """Return the tolerance of the coarsest dtype that was computed in, on this type of device."""
    coarsest = max(torch.finfo(dtype).eps for dtype in dtypes)
    if coarsest > torch.finfo(torch.float32).eps:
        return LOW
    return DOUBLE if coarsest <= torch.finfo(torch.float64).eps else single(device)


def single(device: str) -> float:
    """Return the tolerance of float32.

    Kernels may compute float32 in less: those for some rows, and not those for others.
    """
    try:
        kinds = precisions(device)
    except Exception:  # each version of torch has its own names for them, and refuses to mix them
        kinds = {"unknown"}
    if "bf16" in kinds:
        return LOW
    return SINGLE if kinds <= OFF else TF32


def precisions(device: str) -> set[str]:
    """Return torch's words for what float32 may be computed in on this type of device.

    Torch up to 2.8 has one setting of products for CPUs and CUDA, and another of cuDNN.
    """
    known: Any = torch.backends
    later = hasattr(known.mkldnn, "matmul")
    if device == "cpu":
        if later:
            return {known.mkldnn.matmul.fp32_precision, known.mkldnn.conv.fp32_precision}
        words = {"highest": "ieee", "high": "tf32", "medium": "bf16"}
        return {words[torch.get_float32_matmul_precision()]}
    if device != "cuda":
        return {"unknown"}
    if later:
        cudnn = {known.cudnn.conv.fp32_precision, known.cudnn.rnn.fp32_precision}
        return cudnn | {known.cuda.matmul.fp32_precision}
    return {"tf32" if known.cudnn.allow_tf32 or known.cuda.matmul.allow_tf32 else "ieee"}
