"""Arguments and options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tpspec.layout import MAX_TP
from tpspec.padding import ORDERS

ENGINES = ("vllm", "sglang")
"""The engines of specs/engines."""

if TYPE_CHECKING:
    from tpspec.planning.units import Kind

F = TypeVar("F", bound=Callable[..., Any])
MAX_COUNT = 10**6
MAX_DIGITS = 100
"""Of a number on the command line, leading zeros included."""


def tp_list(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Reads one or more tensor parallel sizes: `8` or `2,4,8`."""
    if value is None:
        return ()
    return _counts(value, "sizes such as 2,4,8", "a tensor parallel size", MAX_TP)


def count_list(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Reads one or more counts: `64` or `1,16,64`."""
    return _counts(value, "counts such as 1,16,64", "a count", MAX_COUNT) if value is not None else ()


def _counts(value: str, example: str, each: str, most: int) -> tuple[int, ...]:
    parts = value.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise click.BadParameter(f"'{value}' is not a list of {example}")
    if not all(len(part) <= MAX_DIGITS and 1 <= int(part) <= most for part in parts):
        raise click.BadParameter(f"'{value}': {each} lies between 1 and {most}")
    return tuple(dict.fromkeys(map(int, parts)))


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """A number with a unit: `80GiB`, `450GB/s`, `989TFLOP/s`, `5us`; above 0, but with `zero`."""

    name = "quantity"

    def __init__(self, kind: Kind, *, zero: bool = False) -> None:
        self.kind = kind
        self.zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from tpspec.planning.units import parse_quantity

        if isinstance(value, float):
            return value
        try:
            return parse_quantity(value, self.kind, zero=self.zero)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def tp_option(*, required: bool) -> Callable[[F], F]:
    """`--tp N`, one size."""
    kind = click.IntRange(1, MAX_TP)
    return click.option("--tp", type=kind, required=required, metavar="N", help="Tensor parallel size.")


def spec_option(function: F) -> F:
    """`--spec FILE`."""
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    text = "Use this spec file in place of the one that the model type finds."
    return click.option("--spec", "spec_file", type=path, metavar="FILE", help=text)(function)


def pad_option(function: F) -> F:
    """`--pad [kv|weights]`: `kv` where it stands alone."""
    text = (
        "Fill up with zero heads and columns what tp does not divide, exactly: with the smallest cache (kv), "
        "or the fewest weights."
    )
    return click.option(
        "--pad", type=click.Choice(ORDERS), is_flag=False, flag_value="kv", metavar="[kv|weights]", help=text
    )(function)


def engine_option(*, required: bool) -> Callable[[F], F]:
    """`--engine vllm|sglang`."""
    text = "The engine whose sharded_state loader reads the files."
    return click.option("--engine", type=click.Choice(ENGINES), required=required, help=text)


def release_option(function: F) -> F:
    """`--engine-version RELEASE`."""
    text = "The release that will load the files, where it is an earlier one: 0.24.0."
    return click.option("--engine-version", "release", callback=_release, metavar="RELEASE", help=text)(
        function
    )


def _release(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Parses `0.24.0`, `0.24` or `v0.24.0`."""
    match = value and re.fullmatch(r"v?(\d{1,5})\.(\d{1,5})(?:\.(\d{1,5}))?", value, re.ASCII)
    if value is not None and not match:
        raise click.BadParameter(f"'{value}' is not a release such as 0.24.0")
    return f"{match[1]}.{match[2]}.{match[3] or 0}" if match else None


def code_option(function: F) -> F:
    """`--code FILE`."""
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    text = "Run this Python file first: it registers the model's classes with transformers."
    return click.option("--code", type=path, metavar="FILE", help=text)(function)


def json_option(function: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(function)
