"""What models in bfloat16 keep of a sequence: some states stay in float32, and the specs say which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tpspec.cache import cache_size
from tpspec.language.registry import BUILT_IN, spec_named
from tpspec.runtime.decoding import keeps, kept_after, kept_at_first, tensors_of
from tpspec.runtime.tiny import tiny_model

PROMPT = 9
ELSEWHERE = ("recurrent_gemma", "rwkv")
"""What they keep lies in modules, or is not handed back to a pass that reads all again."""


def recurrent() -> list[str]:
    """Specs that keep something once for a sequence and have a model to look at."""
    specs = [spec_named(path.stem) for path in sorted(BUILT_IN.glob("*.yaml"))]
    of_sequence = [s for s in specs if s.tiny and any(entry.per_sequence is not None for entry in s.cache)]
    return [spec.name for spec in of_sequence if keeps(spec.decode) and spec.name not in ELSEWHERE]


@pytest.mark.parametrize("name", recurrent())
def test_a_model_in_bfloat16_keeps_the_bytes_that_its_spec_says(name: str, tmp_path: Path) -> None:
    spec = spec_named(name)
    whole = tiny_model(spec)
    whole.save_pretrained(tmp_path)
    model = type(whole).from_pretrained(tmp_path, dtype=torch.bfloat16)
    config: dict[str, Any] = model.config.get_text_config().to_dict()
    handed = kept_at_first(model, spec.decode)
    with torch.no_grad():
        output = model(input_ids=torch.arange(3, 3 + PROMPT)[None], use_cache=True, **handed)
    kept = cache_size(spec, config, 1).in_bytes(2)
    windowed = sum(min(PROMPT, window - 1) * each for window, each in kept.windows.items())
    held = sum(tensor.nbytes for tensor in tensors_of(kept_after(output, spec.decode, handed)))
    assert held == kept.per_sequence + PROMPT * kept.per_token + windowed
