"""Vocabularies that do not divide, and heads that are tied to the embedding or missing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_checkpoints import accepted, checkpoint, load, names, rank_path
from tiny_decoders import llama, llama_config, llama_shapes

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def embedded(ranks, token):
    """A token's embedding, as the sum of the ranks' masked lookups."""
    rows = ranks[0][EMBED].shape[0]
    return sum(rank[EMBED][token % rows] * (token // rows == i) for i, rank in enumerate(ranks))


def test_the_last_tokens_of_an_uneven_vocabulary_are_kept(tmp_path):
    """(huggingface/text-generation-inference#1463, NVIDIA/TensorRT-LLM#98, NVIDIA-NeMo/Megatron-Bridge#1331)

    10 tokens on 4 ranks: 10 // 4 = 2 rows each lose tokens 8 and 9; padded to 12, each rank has 3.
    """
    model = llama(tmp_path / "model", vocab_size=10)
    ranks = model.cut(4)
    assert [rank[EMBED].shape for rank in ranks] == [(3, 16)] * 4
    assert [rank[HEAD].shape for rank in ranks] == [(3, 16)] * 4
    assert model.held(ranks, EMBED, names("t", 10)) == ["t0 t1 t2", "t3 t4 t5", "t6 t7 t8", "t9 - -"]
    for token in range(10):
        np.testing.assert_array_equal(embedded(ranks, token), model.tensors[EMBED][token])


def test_ranks_without_any_token_hold_padding_of_the_same_shape(tmp_path):
    """(huggingface/text-generation-inference#1463) 10 tokens on 8 ranks: the last three have none."""
    model = llama(tmp_path / "model", vocab_size=10)
    found = model.held(model.cut(8), HEAD, names("t", 10))
    assert found == ["t0 t1", "t2 t3", "t4 t5", "t6 t7", "t8 t9", "- -", "- -", "- -"]


def test_a_padded_head_comes_back_with_its_own_rows(tmp_path):
    """(huggingface/transformers#37051, hpcaitech/ColossalAI#6167) Rows were lost, or padding was saved."""
    model = llama(tmp_path / "model", vocab_size=10)
    logits = np.concatenate([rank[HEAD] @ np.ones(16, np.float32) for rank in model.cut(4)])
    np.testing.assert_array_equal(logits[:10], model.tensors[HEAD] @ np.ones(16, np.float32))
    manifest = json.loads((model.out(4) / "tpspec.json").read_text())
    assert manifest["padding"] == {EMBED: [10, 12], HEAD: [10, 12]}
    merged = load(tmp_path / "model-tp4-merged" / "model.safetensors")
    assert (merged[EMBED].shape, merged[HEAD].shape) == ((10, 16), (10, 16))
    np.testing.assert_array_equal(merged[HEAD], model.tensors[HEAD])


def test_padding_does_not_survive_cutting_again(tmp_path):
    """(hpcaitech/ColossalAI#6167) 12 padded rows on 4 ranks become 10 on 2, not 12."""
    model = llama(tmp_path / "model", vocab_size=10)
    model.cut(4)
    accepted("convert", model.out(4), tmp_path / "again", "--tp", 2)
    ranks = [load(rank_path(tmp_path / "again", rank, 2)) for rank in range(2)]
    assert model.held(ranks, HEAD, names("t", 10)) == [f"{names('t', 5)}", "t5 t6 t7 t8 t9"]
    assert json.loads((tmp_path / "again" / "tpspec.json").read_text())["padding"] == {}


def test_a_tied_head_is_shared_out_as_the_embedding_is(tmp_path):
    """(NVIDIA/TensorRT-LLM#1733) With a cut embedding and no head stored, the head's shard was missing."""
    tied = llama(tmp_path / "tied", tie_word_embeddings=True, vocab_size=10)
    untied = llama(tmp_path / "untied", vocab_size=10)
    assert HEAD not in tied.tensors
    assert tied.layout(4).tensors[EMBED].cut == untied.layout(4).tensors[HEAD].cut
    for rank in tied.cut(4):
        assert rank[EMBED].shape == (3, 16)
        assert HEAD not in rank


def test_a_tied_head_that_is_stored_all_the_same_equals_the_embedding_on_each_rank(tmp_path):
    """(NVIDIA/TensorRT-LLM#1733) Both names in the file: both are cut, and alike."""
    config = llama_config(tie_word_embeddings=True, vocab_size=10)
    embedding = np.arange(160, dtype=np.float32).reshape(10, 16) + 1
    given = {EMBED: embedding, HEAD: embedding.copy()}
    for rank in checkpoint(tmp_path / "model", config, llama_shapes(config), given=given).cut(4):
        np.testing.assert_array_equal(rank[HEAD], rank[EMBED])


@pytest.mark.parametrize("tie", [False, None], ids=["untied", "unsaid"])
def test_a_missing_head_that_is_not_tied_is_an_error(tmp_path, tie):
    """(NVIDIA/TensorRT-LLM#3324, QwenLM/Qwen3-VL-Embedding#89, THUDM/slime#345) Tied without a word."""
    config = llama_config(tie_word_embeddings=tie)
    shapes = llama_shapes(config)
    del shapes[HEAD]
    model = checkpoint(tmp_path / "model", config, shapes)
    problem = "lm_head: is not in the checkpoint, and config.json does not tie it to model.embed_tokens"
    assert problem in model.refusal(2)
    assert model.validate(2).status == 1


def test_a_tied_model_is_saved(tmp_path):
    """(NVIDIA-NeMo/Megatron-Bridge#919) Two names for one storage are refused by safetensors."""
    model = llama(tmp_path / "model", tie_word_embeddings=True)
    (whole,) = model.cut(1)
    np.testing.assert_array_equal(whole[EMBED], model.tensors[EMBED])
    assert set(whole) == set(model.tensors)
