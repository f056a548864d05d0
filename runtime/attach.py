"""Hanging the collectives on a model's modules, as its sites say."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from tpspec.layout import Cut
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.norms import attach_statistics
from tpspec.sites import Site


class Attached:
    """The collectives of one rank's model.

    `full_logits`: whether the head's output is gathered (proofs), or stays this rank's part of the
    vocabulary (generation, which exchanges candidates).
    """

    def __init__(self, modules: dict[str, nn.Module], sites: list[Site], collectives: Collectives) -> None:
        self.collectives = collectives
        self.full_logits = True
        self._held: dict[str, list[Tensor]] = defaultdict(list)
        for site in sites:
            getattr(self, f"_attach_{site.kind}")(modules[site.module], site)

    def restart(self) -> None:
        """Forgets what a pass that failed has held back."""
        self._held.clear()

    def _attach_reduce(self, module: nn.Module, site: Site) -> None:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            del module, args
            total = _first(output)
            for partial in self._held.pop(site.module, ()):
                total = total + partial
            return _with_first(output, self.collectives.all_reduce(total, site.module))

        module.register_forward_hook(hook)

    def _attach_hold(self, module: nn.Module, site: Site) -> None:
        """Holds a partial sum back until the sibling's reduce: both cross the wire once."""

        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            del module, args
            partial = _first(output)
            self._held[site.partner].append(partial)
            return _with_first(output, torch.zeros_like(partial))

        module.register_forward_hook(hook)

    def _attach_reduce_input(self, module: nn.Module, site: Site) -> None:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            del module
            return self.collectives.all_reduce(args[0], site.module), *args[1:]

        module.register_forward_pre_hook(hook)

    def _attach_once(self, module: nn.Module, site: Site) -> None:
        del site

        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            del module, args
            return (
                output
                if self.collectives.rank == 0
                else _with_first(output, torch.zeros_like(_first(output)))
            )

        module.register_forward_hook(hook)

    def _attach_gather(self, module: nn.Module, site: Site) -> None:
        assert site.cut is not None
        places = _places(site.cut)

        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            del module, args
            gathered = torch.cat(self.collectives.all_gather(output, site.module), dim=-1)
            padded = gathered.shape[-1] != len(places)
            return gathered[..., torch.tensor(places, device=gathered.device)] if padded else gathered

        module.register_forward_hook(hook)

    def _attach_statistics(self, module: nn.Module, site: Site) -> None:
        attach_statistics(module, site, self.collectives)

    def _attach_embedding(self, module: nn.Module, site: Site) -> None:
        """Looks up the ids whose rows this rank holds; the others' rows come with the sum."""
        assert site.cut is not None
        start, count = held_rows(site.cut, self.collectives.rank)
        absent: list[Tensor] = []

        def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            del module
            ids = args[0] - start
            outside = (ids < 0) | (ids >= count)
            absent.append(outside)
            return ids.masked_fill(outside, 0), *args[1:]

        def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            del module, args
            rows = output.masked_fill(absent.pop().unsqueeze(-1), 0)
            return self.collectives.all_reduce(rows, site.module)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

    def _attach_logits(self, module: nn.Module, site: Site) -> None:
        assert site.cut is not None
        size = site.cut.size

        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            del module, args
            if not self.full_logits:
                return output
            return torch.cat(self.collectives.all_gather(output, site.module), dim=-1)[..., :size]

        module.register_forward_hook(hook)


def held_rows(cut: Cut, rank: int) -> tuple[int, int]:
    """First row and number of rows of a vocabulary that a rank holds, zero rows left out."""
    share = cut.shares[rank]
    assert share is not None
    source, length = share[0]
    return (0, 0) if source is None else (source, length)


def _places(cut: Cut) -> list[int]:
    """Where each index of a dimension stands in what the ranks hold of it, one after another."""
    places: dict[int, int] = {}
    position = 0
    for source, length in (segment for share in cut.shares for segment in share or ()):
        for i in range(length if source is not None else 0):
            places.setdefault((source or 0) + i, position + i)
        position += length
    return [place for _, place in sorted(places.items())]


def _first(output: Any) -> Tensor:
    tensor: Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


def _with_first(output: Any, tensor: Tensor) -> Any:
    return (tensor, *output[1:]) if isinstance(output, tuple) else tensor
