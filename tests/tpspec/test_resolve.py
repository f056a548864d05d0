"""Matching a checkpoint with a spec, both ways, and the Layout that comes of it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tpspec.checkpoint import StoredTensor
from tpspec.errors import TpspecError
from tpspec.language import registry
from tpspec.planning.weights import inventory
from tpspec.resolution import Resolution
from tpspec.resolve import choose_spec, resolve
from tpspec.sites import implied_sites, predicted

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 48,
    "vocab_size": 10,
    "tie_word_embeddings": False,
}


def llama_shapes(config: dict[str, Any] = LLAMA) -> dict[str, tuple[int, ...]]:
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        shapes |= {
            f"{block}.self_attn.q_proj.weight": (q, hidden),
            f"{block}.self_attn.k_proj.weight": (kv, hidden),
            f"{block}.self_attn.v_proj.weight": (kv, hidden),
            f"{block}.self_attn.o_proj.weight": (hidden, q),
            f"{block}.mlp.gate_proj.weight": (ffn, hidden),
            f"{block}.mlp.up_proj.weight": (ffn, hidden),
            f"{block}.mlp.down_proj.weight": (hidden, ffn),
            f"{block}.input_layernorm.weight": (hidden,),
            f"{block}.post_attention_layernorm.weight": (hidden,),
        }
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def stored(shapes: dict[str, tuple[int, ...]], dtype: str = "BF16") -> dict[str, StoredTensor]:
    return {
        name: StoredTensor(name, dtype, shape, "model.safetensors", 0, 0) for name, shape in shapes.items()
    }


def of_llama(shapes: dict[str, tuple[int, ...]] | None = None, **changes: Any) -> Resolution:
    config = LLAMA | changes
    return resolve(choose_spec(config), config, stored(llama_shapes() if shapes is None else shapes))


def problems(resolution: Resolution) -> list[str]:
    return [str(finding) for finding in resolution.findings]


def test_a_checkpoint_that_fits_has_no_findings() -> None:
    resolution = of_llama()
    assert problems(resolution) == []
    assert resolution.valid_tp == (1, 2, 4, 8)
    assert resolution.layout(4).tensors.keys() == llama_shapes().keys()


def test_llama_3_70b_at_16_gives_rank_9_the_rows_of_head_4() -> None:
    config = LLAMA | {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 28672,
        "vocab_size": 128256,
    }
    layout = resolve(choose_spec(config), config, stored(llama_shapes(config))).layout(16)
    block = "model.layers.79.self_attn"
    assert list(layout.tensors[f"{block}.q_proj.weight"].cut.shares[9] or ()) == [(9 * 512, 512)]
    assert list(layout.tensors[f"{block}.k_proj.weight"].cut.shares[9] or ()) == [(512, 128)]
    assert list(layout.tensors[f"{block}.v_proj.weight"].cut.shares[9] or ()) == [(512, 128)]
    assert layout.tensors[f"{block}.o_proj.weight"].local_shape(9) == (8192, 512)
    total = sum(
        2 * a * b for a, b in ((s if len(s) == 2 else (s[0], 1)) for s in llama_shapes(config).values())
    )
    assert round(total / 2**30) == 131
    norms, copies = 161 * 8192 * 2 * 15, 80 * 2 * 1024 * 8192 * 2
    assert sum(layout.rank_bytes(rank) for rank in range(16)) == total + norms + copies


def test_all_tensors_that_do_not_belong_are_named_at_once() -> None:
    shapes = llama_shapes() | {"model.layers.0.self_attn.q_norm.weight": (4,), "surprise": (2,)}
    del shapes["model.layers.1.mlp.up_proj.weight"], shapes["model.layers.2.mlp.up_proj.weight"]
    text = "\n".join(problems(of_llama(shapes)))
    assert "model.layers.0.self_attn.q_norm.weight: no rule of specs/llama.yaml names this tensor" in text
    assert "surprise: no rule" in text
    assert "model.layers.1-2.mlp.up_proj: is not in the checkpoint" in text


def test_unknown_tensors_of_all_layers_are_one_finding() -> None:
    """A vision model's tower would fill screens; what stands in some layers alone is named one by one."""
    tower = {f"vision.layers.{i}.{name}_proj.weight": (4, 4) for i in range(24) for name in "kq"}
    strewn = {"extra.0.1": (2,), "extra.1.0": (2,)}
    said = [line for line in problems(of_llama(llama_shapes() | tower | strewn)) if "no rule of" in line]
    assert [line.split(":")[0] for line in said] == [
        "vision.layers.0-23.k_proj.weight",
        "vision.layers.0-23.q_proj.weight",
        "extra.0.1",
        "extra.1.0",
    ]


