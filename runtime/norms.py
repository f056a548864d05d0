"""Norms over a sharded width: the module computes with local statistics, the hook puts them right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tpspec.runtime.collectives import Collectives
from tpspec.sites import Site, Statistics

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
    slots = [0 if group is None else group for group in what.slots[collectives.rank]]
    parts = hidden.unflatten(-1, (len(slots), -1))
    eps = _epsilon(module)
    real = (hidden * _real(what, collectives.rank, hidden)).unflatten(-1, (len(slots), -1)).pow(2).sum(-1)
    groups = torch.tensor(slots, device=hidden.device)
    sums = real.new_zeros((*real.shape[:-1], what.groups)).index_add(-1, groups, real)
    whole = collectives.all_reduce(sums, name)[..., groups] / (what.copies * what.size)
    ratio = torch.sqrt((parts.pow(2).mean(-1) + eps) / (whole + eps)).unsqueeze(-1)
    scaled: Tensor = output.float().unflatten(-1, (len(slots), -1)) * ratio
    return scaled.flatten(-2)


def _layer_norm(
    module: nn.Module, hidden: Tensor, output: Tensor, what: Statistics, name: str, collectives: Collectives
) -> Tensor:
    del output
    real = hidden * _real(what, collectives.rank, hidden)
    sums = torch.stack([real.sum(-1), real.pow(2).sum(-1)], dim=-1)
    mean, square = (collectives.all_reduce(sums, name) / (what.copies * what.size)).unbind(-1)
    deviation = torch.rsqrt(square - mean.pow(2) + _epsilon(module))
    normal = (hidden - mean.unsqueeze(-1)) * deviation.unsqueeze(-1)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    normal = normal if weight is None else normal * weight.float()
    return normal if bias is None else normal + bias.float()


def _real(what: Statistics, rank: int, hidden: Tensor) -> Tensor:
    """1 for the elements of a rank's width that count, 0 for padding, which need not be zeros."""
    share = what.cut.shares[rank] or ()
    held = [float(source is not None) for source, length in share for _ in range(length)]
    return torch.tensor(held, device=hidden.device)


def _epsilon(module: nn.Module) -> float:
    for name in ("variance_epsilon", "eps", "epsilon"):
        value = getattr(module, name, None)
        if value is not None:
            return float(value)
    return torch.finfo(torch.float32).eps
