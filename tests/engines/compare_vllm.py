"""Every tensor of every rank: exports as vLLM loads them, beside what it makes of the checkpoints itself.

    python tests/engines/compare_vllm.py [MODEL ...] [--tp 2,8]

Its ShardedStateLoader reads what we write, and we verify what it saves. Run by `make test-engines`, in an
environment that has vLLM and tpspec.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import click
import random_models
import torch
import vllm
from safetensors.torch import load_file
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm_ranks import State, load, start, state

from tpspec.converters.engines.export import export
from tpspec.converters.engines.verify import verify_export
from tpspec.converters.sources import open_source
from tpspec.engines.engine import read_engine
from tpspec.engines.layout import engine_layout
from tpspec.errors import TpspecError
from tpspec.resolve import resolve_checked

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "engines.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="of tiny_models.yaml; all where none is named"
    )
    parser.add_argument("--tp", default="2,8", help="sizes to export for")
    arguments = parser.parse_args()
    names = arguments.models or list(random_models.models())
    start()
    outcomes: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, random_models.__file__, folder, *names], check=True)
        for name in names:
            source = random_models.directory(Path(folder), name)
            outcomes[name] = {tp: compare(source, int(tp)) for tp in arguments.tp.split(",")}
            click.echo(f"{name}: " + ", ".join(f"tp {tp}: {said}" for tp, said in outcomes[name].items()))
    if not arguments.models:
        report = {"vllm": vllm.__version__, "tensors": outcomes}
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    counts = [said.endswith("equal") for of_model in outcomes.values() for said in of_model.values()]
    click.echo(f"{sum(counts)} passed, {len(counts) - sum(counts)} failed")
    sys.exit(0 if all(counts) else 1)


def compare(source: Path, tp: int) -> str:
    """`N tensors equal`, or the first thing that is not."""
    with tempfile.TemporaryDirectory() as folder:
        out, saved = Path(folder) / "export", Path(folder) / "saved"
        try:
            reader = open_source(str(source))
            layout = engine_layout(resolve_checked(reader.checkpoint, tp), read_engine("vllm"), tp)
            export(reader, out, layout)
            saved.mkdir()
            count = 0
            for rank in range(tp):
                model = load(source, tp, rank, "auto")
                wanted = state(model)
                held = load_file(out / f"model-rank-{rank}-part-0.safetensors")
                loaded = state(load(out, tp, rank, "sharded_state"))
                differing = [*differences(held, wanted), *differences(loaded, wanted)]
                if differing:
                    return f"rank {rank}: {'; '.join(differing[:4])}"
                ShardedStateLoader.save_model(model, str(saved), max_size=1 << 20)
                count += len(wanted)
            findings = verify_export(saved, "vllm", reader).findings
        except TpspecError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - an engine that cannot load a model is an outcome
            traceback.print_exc(limit=-3)
            return f"{type(error).__name__}: {error}"
    return f"as saved, {findings[0]}" if findings else f"{count} tensors equal"


def differences(held: State, wanted: State) -> Iterator[str]:
    """What a rank holds otherwise than it should: names, dtypes, shapes, bits."""
    for name in sorted(held.keys() ^ wanted.keys()):
        yield f"{name} is {'missing' if name in wanted else 'one too many'}"
    for name in held.keys() & wanted.keys():
        one, other = held[name], wanted[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            yield f"{name} is {one.dtype} {list(one.shape)}, not {other.dtype} {list(other.shape)}"
        elif not torch.equal(bits(one), bits(other)):
            yield f"{name} has other values"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    main()