def test_shapes_are_held_against_the_config_in_both_dimensions() -> None:
    text = "\n".join(problems(of_llama(intermediate_size=64, hidden_size=40)))
    assert "model.layers.0-2.mlp.down_proj.weight: shape [32, 48] has 48 in dimension 1" in text
    assert "makes it 64 (64 × 1 of row ffn)" in text
    assert "model.layers.0-2.self_attn.q_proj.weight: shape [32, 32] has 32 in dimension 1" in text
    assert "makes it 40 (hidden_size)" in text


@pytest.mark.parametrize(
    ("module", "shape", "remedy"),
    [
        ("mlp.up_proj", (96, 32), "2 parts? merged: [ffn, ffn]"),
        ("self_attn.q_proj", (96, 32), "3 parts? qkv-head: [q, q, q]"),
        ("mlp.up_proj", (32, 48), "ffn is in dimension 1: {row: ffn}, or another layout?"),
        ("mlp.down_proj", (48, 32), "ffn is in dimension 0: {column: ffn}, or another layout?"),
        ("mlp.up_proj", (50, 32), "is config.json of this checkpoint?"),
    ],
)
def test_a_shape_that_another_rule_fits_names_that_rule(
    module: str, shape: tuple[int, int], remedy: str
) -> None:
    shapes = {name: shape if f".{module}." in name else stored for name, stored in llama_shapes().items()}
    assert {finding.remedy for finding in of_llama(shapes).findings} == {remedy}


def test_a_layer_beyond_the_config_s_count_says_so() -> None:
    (problem, *rest) = problems(of_llama(num_hidden_layers=2))
    assert not [line for line in rest if "layer 2 is outside" not in line]
    assert "layer 2 is outside config.json's num_hidden_layers = 2 (0-1)" in problem


def test_a_bias_without_its_weight_is_a_finding() -> None:
    shapes = llama_shapes()
    del shapes["model.layers.0.self_attn.q_proj.weight"]
    text = problems(of_llama(shapes | {"model.layers.0.self_attn.q_proj.bias": (32,)}))
    assert (
        text == ["model.layers.0.self_attn.q_proj: has bias but no weight (specs/llama.yaml:21)"]
        or "has bias but no weight" in text[0]
    )


def test_an_untied_head_must_be_there_and_a_tied_one_may_be() -> None:
    shapes = llama_shapes()
    del shapes["lm_head.weight"]
    (problem,) = problems(of_llama(shapes))
    assert (
        "lm_head: is not in the checkpoint, and config.json does not tie it to model.embed_tokens" in problem
    )
    assert problems(of_llama(shapes, tie_word_embeddings=True)) == []
    assert problems(of_llama(tie_word_embeddings=True)) == []


def test_row_biases_are_kept_by_rank_0_and_zeros_elsewhere() -> None:
    shapes = llama_shapes()
    for name, size in {"q_proj": 32, "k_proj": 8, "v_proj": 8, "o_proj": 32}.items():
        shapes |= {f"model.layers.{layer}.self_attn.{name}.bias": (size,) for layer in range(3)}
    cut = of_llama(shapes, attention_bias=True).layout(2).tensors["model.layers.0.self_attn.o_proj.bias"].cut
    assert cut.dim is None
    assert [share and share[0].source for share in cut.shares] == [0, None]


