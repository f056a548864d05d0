"""What small models of an architecture show: sizes that move with the config, and how modules are called."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tpspec.checkpoint import open_checkpoint
from tpspec.drafting.evidence import Evidence, Observation, template_of
from tpspec.drafting.roles import probes, roles_of, small_values
from tpspec.errors import TpspecError
from tpspec.runtime.building import build_model
from tpspec.runtime.call_order import reads_its_block_s_input
from tpspec.runtime.model_faults import UNBUILDABLE
from tpspec.runtime.stored_names import memory_entries
from tpspec.runtime.tiny import SEED, randomize, tiny_config

MAX_PARAMETERS = 50_000_000
MIN_WIDTH = 16
WIDTHS = range(136, 4096, 16)


@dataclass(frozen=True)
class Small:
    """A small model, its config's values, and what it saves."""

    model: PreTrainedModel
    observation: Observation
    attributes: Mapping[str, Mapping[str, int]]


def observe(model_type: str, config: Mapping[str, Any] | None = None) -> Evidence:
    """Builds small models of a type that transformers has, or that was registered with it.

    `config` are a checkpoint's own values, which say what is switched on. Raises TpspecError where
    there is no such type, or where a small model cannot be built.
    """
    if model_type not in CONFIG_MAPPING:
        raise TpspecError(
            f"transformers has no model type '{model_type}'",
            remedy="give a checkpoint's directory, and its code with --code FILE",
        )
    defaults = _defaults(model_type)
    values = small_values({**defaults, **_plain(config or {}, defaults)})
    with tempfile.TemporaryDirectory(prefix="tpspec-init-") as scratch:
        first = _built(model_type, values, Path(scratch))
        if isinstance(first, Exception):
            raise TpspecError(f"no small model of '{model_type}' can be built: {first}")
        widths = _unnamed_widths(model_type, first, defaults, values)
        if widths:
            values |= widths
            first = _built(model_type, values, Path(scratch))
            assert not isinstance(first, Exception)
        memory = memory_entries(first.model, Path(scratch))
    probed = {
        key: model
        for key, changed in probes(values, tuple(widths))
        if not isinstance(model := _probe(model_type, changed), Exception)
    }
    sized = [model for key, model in probed.items() if not isinstance(values[key], bool)]
    kinds = {_template(name): type(module).__name__ for name, module in first.model.named_modules()}
    stored = first.observation.shapes
    return Evidence(
        model_type,
        (first.observation, *(model.observation for model in sized)),
        defaults=defaults,
        follows_heads=_follows_heads(model_type, defaults),
        reads={_template(name): reads for name, reads in reads_its_block_s_input(first.model).items()},
        plan=_plan(first.model),
        kinds=kinds,
        attributes=_moving([first, *sized]),
        memory=tuple(memory),
        switches=_switches(first.observation, probed, stored),
        tiny=values,
        widths=tuple(widths),
    )


def _defaults(model_type: str) -> dict[str, Any]:
    config: PretrainedConfig = CONFIG_MAPPING[model_type]().get_text_config()
    return {
        key: value
        for key, value in config.to_dict().items()
        if key not in PretrainedConfig().to_dict() or key == "tie_word_embeddings"
    }


def _plain(config: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key in known}


def _probe(model_type: str, values: Mapping[str, Any]) -> Small | Exception:
    with tempfile.TemporaryDirectory(prefix="tpspec-init-") as scratch:
        return _built(model_type, values, Path(scratch))


def _unnamed_widths(
    model_type: str, first: Small, defaults: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, int]:
    """The width of an MLP under a name of its own: key → a small value, if the model can be built with it.

    It is what moves a matrix out of the residual stream and one back into it.
    """
    widths: dict[str, int] = {}
    shapes, hidden = first.observation.shapes, values.get(roles_of(values).get("hidden", ""))
    for key, default in defaults.items():
        if key in values or type(default) is not int or default < MIN_WIDTH:
            continue
        small = next(size for size in WIDTHS if size != default and size not in widths.values())
        model = _probe(model_type, {**values, **widths, key: small})
        if isinstance(model, Exception):
            continue
        moved = {
            dimension
            for name, shape in model.observation.shapes.items()
            if len(shape) == 2 and len(shapes.get(name, ())) == 2
            for dimension in (0, 1)
            if shape[dimension] * default == shapes[name][dimension] * small
            and shape[1 - dimension] == shapes[name][1 - dimension] == hidden
        }
        if moved == {0, 1}:
            widths[key] = small
    return widths


def _built(model_type: str, values: Mapping[str, Any], folder: Path) -> Small | Exception:
    """The model of these values, saved to a folder; what went wrong, where it cannot be built."""
    try:
        config = tiny_config(model_type, values).get_text_config()
        count = sum(parameter.numel() for parameter in build_model(config).parameters())
        if count > MAX_PARAMETERS:
            return ValueError(f"with all known sizes small it still has {count:,} parameters")
        torch.manual_seed(SEED)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except UNBUILDABLE as error:
        return error
    randomize(model)
    model.eval().save_pretrained(folder)
    tensors = {name: tensor.shape for name, tensor in open_checkpoint(folder).tensors.items()}
    said = {**config.to_dict(), **values}
    return Small(model, Observation(said, tensors), _numbers(model))


def _template(name: str) -> str:
    return template_of(name)[0]


def _numbers(model: nn.Module) -> dict[str, dict[str, int]]:
    """The whole numbers that each block with weights below it carries."""
    found: dict[str, dict[str, int]] = {}
    for name, module in model.named_modules():
        if name and not isinstance(module, (nn.Linear, nn.Embedding)) and any(module.children()):
            numbers = {
                key: value for key, value in vars(module).items() if type(value) is int and key[0] != "_"
            }
            found.setdefault(_template(name), numbers)
    return found


def _moving(models: list[Small]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Of the numbers that blocks carry, those that move with the config."""
    moving: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for block, numbers in models[0].attributes.items():
        for key in numbers:
            values = tuple(model.attributes.get(block, {}).get(key, 0) for model in models)
            if len(set(values)) > 1:
                moving[block][key] = values
    return dict(moving)


def _plan(model: PreTrainedModel) -> dict[str, str]:
    """The tensor parallel plan of transformers, by our templates."""
    plan = getattr(model, "_tp_plan", None) or {}
    names = {name for name, _ in model.named_modules()}
    found = {}
    for name in names:
        pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
        if pattern in plan:
            found[_template(name)] = plan[pattern]
    return found


def _switches(first: Observation, probed: Mapping[str, Small], stored: Mapping[str, Any]) -> dict[str, str]:
    """Bias → the config key that switches it off."""
    return {
        name: key
        for key, model in probed.items()
        if first.config.get(key) is True
        for name in stored
        if name.endswith(".bias") and name not in model.observation.shapes
    }


def _follows_heads(model_type: str, defaults: Mapping[str, Any]) -> frozenset[str]:
    """The keys that come from the number of heads where a config leaves them out."""
    roles = roles_of(defaults)
    try:
        other = CONFIG_MAPPING[model_type](**{roles["heads"]: defaults[roles["heads"]] * 2})
    except UNBUILDABLE:
        return frozenset()
    keys = (roles[role] for role in ("kv", "head_dim") if role in roles)
    return frozenset(key for key in keys if getattr(other, key, None) != defaults[key])
