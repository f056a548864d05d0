"""The one order in which ranks' partial results are added, so that every rank has the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

HALF_TYPES = (torch.float16, torch.bfloat16)


def sum_in_rank_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A new tensor: the sum of two or more tensors of one shape and type, rank 0 first.

    Half types are added in fp32 and rounded once.
    """
    first, second, *rest = parts
    if not rest:
        return first + second  # one addition rounds once, whatever the type
    dtype = first.dtype
    total = first + second if dtype not in HALF_TYPES else first.float().add_(second)
    for part in rest:
        total += part
    return total.to(dtype)
