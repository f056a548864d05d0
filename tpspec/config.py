"""A model's config.json, as it stands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tpspec import json_strict
from tpspec.errors import Finding, TpspecError
from tpspec.regular_file import read_regular

CONFIG = "config.json"
BESIDE = {
    "hf_quant_config.json": ("modelopt", "quantization"),
    "quantize_config.json": ("gptq", None),
    "quant_config.json": ("awq", None),
}
"""Where older checkpoints of ModelOpt, AutoGPTQ and AutoAWQ say how they are quantized: format and key."""
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
    """The config, with what a file beside it says of quantization where the config itself says nothing.

    Raises TpspecError where that file is not what its library writes.
    """
    present = [name for name in BESIDE if name in names]
    if config.get("quantization_config") or not present:
        return config
    (name, *_), (method, key) = present, BESIDE[present[0]]
    settings = json_strict.loads(read(name), name)
    said = settings.get(key) if key else settings
    if not isinstance(said, dict):
        raise TpspecError(f"{name} has no object called {key}")
    return {**config, "quantization_config": {"quant_method": method, **said}}


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
