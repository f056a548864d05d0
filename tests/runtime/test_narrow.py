"""Computed values that are cut as a module's weight is."""

from __future__ import annotations

import pytest
import torch

from tpspec.language.registry import spec_named
from tpspec.runtime.narrow import taker
from tpspec.scope import ConfigScope

CONFIG = {
    **spec_named("falcon_h1").tiny,
    "num_hidden_layers": 1,
    "mamba_d_state": 16,
}


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_value_like_a_fused_matrix_is_cut_part_by_part(tp: int) -> None:
    spec = spec_named("falcon_h1")
    scope = ConfigScope(spec, CONFIG, tp)
    (cut,) = spec.runtime.buffers.values()
    inner, state, heads = 128, 16, 16
    whole = torch.arange(2 * inner + 2 * state + heads)[None, None]
    z, x, b, c, dt = whole[0, 0].split([inner, inner, state, state, heads])
    for rank in range(tp):
        mine = taker(cut, scope, {"layer": 0}, rank)(whole)[0, 0]
        expected = [part.chunk(tp)[rank] for part in (z, x)] + [b, c, dt.chunk(tp)[rank]]
        assert torch.equal(mine, torch.cat(expected))
