"""What `validate` reports: a model and some tp sizes, judged from config and headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tpspec.cache import CacheBytes, cache_dtype, cache_size
from tpspec.errors import Finding
from tpspec.hub import locate
from tpspec.language.spec import Spec
from tpspec.padding import Order
from tpspec.padding_report import Padding, padded
from tpspec.resolution import Misfit, Resolution
from tpspec.resolve import choose_spec, resolve


@dataclass(frozen=True)
class Size:
    """One tp: what breaks, or what a rank holds. Bytes; `weight_bytes` is the fullest rank's."""

    tp: int
    misfits: tuple[Misfit, ...]
    weight_bytes: int | None = None
    cache: CacheBytes | None = None
    copies: Mapping[str, int] | None = None
    padding: Padding | None = None
    pad_fits: bool = False
    """Whether what breaks without padding can be padded."""


@dataclass(frozen=True)
class Assessment:
    """The report on a model."""

    name: str
    spec: Spec
    findings: tuple[Finding, ...]
    sizes: tuple[Size, ...]
    valid_tp: tuple[int, ...]
    copied_above: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    headers: bool = True
    """Whether tensors' names and shapes were judged, or the config alone."""

    @property
    def ok(self) -> bool:
        """Whether the checkpoint matches its spec and every asked tp fits."""
        return not self.findings and not any(size.misfits for size in self.sizes)

    def as_json(self) -> dict[str, Any]:
        """The report for machines."""
        return {
            "model": self.name,
            "spec": self.spec.name,
            "ok": self.ok,
            "headers": self.headers,
            "findings": [asdict(finding) for finding in self.findings],
            "valid_tp": list(self.valid_tp),
            "copied_above": dict(self.copied_above),
            "sizes": [self._size(size) for size in self.sizes],
            "notes": list(self.notes),
        }

    def _size(self, size: Size) -> dict[str, Any]:
        padding = size.padding.as_json() if size.padding else None
        return {"fits": not (self.findings or size.misfits), **asdict(size), "padding": padding}


def assess(
    path: str, sizes: Sequence[int], spec_file: Path | None = None, pad: Order | None = None
) -> Assessment:
    """Judges a checkpoint directory, a config.json or a Hugging Face id.

    With `pad`, zero units fill up what a size does not divide; `valid_tp` are those that do without.
    Raises TpspecError where the config or the files cannot be read at all.
    """
    located = locate(path)
    spec = choose_spec(located.config, spec_file)
    checkpoint = located.checkpoint
    headers = checkpoint is not None and checkpoint.format == "safetensors"
    tensors = checkpoint.tensors if checkpoint is not None and headers else None
    resolution = resolve(spec, located.config, tensors)
    notes = []
    if not headers:
        rest = (
            ""
            if checkpoint is None
            else "; names and shapes in .bin files are checked when they are converted"
        )
        notes.append(f"judged by its config alone{rest}")
    if resolution.ignored:
        notes.append(f"{len(resolution.ignored)} stored buffers are ignored")
    judged = tuple(_at(resolution, tp, headers) for tp in sizes)
    if any(at.misfits for at in judged):
        padding = resolve(spec, located.config, tensors, pad or "kv")
        broken = [replace(at, pad_fits=bool(at.misfits) and padding.fits(at.tp)) for at in judged]
        judged = tuple(_padded(at, padding, headers) if pad and at.misfits else at for at in broken)
    return Assessment(
        located.name,
        spec,
        resolution.findings,
        judged,
        resolution.valid_tp if not resolution.findings else (),
        resolution.copied_above,
        tuple(notes),
        headers,
    )


def _padded(at: Size, padding: Resolution, headers: bool) -> Size:
    return replace(_at(padding, at.tp, headers), pad_fits=at.pad_fits)


def _at(resolution: Resolution, tp: int, headers: bool) -> Size:
    misfits = tuple(resolution.misfits(tp))
    if misfits or resolution.findings:
        return Size(tp, misfits)
    elements = cache_size(resolution.spec, resolution.config, tp, resolution.pad)
    cache = elements.in_bytes(cache_dtype(resolution.config)[1])
    layout = resolution.layout(tp) if headers else None
    weights = max(layout.rank_bytes(rank) for rank in range(tp)) if layout else None
    return Size(tp, (), weights, cache, resolution.copies(tp), padded(resolution, tp))
