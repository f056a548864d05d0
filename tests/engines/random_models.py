"""Small checkpoints of the model classes that specs/engines names, as transformers saves them, described.

    python tests/engines/random_models.py vllm|sglang [MODEL ...]

A process of its own makes them, for vLLM replaces modules of transformers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from engine_checkpoints import describe
from transformers import AutoModelForCausalLM

from tpspec.language.yaml_source import read_document
from tpspec.runtime.tiny import tiny_config

MODELS = Path(__file__).with_name("tiny_models.yaml")

IN_FLOAT32 = "e_score_correction_bias"
"""What published checkpoints in bf16 hold in float32."""


@cache
def models() -> Mapping[str, Mapping[str, Any]]:
    """Name → `type`, `engines` and the values of its config."""
    data = read_document(MODELS).data
    return {name: {**data["common"], **values} for name, values in data["models"].items()}


def described(name: str) -> dict[str, Any]:
    """A model's config and tensors, in bf16."""
    values = dict(models()[name])
    values.pop("engines", None)
    config = tiny_config(values.pop("type"), {k: value for k, value in values.items() if value is not None})
    for key, value in values.items():
        if value is None:  # a class may not take what its own checkpoints say
            setattr(config, key, None)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for key, tensor in model.state_dict(keep_vars=True).items():
        if key.endswith(IN_FLOAT32):
            tensor.data = tensor.data.float()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return describe(Path(folder))


if __name__ == "__main__":
    engine, *names = sys.argv[1:]
    taken = [name for name, values in models().items() if engine in values.get("engines", [engine])]
    print(json.dumps({name: described(name) for name in names or taken}))
