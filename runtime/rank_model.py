"""One rank's model: a smaller model of the same architecture, and the places where ranks meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tpspec.cache import cache_dtype
from tpspec.config import CONFIG
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.language.spec import Spec
from tpspec.layout import Cut
from tpspec.presharded import Presharded
from tpspec.quantization import detect_format
from tpspec.quantized_modules import quantized_modules
from tpspec.resolution import Resolution
from tpspec.resolve import choose_spec, resolve
from tpspec.runtime.attach import Attached
from tpspec.runtime.building import build_model, read_model_config
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.dequantized_file import DequantizedFile
from tpspec.runtime.memory_names import MemoryNames
from tpspec.runtime.model_faults import config_at_fault
from tpspec.runtime.narrow import narrow_model
from tpspec.runtime.rank_file import RankFile
from tpspec.runtime.selected import keep_selected
from tpspec.runtime.sites import find_sites
from tpspec.sites import Site, predicted


@dataclass(frozen=True)
class RankModel:
    """A rank's transformers model with its collectives attached.

    `vocabulary` is how the head's rows are shared; None where every rank computes all logits.
    """

    model: PreTrainedModel
    collectives: Collectives
    attached: Attached
    sites: tuple[Site, ...]
    spec: Spec
    vocabulary: Cut | None

    def predicted(self, *, text_alone: bool = True) -> Counter[str]:
        """The collectives of one forward pass, by kind, as the tags imply them."""
        return predicted(list(self.sites), text_alone=text_alone)


def load_rank(
    directory: Path,
    collectives: Collectives,
    *,
    spec_file: Path | None = None,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    verify: bool = True,
) -> RankModel:
    """Loads one rank of a pre-sharded directory; the rank reads its own file and no other.

    With a dtype, floating-point tensors are cast, which copies them. Raises TpspecError for a
    directory of another tp, a missing, truncated or edited file, or a spec that cuts differently.
    """
    presharded = Presharded.open(directory)
    rank = collectives.rank
    file = presharded.check_rank(rank, collectives.size, hashes=verify)
    resolution = matching_resolution(presharded, spec_file)
    spec = resolution.spec
    config = read_model_config(str(directory), text_only=spec.model_class == "text")
    with config_at_fault(directory / CONFIG):
        model = build_model(config, attention=spec.attention)
    names = MemoryNames(spec, model)
    scope = resolution.scope(presharded.tp)
    keep_selected(names, scope, rank)
    stored = _weights(RankFile(file), names, resolution, dtype or _model_dtype(resolution))
    _fill(model, names, stored, rank)
    _choose_expert_kernel(model)
    narrow_model(model, names, scope, rank)
    if dtype is not None:
        _cast(model, dtype)
    if device != "cpu":
        nn.Module.to(model, device)
    sites = find_sites(resolution, names, collectives.size)
    attached = Attached(names.modules, sites, collectives)
    heads = [site.cut for site in sites if site.kind == "logits"]
    return RankModel(model, collectives, attached, tuple(sites), spec, heads[0] if heads else None)


def matching_resolution(presharded: Presharded, spec_file: Path | None) -> Resolution:
    """The spec's resolution, which has to cut every tensor as the directory's manifest says."""
    spec = choose_spec(presharded.config, spec_file)
    resolution = resolve(spec, presharded.config, presharded.stored, presharded.layout.pad)
    layout = resolution.layout(presharded.tp)
    findings = [
        Finding(name, "is cut otherwise by the spec", spec.where)
        for name, tensor in presharded.layout.tensors.items()
        if name not in layout.tensors or layout.tensors[name].cut != tensor.cut
    ]
    if findings:
        raise TpspecError(
            f"{presharded.directory} was converted with another spec than {spec.where}",
            first_findings(findings),
            remedy="pass the spec that it was converted with (spec), or convert again",
        )
    return resolution


def _model_dtype(resolution: Resolution) -> torch.dtype:
    """What the config says that the model's elements are."""
    found: torch.dtype = getattr(torch, cache_dtype(resolution.config)[0])
    return found


