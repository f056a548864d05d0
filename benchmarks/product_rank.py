"""What `decode.py` launches to time matrix products: importable by name, as a rank's process needs it."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch.nn import functional

from tpspec.presharded import Presharded
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.rank_file import RankFile

STEPS = 9


def milliseconds(collectives: Collectives, directory: str) -> float:
    """The slower rank's median time to multiply each matrix of its file but the embedding with one token."""
    stored = Presharded.open(Path(directory)).check_rank(collectives.rank, collectives.size, hashes=False)
    file = RankFile(stored)
    weights = [file.tensor(tensor.name) for tensor in stored.tensors if "embed" not in tensor.name]
    matrices = [weight for weight in weights if weight.dim() == 2]
    tokens = {
        width: torch.ones(1, 1, width, dtype=torch.bfloat16) for width in {m.shape[1] for m in matrices}
    }
    times = []
    with torch.inference_mode():
        for _ in range(STEPS):
            collectives.barrier("step")
            start = perf_counter()
            for matrix in matrices:
                functional.linear(tokens[matrix.shape[1]], matrix)
            times.append(perf_counter() - start)
    slower = max(float(t) for t in collectives.all_gather(torch.tensor(median(times)), "median"))
    return 1000 * slower
