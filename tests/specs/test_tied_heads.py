"""A tied head may have a bias of its own (CTRL, GPT-J)."""

from __future__ import annotations

from tiny_checkpoints import Tiny, checkpoint, linear, norm, repeated


def gptj(folder, *, tied, bias=True) -> Tiny:
    layer = {
        **{f"attn.{name}_proj.weight": (8, 8) for name in ("q", "k", "v", "out")},
        **linear("mlp.fc_in", 16, 8),
        **linear("mlp.fc_out", 8, 16),
        **norm("ln_1", 8),
    }
    ends = {"transformer.wte.weight": (10, 8), **norm("transformer.ln_f", 8)}
    if bias:
        ends["lm_head.bias"] = (10,)
    sizes = {"n_embd": 8, "n_head": 4, "n_layer": 2, "n_inner": 16, "vocab_size": 10}
    config = {**sizes, "model_type": "gptj", "tie_word_embeddings": tied}
    return checkpoint(folder, config, {**ends, **repeated("transformer.h", 2, layer)})


def test_a_tied_head_s_bias_is_cut_like_the_embedding(tmp_path):
    tiny = gptj(tmp_path / "model", tied=True)
    assert tiny.held(tiny.cut(2), "lm_head.bias", "t0 t1", 5) == ["t0", "t1"]


def test_a_tied_head_s_bias_is_missed(tmp_path):
    refusal = gptj(tmp_path / "model", tied=True, bias=False).refusal(2)
    assert "lm_head.bias: is not in the checkpoint" in refusal


def test_a_head_that_is_not_tied_needs_its_weight(tmp_path):
    assert "has bias but no weight" in gptj(tmp_path / "model", tied=False).refusal(2)
