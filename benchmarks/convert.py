"""`tpspec convert --tp 8` beside `cp -r`, `xxhsum -H2` and `sync`, on a random Llama of 2.2 GB in bf16.

    python benchmarks/convert.py --dir /var/tmp            # time and memory
    python benchmarks/convert.py --dir /var/tmp --large    # also the memory for four times the bytes

The source is warm in the page cache. Pairs alternate (cp, then convert), so that a busy machine slows
both alike; the ratio is that of the medians. Memory is the largest Private_Dirty + Private_Clean of the
process (/proc/PID/smaps_rollup, sampled), which leaves out the page cache and shared libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tpspec.dtypes import nbytes
from tpspec.safetensors_header import encode_header

PAIRS = 5
TP = 8
TARGET_RATIO = 1.2
TARGET_MIB = 128
FILES = 3
RESULTS = Path(__file__).parent / "results"
TPSPEC = Path(sys.executable).with_name("tpspec")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 22,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
BLOCK = 4 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--dir", type=Path, help="where to put the model and its copies (9 GB; --large 27 GB)"
    )
    parser.add_argument("--large", action="store_true", help="also measure a checkpoint four times as large")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        folder = Path(name)
        source = write_model(folder / "source", CONFIG)
        report = {
            "command": shlex.join(["python", "benchmarks/convert.py", *sys.argv[1:]]),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, "
            f"Python {platform.python_version()}",
            "load_before": round(load, 1),
            "source_bytes": sum(path.stat().st_size for path in source.iterdir()),
            **time_pairs(folder, source),
            "private_mib": peak_private(convert(source, folder / "out")),
        }
        shutil.rmtree(folder / "out")
        if arguments.large:
            shutil.rmtree(source)
            large = CONFIG | {"num_hidden_layers": 4 * CONFIG["num_hidden_layers"] + 8}
            source = write_model(folder / "large", large)
            report["large_bytes"] = sum(path.stat().st_size for path in source.iterdir())
            report["large_private_mib"] = peak_private(convert(source, folder / "out"))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "convert.json").write_text(json.dumps(report, indent=2) + "\n")
    table = markdown(report)
    (RESULTS / "convert.md").write_text(table)
    print(table, end="")


def write_model(folder: Path, config: dict[str, object], fill: Callable[[int], bytes] = os.urandom) -> Path:
    """A checkpoint of random bytes in three files with an index, laid out as save_pretrained does."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    shapes = model_shapes(config)
    per_file = -(-sum(nbytes("BF16", shape) for shape in shapes.values()) // FILES)
    files: list[dict[str, tuple[int, ...]]] = [{} for _ in range(FILES)]
    held = 0
    for name, shape in shapes.items():
        files[held // per_file][name] = shape
        held += nbytes("BF16", shape)
    weight_map = {}
    for number, tensors in enumerate(files, 1):
        file = f"model-{number:05}-of-{FILES:05}.safetensors"
        weight_map |= dict.fromkeys(tensors, file)
        entries, position = [], 0
        for name, shape in tensors.items():
            stop = position + nbytes("BF16", shape)
            entries.append((name, "BF16", shape, position, stop))
            position = stop
        with (folder / file).open("wb") as out:
            out.write(encode_header(entries, {"format": "pt"}))
            for start in range(0, position, BLOCK):
                out.write(fill(min(BLOCK, position - start)))
    index = {"metadata": {"total_size": held}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder


def model_shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    hidden, ffn, vocab = (int(str(config[k])) for k in ("hidden_size", "intermediate_size", "vocab_size"))
    heads, kv_heads = (int(str(config[k])) for k in ("num_attention_heads", "num_key_value_heads"))
    kv = hidden // heads * kv_heads
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(int(str(config["num_hidden_layers"]))):
        of_layer = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        shapes |= {f"model.layers.{layer}.{module}.weight": shape for module, shape in of_layer.items()}
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def time_pairs(folder: Path, source: Path) -> dict[str, object]:
    copy, out = folder / "copy", folder / "out"
    copying = ["sh", "-c", f"cp -r {source} {copy} && xxhsum -H2 {copy}/* && sync"]
    converting = convert(source, out)
    copies, conversions = [], []
    for pair in range(PAIRS + 1):
        times = []
        for command, made in ((copying, copy), (converting, out)):
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - start)
            shutil.rmtree(made)
            os.sync()
        if pair:  # the first pair warms the page cache
            copies.append(times[0])
            conversions.append(times[1])
    return {
        "copy_hash_sync_s": [round(seconds, 2) for seconds in copies],
        "convert_s": [round(seconds, 2) for seconds in conversions],
        "ratio_of_medians": round(median(conversions) / median(copies), 3),
    }


def convert(source: Path, out: Path) -> list[str]:
    return [str(TPSPEC), "convert", str(source), str(out), "--tp", str(TP), "--quiet"]


def peak_private(command: list[str]) -> float:
    """The most private memory of a process in MiB."""
    peak = 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            try:
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            except OSError:  # it has just ended
                break
            lines = [line for line in rollup.splitlines() if line.startswith("Private_")]
            peak = max(peak, sum(int(line.split()[1]) for line in lines))
            time.sleep(0.01)
    if process.returncode:
        raise SystemExit(process.returncode)
    return round(peak / 1024, 1)


def markdown(report: dict[str, object]) -> str:
    """The report as a table."""
    copies, conversions = report["copy_hash_sync_s"], report["convert_s"]
    assert isinstance(copies, list)
    assert isinstance(conversions, list)
    lines = [
        "| | measured | target |",
        "|---|---|---|",
        f"| `cp -r SRC DST && xxhsum -H2 DST/* && sync` | {median(copies):.2f} s {copies} | |",
        f"| `tpspec convert SRC OUT --tp {TP}` | {median(conversions):.2f} s {conversions} | |",
        f"| ratio of the medians | {report['ratio_of_medians']} | at most {TARGET_RATIO} |",
        f"| most private memory | {report['private_mib']} MiB | at most {TARGET_MIB} MiB |",
    ]
    if "large_private_mib" in report:
        size = int(str(report["large_bytes"])) / 1e9
        lines.append(
            f"| the same for {size:.1f} GB | {report['large_private_mib']} MiB | at most {TARGET_MIB} MiB |"
        )
    source = f"{int(str(report['source_bytes'])) / 1e9:.2f} GB in {FILES} files"
    where = f"{source}; {report['machine']}; load average before: {report['load_before']}"
    return f"`{report['command']}`\n\n{where}\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
