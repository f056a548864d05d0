"""What padding comes to, for the commands that pad."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tpspec.padding_report import PaddedAxis, Padding


def print_padding(padding: Padding, tp: int) -> None:
    """Prints what was filled up and what that costs, all ranks together."""
    from tpspec.cli.tables import print_columns
    from tpspec.quantities import size

    first = "cache" if padding.order == "kv" else "weights"
    means = "zeros" if any(axis.zeros for axis in padding.axes) else "copies of whole units alone"
    click.echo(f"  tp={tp} is padded with {means}, the {first} kept small first; on all ranks together:")
    print_columns([_axis(axis) for axis in padding.axes], indent=4)
    costs = []
    if padding.weight_bytes is not None and padding.stored_bytes:
        share = padding.weight_bytes / padding.stored_bytes
        costs = [f"{size(padding.weight_bytes)} of weights ({share:.1%} of what is cut)"]
    cache = padding.cache
    costs += [f"{size(cache.per_token)} of cache per token"] if cache.per_token else []
    costs += [f"{size(n)} of cache per token up to {window}" for window, n in cache.windows.items() if n]
    costs += [f"{size(cache.per_sequence)} of cache per sequence"] if cache.per_sequence else []
    if costs:
        click.echo(f"    zeros and copies cost {', '.join(costs)}")


def _axis(axis: PaddedAxis) -> tuple[str, str, str]:
    copies = f" (copied ×{axis.copies})" if axis.copies > 1 else ""
    return (
        f"{axis.source} = {axis.units}",
        f"{axis.held} held{copies}",
        f"{axis.zeros} of them zeros" if axis.zeros else "",
    )
