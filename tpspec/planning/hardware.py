"""A device and its links, as figures with their sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from tpspec.errors import Finding, TpspecError
from tpspec.language.complaints import complaints
from tpspec.language.registry import BUILT_IN
from tpspec.language.schema import Name, Strict
from tpspec.language.yaml_source import Key, read_document
from tpspec.planning.units import Kind, parse_quantity

FOLDER = BUILT_IN / "hardware"


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of device. Bytes, bytes per second and direction, FLOP per second (dense), seconds.

    `sources` says for each field where its figure is from: a publication with its date, an assumption, an
    option of the command line, or a measurement.
    """

    name: str
    title: str
    hbm: int
    """Memory of one device."""
    bandwidth: float
    """Of that memory."""
    flops: Mapping[str, float]
    """By element type: `bf16`, `fp8`."""
    link: float
    """From one device to the others of its node."""
    devices_per_node: int
    node_link: float
    """From one device to other nodes."""
    latency: float
    """λ of one collective inside a node."""
    node_latency: float
    """λ of one collective across nodes."""
    sources: Mapping[str, str]
    overhead: float | None = None
    """Bytes that a step read when it was measured, where they were so few that its time was overhead."""

    def changed(self, source: str, **figures: Any) -> Hardware:
        """The same with other figures, which have another source; None leaves a figure as it is."""
        given = {name: value for name, value in figures.items() if value is not None}
        return replace(self, **given, sources={**self.sources, **dict.fromkeys(given, source)})


def _date(text: str) -> str:
    if not re.fullmatch(r"\d{4}(-\d\d){0,2}", text):
        raise ValueError(f"'{text}' is not a date such as 2026, 2026-11 or 2026-11-30")
    return text


class _Source(Strict):
    title: Name
    date: Annotated[str, BeforeValidator(str), AfterValidator(_date)]
    """When it was published: a year, a month or a day."""
    url: str = ""


class _Figure(Strict):
    is_: Annotated[str, BeforeValidator(str, json_schema_input_type=str | int), Field(alias="is")]
    """A quantity with its unit, or a count."""
    from_: Name = Field(alias="from")
    """The source, by its name."""


class HardwareDocument(Strict):
    """One file of specs/hardware: a kind of device, every figure with its source."""

    hardware: Literal[1]
    """Version of the format."""
    name: Name
    title: Name
    sources: dict[Name, _Source]
    hbm: _Figure
    """Memory of one device, as far as it can be used."""
    bandwidth: _Figure
    """Of its memory."""
    flops: Annotated[dict[Name, _Figure], Field(min_length=1)]
    """Dense rates by element type; `bf16` has to be there."""
    link: _Figure
    """Per direction, from one device to all others of its node."""
    devices_per_node: _Figure
    node_link: _Figure
    """Per direction, from one device to other nodes."""
    latency: _Figure
    """Of one small collective inside a node."""
    node_latency: _Figure
    """Of one small collective across nodes."""


def _keys_beside(key: Key) -> list[str]:
    model: type[Strict] = _Source if key[0] == "sources" else _Figure
    fields = (HardwareDocument if len(key) == 1 else model).model_fields
    return [field.alias or name for name, field in fields.items()]


SINGLE: dict[str, Kind] = {
    "hbm": "bytes",
    "bandwidth": "rate",
    "link": "rate",
    "devices_per_node": "count",
    "node_link": "rate",
    "latency": "time",
    "node_latency": "time",
}


def hardware_names() -> list[str]:
    """The devices that are known by name."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find_hardware(text: str) -> Hardware:
    """A device by name, or from a file. Raises TpspecError where there is none, or the file is wrong."""
    path = Path(text)
    if text.endswith((".yaml", ".yml")) or "/" in text or path.is_file():
        return read_hardware(path, text)
    names = hardware_names()
    if text not in names:
        close = get_close_matches(text.lower(), names, n=3, cutoff=0.4)
        raise TpspecError(
            f"no hardware is called '{text}'" + (f"; near it: {', '.join(close)}" if close else ""),
            remedy=f"there are {', '.join(names)}; or write a file like specs/hardware/h100-sxm.yaml",
        )
    return read_hardware(FOLDER / f"{text}.yaml", f"specs/hardware/{text}.yaml")


def read_hardware(path: Path, where: str) -> Hardware:
    """Reads and checks one file. Raises TpspecError with all that is wrong."""
    source = read_document(path, where, "hardware file")
    try:
        document = HardwareDocument.model_validate(source.data)
    except ValidationError as error:
        findings = complaints(error, source, _keys_beside)
        raise TpspecError(f"{where} is not a valid hardware file", findings) from None
    figures: dict[str, _Figure] = {name: getattr(document, name) for name in SINGLE}
    figures |= {f"flops.{kind}": figure for kind, figure in document.flops.items()}
    values: dict[str, float] = {}
    findings = []
    if "bf16" not in document.flops:
        findings.append(Finding("flops", "there is no bf16", source.place(("flops",))))
    for name, figure in figures.items():
        place = source.place(tuple(name.split(".", 1)))
        kind = SINGLE.get(name, "flops")
        try:
            values[name] = parse_quantity(figure.is_, kind, zero=kind == "time")
        except ValueError as error:
            findings.append(Finding(name, str(error), place))
        if figure.from_ not in document.sources:
            known = ", ".join(document.sources)
            findings.append(Finding(name, f"there is no source '{figure.from_}'; there are {known}", place))
    if findings:
        raise TpspecError(f"{where} is not a valid hardware file", findings)
    sources = {name: document.sources[figure.from_] for name, figure in figures.items()}
    return Hardware(
        document.name,
        document.title,
        int(values["hbm"]),
        values["bandwidth"],
        {kind: values[f"flops.{kind}"] for kind in document.flops},
        values["link"],
        int(values["devices_per_node"]),
        values["node_link"],
        values["latency"],
        values["node_latency"],
        {name: f"{source.title} ({source.date})" for name, source in sources.items()},
    )
