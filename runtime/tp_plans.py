"""transformers' own tensor-parallel plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.utils import logging

from tpspec.errors import TpspecError


def plan_of(model_type: str) -> dict[str, str]:
    """The plan of a model type: its text model's, and the head's. Raises TpspecError where there is none."""
    config = _config_class(model_type)
    text = getattr(config, "sub_configs", {}).get("text_config", config)
    plan = dict(
        getattr(text, "base_model_tp_plan", None) or getattr(config, "base_model_tp_plan", None) or {}
    )
    model = AutoModelForCausalLM._model_mapping.get(config, None)  # noqa: SLF001 - there is no public way
    plan |= getattr(model, "_tp_plan", None) or {}
    if not plan:
        raise TpspecError(f"transformers has no tensor-parallel plan for '{model_type}'")
    return plan


def default_config(model_type: str) -> Mapping[str, Any]:
    """The config of a model type with its class's default values."""
    logging.set_verbosity_error()  # defaults that contradict one another are transformers' to mend
    config: dict[str, Any] = _config_class(model_type)().to_dict()
    return config


def _config_class(model_type: str) -> Any:
    if model_type not in CONFIG_MAPPING:
        raise TpspecError(f"transformers has no model type '{model_type}'")
    return CONFIG_MAPPING[model_type]
