"""Exports: what engines made of small models is what we write; and everything that convert can take."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_checkpoints import RECORDS, digests, write

from benchmarks.convert import CONFIG, write_model
from tpspec.converters.convert import convert
from tpspec.converters.engines.export import export
from tpspec.converters.engines.plan import Export
from tpspec.converters.engines.verify import verify_export
from tpspec.converters.sources import open_source
from tpspec.engines.engine import read_engine
from tpspec.engines.layout import EngineLayout
from tpspec.engines.resolve import engine_layout
from tpspec.errors import TpspecError
from tpspec.file_names import EXPORT
from tpspec.resolve import choose_spec, resolve, resolve_layout
from tpspec.safetensors_header import read_header

RECORD: dict[str, Any] = json.loads(RECORDS.read_text())
ROOT = Path(__file__).parents[2]
TPSPEC = [sys.executable, "-m", "tpspec"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
CASES = [
    (engine, name, int(tp))
    for engine, of_engine in RECORD["engines"].items()
    for name, sizes in of_engine["ranks"].items()
    for tp in sizes
    if (engine, tp) in {("vllm", "8"), ("sglang", "2")}
]
"""Every model once for each engine: KV heads are copied in one, cut in the other."""


EARLIER = {
    (name, tuple(of_model["2"])): (*release.split(), name)
    for release, noted in RECORD["earlier"].items()
    for name, of_model in noted["ranks"].items()
}.values()
"""All that earlier releases made other things of, with the last release that made that."""


def layout_of(source: Path, tp: int, engine: str = "vllm", release: str | None = None) -> EngineLayout:
    checkpoint = open_source(str(source)).checkpoint
    spec = choose_spec(checkpoint.config)
    resolution = resolve(spec, checkpoint.config, checkpoint.tensors)
    return engine_layout(resolution, read_engine(engine), tp, release)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A Llama with biases and copied KV heads."""
    return write(RECORD["models"]["llama biases"], tmp_path / "source")


@pytest.mark.parametrize(("engine", "name", "tp"), CASES)
def test_every_rank_is_what_the_engine_made_of_the_checkpoint(
    tmp_path: Path, engine: str, name: str, tp: int
) -> None:
    source = write(RECORD["models"][name], tmp_path / "source")
    export(open_source(str(source)), tmp_path / "out", layout_of(source, tp, engine))
    assert digests(tmp_path / "out", tp) == RECORD["engines"][engine]["ranks"][name][str(tp)]


@pytest.mark.parametrize(("engine", "release", "name"), EARLIER)
def test_every_rank_is_what_an_earlier_release_made_of_the_checkpoint(
    tmp_path: Path, engine: str, release: str, name: str
) -> None:
    source = write(RECORD["models"][name], tmp_path / "source")
    export(open_source(str(source)), tmp_path / "out", layout_of(source, 2, engine, release))
    assert digests(tmp_path / "out", 2) == RECORD["earlier"][f"{engine} {release}"]["ranks"][name]["2"]


def test_what_is_exported_stands_in_this_order_and_shape(tmp_path: Path, source: Path) -> None:
    export(open_source(str(source)), tmp_path / "out", layout_of(source, 8))
    header = read_header(tmp_path / "out" / "model-rank-1-part-0.safetensors")
    first = {t.name: (t.dtype, t.shape) for t in header.tensors if ".layers.1." not in t.name}
    attention = "model.layers.0.self_attn"
    assert first == {
        f"{attention}.attn._q_scale": ("F32", ()),
        f"{attention}.attn._k_scale": ("F32", ()),
        f"{attention}.attn._v_scale": ("F32", ()),
        f"{attention}.attn._prob_scale": ("F32", ()),
        "model.embed_tokens.weight": ("BF16", (128, 256)),
        "lm_head.weight": ("BF16", (128, 256)),
        f"{attention}.qkv_proj.weight": ("BF16", (96, 256)),
        f"{attention}.qkv_proj.bias": ("BF16", (96,)),
        f"{attention}.o_proj.weight": ("BF16", (256, 32)),
        f"{attention}.o_proj.bias": ("BF16", (256,)),
        "model.layers.0.mlp.gate_up_proj.weight": ("BF16", (112, 256)),
        "model.layers.0.mlp.down_proj.weight": ("BF16", (256, 56)),
        "model.layers.0.input_layernorm.weight": ("BF16", (256,)),
        "model.layers.0.post_attention_layernorm.weight": ("BF16", (256,)),
        "model.norm.weight": ("BF16", (256,)),
    }


def test_query_key_and_value_rows_of_a_rank_follow_one_another(tmp_path: Path, source: Path) -> None:
    export(open_source(str(source)), tmp_path / "out", layout_of(source, 8))
    name = "model.layers.1.self_attn.{}_proj.weight"
    query, key, value = (stored(source, name.format(part)) for part in "qkv")
    joined = np.concatenate([query[5 * 32 : 6 * 32], key[32:64], value[32:64]])
    assert np.array_equal(of_rank(tmp_path / "out", 5, name.format("qkv")), joined)


