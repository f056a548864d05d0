"""A model's config.json, as it stands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tpspec import json_strict
from tpspec.errors import Finding, TpspecError
from tpspec.regular_file import read_regular

CONFIG = "config.json"
QUANTIZATION = "hf_quant_config.json"
"""Where older checkpoints of NVIDIA's Model Optimizer say how they are quantized."""
MAX_BYTES = 16 << 20
NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
"""Where multimodal configs keep the language model's own config."""


def read_config(path: Path) -> dict[str, Any]:
    """Reads a config.json. Raises TpspecError where it is absent, too large or not a JSON object."""
    return parse_config(read_regular(path, MAX_BYTES, path.name), path.name)


def parse_config(text: bytes, where: str) -> dict[str, Any]:
    """Parses a config's text. Published ones hold Infinity (Mamba's `time_step_limit`)."""
    return json_strict.loads(text, where, constants=True)


def with_quantization(
    config: dict[str, Any], names: Collection[str], read: Callable[[str], bytes]
) -> dict[str, Any]:
    """The config, with what ModelOpt says in a file of its own, where the config itself says nothing.

    Raises TpspecError where that file is no JSON object.
    """
    if config.get("quantization_config") or QUANTIZATION not in names:
        return config
    said = json_strict.loads(read(QUANTIZATION), QUANTIZATION).get("quantization")
    if not isinstance(said, dict):
        raise TpspecError(f"{QUANTIZATION} has no object called quantization")
    return {**config, "quantization_config": {"quant_method": "modelopt", **said}}


def model_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the config calls its model: its own `model_type`, then those of the text model inside.

    Raises TpspecError where there is none.
    """
    found: dict[str, None] = {}
    for part in (config, *(config.get(key) for key in NESTED)):
        if isinstance(part, Mapping) and isinstance(kind := part.get("model_type"), str) and kind:
            found[kind] = None
    if not found:
        raise TpspecError(
            "the config does not say which model it is",
            [Finding(CONFIG, 'has no "model_type"')],
            remedy='add "model_type", or name the spec with --spec',
        )
    return tuple(found)
