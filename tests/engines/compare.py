"""Every tensor of every rank: exports as an engine loads them, beside what it makes of the checkpoints.

    python tests/engines/compare.py vllm|sglang [MODEL ...] [--tp 2,8]

Its ShardedStateLoader reads what we write, and we verify what it saves. Run by `make test-engines`, in an
environment that has the engine and tpspec; by `make test-earlier` with releases of the engine before the one
that its file was compared with, which get the models that were made for that.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
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
REFUSED = "refused: "
NOT_LOADED = "not loaded: "


class NotLoadedError(Exception):
    """What the engine's default loader says of a checkpoint."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of tiny_models.yaml; all that it knows")
    parser.add_argument("--tp", default="2,8", help="sizes to export for")
    arguments = parser.parse_args()
    engine = Engine(arguments.engine)
    described = engine.recorded(arguments.models) if engine.is_earlier else engine.made(arguments.models)
    outcomes: dict[str, dict[str, str]] = {}
    for name, model in described.items():
        if engine.knows(model["config"]):
            outcomes[name] = {tp: engine.compare(name, model, int(tp)) for tp in arguments.tp.split(",")}
            said = ", ".join(f"tp {tp}: {outcome}" for tp, outcome in outcomes[name].items())
            print(f"{name}: {said}", flush=True)
    if engine.is_earlier or not arguments.models:
        _record(engine, described, outcomes)
    said_of_all = [said for of_model in outcomes.values() for said in of_model.values()]
    equal = sum(said.endswith(EQUAL) for said in said_of_all)
    left = sum(said.startswith((REFUSED, NOT_LOADED)) for said in said_of_all) if engine.is_earlier else 0
    failed = len(said_of_all) - equal - left
    print(f"{equal} passed, {failed} failed, {left} refused or not loaded by the engine")
    sys.exit(1 if failed else 0)


def _record(engine: Engine, described: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, str]]) -> None:
    """Notes for this release the outcomes and what the engine made of the models, which are noted too.

    Of an earlier release what it made is noted where the one that its file was compared with makes another.
    """
    record = json.loads(RECORDS.read_text()) if RECORDS.exists() else {"engines": {}}
    if engine.is_earlier:
        _record_earlier(record, engine, outcomes)
    else:
        record["models"] = record.get("models", {}) | described
        record["engines"][engine.name] = {
            "version": engine.release,
            "outcomes": outcomes,
            "ranks": engine.digests,
        }
    RECORDS.write_text(_by_lines(record))


def _record_earlier(
    record: dict[str, Any], engine: Engine, outcomes: Mapping[str, Mapping[str, str]]
) -> None:
    now, earlier = record["engines"][engine.name]["ranks"], record.setdefault("earlier", {})
    noted = earlier.setdefault(f"{engine.name} {engine.release}", {"outcomes": {}, "ranks": {}})
    for name, of_model in outcomes.items():
        noted["outcomes"].setdefault(name, {}).update(of_model)
        unlike = {tp: held for tp, held in noted["ranks"].pop(name, {}).items() if tp not in of_model}
        unlike |= {tp: held for tp, held in engine.digests.get(name, {}).items() if held != now[name][tp]}
        if unlike:
            noted["ranks"][name] = unlike
    record["earlier"] = dict(sorted(earlier.items(), key=lambda item: _numbers(item[0].split()[1])))


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
        self.release: str = self.ranks.VERSION
        self.is_earlier = _numbers(self.release) < _numbers(self.document.compared_with)
        self.digests: dict[str, dict[str, list[str]]] = {}
        """Of each model and tp that compared equal."""

    def made(self, names: Sequence[str]) -> Mapping[str, Any]:
        """New models, described: these, or all that the engine takes."""
        maker = Path(__file__).with_name("random_models.py")
        making = [sys.executable, str(maker), self.name, *names]
        return json.loads(subprocess.run(making, check=True, stdout=subprocess.PIPE, text=True).stdout)

    def recorded(self, names: Sequence[str]) -> Mapping[str, Any]:
        """The models that the engine was compared with before: these, or all."""
        record = json.loads(RECORDS.read_text())
        return {name: record["models"][name] for name in names or record["engines"][self.name]["ranks"]}

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
                return f"{REFUSED}{error.message}"
            except NotLoadedError as error:
                return f"{NOT_LOADED}{error}"
            except Exception as error:  # noqa: BLE001 - that an engine cannot load a model is an outcome
                traceback.print_exc(limit=-3)
                return f"{type(error).__name__}: {error}"
            if said.endswith(EQUAL):
                self.digests.setdefault(name, {})[str(tp)] = digests(Path(folder) / "export", tp)
            return said

    def _compare(self, source: Path, tp: int, folder: Path) -> str:
        ranks, out, saved = self.ranks, folder / "export", folder / "saved"
        reader = open_source(str(source))
        resolution = resolve_checked(reader.checkpoint, tp)
        export(reader, out, engine_layout(resolution, self.document, tp, self.release))
        saved.mkdir()
        shutil.copy(source / "config.json", saved)
        count = 0
        for rank in range(tp):
            try:
                model = ranks.load(source, tp, rank, "auto")
            except Exception as error:
                raise NotLoadedError(f"{type(error).__name__}: {error}") from error
            wanted = ranks.state(model)
            ranks.save(model, saved)
            held = load_file(out / f"model-rank-{rank}-part-0.safetensors")
            differing = [*differences(held, wanted)]
            if not differing:
                loaded = ranks.state(ranks.load(out, tp, rank, "sharded_state"))
                differing = [f"as it loads, {said}" for said in differences(loaded, wanted)]
            if differing:
                return f"rank {rank}: {'; '.join(differing[:4])}"
            count += len(wanted)
        findings = verify_export(saved, self.document.engine, reader, release=self.release).findings
        return f"as the engine saves it, {findings[0]}" if findings else f"{count} {EQUAL}"


def differences(held: Tensors, wanted: Tensors) -> Iterator[str]:
    """What a rank holds otherwise than it should: names, dtypes, shapes, bits."""
    for name in sorted(held.keys() ^ wanted.keys()):
        yield f"{name} is {'missing' if name in wanted else 'one too many'}"
    for name in sorted(held.keys() & wanted.keys()):
        one, other = held[name], wanted[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            yield f"{name} is {one.dtype} {list(one.shape)}, not {other.dtype} {list(other.shape)}"
        elif not torch.equal(bits(one), bits(other)):
            yield f"{name} has other values"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    main()