def test_ignored_buffers_are_kept_for_merging() -> None:
    shapes = llama_shapes() | {"model.layers.0.self_attn.rotary_emb.inv_freq": (2,)}
    layout = of_llama(shapes).layout(2)
    assert layout.extras == ("model.layers.0.self_attn.rotary_emb.inv_freq",)
    assert not set(layout.extras) & layout.tensors.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000; a count lies between 1 and"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0; a count lies between 1 and"),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
        ({"num_hidden_layers": "eighty"}, "num_hidden_layers = 'eighty'"),
        ({"num_hidden_layers": None}, "config.json has no num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"hidden_size": None}, "config.json has no hidden_size"),
        ({"hidden_size": "abc"}, "hidden_size"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"hidden_size": float("inf")}, "hidden_size"),
        ({"num_attention_heads": 10**4299, "head_dim": 10**4299}, "is not a positive count"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0]}},
            "= [0, 0] is not a list of two positive counts",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": ["a", 1]}},
            "= ['a', 1] is not a list of two positive counts",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads = 0 is not a positive count"),
        ({"num_attention_heads": "8"}, "num_attention_heads = '8' is not a positive count"),
        ({"intermediate_size": 48.5}, "intermediate_size = 48.5 is not a positive count"),
        ({"intermediate_size": None}, "config.json has no intermediate_size"),
        (
            {"num_attention_heads": 9},
            "num_attention_heads is no multiple of num_key_value_heads: 9 % 2 = 1",
        ),
        ({"vocab_size": [1]}, r"vocab_size = [1] is not a positive count"),
        ({"quantization_config": {"quant_method": "mystery"}}, "quantized by 'mystery'"),
        ({"quantization_config": "yes"}, "quantized by 'yes'"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": "x"}}, "quantization_config"),
    ],
)
@pytest.mark.parametrize("headers", [True, False])
def test_an_absurd_config_is_refused_with_its_value(
    changes: dict[str, Any], message: str, headers: bool
) -> None:
    config = LLAMA | changes
    with pytest.raises(TpspecError) as caught:
        resolve(choose_spec(config), config, stored(llama_shapes()) if headers else None).check(2)
    assert message in str(caught.value)


def test_text_config_is_entered_where_there_is_one() -> None:
    nested = {"model_type": "llama", "text_config": {k: v for k, v in LLAMA.items() if k != "model_type"}}
    assert resolve(choose_spec(nested), nested, stored(llama_shapes())).valid_tp == (1, 2, 4, 8)


def spec_file(folder: Path, modules: str, more: str = "") -> Path:
    path = folder / "mine.yaml"
    head = """\
    spec: 1
    architecture: mine
    ranges: {layer: num_hidden_layers}
    hidden: hidden_size
    axes:
      q: {units: num_attention_heads, width: head_dim}
      kv: {units: num_key_value_heads, width: head_dim, replicate: true, groups: q}
      ffn: {units: intermediate_size}
    """
    path.write_text(
        dedent(head) + more + "modules:\n" + "".join(f"  {line}\n" for line in modules.splitlines())
    )
    return path


def test_rules_of_one_module_are_told_apart_by_their_conditions(tmp_path: Path) -> None:
    path = spec_file(
        tmp_path,
        "h.{layer}.up: [{column: ffn, when: layer < 1}, {replicated: true, when: layer >= 1}]\n"
        "h.{layer}.down: "
        "[{row: ffn, when: layer == 0}, {replicated: true, when: layer == 1}]",
    )
    spec = registry.spec_from_file(path)
    shapes = {
        f"h.{i}.{name}.weight": s for i in range(2) for name, s in (("up", (48, 32)), ("down", (32, 48)))
    }
    resolution = resolve(spec, LLAMA | {"num_hidden_layers": 2}, stored(shapes))
    assert problems(resolution) == []
    layout = resolution.layout(2)
    assert layout.tensors["h.0.up.weight"].local_shape(1) == (24, 32)
    assert layout.tensors["h.1.up.weight"].local_shape(1) == (48, 32)
    outside = resolve(spec, LLAMA, stored(shapes | {"h.2.up.weight": (48, 32), "h.2.down.weight": (32, 48)}))
    assert "`when: layer == 1` does not hold" in problems(outside)[-1] or "does not hold" in " ".join(
        problems(outside)
    )


def test_two_rules_for_one_tensor_are_a_finding(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "a: replicated\na.weight: replicated")
    (problem,) = problems(resolve(registry.spec_from_file(path), LLAMA, stored({"a.weight": (2,)})))
    assert "two rules name this tensor" in problem
    assert "mine.yaml:10" in problem
    assert "mine.yaml:11" in problem


