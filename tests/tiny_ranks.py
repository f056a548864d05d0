"""A spec's tiny model with weights of one's own, cut, and loaded as all its ranks in threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tpspec.checkpoint import open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.sources import open_source
from tpspec.language.registry import spec_named
from tpspec.resolve import resolve_layout
from tpspec.runtime.comparing import relative_error
from tpspec.runtime.proof import BOUND
from tpspec.runtime.prove import run_in_threads
from tpspec.runtime.rank_model import RankModel, load_rank
from tpspec.runtime.tiny import tiny_model

T = TypeVar("T")
IDS = torch.tensor([[0, 5, 101, 7, 7, 31]])
"""Token ids of a tiny vocabulary: its first, its last, one twice."""


@dataclass(frozen=True)
class TinyModel:
    """The unsharded model, and where it is saved; `spec` is a spec file of the test's own."""

    model: PreTrainedModel
    folder: Path
    spec: Path | None = None

    def out(self, tp: int) -> Path:
        """The model cut, at first use."""
        out = self.folder / f"tp{tp}"
        if not out.exists():
            layout = resolve_layout(open_checkpoint(self.folder / "model"), tp, self.spec)
            convert(open_source(str(self.folder / "model")), out, layout)
        return out

    def ranks(self, tp: int, work: Callable[[RankModel], T]) -> list[T]:
        """What `work` gives on each rank, in inference mode."""

        def one(rank: RankModel) -> T:
            with torch.inference_mode():
                return work(rank)

        out = self.out(tp)
        return run_in_threads(tp, lambda group: one(load_rank(out, group, spec_file=self.spec)))

    def errors(self, tp: int) -> list[float]:
        """How far each rank's logits are from the unsharded model's, relative to the largest."""
        with torch.inference_mode():
            whole = self.model(input_ids=IDS).logits
        logits = self.ranks(tp, lambda rank: rank.model(input_ids=IDS).logits)
        return [relative_error([mine], [whole]) for mine in logits]

    def agrees(self, tp: int) -> bool:
        """Whether every rank's logits are the unsharded model's."""
        return all(error < BOUND for error in self.errors(tp))


def tiny(
    folder: Path,
    name: str,
    edit: Callable[[str, Tensor], object] = lambda _name, _tensor: None,
    *,
    spec: str = "",
    **config: Any,
) -> TinyModel:
    """The tiny model of a spec, saved; `edit` changes its parameters in place before, `config` its config.

    `spec` is the text of a spec that extends the built-in one, and takes its place.
    """
    model = tiny_model(spec_named(name), config)
    with torch.no_grad():
        for parameter, tensor in model.named_parameters():
            edit(parameter, tensor)
    model.save_pretrained(folder / "model")
    if not spec:
        return TinyModel(model, folder)
    path = folder / "own.yaml"
    path.write_text(f"spec: 1\narchitecture: own\nextends: {name}\n{spec}")
    return TinyModel(model, folder, path)


def seen(model: nn.Module, module: str, ids: Tensor = IDS) -> tuple[Tensor, Tensor]:
    """What a module is given when the model reads some tokens, and what it gives."""
    found: list[Tensor] = []

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        del module
        found.extend((args[0], output[0] if isinstance(output, tuple) else output))

    handle = model.get_submodule(module).register_forward_hook(hook)
    with torch.inference_mode():
        model(input_ids=ids)
    handle.remove()
    given, gives = found
    return given, gives