def test_a_rows_bias_is_whole_on_every_rank_and_the_vocabulary_ends_in_zeros(
    tmp_path: Path, source: Path
) -> None:
    export(open_source(str(source)), tmp_path / "out", layout_of(source, 8))
    bias = stored(source, "model.layers.0.self_attn.o_proj.bias")
    for rank in (0, 7):
        assert np.array_equal(of_rank(tmp_path / "out", rank, "model.layers.0.self_attn.o_proj.bias"), bias)
    head = of_rank(tmp_path / "out", 7, "lm_head.weight")
    assert np.array_equal(head[:104], stored(source, "lm_head.weight")[896:])
    assert not head[104:].any()


@pytest.mark.parametrize("tp", [1, 4, 8])
def test_a_presharded_directory_exports_to_the_same_bytes(tmp_path: Path, source: Path, tp: int) -> None:
    """Row biases, which its other ranks hold as zeros, and copied KV heads come from where they are whole."""
    reader = open_source(str(source))
    convert(reader, tmp_path / "cut", resolve_layout(reader.checkpoint, 8))
    for start, out in ((source, "direct"), (tmp_path / "cut", "again")):
        export(open_source(str(start)), tmp_path / out, layout_of(start, tp))
    assert digests(tmp_path / "direct", tp) == digests(tmp_path / "again", tp)
    assert not verify_export(tmp_path / "again", "vllm", open_source(str(source))).findings


@pytest.mark.parametrize("name", ["llama gptq", "llama awq"])
def test_matrices_side_by_side_are_read_in_strips_of_any_size(tmp_path: Path, name: str) -> None:
    """From the checkpoint and from ranks, of which each has some of the columns."""
    source = write(RECORD["models"][name], tmp_path / "source")
    reader = open_source(str(source))
    convert(reader, tmp_path / "cut", resolve_layout(reader.checkpoint, 4))
    for number, path in enumerate((source, source, tmp_path / "cut")):
        out = tmp_path / f"out{number}"
        export(open_source(str(path)), out, layout_of(path, 8), strip_bytes=(1 << 22, 777, 5000)[number])
        assert digests(out, 8) == RECORD["engines"]["vllm"]["ranks"][name]["8"]


def test_a_damaged_presharded_directory_is_refused(tmp_path: Path, source: Path) -> None:
    reader = open_source(str(source))
    convert(reader, tmp_path / "cut", resolve_layout(reader.checkpoint, 2))
    flip(tmp_path / "cut" / "model-rank-00001-of-00002.safetensors", -1)
    with pytest.raises(TpspecError, match="rank 1 cannot be loaded"):
        export(open_source(str(tmp_path / "cut")), tmp_path / "out", layout_of(tmp_path / "cut", 2))


@pytest.mark.parametrize("name", ["bloom", "gpt_oss", "mixtral"])
def test_parts_together_hold_what_one_file_would(tmp_path: Path, name: str) -> None:
    source = write(RECORD["models"][name], tmp_path / "source")
    layout, limit = layout_of(source, 2), 200_000
    export(open_source(str(source)), tmp_path / "out", layout, max_file_size=limit, strip_bytes=1 << 15)
    files = sorted((tmp_path / "out").glob("model-rank-*-part-*.safetensors"))
    assert len(files) > 4
    for path in files:
        tensors = read_header(path).tensors
        assert len(tensors) == 1 or sum(t.stop - t.start for t in tensors) <= limit
    assert not verify_export(tmp_path / "out", "vllm", open_source(str(source))).findings


def test_config_tokenizer_and_code_go_along(tmp_path: Path, source: Path) -> None:
    for name in ("generation_config.json", "tokenizer.json", "modeling_llama.py"):
        (source / name).write_text("{}")
    done = export(open_source(str(source)), tmp_path / "out", layout_of(source, 2))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *done.written,
        *("config.json", "generation_config.json", "tokenizer.json", "modeling_llama.py"),
        EXPORT,
    }
    assert done.serve == f"vllm serve {tmp_path / 'out'} --load-format sharded_state --tensor-parallel-size 2"


def test_killed_at_any_moment_the_same_command_goes_on(tmp_path: Path) -> None:
    model = write_model(tmp_path / "source", CONFIG | {"num_hidden_layers": 2, "hidden_size": 1024})
    out = tmp_path / "out"
    command = [*TPSPEC, "export", str(model), str(out), "--engine", "vllm", "--tp", "8"]
    for delay in (0.0, 0.1):
        with subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            while process.poll() is None and not list(out.glob("*.partial")):
                time.sleep(0.01)
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == 0 or not (out / EXPORT).exists()
    if not (out / EXPORT).exists():
        subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    assert not verify_export(out, "vllm", open_source(str(model))).findings
    assert not verify_export(out, "vllm").findings


