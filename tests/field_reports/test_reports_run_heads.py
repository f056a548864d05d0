"""What ranks know of heads, groups and the vocabulary as they run: their own part, of the whole model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FALCON_RW
from tiny_ranks import IDS, seen, tiny
from torch import Tensor, nn

from tpspec.runtime.loading import Loading
from tpspec.runtime.model import load_model
from tpspec.runtime.rank_model import RankModel

ALIBI: dict[str, tuple[str, str, str, str, dict[str, Any]]] = {
    "bloom": ("transformer.h.0.self_attention", "alibi", "n_head", "hidden_size", {}),
    "falcon": ("transformer.h.0.self_attention", "alibi", "num_attention_heads", "hidden_size", FALCON_RW),
    "mpt": ("transformer.blocks.0.attn", "position_bias", "n_heads", "d_model", {}),
}
"""Model → the attention that adds ALiBi, its argument, heads and width in the config, the rest of that."""


def slopes(model: nn.Module, attention: str, argument: str) -> list[float]:
    """What a head adds from one position to the next, for each head of a module of attention."""
    found: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module, args
        found.append(kwargs[argument])

    handle = model.get_submodule(attention).register_forward_pre_hook(before, with_kwargs=True)
    with torch.inference_mode():
        model(input_ids=IDS)
    handle.remove()
    return (found[0][..., -1] - found[0][..., -2]).flatten().tolist()


@pytest.mark.parametrize("name", ALIBI)
def test_a_rank_adds_the_slopes_of_its_own_heads(tmp_path: Path, name: str):
    """(bigscience-workshop/Megatron-DeepSpeed#227, flashinfer-ai/flashinfer#1606) Not those of the first.

    8 heads have 2^-1 … 2^-8; 6 heads, no power of two, 2^-2, -4, -6, -8 and then 2^-1, -3.
    """
    attention, argument, heads, width, config = ALIBI[name]
    for count, expected in ((8, [-5, -6, -7, -8]), (6, [-8, -1, -3])):
        model = tiny(tmp_path / str(count), name, **{**config, heads: count, width: 8 * count})
        found = model.ranks(2, lambda rank: slopes(rank.model, attention, argument))
        assert found[1] == pytest.approx([2.0**e for e in expected], rel=1e-6)
        assert found[0] + found[1] == pytest.approx(slopes(model.model, attention, argument))
        assert model.agrees(2)


def test_query_and_kv_heads_are_both_the_ranks_own(tmp_path: Path):
    """(deepspeedai/DeepSpeed#4016) 8 query heads, 4 KV heads; config.json keeps the totals."""
    model = tiny(tmp_path, "llama")

    def told(rank: RankModel) -> tuple[int, int, int]:
        attention = rank.model.model.layers[1].self_attn
        config = rank.model.config
        return config.num_attention_heads, config.num_key_value_heads, attention.num_key_value_groups

    for tp, expected in ((2, (4, 2, 2)), (4, (2, 1, 2)), (8, (1, 1, 1))):
        assert model.ranks(tp, told) == [expected] * tp
        assert model.agrees(tp)
        kept = json.loads((model.out(tp) / "config.json").read_text())
        assert (kept["num_attention_heads"], kept["num_key_value_heads"]) == (8, 4)


def test_a_group_of_a_gated_norm_keeps_its_size(tmp_path: Path):
    """(state-spaces/mamba#916) A width of 16 in 2 groups: 8 on each of 2 ranks, not half of its own 8."""
    model = tiny(tmp_path, "mamba2", num_heads=4, head_dim=4, hidden_size=8, n_groups=2)
    norm = "backbone.layers.0.mixer.norm"
    assert model.model.get_submodule(norm).group_size == 8

    def sizes(rank: RankModel) -> tuple[int, int]:
        module = rank.model.get_submodule(norm)
        return module.group_size, module.weight.numel()

    assert model.ranks(2, sizes) == [(8, 8)] * 2
    assert model.agrees(2)
    assert model.ranks(4, lambda rank: rank.predicted()["all_reduce"]) == [5] * 4  # a group on two ranks
    assert model.agrees(4)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_norm_over_all_heads_has_the_statistics_of_all(tmp_path: Path, tp: int):
    """(aws-neuron/neuronx-distributed#28) OLMo 2's; at 8 ranks each KV head is on two and counts once."""
    assert tiny(tmp_path, "olmo2").agrees(tp)


def test_the_last_token_of_an_uneven_vocabulary_is_embedded_and_has_its_logit(tmp_path: Path):
    """(huggingface/text-generation-inference#1463, huggingface/transformers#37051) 10 tokens on 4 ranks."""
    model = tiny(tmp_path, "llama", vocab_size=10)
    ids = torch.arange(10)[None]
    whole = model.model.get_input_embeddings().weight
    for _, rows in model.ranks(4, lambda rank: seen(rank.model, "model.embed_tokens", ids)):
        assert torch.equal(rows[0], whole)
    with torch.inference_mode():
        expected = model.model(input_ids=ids).logits
    for logits in model.ranks(4, lambda rank: rank.model(input_ids=ids).logits):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_padding_rows_are_never_generated(tmp_path: Path):
    """(hpcaitech/ColossalAI#6167) 10 tokens, all alike likely, on 4 ranks, which hold 12 rows."""
    model = tiny(
        tmp_path,
        "llama",
        lambda name, tensor: tensor.zero_() if name == "model.norm.weight" else None,
        vocab_size=10,
        bos_token_id=None,
        eos_token_id=None,
    )
    ranks = load_model(Loading(model.out(4)), threads=True)
    drawn = ranks.generate([(1, 9)] * 4, max_new_tokens=30, temperature=1.0)
    assert {token for completion in drawn for token in completion.tokens} == set(range(10))


@pytest.mark.parametrize("name", ["inkling_text", "inkling2_text"])
def test_padding_rows_that_the_config_counts_are_never_generated(tmp_path: Path, name: str):
    """(hpcaitech/ColossalAI#6167) 102 rows for 99 tokens; the last rows give the largest logits."""

    def enlarge(parameter: str, tensor: Tensor) -> None:
        if parameter == "lm_head.weight":
            tensor[99:] = 20 * tensor[:3]

    model = tiny(tmp_path, name, enlarge, eos_token_id=None)
    prompts = [(5, 9, 31), (7, 70, 2)]
    ids = torch.tensor(prompts)
    whole = model.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    for tp in (2, 4):
        ranks = load_model(Loading(model.out(tp)), threads=True)
        drawn = ranks.generate(prompts, max_new_tokens=8)
        assert [list(completion.tokens) for completion in drawn] == whole[:, 3:].tolist()
