"""A model in the element type that it is served in, where that is not the one that it is stored in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tpspec.dtypes import STORED_AS
from tpspec.errors import TpspecError
from tpspec.safetensors_header import StoredTensor
from tpspec.scope import flatten


def served_config(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The config with another element type. Raises TpspecError where the weights are quantized."""
    flat = flatten(config)
    if flat.get("quantization_config"):
        raise TpspecError(
            f"the weights are quantized: they are not cast to {dtype}",
            remedy="leave out --dtype; --kv-dtype is the cache's",
        )
    return {**flat, "dtype": dtype, "torch_dtype": dtype}


def served_tensors(tensors: Mapping[str, StoredTensor], dtype: str) -> dict[str, StoredTensor]:
    """The tensors of numbers in that element type, the others as they are."""
    return {
        name: replace(tensor, dtype=STORED_AS[dtype]) if tensor.dtype in STORED_AS.values() else tensor
        for name, tensor in tensors.items()
    }
