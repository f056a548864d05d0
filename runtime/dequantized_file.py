"""A rank's file as if nothing in it were quantized: weights are computed from the rank's own part alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tpspec.errors import Finding, TpspecError
from tpspec.quantized_modules import QuantizedModule
from tpspec.runtime.dequantize_fp4 import dequantize_fp4
from tpspec.runtime.dequantize_gptq import dequantize_awq, dequantize_gptq
from tpspec.runtime.dequantize_packed import dequantize_packed
from tpspec.runtime.dequantize_scaled import dequantize_scaled
from tpspec.runtime.rank_file import RankFile
from tpspec.stored import Stored

FAMILIES: Mapping[str, Callable[[Stored, Mapping[str, Tensor]], Tensor]] = {
    "scaled": dequantize_scaled,
    "packed": dequantize_packed,
    "gptq": dequantize_gptq,
    "awq": dequantize_awq,
    "fp4": dequantize_fp4,
}
"""How weights are computed, by the name that specs/quant gives it."""


class DequantizedFile:
    """Presents a rank's file under the names that the unquantized checkpoint would have.

    Weights are computed when they are asked for, in float32, and rounded to `dtype` once. What the
    model does not read (scales of inputs and caches) is left out.
    """

    def __init__(
        self, file: RankFile, modules: Sequence[QuantizedModule], unread: Sequence[str], dtype: torch.dtype
    ) -> None:
        self.file = file
        self.dtype = dtype
        self.modules = {module.weight: module for module in modules if self._holds(module)}
        parts = {name for module in self.modules.values() for name in module.tensors.values()}
        plain = [name for name in file.names if name not in parts and name not in unread]
        self.names = (*plain, *self.modules)

    def _holds(self, module: QuantizedModule) -> bool:
        return any(name in self.file.tensors for name in module.tensors.values())

    def tensor(self, name: str) -> Tensor:
        """One tensor: computed, or a view of the file."""
        return (
            dequantize(self.modules[name], self.file, self.dtype)
            if name in self.modules
            else self.file.tensor(name)
        )

    def join(self, names: list[str]) -> Tensor:
        """One tensor of several, concatenated along dimension 0."""
        if self.modules.keys().isdisjoint(names):
            return self.file.join(names)
        return torch.cat([self.tensor(name) for name in names])

    def stack(self, names: list[list[str]]) -> Tensor:
        """One tensor of several: each row's tensors concatenated along dimension 0, the rows stacked."""
        if all(self.modules.keys().isdisjoint(row) for row in names):
            return self.file.stack(names)
        return torch.stack([torch.cat([self.tensor(name) for name in row]) for row in names])


def dequantize(module: QuantizedModule, file: RankFile, dtype: torch.dtype) -> Tensor:
    """A module's weight, in the order of dimensions that its rule says."""
    tensors = {parameter: file.tensor(name) for parameter, name in module.tensors.items()}
    if module.in_out and "weight" in tensors:
        tensors["weight"] = tensors["weight"].transpose(-1, -2)
    try:
        weight = FAMILIES[module.stored.values](module.stored, tensors)
    except TpspecError as error:
        finding = Finding(module.weight, error.message)
        raise TpspecError("the checkpoint cannot be dequantized", [finding], error.remedy) from None
    return (weight.transpose(-1, -2) if module.in_out else weight).to(dtype).contiguous()