def test_forms_of_one_of_exclude_each_other(tmp_path: Path) -> None:
    more = """\
one_of:
  experts:
    each: {"e.{layer}.up": {column: ffn}}
    stacked: {e.up: {column: ffn, dims: [layer, out, in]}}
"""
    spec = registry.spec_from_file(spec_file(tmp_path, "norm: replicated", more))
    each = {f"e.{i}.up.weight": (48, 32) for i in range(3)}
    norm = {"norm.weight": (32,)}
    assert problems(resolve(spec, LLAMA, stored(each | norm))) == []
    stacked = resolve(spec, LLAMA, stored({"e.up": (3, 48, 32)} | norm))
    assert problems(stacked) == []
    assert stacked.layout(2).tensors["e.up"].local_shape(0) == (3, 24, 32)
    assert "several forms" in problems(resolve(spec, LLAMA, stored(each | {"e.up": (3, 48, 32)} | norm)))[0]
    assert "e." in problems(resolve(spec, LLAMA, stored(norm)))[0]
    (wrong,) = problems(resolve(spec, LLAMA, stored({"e.up": (4, 48, 32)} | norm)))
    assert "has 4 in dimension 0, but config.json makes it 3 (num_hidden_layers)" in wrong


def test_select_gives_a_rank_the_tensors_of_its_heads(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "norms.{head}: {select: q}")
    path.write_text(path.read_text().replace("ranges: {", "ranges: {head: num_attention_heads, "))
    spec = registry.spec_from_file(path)
    layout = resolve(spec, LLAMA, stored({f"norms.{i}.weight": (4,) for i in range(8)})).layout(4)
    held = [[t.name for t in layout.of_rank(rank)] for rank in range(4)]
    assert held[1] == ["norms.2.weight", "norms.3.weight"]
    assert resolve(spec, LLAMA).fits(3) is False


def test_subtrees_are_replicated_or_dropped_whole(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "visual.**: replicated\nmtp.{layer}.**: drop\nvisual.proj: {column: ffn}")
    shapes = {"visual.a.b": (3,), "visual.proj.weight": (48, 32), "mtp.1.x.weight": (2,)}
    layout = resolve(registry.spec_from_file(path), LLAMA, stored(shapes)).layout(2)
    assert layout.tensors["visual.a.b"].local_shape(1) == (3,)
    assert layout.tensors["visual.proj.weight"].local_shape(1) == (24, 32)
    assert layout.extras == ("mtp.1.x.weight",)


def test_a_replicated_norm_over_the_cut_width_is_suspicious(tmp_path: Path) -> None:
    modules = "h.{layer}.q: {qkv-head: q}\nh.{layer}.o: {row: q}\nh.{layer}.q_norm: RULE"
    config = LLAMA | {"num_hidden_layers": 1, "hidden_size": 40}
    shapes = {"h.0.q.weight": (32, 40), "h.0.o.weight": (40, 32), "h.0.q_norm.weight": (32,)}

    def judge(rule: str) -> list[str]:
        path = spec_file(tmp_path, modules.replace("RULE", rule))
        return problems(resolve(registry.spec_from_file(path), config, stored(shapes)))

    (problem,) = judge("replicated")
    assert "h.0.q_norm: replicated, but its 32 elements are the 8 × 4 of axis 'q'" in problem
    assert judge("{column: q, norm: {kind: rms}}") == []
    assert judge("{replicated: 32}") == []
    (size,) = judge("{replicated: head_dim}")
    assert "[32], but the spec says [4] (head_dim)" in size


