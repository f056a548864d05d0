"""A small random model of an architecture, made from its config class: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tpspec.errors import TpspecError
from tpspec.language.spec import Spec
from tpspec.runtime.building import text_model_config
from tpspec.runtime.model_faults import UNBUILDABLE

SEED = 20
MIN_STD = 0.2
"""Weights this wide make every matrix matter in the logits, a norm's and a bias's included."""


def tiny_model(spec: Spec, changes: Mapping[str, Any] | None = None) -> PreTrainedModel:
    """The model that a spec's `tiny` values describe, in fp32 with random values everywhere.

    Raises TpspecError where transformers has no such model.
    """
    if not spec.model_types:
        raise TpspecError(f"{spec.where} names no model type, so there is no model to prove it with")
    if not spec.tiny:
        raise TpspecError(
            f"{spec.where} has no `tiny` values, so there is no model to prove it with",
            remedy="where transformers has no code for it, it can be used to cut and merge, and not proved",
        )
    check_known(spec.model_types[0], spec.where)
    try:
        config = tiny_config(spec.model_types[0], {**spec.tiny, **(changes or {})})
        text = text_model_config(config) if spec.model_class == "text" else config
        options = {"attn_implementation": spec.attention} if spec.attention else {}
        torch.manual_seed(SEED)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(text, dtype=torch.float32, **options)
    except UNBUILDABLE as error:
        raise TpspecError(f"{spec.where}: transformers cannot build the `tiny` model: {error}") from None
    randomize(model)
    model.eval()
    return model


def check_known(model_type: str, where: str) -> None:
    """Raises TpspecError where neither transformers nor registered code has a model type."""
    if model_type not in CONFIG_MAPPING:
        message = f"{where}: transformers has no model type '{model_type}'"
        raise TpspecError(message, remedy="does --code FILE register it?")


def tiny_config(model_type: str, values: Mapping[str, Any]) -> PretrainedConfig:
    """A config of a model type; where that wraps a text model, the values are the text model's.

    But for those of other parts (`vision_config`), and whether the head is tied.
    """
    parts = CONFIG_MAPPING[model_type].sub_configs
    if "text_config" in parts and "text_config" not in values:
        whole = {key: value for key, value in values.items() if key in (*parts, "tie_word_embeddings")}
        values = {"text_config": {k: v for k, v in values.items() if k not in parts}, **whole}
    config: PretrainedConfig = AutoConfig.for_model(model_type, **values)
    return config


def randomize(model: nn.Module) -> None:
    """Gives every parameter and stored buffer values that show in the logits when they are misplaced."""
    generator = torch.Generator().manual_seed(SEED)
    stored = set(model.state_dict(keep_vars=True))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in stored and tensor.dtype != torch.bool:
            number = tensor.is_floating_point()
            tensor.data = _random(name, tensor, generator) if number else _other_indices(tensor)


def _random(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    if tensor.dim() < 2 and "bias" not in name:
        return (tensor.detach().float() + 0.3 * noise).to(tensor.dtype)
    fan_in = tensor.shape[-1] if tensor.dim() > 1 else 1
    return (noise * max(MIN_STD, fan_in**-0.5) if tensor.dim() > 1 else 0.3 * noise).to(tensor.dtype)


def _other_indices(tensor: Tensor) -> Tensor:
    """A table of integers that no model makes of itself, within the bounds of the one that it makes."""
    turns = torch.arange(tensor.shape[-1], dtype=tensor.dtype).expand_as(tensor)
    return (tensor - 1).clamp(min=0) if tensor.any() else turns.clone()
