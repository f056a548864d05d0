"""The arithmetic of a plan: small functions of numbers, each with the source of its formula.

Bytes, bytes per second, FLOP per second, seconds. `tp` ranks share each matrix, and each rank works on
every token.
"""

from __future__ import annotations


def pool(memory: float, reserve: float, weights: float) -> float:
    """Bytes that a rank has left for its cache; below zero where the weights do not fit.

    Source: what vLLM and SGLang do at start, which give the cache what weights and a reserve (activations,
    CUDA graphs, the context) leave of the device's memory.
    """
    return memory - reserve - weights


def sequences(pool: float, sequence_bytes: float) -> float:
    """Sequences whose cache the pool holds: every rank keeps its part of each sequence."""
    return max(0.0, pool) / sequence_bytes


def floor_seconds(read: float, bandwidth: float) -> float:
    """The least time of a step that reads so many bytes of memory once.

    Source: the roofline model (Williams, Waterman, Patterson, 2009), left of its ridge.
    """
    return read / bandwidth


def compute_seconds(parameters: float, tokens: float, flops: float) -> float:
    """The least time of the arithmetic: a multiplication and an addition per parameter and token.

    Source: 2N FLOP per token of a forward pass (Kaplan et al., 2020, table 1), the attention to earlier
    tokens left out.
    """
    return 2 * parameters * tokens / flops


def all_reduce_wire(payload: float, tp: int) -> float:
    """Bytes that each rank sends for an all-reduce of `payload` bytes: 2(p-1)/p·S.

    Source: the ring algorithm, a reduce-scatter and an all-gather of p-1 steps with S/p bytes each
    (Patarasuk, Yuan, 2009, who prove it the least possible).
    """
    return 2 * (tp - 1) / tp * payload


def all_gather_wire(payload: float, tp: int) -> float:
    """Bytes that each rank sends so that all have the `payload` of each: p-1 times its own.

    Source: the ring algorithm, p-1 steps that each pass on one rank's part (Thakur et al., 2005).
    """
    return (tp - 1) * payload


def broadcast_wire(payload: float, tp: int) -> float:
    """Bytes that each rank sends, on average, to hand rank 0's `payload` down a chain: (p-1)/p·S.

    Source: each rank but the last sends the whole once.
    """
    return (tp - 1) / tp * payload


WIRE = {"all_reduce": all_reduce_wire, "all_gather": all_gather_wire, "broadcast": broadcast_wire}
"""Collective → bytes that each rank sends, of the bytes that it gives and the number of ranks."""


def intensity(parameters: float, wire_per_token: float, tp: int) -> float:
    """FLOP that a rank does for each byte that it sends: 2N/p over the bytes of a token.

    Source: `compute_seconds` and `all_reduce_wire`, for one token.
    """
    return 2 * parameters / tp / wire_per_token


def balance(flops: float, link: float) -> float:
    """FLOP that a device does while its link carries one byte. Source: the definition of balance."""
    return flops / link


def break_even_tp(parameters: float, payload_per_token: float, balance: float) -> float:
    """The tp at which the arithmetic of a large batch takes as long as its all-reduces.

    Source: `intensity` set equal to `balance`: 2N/p over 2(p-1)/p·S is N/((p-1)·S), S being all bytes that a
    rank gives for one token.
    """
    return 1 + parameters / (payload_per_token * balance)


def distinct_experts(experts: int, used: float, tokens: float) -> float:
    """How many of the experts a batch uses, on average, if each token takes `used` of them at random.

    Source: an expert is left out by one token with probability 1 - k/E, by n independent ones with its nth
    power, and expectations add up: E·(1 - (1 - k/E)^n). Routers are trained towards even use; uneven use
    reads less.
    """
    left_out: float = (1 - min(1.0, used / experts)) ** tokens
    return experts * (1 - left_out)


CANDIDATE = 8
"""Bytes of one candidate for the next token: a float32 value and an int32 token id."""


def exchange_wire(tp: int) -> float:
    """Bytes that each rank sends to settle one greedy or sampled token: its best candidate, to all others.

    Source: `all_gather_wire` of one candidate; the largest of the ranks' largest logits is the largest.
    """
    return all_gather_wire(CANDIDATE, tp)
