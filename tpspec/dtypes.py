"""Element types of safetensors files and their sizes.

Source: the safetensors format's dtype table (`F4` and the 6-bit floats are packed, so sizes are
in bits).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}

STORED_AS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""What safetensors calls the element types that config.json names."""


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a packed tensor. Raises ValueError where packed elements do not fill whole bytes."""
    size, rest = divmod(BITS[dtype] * prod(shape), 8)
    if rest:
        raise ValueError(f"{dtype} {list(shape)} does not fill whole bytes")
    return size


def across_bytes(dtype: str, shape: Sequence[int], dim: int) -> int | None:
    """The bits of an element where an index of the dimension is no whole number of bytes; else None."""
    bits = BITS.get(dtype, 8)
    return bits if bits * prod(shape[dim + 1 :]) % 8 else None
