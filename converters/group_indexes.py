"""Which group each input of a quantized matrix belongs to, as its bytes say and as the config does.

Headers do not tell: a matrix whose inputs belong to groups in no order is cut wrongly, without a word,
where the config says that they are in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tpspec.converters.readers import Reader
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.quantized_modules import QuantizedModule, quantized_modules
from tpspec.resolution import Resolution

INDEXES = {"g_idx": ("scales", 0), "weight_g_idx": ("weight_scale", -1)}
"""The tensors that name inputs' groups, and of which tensor's dimension the groups are the indices."""
DAMAGED = "is the file damaged? fetch the checkpoint again"
IN_ORDER = 'set "desc_act": true in the quantization_config of config.json, if its quantizer used it'


def check_groups(reader: Reader, resolution: Resolution) -> None:
    """Reads the small tensors that name inputs' groups.

    Raises TpspecError where one names a group that there is not, or is in another order than the config
    says.
    """
    findings = [finding for module in quantized_modules(resolution) for finding in _of(reader, module)]
    if findings:
        raise TpspecError("the checkpoint cannot be cut", first_findings(findings))


def _of(reader: Reader, module: QuantizedModule) -> Iterator[Finding]:
    stored = reader.checkpoint.tensors
    for name, (scales, dim) in INDEXES.items():
        if name not in module.tensors:
            continue
        tensor, groups = stored[module.tensors[name]], stored[module.tensors[scales]].shape[dim]
        data = np.empty(tensor.stop - tensor.start, np.uint8)
        reader.read(tensor, 0, data)
        index = data.view("<i4")
        beyond = np.flatnonzero((index < 0) | (index >= groups))
        if len(beyond):
            problem = (
                f"input {beyond[0]} is of group {index[beyond[0]]}, and the groups are 0 to {groups - 1}"
            )
            yield Finding(tensor.name, problem, tensor.file, DAMAGED)
        elif not module.stored.numbers["ordered"]:
            yield from _out_of_order(index, module, Finding(tensor.name, "", tensor.file, IN_ORDER))


def _out_of_order(index: NDArray[np.int32], module: QuantizedModule, at: Finding) -> Iterator[Finding]:
    numbers = module.stored.numbers
    group = len(index) if numbers["one"] else numbers["group"]
    strewn = np.flatnonzero(index != np.arange(len(index)) // group)
    if len(strewn):
        first = strewn[0]
        problem = f"input {first} is of group {index[first]}, but without desc_act it is of group"
        yield Finding(at.subject, f"{problem} {first} // {group} = {first // group}", at.place, at.remedy)
