"""A device and its links, as figures with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of device. Bytes, bytes per second and direction, FLOP per second (dense), seconds.

    `sources` says for each field where its figure is from: a publication with its date, an assumption, an
    option of the command line, or a measurement.
    """

    name: str
    title: str
    hbm: int
    """Memory of one device."""
    bandwidth: float
    """Of that memory."""
    flops: Mapping[str, float]
    """By element type: `bf16`, `fp8`."""
    link: float
    """From one device to the others of its node."""
    devices_per_node: int
    node_link: float
    """From one device to other nodes."""
    latency: float
    """λ of one collective inside a node."""
    node_latency: float
    """λ of one collective across nodes."""
    sources: Mapping[str, str]
