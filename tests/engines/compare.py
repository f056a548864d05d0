"""Every tensor of every rank: exports as an engine loads them, beside what it makes of the checkpoints.

    python tests/engines/compare.py vllm|sglang [MODEL ...] [--tp 2,8]

Its ShardedStateLoader reads what we write, and we verify what it saves. Run by `make test-engines`, in an
environment that has the engine and tpspec.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from engine_checkpoints import RECORDS, digests, write
from safetensors.torch import load_file

from tpspec.converters.engines.export import export
from tpspec.converters.engines.verify import verify_export
from tpspec.converters.sources import open_source
from tpspec.engines.engine import read_engine
from tpspec.engines.resolve import engine_layout
from tpspec.errors import TpspecError
from tpspec.resolve import resolve_checked

Tensors = Mapping[str, torch.Tensor]
EQUAL = "tensors equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of tiny_models.yaml; all that it knows")
    parser.add_argument("--tp", default="2,8", help="sizes to export for")
    arguments = parser.parse_args()
    engine = Engine(arguments.engine)
    maker = Path(__file__).with_name("random_models.py")
    making = [sys.executable, str(maker), engine.name, *arguments.models]
    made = json.loads(subprocess.run(making, check=True, stdout=subprocess.PIPE, text=True).stdout)
    outcomes: dict[str, dict[str, str]] = {}
    for name, described in made.items():
        if engine.knows(described["config"]):
            outcomes[name] = {tp: engine.compare(name, described, int(tp)) for tp in arguments.tp.split(",")}
            said = ", ".join(f"tp {tp}: {outcome}" for tp, outcome in outcomes[name].items())
            print(f"{name}: {said}", flush=True)
    if not arguments.models:
        _record(engine, made, outcomes)
    equal = [said.endswith(EQUAL) for of_model in outcomes.values() for said in of_model.values()]
    print(f"{sum(equal)} passed, {len(equal) - sum(equal)} failed")
    sys.exit(0 if all(equal) else 1)


def _record(engine: Engine, made: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, str]]) -> None:
    """Notes the models, and for this engine the outcomes and what it made of them."""
    record = json.loads(RECORDS.read_text()) if RECORDS.exists() else {"engines": {}}
    record["models"] = record.get("models", {}) | made
    record["engines"][engine.name] = {
        "version": engine.ranks.VERSION,
        "outcomes": outcomes,
        "ranks": engine.digests,
    }
    RECORDS.write_text(_by_lines(record))


def _by_lines(record: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON with a line for each engine and each model."""
    sections = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in section.items())
        + "\n}"
        for name, section in record.items()
    )
    return "{\n" + ",\n".join(sections) + "\n}\n"


class Engine:
    """An engine, its own loaders and what its file says of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.document = read_engine(name)
        self.ranks = import_module(f"{name}_ranks")
        self.ranks.start()
        self.digests: dict[str, dict[int, list[str]]] = {}
        """Of each model and tp that compared equal."""

    def knows(self, config: Mapping[str, Any]) -> bool:
        """Whether the engine's file has the model's class."""
        classes = {cls for family in self.document.families.values() for cls in family.classes}
        return not classes.isdisjoint(config["architectures"])

    def compare(self, name: str, described: Mapping[str, Any], tp: int) -> str:
        """`N tensors equal`, or the first thing that is not."""
        with tempfile.TemporaryDirectory() as folder:
            source = write(described, Path(folder) / "source")
            try:
                said = self._compare(source, tp, Path(folder))
            except TpspecError as error:
                return str(error)
            except Exception as error:  # noqa: BLE001 - that an engine cannot load a model is an outcome
                traceback.print_exc(limit=-3)
                return f"{type(error).__name__}: {error}"
            if said.endswith(EQUAL):
                self.digests.setdefault(name, {})[tp] = digests(Path(folder) / "export", tp)
            return said

    def _compare(self, source: Path, tp: int, folder: Path) -> str:
        ranks, out, saved = self.ranks, folder / "export", folder / "saved"
        reader = open_source(str(source))
        export(reader, out, engine_layout(resolve_checked(reader.checkpoint, tp), self.document, tp))
        saved.mkdir()
        shutil.copy(source / "config.json", saved)
        count = 0
        for rank in range(tp):
            model = ranks.load(source, tp, rank, "auto")
            wanted = ranks.state(model)
            ranks.save(model, saved)
            held = load_file(out / f"model-rank-{rank}-part-0.safetensors")
            loaded = ranks.state(ranks.load(out, tp, rank, "sharded_state"))
            differing = [*differences(held, wanted), *differences(loaded, wanted)]
            if differing:
                return f"rank {rank}: {'; '.join(differing[:4])}"
            count += len(wanted)
        findings = verify_export(saved, self.document.engine, reader).findings
        return f"as the engine saves it, {findings[0]}" if findings else f"{count} {EQUAL}"


def differences(held: Tensors, wanted: Tensors) -> Iterator[str]:
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
