"""The styles of transformers' tensor-parallel plans: which dimension each cuts, and where the ranks meet.

Source: `transformers/distributed/tensor_parallel.py` of transformers 5.23, and of older releases the same
names in `transformers/integrations/tensor_parallel.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Style:
    """What a style does to a weight, counted from its last dimension; `dim` None leaves it whole.

    `parts`: equal parts that are cut one by one. `gathers`: the output is gathered, so that what follows
    reads all of it. `reduces`: an all-reduce follows.
    """

    dim: int | None = None
    parts: int = 1
    gathers: bool = False
    reduces: bool = False


WHOLE = Style()
STYLES: Mapping[str, Style] = {
    "colwise": Style(-2),
    "local_colwise": Style(-2),
    "colwise_rep": Style(-2, gathers=True),
    "colwise_gather_output": Style(-2, gathers=True),
    "packed_colwise": Style(-2, parts=2),
    "local_packed_rowwise": Style(-2, parts=2),
    "rowwise": Style(-1, reduces=True),
    "local_rowwise": Style(-1),
    "rowwise_rep": Style(-1, reduces=True),
    "rowwise_split_input": Style(-1, reduces=True),
    "packed_rowwise": Style(-1, parts=2),
    "embedding_rowwise": Style(-2, reduces=True),
    "embedding_colwise": Style(-1, gathers=True),
    "replicate": WHOLE,
    "replicated_with_grad_allreduce": WHOLE,
    "sequence_parallel": WHOLE,
    "mla_kv_a_proj": WHOLE,
    "all_reduce": WHOLE,
    "moe_tp_experts": WHOLE,
    "moe_identity_expert": WHOLE,
    "local_params": WHOLE,
}
