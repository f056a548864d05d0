"""Padded models give the unsharded model's numbers, and its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stories import PROMPTS, STORIES, continued

from tpspec.converters.convert import convert
from tpspec.converters.sources import open_source
from tpspec.language.registry import spec_named
from tpspec.padding import Order
from tpspec.resolve import resolve_layout
from tpspec.runtime import load
from tpspec.runtime.prove import checkpoint_subject, prove, tiny_subject

SMOLLM2 = Path(__file__).parents[2] / ".demo" / "SmolLM2"
QWEN = {
    "hidden_size": 112,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 148,
    "num_hidden_layers": 2,
}
"""28 heads on 4 KV heads, as Qwen2.5-7B has them."""

SAMPLE = [
    ("llama", 3, "weights", {}),
    ("olmo2", 3, "weights", {}),
    ("bitnet", 5, "kv", {}),
    ("mamba2", 3, "kv", {"n_groups": 1}),
    ("qwen3_next", 3, "kv", {}),
    ("falcon", 5, "kv", {}),
    ("stablelm", 5, "kv", {}),
    ("bloom", 3, "kv", {}),
    ("gpt_oss", 3, "kv", {}),
    ("deepseek_v4", 3, "kv", {"o_groups": 4}),
    ("minimax_m3_vl_text", 3, "kv", {}),
    ("qwen4_exp_text", 3, "kv", {}),
]
"""What padding has to get right beside plain heads and columns: norms over the sharded width with KV copies
on one rank (olmo2), with gates (mamba2) and with attention's output (bitnet), interleaved groups, lists of
modules, ALiBi, sinks, groups that may not be copied, heads that choose for others, gathered columns.
`make padding-proofs` proves all."""


@pytest.mark.parametrize(("name", "tp", "order", "changes"), SAMPLE, ids=lambda value: str(value or "")[:12])
def test_a_padded_model_is_proved(name: str, tp: int, order: Order, changes: dict[str, Any]) -> None:
    with tiny_subject(spec_named(name), changes=changes, pad=order) as subject:
        proof = prove(subject, tp)
    assert proof.failure == ""
    assert proof.error < 1e-5


def test_28_heads_on_4_kv_heads_run_on_8_ranks() -> None:
    with tiny_subject(spec_named("qwen2"), changes=QWEN, pad="kv") as subject:
        assert not subject.resolution.scope(8).axis("q").misfit(8)
        proof = prove(subject, 8)
        shapes = {
            name.rpartition("self_attn.")[2]: tensor.local_shape(0)
            for name, tensor in subject.resolution.layout(8).tensors.items()
            if "layers.0.self_attn" in name and name.endswith("weight")
        }
    assert proof.failure == ""
    assert proof.error < 1e-5
    assert shapes == {
        "q_proj.weight": (4 * 4, 112),
        "k_proj.weight": (4, 112),
        "v_proj.weight": (4, 112),
        "o_proj.weight": (112, 4 * 4),
    }


@pytest.mark.parametrize("tp", [3, 5, 6, 7, 8])
def test_stories260k_is_proved_and_tells_the_same_stories(tp: int, tmp_path: Path) -> None:
    subject = checkpoint_subject(STORIES, spec_named("llama"), pad="kv")
    proof = prove(subject, tp)
    assert proof.failure == ""
    assert proof.error < 1e-5
    source = open_source(str(STORIES))
    convert(source, tmp_path / "cut", resolve_layout(source.checkpoint, tp, pad="kv"))
    model = load(tmp_path / "cut", threads=True)
    completions = model.generate(PROMPTS, max_new_tokens=16)
    model.close()
    assert [tuple(completion.tokens) for completion in completions] == [
        continued(prompt, 16) for prompt in PROMPTS
    ]


@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="`make demo` downloads SmolLM2")
@pytest.mark.parametrize("tp", [2, 4])
def test_smollm2_with_9_heads_runs_on_2_and_4_ranks(tp: int) -> None:
    proof = prove(checkpoint_subject(SMOLLM2, spec_named("llama"), pad="kv"), tp)
    assert proof.failure == ""
    assert proof.error < 1e-5
