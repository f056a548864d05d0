"""Which matrices of a block read what the block itself was given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tpspec.runtime.comparing import sample_ids


def reads_its_block_s_input(model: PreTrainedModel) -> dict[str, bool]:
    """Module with a weight → whether its input is that of the block around it, for one forward pass.

    Of two matrices as wide as the residual stream on both sides, the column-parallel one reads the
    block's input and the row-parallel one what was made of it.
    """
    seen: dict[str, Tensor] = {}
    handles = [
        module.register_forward_pre_hook(_noting(name, seen), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            model(input_ids=sample_ids(model.config.get_text_config().vocab_size, 1, 4), use_cache=False)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return {}
    finally:
        for handle in handles:
            handle.remove()
    weighted = {name for name, module in model.named_modules() if _has_weight(module)}
    return {
        name: seen[name].data_ptr() == seen[block].data_ptr()
        for name in weighted & seen.keys()
        if (block := name.rpartition(".")[0]) in seen
    }


def _noting(name: str, seen: dict[str, Tensor]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module
        tensor = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        if tensor is not None:
            seen.setdefault(name, tensor)

    return hook


def _has_weight(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() in (1, 2) and not isinstance(module, nn.Embedding)