def _weights(
    file: RankFile, names: MemoryNames, resolution: Resolution, dtype: torch.dtype
) -> RankFile | DequantizedFile:
    """The rank's tensors, the quantized ones computed: plain modules have no kernels for them."""
    modules = quantized_modules(resolution)
    if not modules:
        return file
    quantization = detect_format(resolution.config)
    unread = [name for name in file.names if name.rpartition(".")[2] in quantization.scalars]
    if quantization.document and quantization.document.zero_biases:
        strange = [name for name in file.names if name.endswith(".bias") and names.tensor(name) is None]
        unread += [name for name in strange if not file.tensor(name).any()]
    return DequantizedFile(file, modules, unread, dtype)


def _fill(model: PreTrainedModel, names: MemoryNames, file: RankFile | DequantizedFile, rank: int) -> None:
    """Replaces parameters and buffers by the rank's tensors, whatever their shape; ties what is tied."""
    alone, stacks = names.stacked(file.names)
    tensors: dict[str, Tensor] = {}
    findings: list[Finding] = []
    for name in alone:
        parts, whole = names.parts(name), file.tensor(name)
        pieces = whole.chunk(len(parts)) if len(parts) > 1 else (whole,)
        for part, piece in zip(parts, pieces, strict=True):
            target = names.tensor(part)
            if target is None:
                findings.append(Finding(name, "the model has no such parameter"))
            else:
                tensors[target] = piece
    for stack in stacks:
        target = names.tensor(stack.into)
        if target is None:
            findings.append(Finding(stack.into, "the model has no such parameter"))
        else:
            rows, entry = stack.names(), stack.entry
            stacked = entry.over is not None and not entry.flat
            tensor = file.stack(rows) if stacked else file.join([name for row in rows for name in row])
            tensors[target] = tensor if stack.entry.apart is None else _halves(tensor, stack.entry.apart)
    for target, tensor in tensors.items():
        _assign(names.modules, target, tensor)
    _tie(names, tensors)
    findings += [
        Finding(name, "no tensor of the rank's file fills this parameter")
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.is_meta
    ]
    if findings:
        remedy = "does the spec's `memory` section say what the model calls them?"
        raise TpspecError(
            f"rank {rank}: names on disk and in memory do not meet", first_findings(findings), remedy
        )


def _halves(tensor: Tensor, dim: int) -> Tensor:
    """Every other index of a dimension, and behind them those between."""
    turns: Tensor = tensor.unflatten(dim, (-1, 2))
    return turns.transpose(dim, dim + 1).flatten(dim, dim + 1)


def _assign(modules: Mapping[str, nn.Module], name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    module = modules[owner]
    # Not by setattr: another rank's thread may be building, and register_parameter is not its own then.
    if leaf in module._parameters:  # noqa: SLF001
        module._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)  # noqa: SLF001
    else:
        module._buffers[leaf] = tensor  # noqa: SLF001


def _choose_expert_kernel(model: PreTrainedModel) -> None:
    """Takes transformers' plain loop over experts where its grouped matrix product cannot serve.

    torch's grouped_mm wants rows of a multiple of 16 bytes, of the weights and of what lies between
    them, and a rank's share may be narrower.
    """
    stacked = [parameter for parameter in model.parameters() if parameter.dim() == 3]
    if any(size * parameter.element_size() % 16 for parameter in stacked for size in parameter.shape[1:]):
        model.config.get_text_config()._experts_implementation = "eager"  # noqa: SLF001


def _tie(names: MemoryNames, tensors: Mapping[str, Tensor]) -> None:
    for target, source in names.tied.items():
        for absent, present in ((target, source), (source, target)):
            if absent not in tensors and present in tensors and absent in names.tensors:
                _assign(names.modules, absent, tensors[present])


def _cast(model: PreTrainedModel, dtype: torch.dtype) -> None:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for module in model.modules():
        for name in module._buffers.keys() - module._non_persistent_buffers_set:  # noqa: SLF001
            buffer = module._buffers[name]  # noqa: SLF001
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.to(dtype)  # noqa: SLF001
    model.config.dtype = dtype