def test_fp8_scales_follow_their_weight_and_a_split_block_is_named() -> None:
    config = LLAMA | {
        "num_hidden_layers": 1,
        "hidden_size": 256,
        "head_dim": 128,
        "intermediate_size": 384,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    shapes = llama_shapes(config)
    scales = {
        name.replace(".weight", ".weight_scale_inv"): (-(-shape[0] // 128), -(-shape[1] // 128))
        for name, shape in shapes.items()
        if "proj" in name
    }
    resolution = resolve(choose_spec(config), config, stored(shapes | scales))
    assert problems(resolution) == []
    assert resolution.valid_tp == (1,)
    block = "model.layers.0"
    (gate, up, down) = [misfit.finding() for misfit in resolution.misfits(2)]
    assert str(down).startswith(
        f"{block}.mlp.down_proj.weight_scale_inv: row ffn, quantization block = 128: 192 % 128 = 64"
    )
    assert gate.subject == f"{block}.mlp.gate_proj.weight_scale_inv"
    assert up.subject == f"{block}.mlp.up_proj.weight_scale_inv"
    fits = config | {"intermediate_size": 512}
    shapes = llama_shapes(fits)
    scales |= {f"{block}.mlp.{n}_proj.weight_scale_inv": (4, 2) for n in ("gate", "up")}
    scales |= {f"{block}.mlp.down_proj.weight_scale_inv": (2, 4)}
    layout = resolve(choose_spec(fits), fits, stored(shapes | scales)).layout(2)
    assert layout.tensors[f"{block}.mlp.down_proj.weight_scale_inv"].local_shape(1) == (2, 2)
    assert layout.tensors[f"{block}.mlp.up_proj.weight_scale_inv"].local_shape(1) == (2, 2)
    assert layout.tensors[f"{block}.self_attn.o_proj.weight_scale_inv"].cut.dim == 1


def test_stacked_experts_follow_one_another_in_a_rank_file(tmp_path: Path) -> None:
    more = (
        'memory:\n  - {stack: "h.{layer}.e.{expert}.{w1,w3}.weight", over: expert, into: "h.{layer}.e.up"}\n'
    )
    path = spec_file(
        tmp_path, "h.{layer}.e.{expert}.{w1,w3}: {column: ffn}\nh.{layer}.scale: replicated", more
    )
    path.write_text(path.read_text().replace("ranges: {", "ranges: {expert: 3, "))
    names = [f"h.{i}.e.{e}.{w}.weight" for w in ("w3", "w1") for e in (2, 0, 1) for i in range(2)]
    shapes = dict.fromkeys(names, (48, 32)) | {f"h.{i}.scale": (1,) for i in range(2)}
    tensors = stored(shapes)
    tensors |= stored({"h.0.scale": (1,)}, "F32")
    layout = resolve(registry.spec_from_file(path), LLAMA | {"num_hidden_layers": 2}, tensors).layout(2)
    order = list(layout.tensors)
    assert order[0] == "h.0.scale"
    assert order[1:7] == [f"h.0.e.{e}.{w}.weight" for e in range(3) for w in ("w1", "w3")]
    assert order[7:13] == [f"h.1.e.{e}.{w}.weight" for e in range(3) for w in ("w1", "w3")]


def test_a_config_alone_gives_the_tensors_that_the_headers_have() -> None:
    alone = resolve(choose_spec(LLAMA), LLAMA)
    assert inventory(alone).kinds == inventory(of_llama()).kinds
    shapes = {item.placed.template: (item.tensor.shape, item.count) for item in alone.shared if item.tensor}
    assert shapes["model.layers.{layer}.self_attn.k_proj"] == ((8, 32), 3)
    tied = resolve(choose_spec(LLAMA), LLAMA | {"tie_word_embeddings": True})
    assert inventory(tied).parameters == inventory(alone).parameters - 10 * 32
    biased = resolve(choose_spec(LLAMA), LLAMA | {"attention_bias": True})
    assert inventory(biased).parameters == inventory(alone).parameters + 3 * (32 + 8 + 8 + 32)


def test_a_size_among_the_dimensions_is_held_against_the_config() -> None:
    spec = registry.spec_named("mamba2")
    config = spec.tiny | {"model_type": "mamba2", "conv_kernel": 4}
    alone = resolve(spec, config)
    wrong = {
        name: (*shape[:2], 5) if name.endswith("conv1d") else shape
        for item in alone.shared
        if item.tensor
        for layer in range(2)
        for name, shape in [(item.tensor.name.replace("{layer}", str(layer)), item.tensor.shape)]
    }
    text = "\n".join(problems(resolve(spec, config, stored(wrong))))
    assert "has 5 in dimension 2, but config.json makes it 4 (conv_kernel)" in text


def test_a_config_and_the_headers_imply_the_same_collectives() -> None:
    alone, headers = resolve(choose_spec(LLAMA), LLAMA), of_llama()
    sites = implied_sites(alone, 4)
    assert sites == implied_sites(headers, 4)
    assert [(site.kind, site.module, site.elements) for site in sites if site.kind != "reduce"] == [
        ("embedding", "model.embed_tokens", 32),
        ("logits", "lm_head", 3),
    ]
    assert predicted(sites) == {"all_reduce": 7, "all_gather": 1}
    assert implied_sites(alone, 1) == []
