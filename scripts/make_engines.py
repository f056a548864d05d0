"""`make engines`: writes docs/engines.md from specs/engines, what was compared, and docs/engines.yaml."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tpspec.cli.arguments import ENGINES
from tpspec.engines.engine import read_engine
from tpspec.engines.schema import EngineDocument

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "engines.md"
BY_HAND = ROOT / "docs" / "engines.yaml"
RECORDS = ROOT / "tests" / "fixtures" / "engines.json"
HEAD = """\
<!-- written by `make engines` from specs/engines, tests/fixtures/engines.json and docs/engines.yaml -->
# Exports for engines

`tpspec export SRC OUT --engine ENGINE --tp N` writes one set of files per rank, laid out as the engine
keeps a rank's tensors, for its `sharded_state` loader: each rank reads its own files, no more. What the
engines call tensors, and how they join them, is data in [specs/engines](../specs/engines); the cuts are those
of the Layout. `tpspec verify OUT --engine ENGINE` compares the files with what `tpspec-export.json` lists;
with `--against SRC` it compares such a directory, or one that the engine itself has saved, with a checkpoint,
tensor by tensor. Engines fill a vocabulary up to a multiple of 64, which the tp must divide; `tpspec pad`
helps with heads and columns, not with the vocabulary.

*Compared*: for small models of the class, at each of these sizes, the engine's own `sharded_state` loader
reads our files, and every tensor of every rank has the bits that its default loader makes of the checkpoint;
and what its saver writes is verified. At tp 8 KV heads are copied, and the vocabulary is no multiple of 64.
*Served*: the engine generated from the export the tokens that it generates from the checkpoint.
`make test-engines` compares and serves again.

To add a model class: name it in a family of `specs/engines/ENGINE.yaml`, or in one of its own that extends
the nearest (for oneself, in a copy of that file in `engines/` of a folder of `TPSPEC_PATH`); describe a small
model of it in `tests/engines/tiny_models.yaml`; `make test-engines` says which tensor is missing, too many,
of another shape or of other values, and writes this table.

"""
NOTES = {
    "vllm": """\
Compared with the CPU build of release {version}. `--engine-version` writes the tensors of earlier releases,
from {since} on, and the export remembers which: the last table says what was compared with those. The files
hold the layout before vLLM's own post-processing, which its loader wants. Quantized weights go along, marked
below where they were compared: FP8 as `quant_method` fp8 and as compressed-tensors store it (a scale per
block, channel or matrix, activations scaled as they come), compressed-tensors' packed integers (int4, with
zero points or without) and its int8, GPTQ and AWQ; these four without experts, and GPTQ and AWQ for release
0.32 on. Of GPTQ vLLM tells quantized modules by the names in the files, which are those of joined modules in
an export: config.json has to list them in `modules_in_block_to_quantize`. What else is quantized is refused.

No export has run on a GPU yet. There vLLM may choose a backend that rounds the rows of experts up before
they are loaded (FlashInfer's TRT-LLM to 128 on a rank, AITER): where they are no such multiple, choose
another backend.""",
    "sglang": """\
Compared with release {version}, whose model classes and loaders ran on a CPU with stand-ins for its kernels:
no token was generated. Its loader reads after its post-processing, which on GPUs may lay experts out anew for
some of its `--moe-runner-backend`s; the exports are for the default one. Quantized weights are refused.""",
}

EARLIER = """\
Earlier releases, compared by `make test-earlier` beside the torch and transformers of the latest one: of a
release that wants another torch the loaders ran with stand-ins for its compiled operators. A model that is
*not loaded* was not loaded by the release's default loader either. Patch releases, and models that are not
counted, were not compared; they are written as the same data say."""


def render() -> str:
    """The document."""
    record, by_hand = json.loads(RECORDS.read_text()), yaml.safe_load(BY_HAND.read_text())
    parts = [HEAD]
    for name in ENGINES:
        engine = read_engine(name)
        since = engine.since or engine.compared_with
        note = NOTES[name].format(version=record["engines"][name]["version"], since=since)
        rows = "\n".join(_rows(engine, record, by_hand))
        parts.append(f"## {engine.title}\n\n{note}\n\n| model class | state |\n|---|---|\n{rows}\n")
        left = "\n".join(f"| {cls} | {why} |" for cls, why in engine.left_out.items())
        parts.append(f"Not exported:\n\n| model class | why |\n|---|---|\n{left}\n")
        if earlier := "\n".join(_earlier_rows(engine, record)):
            parts.append(f"{EARLIER}\n\n| release | tensors equal | otherwise |\n|---|---|---|\n{earlier}\n")
            parts.append(f"{by_hand['earlier'][name]}\n")
    return "\n".join(parts)


def _rows(engine: EngineDocument, record: dict[str, Any], by_hand: dict[str, Any]) -> list[str]:
    """One line for each model class: what was compared, and what more is known."""
    sizes: dict[str, set[int]] = defaultdict(set)
    quantized: dict[str, set[str]] = defaultdict(set)
    for name, of_model in record["engines"][engine.engine]["ranks"].items():
        config = record["models"][name]["config"]
        for cls in config["architectures"]:
            sizes[cls] |= set(map(int, of_model))
            quantized[cls] |= set(_form(config.get("quantization_config")))
    more: dict[str, list[str]] = defaultdict(list)
    for said in by_hand["served"]:
        if said["engine"] == engine.engine:
            more[said["class"]].append(f"served: {said['model']}")
    classes = sorted(cls for family in engine.families.values() for cls in family.classes)
    rows = []
    for cls in classes:
        compared = [f"compared at tp {', '.join(map(str, sorted(sizes[cls])))}"] if sizes[cls] else []
        compared += [", ".join(sorted(quantized[cls]))] if quantized[cls] else []
        rows.append(f"| {cls} | {'; '.join([*compared, *more[cls]]) or '**not compared**'} |")
    return rows


def _form(settings: dict[str, Any] | None) -> Iterator[str]:
    """What people call a form of quantized weights."""
    if settings is None:
        return
    method, form = settings["quant_method"], settings.get("format", "")
    if method == "compressed-tensors" and form != "float-quantized":
        (group,) = settings["config_groups"].values()
        yield f"int{group['weights']['num_bits']}"
    else:
        yield "FP8" if method in ("fp8", "compressed-tensors") else method.upper()


def _earlier_rows(engine: EngineDocument, record: dict[str, Any]) -> Iterator[str]:
    """One line for each earlier release that was compared: of how many models, and what was not."""
    for name, noted in record.get("earlier", {}).items():
        of_engine, release = name.split()
        if of_engine != engine.engine:
            continue
        equal: dict[str, int] = defaultdict(int)
        otherwise: dict[str, set[str]] = defaultdict(set)
        for model, of_model in noted["outcomes"].items():
            for tp, said in of_model.items():
                if said.endswith(" tensors equal"):
                    equal[tp] += 1
                else:
                    short = said.partition("\n")[0].replace(f": {engine.title} refuses this model", "")
                    otherwise[short].add(model)
        counts = ", ".join(f"{count} models at tp {tp}" for tp, count in equal.items())
        left = "; ".join(f"{', '.join(sorted(models))} {said}" for said, models in otherwise.items())
        yield f"| {release} | {counts} | {left} |"


if __name__ == "__main__":
    TABLE.write_text(render())
