"""`tpspec validate` on a checkpoint of DeepSeek-V3's names and shapes: 92,000 tensors in 1000 files.

    python benchmarks/large_checkpoint.py --dir /tmp

The files are sparse: real headers, and 690 GB of data that takes no room on the disk. The config is
DeepSeek-V3's published one, in FP8 with a scale per 128 × 128 block. Reports seconds and the peak of
the process's memory, medians of 5 runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tpspec.dtypes import nbytes
from tpspec.safetensors_header import encode_header

RESULTS = Path(__file__).parent / "results"
RUNS, FILES, TP = 5, 1000, 16
CONFIG = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}

Entry = tuple[str, str, tuple[int, ...]]


def linear(name: str, rows: int, columns: int) -> Iterator[Entry]:
    yield f"{name}.weight", "F8_E4M3", (rows, columns)
    yield f"{name}.weight_scale_inv", "F32", (-(-rows // 128), -(-columns // 128))


def mlp(name: str, width: int) -> Iterator[Entry]:
    yield from linear(f"{name}.gate_proj", width, 7168)
    yield from linear(f"{name}.up_proj", width, 7168)
    yield from linear(f"{name}.down_proj", 7168, width)


def layer(number: int) -> Iterator[Entry]:
    name = f"model.layers.{number}"
    attention = f"{name}.self_attn"
    yield from linear(f"{attention}.q_a_proj", 1536, 7168)
    yield f"{attention}.q_a_layernorm.weight", "BF16", (1536,)
    yield from linear(f"{attention}.q_b_proj", 128 * 192, 1536)
    yield from linear(f"{attention}.kv_a_proj_with_mqa", 576, 7168)
    yield f"{attention}.kv_a_layernorm.weight", "BF16", (512,)
    yield from linear(f"{attention}.kv_b_proj", 128 * 256, 512)
    yield from linear(f"{attention}.o_proj", 7168, 128 * 128)
    yield f"{name}.input_layernorm.weight", "BF16", (7168,)
    yield f"{name}.post_attention_layernorm.weight", "BF16", (7168,)
    if number < 3:
        yield from mlp(f"{name}.mlp", 18432)
        return
    yield f"{name}.mlp.gate.weight", "BF16", (256, 7168)
    yield f"{name}.mlp.gate.e_score_correction_bias", "F32", (256,)
    yield from mlp(f"{name}.mlp.shared_experts", 2048)
    for expert in range(256):
        yield from mlp(f"{name}.mlp.experts.{expert}", 2048)


def tensors() -> Iterator[Entry]:
    yield "model.embed_tokens.weight", "BF16", (129280, 7168)
    for number in range(62):  # the last is the multi-token prediction layer
        yield from layer(number)
    yield "model.layers.61.embed_tokens.weight", "BF16", (129280, 7168)
    yield "model.layers.61.enorm.weight", "BF16", (7168,)
    yield "model.layers.61.hnorm.weight", "BF16", (7168,)
    yield "model.layers.61.eh_proj.weight", "BF16", (7168, 14336)
    yield "model.layers.61.shared_head.norm.weight", "BF16", (7168,)
    yield "model.layers.61.shared_head.head.weight", "BF16", (129280, 7168)
    yield "model.norm.weight", "BF16", (7168,)
    yield "lm_head.weight", "BF16", (129280, 7168)


def write_checkpoint(folder: Path) -> int:
    """Writes the sparse files and the index; returns the number of tensors."""
    entries = list(tensors())
    weight_map = {}
    for number in range(FILES):
        name = f"model-{number + 1:05d}-of-{FILES:05d}.safetensors"
        chosen = entries[number * len(entries) // FILES : (number + 1) * len(entries) // FILES]
        rows, stop = [], 0
        for tensor, dtype, shape in chosen:
            start, stop = stop, stop + nbytes(dtype, shape)
            rows.append((tensor, dtype, shape, start, stop))
            weight_map[tensor] = name
        header = encode_header(rows, {"format": "pt"})
        with (folder / name).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + stop)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return len(entries)


def run(command: list[str]) -> tuple[float, float, dict[str, object]]:
    """Seconds, peak resident MiB, and the report of one run."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out)
        before = os.times()
        _, status, usage = os.wait4(child.pid, 0)
        elapsed = os.times().elapsed - before.elapsed
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} failed with {child.returncode}")
        out.seek(0)
        return elapsed, usage.ru_maxrss / 1024, json.load(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    folder = parser.parse_args().dir
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        count = write_checkpoint(Path(scratch))
        command = [sys.executable, "-m", "tpspec", "validate", scratch, "--tp", str(TP), "--json"]
        runs = [run(command) for _ in range(RUNS)]
    report = runs[-1][2]
    result = {
        "command": "python benchmarks/large_checkpoint.py",
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "files": FILES,
        "tensors": count,
        "ok": report["ok"],
        "valid_tp": report["valid_tp"],
        "seconds": round(median(r[0] for r in runs), 2),
        "peak_memory_mib": round(max(r[1] for r in runs)),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "large_checkpoint.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
