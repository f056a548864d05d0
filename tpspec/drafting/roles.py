"""Which key of a config says what: every family spells its sizes in its own way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KEYS: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "model_dim", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "kv": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_query_groups"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim", "dim_head"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
}
"""Role → how configs spell it, the usual spelling first."""

FFN = re.compile(
    r"intermediate_size|ffn_(?:hidden_)?(?:size|dim)|n_inner|dim_ff|d_ff|ff_dim|inner_(?:size|dim)|mlp_(?:size|dim)"
)
SMALL: Mapping[str, int] = {
    "hidden": 64, "layers": 2, "heads": 8, "kv": 4, "head_dim": 16, "vocab": 102, "experts": 4,
}  # fmt: skip
"""Sizes of the small model that a draft is made from, and that `tiny` gives."""

PROBES: Mapping[str, int] = {"hidden": 96, "heads": 4, "kv": 2, "head_dim": 32, "vocab": 118, "experts": 6}
"""Other sizes, one at a time: what changes with them is what they measure."""

_OTHERS = {
    r".*max_position_embeddings|n_positions|n_ctx|max_sequence_length": 72,
    r"num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|top_k_experts": 2,
    r"sliding_window": 8,
    r"rotary_dim": 4,
    r"(?:pad|bos|eos)_token_id": 0,
}


def roles_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Role → the config's own key, for the roles that it has."""
    found = {role: next((key for key in keys if key in config), None) for role, keys in KEYS.items()}
    return {role: key for role, key in found.items() if key}


def ffn_keys(config: Mapping[str, Any]) -> list[str]:
    """The keys that give the width of an MLP, the plain one first."""
    found = [key for key in config if FFN.search(key) and not isinstance(config[key], (bool, str, dict))]
    return sorted(found, key=lambda key: (key != "intermediate_size", len(key), key))


def small_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values for a small model with as much switched on as the names of the keys tell."""
    values: dict[str, Any] = {key: SMALL[role] for role, key in roles_of(config).items()}
    if "qk_rope_head_dim" in config:  # latent attention: its one head_dim is another thing
        values.pop("head_dim", None)
        values |= {key: SMALL["heads"] for role, key in roles_of(config).items() if role == "kv"}
    for i, key in enumerate(ffn_keys(config)):
        values[key] = (112, 24, 40, 56)[min(i, 3)]
    for key, value in config.items():
        for pattern, small in _OTHERS.items():
            if re.fullmatch(pattern, key) and isinstance(value, int):
                values[key] = small
        if "bias" in key and isinstance(value, bool):
            values[key] = True
    if "tie_word_embeddings" in config:
        values["tie_word_embeddings"] = False
    return values


def probes(values: Mapping[str, Any], widths: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """The small values with one size changed at a time, and the key whose size it is."""
    for role, key in roles_of(values).items():
        if role in PROBES:
            yield key, {**values, key: PROBES[role]}
    for key in (*ffn_keys(values), *widths):
        yield key, {**values, key: values[key] + 32}
    for key, value in values.items():
        if isinstance(value, bool):
            yield key, {**values, key: not value}
