"""Norms over a sharded width: the module computes with local statistics, the hook puts them right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tpspec.runtime.collectives import Collectives
from tpspec.runtime.sites import Site, Statistics

_GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "sigmoid": torch.sigmoid}


def attach_statistics(module: nn.Module, site: Site, collectives: Collectives) -> None:
    """Makes a norm's statistics those of the whole width.

    An RMS norm's output is rescaled by the ratio of the two root mean squares, so that whatever
    else the module does with its weight stays its own affair; a layer norm is computed anew.
    """
    statistics = site.statistics
    assert statistics is not None
    correct = _layer_norm if statistics.norm.kind == "layer" else _rms_norm

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        hidden = (args[0] if args else next(iter(kwargs.values()))).float()
        if statistics.norm.gate:
            gate = args[1] if len(args) > 1 else kwargs.get("gate")
            hidden = hidden if gate is None else hidden * _GATES[statistics.norm.gate](gate.float())
        return correct(module, hidden, output, statistics, site.module, collectives).to(output.dtype)

    module.register_forward_hook(hook, with_kwargs=True)


def _rms_norm(
    module: nn.Module, hidden: Tensor, output: Tensor, what: Statistics, name: str, collectives: Collectives
) -> Tensor:
    local = hidden.pow(2).sum(-1, keepdim=True)
    eps = _epsilon(module)
    group = _group_of(what, collectives.rank)
    sums = local.new_zeros((*local.shape[:-1], what.groups))
    sums[..., group] = local[..., 0]
    whole = collectives.all_reduce(sums, name)[..., group : group + 1] / (what.copies * what.size)
    return output.float() * torch.sqrt((local / hidden.shape[-1] + eps) / (whole + eps))


def _layer_norm(
    module: nn.Module, hidden: Tensor, output: Tensor, what: Statistics, name: str, collectives: Collectives
) -> Tensor:
    del output
    sums = torch.stack([hidden.sum(-1), hidden.pow(2).sum(-1)], dim=-1)
    mean, square = (collectives.all_reduce(sums, name) / (what.copies * what.size)).unbind(-1)
    deviation = torch.rsqrt(square - mean.pow(2) + _epsilon(module))
    normal = (hidden - mean.unsqueeze(-1)) * deviation.unsqueeze(-1)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    normal = normal if weight is None else normal * weight.float()
    return normal if bias is None else normal + bias.float()


def _group_of(what: Statistics, rank: int) -> int:
    """The group that a rank's part belongs to, where groups span ranks."""
    share = what.cut.shares[rank]
    assert share is not None
    assert share[0].source is not None
    return share[0].source // what.size


def _epsilon(module: nn.Module) -> float:
    for name in ("variance_epsilon", "eps", "epsilon"):
        value = getattr(module, name, None)
        if value is not None:
            return float(value)
    return torch.finfo(torch.float32).eps
