"""Building a transformers model whose parameters have no memory yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from tpspec.config import CONFIG, model_types, read_config
from tpspec.errors import TpspecError
from tpspec.quantization import KEYS
from tpspec.runtime.model_faults import config_at_fault

_BUILDING = threading.Lock()
"""Building swaps a method of nn.Module, which all threads share."""


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Parameters that modules register become meta tensors; buffers, which no file may carry, stay real."""
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            kept = param.__dict__
            param = nn.Parameter(param.detach().to("meta"), requires_grad=False)
            param.__dict__.update(kept)
        register(self, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def build_model(config: PretrainedConfig, *, attention: str | None = None) -> PreTrainedModel:
    """The causal LM of a config: parameters on meta in their full shapes, buffers computed.

    The config is the whole model's; narrowing comes after, since half of the families derive
    head_dim or rotary buffers from head counts.
    """
    options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    with _BUILDING, no_init_weights(), parameters_on_meta(), torch.no_grad():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **options)
    model.eval()
    return model


def read_model_config(directory: str, *, text_only: bool) -> PretrainedConfig:
    """The config of a directory as transformers has it; the text model's where `text_only`.

    Raises TpspecError where transformers has no code for the model, or refuses the config.
    """
    kind = model_types(read_config(Path(directory) / CONFIG))[0]
    if kind not in CONFIG_MAPPING:
        raise TpspecError(
            f"transformers has no code for '{kind}' models: tpspec cuts and merges them, and cannot run them",
            remedy="run them in an engine that has the code, or register it with --code FILE",
        )
    with config_at_fault(Path(directory) / CONFIG):
        config: PretrainedConfig = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    for part in (config, config.get_text_config()):
        for key in KEYS:
            part.__dict__.pop(key, None)  # the plain model gets weights that are computed before
    return text_model_config(config) if text_only else config


def text_model_config(config: PretrainedConfig) -> PretrainedConfig:
    """The config from which AutoModelForCausalLM builds the text model alone.

    That is the text part, or the whole where only the whole is known by it (Emu3, Mllama). Whether
    the head is tied is the whole's to say.
    """
    text: PretrainedConfig = config.get_text_config()
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return config
    if hasattr(config, "tie_word_embeddings"):
        text.tie_word_embeddings = config.tie_word_embeddings
    return text
