"""A machine as `tpspec bench --json` measured it, in the place of what a data sheet says or nobody knows."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpspec import json_strict
from tpspec.errors import Finding, TpspecError
from tpspec.planning.formulas import all_reduce_wire
from tpspec.planning.hardware import Hardware

Positive = Annotated[float, Field(gt=0)]


LEAST_READ = 256 << 20
"""Bytes that a step has to read for its time to be the memory's: tens of ms of a CPU's, some of a GPU's."""


class Exchange(BaseModel):
    """What an all-reduce of so many bytes takes."""

    bytes: int
    seconds: Positive


class Bench(BaseModel):
    """What a calibration takes from bench: seconds, and what a rank reads and multiplies in a step.

    `elements` are those that a rank multiplies one token with.
    """

    model_config = ConfigDict(frozen=True)

    directory: str
    tp: Annotated[int, Field(ge=1)]
    collectives: str
    prompt_tokens: Annotated[int, Field(ge=1)]
    first_token_seconds: Positive
    compute_seconds: Positive
    read_bytes: Positive
    elements: Positive
    all_reduces: list[Exchange]


def read_bench(text: bytes, where: str) -> Bench:
    """Reads what `tpspec bench --json` printed. Raises TpspecError where it is something else."""
    try:
        return Bench.model_validate(json_strict.loads(text, where))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        findings = [Finding(".".join(map(str, fault["loc"])), fault["msg"]) for fault in faults]
        remedy = "give a directory that convert wrote, or what `tpspec bench OUT --json` prints"
        raise TpspecError(f"{where} is not what bench measured", findings, remedy) from None


def measured_hardware(bench: Bench, base: Hardware | None = None) -> Hardware:
    """The machine of a measurement; with a base, its other figures stay.

    Memory bandwidth is a step's weights over its compute, the rate of arithmetic that of the prompt: both
    what the model's code reaches, and not what the machine could. The latency is that of the smallest
    all-reduce, the link's rate what the largest takes beyond that.
    """
    source = f"measured by bench on {bench.directory}, tp={bench.tp}, {bench.collectives}"
    bandwidth = bench.read_bytes / bench.compute_seconds
    flops = {"bf16": 2 * bench.elements * bench.prompt_tokens / bench.first_token_seconds}
    latency, link = _link(bench)
    overhead = bench.read_bytes if bench.read_bytes < LEAST_READ else None
    if base:
        changed = base.changed(source, bandwidth=bandwidth, latency=latency, link=link)
        return replace(changed, title=f"{base.title}, some of its figures measured", overhead=overhead)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("bandwidth", "flops.bf16", "link", "latency", "node_link", "node_latency")
    return Hardware(
        "measured",
        f"this machine, as bench measured it ({bench.collectives})",
        memory // bench.tp,
        bandwidth,
        flops,
        link or bandwidth,
        bench.tp,
        link or bandwidth,
        latency or 0.0,
        latency or 0.0,
        {
            **dict.fromkeys(names, source),
            "hbm": f"this machine's memory, shared by {bench.tp} ranks",
            "devices_per_node": "the ranks that were measured",
        },
        overhead,
    )


def _link(bench: Bench) -> tuple[float | None, float | None]:
    """λ and bytes per second; None where one rank measured nothing, or all sizes took the same time."""
    if not bench.all_reduces or bench.tp == 1:
        return None, None
    ordered = sorted(bench.all_reduces, key=lambda each: each.bytes)
    small, large = ordered[0], ordered[-1]
    sent = all_reduce_wire(large.bytes - small.bytes, bench.tp)
    spent = large.seconds - small.seconds
    return small.seconds, sent / spent if spent > 0 and sent else None
