"""Small random checkpoints of the model classes that specs/engines names.

    python tests/engines/random_models.py FOLDER MODEL ...

A process of its own writes them, for vLLM replaces modules of transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tpspec.language.yaml_source import read_document

MODELS = Path(__file__).with_name("tiny_models.yaml")

IN_FLOAT32 = "e_score_correction_bias"
"""What published checkpoints in bf16 hold in float32."""


@cache
def models() -> Mapping[str, Mapping[str, Any]]:
    """Name → `type` and the values of its config."""
    data = read_document(MODELS).data
    return {name: {**data["common"], **values} for name, values in data["models"].items()}


def directory(folder: Path, name: str) -> Path:
    """Where a model lies in the folder that the models were written to."""
    return folder / name.replace(" ", "-")


def write_model(folder: Path, name: str) -> None:
    """Saves a model in bf16."""
    import torch
    from transformers import AutoModelForCausalLM

    from tpspec.runtime.tiny import SEED, randomize, tiny_config

    values = dict(models()[name])
    config = tiny_config(values.pop("type"), {k: value for k, value in values.items() if value is not None})
    for key, value in values.items():
        if value is None:  # a class may not take what its own checkpoints say
            setattr(config, key, None)
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    model.to(torch.bfloat16)
    for key, tensor in model.state_dict(keep_vars=True).items():
        if key.endswith(IN_FLOAT32):
            tensor.data = tensor.data.float()
    model.save_pretrained(directory(folder, name))


if __name__ == "__main__":
    for model in sys.argv[2:]:
        write_model(Path(sys.argv[1]), model)