def test_verify_says_what_differs_tensor_by_tensor(tmp_path: Path, source: Path) -> None:
    """As for a directory that an engine saved: no manifest, names in any order, files in any parts."""
    out = tmp_path / "out"
    export(open_source(str(source)), out, layout_of(source, 2), max_file_size=500_000)
    (out / EXPORT).unlink()
    header = read_header(out / "model-rank-1-part-1.safetensors")
    flip(header.path, header.tensors[-1].stop - 1)
    shutil.move(out / "model-rank-0-part-2.safetensors", tmp_path / "aside")
    gone = {tensor.name for tensor in read_header(tmp_path / "aside").tensors}
    found = verify_export(out, "vllm", open_source(str(source))).findings
    assert {f.subject for f in found if f.problem == "is missing" and f.place == "rank 0"} == gone
    (changed,) = [f for f in found if "other values" in f.problem]
    assert changed.subject == header.tensors[-1].name
    assert changed.place == header.name


def test_verify_finds_another_dtype_another_shape_and_what_the_engine_has_not(
    tmp_path: Path, source: Path
) -> None:
    out = tmp_path / "out"
    export(open_source(str(source)), out, layout_of(source, 2))
    (out / EXPORT).unlink()
    found = verify_export(out, "sglang", open_source(str(source))).findings
    assert {f.problem for f in found} == {"is nothing that SGLang makes of the source"}
    assert {f.subject.rpartition(".")[2] for f in found} == {
        "_q_scale",
        "_k_scale",
        "_v_scale",
        "_prob_scale",
    }
    other = write(RECORD["models"]["qwen3"], tmp_path / "other")
    problems = [f.problem for f in verify_export(out, "vllm", open_source(str(other))).findings]
    assert "is missing" in problems


