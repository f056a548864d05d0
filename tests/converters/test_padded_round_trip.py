"""Padding in pre-sharded directories: written, verified, cut again, and dropped by merging, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import Tiny, checkpoint, repeated

from tpspec.converters.convert import convert
from tpspec.converters.merge import merge
from tpspec.converters.readers import PreshardedReader
from tpspec.converters.sources import open_source
from tpspec.converters.verify import verify
from tpspec.padding import ORDERS, Order
from tpspec.presharded import Presharded
from tpspec.resolve import resolve_layout

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "head_dim": 2,
    "intermediate_size": 37,
    "vocab_size": 11,
    "tie_word_embeddings": True,
}
BLOCK = {
    "self_attn.q_proj.weight": (56, 16),
    "self_attn.k_proj.weight": (8, 16),
    "self_attn.v_proj.weight": (8, 16),
    "self_attn.o_proj.weight": (16, 56),
    "mlp.gate_proj.weight": (37, 16),
    "mlp.up_proj.weight": (37, 16),
    "mlp.down_proj.weight": (16, 37),
    "input_layernorm.weight": (16,),
    "post_attention_layernorm.weight": (16,),
}


@pytest.fixture
def llama(tmp_path: Path) -> Tiny:
    shapes = {"model.embed_tokens.weight": (11, 16), "model.norm.weight": (16,)}
    return checkpoint(tmp_path / "llama", CONFIG, shapes | repeated("model.layers", 2, BLOCK))


def cut(source: Path, out: Path, tp: int, order: Order, strip_bytes: int = 4 << 20) -> Path:
    reader = open_source(str(source))
    convert(reader, out, resolve_layout(reader.checkpoint, tp, pad=order), strip_bytes=strip_bytes)
    return out


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tp", [3, 6, 8, 13])
def test_padding_is_written_verified_and_dropped(llama: Tiny, tmp_path: Path, tp: int, order: Order) -> None:
    """Strips of 48 bytes go through the middle of a row, so that heads held twice are read in turns."""
    strip_bytes = 48
    out = cut(llama.folder, tmp_path / "out", tp, order, strip_bytes)
    manifest = json.loads((out / "tpspec.json").read_text())
    assert manifest["pad"] == order
    assert not verify(out, strip_bytes=strip_bytes).findings
    assert not verify(out, open_source(str(llama.folder)), strip_bytes=strip_bytes).findings
    merge(PreshardedReader(Presharded.open(out)), tmp_path / "merged", strip_bytes=strip_bytes)
    again = cut(out, tmp_path / "again", 7, "kv")
    merge(PreshardedReader(Presharded.open(again)), tmp_path / "merged-again")
    for path in llama.folder.iterdir():
        assert (tmp_path / "merged" / path.name).read_bytes() == path.read_bytes()
        assert (tmp_path / "merged-again" / path.name).read_bytes() == path.read_bytes()


def test_a_rank_holds_its_heads_and_zeros_where_there_are_none(llama: Tiny, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    out = cut(llama.folder, tmp_path / "out", 8, "kv")
    name = "model.layers.1.self_attn."
    rank = load_file(out / "model-rank-00001-of-00008.safetensors")
    queries, keys = llama.tensors[f"{name}q_proj.weight"], llama.tensors[f"{name}k_proj.weight"]
    np.testing.assert_array_equal(
        rank[f"{name}q_proj.weight"][:6], queries[8:14]
    )  # heads 4, 5, 6 of KV head 0
    assert not rank[f"{name}q_proj.weight"][6:].any()
    np.testing.assert_array_equal(rank[f"{name}k_proj.weight"], keys[:2])  # its second copy
    columns = llama.tensors[f"{name}o_proj.weight"]
    np.testing.assert_array_equal(rank[f"{name}o_proj.weight"][:, :6], columns[:, 8:14])
    assert not rank[f"{name}o_proj.weight"][:, 6:].any()
