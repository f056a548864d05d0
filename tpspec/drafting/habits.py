"""What modules are usually called: where shapes leave a choice, the name decides, and the draft says so."""

from __future__ import annotations

import re

ROW = re.compile(r"(?:o|out|down|wo|w2|fc2|dense|dense_4h_to_h|c_proj|proj|output)(?:_proj|_dense)?\Z")
COLUMN = re.compile(
    r"(?:[qkvg]|q|query|key|value|qkv|gate|up|gate_up|in|w1|w3|fc1|c_attn|c_fc|wqkv|wq|wk|wv)(?:_proj)?\Z"
    r"|query_key_value|W_pack|dense_h_to_4h",
    re.IGNORECASE,
)
HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output|head|output_layer|output_projection)\Z")
ATTENTION = re.compile(r"(?:^|[._])(?:self_)?(?:attn|attention|self_attention|mixer)(?:[._]|\Z)")
WHOLE_WIDTH_NORM = re.compile(r"(?:^|\.)[qk]_(?:norm|layernorm)\Z")
HEAD_BY_HEAD = re.compile(r"query_key_value\Z")
"""Fused matrices of this name hold one head after another, each with its query, key and value."""


def cuts(leaf: str) -> str | None:
    """`row` or `column`, as a module of that name usually is; None where the name says nothing."""
    if ROW.match(leaf):
        return "row"
    return "column" if COLUMN.match(leaf) else None
