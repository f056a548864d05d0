"""Whether all ranks have the same residual stream, bit for bit, wherever they should."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from tpspec.errors import TpspecError
from tpspec.language.patterns import compile_pattern
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.memory_names import MemoryNames
from tpspec.runtime.rank_model import RankModel

LAYER = "{layer}"


def attach_rank_check(rank: RankModel, collectives: Collectives) -> None:
    """Compares the input of each decoder layer, and of the head, across ranks in every pass.

    A pass raises TpspecError, on every rank, at the first input that differs.
    """
    for name, module in _checked(rank):

        def before(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = name
        ) -> None:
            del module
            hidden: Tensor = args[0] if args else kwargs["hidden_states"]
            compare(hidden, name, collectives)

        module.register_forward_pre_hook(before, with_kwargs=True)


def compare(hidden: Tensor, name: str, collectives: Collectives) -> None:
    """Raises TpspecError, on every rank, where a tensor is not the same on all."""
    digest = xxhash.xxh64_intdigest(hidden.contiguous().view(torch.uint8).cpu().numpy().data)
    mine = torch.tensor([digest >> 1], device=hidden.device)  # a signed integer has 63 bits for it
    digests = [int(digest) for digest in collectives.all_gather(mine, f"check of {name}")]
    others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        ranks = f"rank {others[0]} has" if len(others) == 1 else f"ranks {', '.join(others)} have"
        raise TpspecError(f"the ranks diverge at {name}: {ranks} another input than rank 0")


def _checked(rank: RankModel) -> Iterator[tuple[str, nn.Module]]:
    """The decoder layers and the head."""
    names = MemoryNames(rank.spec, rank.model)
    templates = (placed.template.partition(LAYER) for placed in rank.spec.rules)
    for template in dict.fromkeys(before + layer for before, layer, _ in templates if layer):
        pattern = compile_pattern(template)
        for number in count():
            name = names.module(pattern.name({"layer": number}))
            if name is None:
                break
            yield name, names.modules[name]
    yield from ((site.module, names.modules[site.module]) for site in rank.sites if site.kind == "logits")
