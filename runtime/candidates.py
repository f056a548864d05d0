"""A candidate for the next token: a value and a token id in one 64-bit integer; the largest is the best.

Above are the value's 32 bits, put so that integers compare as the numbers do; below, LAST_ID minus the token
id, so that of equal values the lowest id wins, as it does for argmax. Numbers that are none rank first, so
that they are seen.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

LAST_ID = 2**31 - 1
NOTHING = -0x7F800001 << 32
"""What every token beats: minus infinity, of token LAST_ID."""
BELOW_SIGN = 2**31 - 1


def candidates(values: Tensor, ids: Tensor) -> Tensor:
    """Candidates of float32 values and token ids of one shape, as int64."""
    bits = (torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf) + 0.0).view(
        torch.int32
    )
    return (_in_order(bits).long() << 32) | (LAST_ID - ids)


def values_of(keys: Tensor) -> Tensor:
    """The float32 values of candidates."""
    return _in_order((keys >> 32).int()).view(torch.float32)


def token_ids(keys: Tensor) -> Tensor:
    """The token ids of candidates."""
    return LAST_ID - (keys & LAST_ID)


def best(values: Tensor, ids: Tensor) -> Tensor:
    """The best candidate [b] of values [b, n] of the tokens [n]; NOTHING where there are none."""
    if not ids.numel():
        return ids.new_full((len(values),), NOTHING)
    value, place = values.max(1)  # the first of equals
    return candidates(value, ids[place])


def ranked(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """The `count` best candidates of values [b, n] of the tokens [n], best first, then NOTHING."""
    keys = candidates(values, ids).topk(min(count, ids.numel()), dim=1).values
    return functional.pad(keys, (0, count - keys.shape[1]), value=NOTHING)


def _in_order(bits: Tensor) -> Tensor:
    """From a float32's bits to the integer that orders as it does, and back."""
    return bits ^ (bits >> 31 & BELOW_SIGN)
