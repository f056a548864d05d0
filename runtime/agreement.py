"""What rank 0 knows, told to the others, so that ranks cannot go different ways."""

from __future__ import annotations

import json
from typing import Any

import torch

from tpspec.runtime.collectives import Collectives

SITE = "request"


def from_rank_0(value: Any, collectives: Collectives, device: torch.device) -> Any:
    """Rank 0's value as JSON carries it, on every rank; what the others give does not matter."""
    data = bytearray(json.dumps(value).encode()) if collectives.rank == 0 else bytearray()
    length = int(collectives.broadcast(torch.tensor([len(data)], device=device), SITE))
    text = torch.frombuffer(data or bytearray(length), dtype=torch.uint8).to(device)
    return json.loads(bytes(collectives.broadcast(text, SITE).tolist()))