def test_a_directory_without_a_manifest_asks_for_its_source(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    export(open_source(str(source)), out, layout_of(source, 2))
    assert not verify_export(out, "vllm").findings
    flip(out / "model-rank-0-part-0.safetensors", -1)
    (finding,) = verify_export(out, "vllm").findings
    assert finding.subject == "model-rank-0-part-0.safetensors"
    (out / EXPORT).unlink()
    with pytest.raises(TpspecError, match="nothing says what it should hold"):
        verify_export(out, "vllm")
    (out / "model-rank-0-part-0.safetensors").unlink()
    with pytest.raises(TpspecError, match="holds a file of rank 1, but none of rank 0"):
        verify_export(out, "vllm")


@pytest.fixture
def exported(tmp_path: Path, source: Path) -> Path:
    """For vLLM at tp 2."""
    export(open_source(str(source)), tmp_path / "out", layout_of(source, 2))
    return tmp_path / "out"


def edit(out: Path, **changes: object) -> None:
    """Changes what an export's manifest says."""
    says = json.loads((out / EXPORT).read_text())
    (out / EXPORT).write_text(json.dumps(says | changes))


@pytest.mark.parametrize("extra", ["model-rank-0-part-7.safetensors", "model-rank-2-part-0.safetensors"])
def test_a_file_more_than_an_export_lists_is_found_for_engines_load_it(
    exported: Path, source: Path, extra: str
) -> None:
    shutil.copy(exported / "model-rank-0-part-0.safetensors", exported / extra)
    for against in (None, open_source(str(source))):
        (finding,) = verify_export(exported, "vllm", against).findings
        assert str(finding) == f"{extra}: is not among the files that {EXPORT} lists for tp 2"


def test_a_rank_that_is_gone_is_one_finding(exported: Path, source: Path) -> None:
    (exported / "model-rank-1-part-0.safetensors").unlink()
    for against in (None, open_source(str(source))):
        assert [str(f) for f in verify_export(exported, "vllm", against).findings] == ["rank 1: is missing"]


def test_config_json_must_be_what_was_copied(exported: Path, source: Path) -> None:
    (exported / "config.json").write_text("{}")
    found = [*verify_export(exported, "vllm").findings]
    found += verify_export(exported, "vllm", open_source(str(source))).findings
    (exported / "config.json").unlink()
    found += verify_export(exported, "vllm").findings
    found += verify_export(exported, "vllm", open_source(str(source))).findings
    (exported / EXPORT).unlink()
    found += verify_export(exported, "vllm", open_source(str(source))).findings
    assert [finding.subject for finding in found] == 5 * ["config.json"]


def test_an_export_for_another_engine_is_refused(exported: Path) -> None:
    with pytest.raises(TpspecError, match="was exported for vllm, not for sglang") as refused:
        verify_export(exported, "sglang")
    assert refused.value.remedy == "give --engine vllm"


@pytest.mark.parametrize(
    "changes",
    [
        {"tp": "two"},
        {"tp": 3},
        {"tp": 1},
        {"tp": 10**9},
        {"engine": "mine"},
        {"files": []},
        {"files": [{"name": "../model-rank-0-part-0.safetensors", "size": 1, "xxh3_128": "0" * 32}]},
        {"copied": [{"name": "../config.json", "size": 1, "xxh3_128": "0" * 32}]},
        {"copied": 2 * [{"name": "config.json", "size": 1, "xxh3_128": "0" * 32}]},
    ],
)
def test_a_manifest_that_was_edited_is_refused(exported: Path, changes: dict[str, object]) -> None:
    edit(exported, **changes)
    with pytest.raises(TpspecError, match=f"{EXPORT} is damaged or was edited"):
        verify_export(exported, "vllm")


def test_tensors_are_counted_with_and_without_a_source(exported: Path, source: Path) -> None:
    alone, beside = verify_export(exported, "vllm"), verify_export(exported, "vllm", open_source(str(source)))
    assert alone == beside
    assert (alone.files, alone.tensors > 0, alone.bytes > 0) == (2, True, True)


def test_verify_takes_the_release_from_the_export(tmp_path: Path) -> None:
    source = write(RECORD["models"]["qwen3_moe"], tmp_path / "source")
    reader, out = open_source(str(source)), tmp_path / "out"
    export(reader, out, layout_of(source, 2, release="0.23.0"))
    assert json.loads((out / EXPORT).read_text())["names_of"] == "0.23.0"
    assert not verify_export(out, "vllm", reader).findings
    assert verify_export(out, "vllm", reader, release="0.32.0").findings
    assert not verify_export(out, "vllm", release="0.23.1").findings
    with pytest.raises(TpspecError, match=r"has the names of vLLM 0\.23\.0, not those of 0\.32\.0"):
        verify_export(out, "vllm", release="0.32.0")


def test_an_export_is_no_checkpoint_and_says_what_it_is(exported: Path) -> None:
    with pytest.raises(TpspecError, match="an engine's ranks") as refused:
        open_source(str(exported))
    assert "tpspec verify DIR --engine ENGINE" in str(refused.value)


def test_a_rank_file_that_ends_early_is_to_be_exported_again(exported: Path, source: Path) -> None:
    os.truncate(exported / "model-rank-1-part-0.safetensors", 1000)
    with pytest.raises(TpspecError) as refused:
        verify_export(exported, "vllm", open_source(str(source)))
    assert str(refused.value).endswith("→ export again, or have the engine save it again")


def test_plain_weights_under_a_config_of_quantized_ones_are_refused(source: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(TpspecError) as refused:
        layout_of(source, 2)
    assert "q_proj.weight: is BF16, and config.json, by which vLLM goes, says that it is quantized" in str(
        refused.value
    )


def test_an_unfinished_export_is_gone_on_with_by_the_options_that_it_was_begun_with(
    tmp_path: Path, source: Path
) -> None:
    reader, layout, out = open_source(str(source)), layout_of(source, 2), tmp_path / "out"

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(reader, out, layout, max_file_size=500_000, progress=stop)
    with pytest.raises(TpspecError) as refused:
        export(reader, out, layout)
    assert f"--max-file-size: was 500000 when {out} was begun, is not given" in str(refused.value)
    assert "tensors:" not in str(refused.value)


def test_a_file_that_cannot_be_copied_is_found_before_a_byte_is_written(tmp_path: Path, source: Path) -> None:
    (source / "tokenizer.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(TpspecError, match="holds files that cannot be copied"):
        export(open_source(str(source)), tmp_path / "out", layout_of(source, 2))
    assert not (tmp_path / "out").exists()


def test_another_size_of_parts_is_named_where_a_run_goes_on(tmp_path: Path, source: Path) -> None:
    reader, layout = open_source(str(source)), layout_of(source, 2)
    sizes = [Export(reader, tmp_path / "out", layout, size).fingerprint() for size in (None, 500_000)]
    assert [key for key in sizes[0] if sizes[0][key] != sizes[1][key]] == ["--max-file-size"]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def stored(folder: Path, name: str) -> np.ndarray:
    """A 16-bit tensor of a checkpoint."""
    return _tensor(folder / "model.safetensors", name)


def of_rank(folder: Path, rank: int, name: str) -> np.ndarray:
    return _tensor(folder / f"model-rank-{rank}-part-0.safetensors", name)


def _tensor(path: Path, name: str) -> np.ndarray:
    (tensor,) = (tensor for tensor in read_header(path).tensors if tensor.name == name)
    data = path.read_bytes()[tensor.start : tensor.stop]
    return np.frombuffer(data, np.uint16).reshape(tensor.shape)
