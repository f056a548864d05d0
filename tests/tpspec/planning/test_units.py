"""Quantities with their units, and what is said of those that are none."""

from __future__ import annotations

import pytest

from tpspec.planning.units import parse_quantity


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("80GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80e9),
        ("1.5TiB", "bytes", 1.5 * 2**40),
        ("512B", "bytes", 512),
        ("450GB/s", "rate", 450e9),
        ("3.35 TB/s", "rate", 3.35e12),
        ("100 MiB/s", "rate", 100 * 2**20),
        ("989.4TFLOP/s", "flops", 989.4e12),
        ("2 PFLOPS", "flops", 2e15),
        ("5us", "time", 5e-6),
        ("5 \u00b5s", "time", 5e-6),
        ("5 \u03bcs", "time", 5e-6),
        ("0.5 ms", "time", 5e-4),
    ],
)
def test_a_quantity_is_a_number_and_a_unit(text, kind, value):
    assert parse_quantity(text, kind) == pytest.approx(value)


def test_nothing_is_a_quantity_where_it_is_asked_for():
    assert parse_quantity("0GiB", "bytes", zero=True) == parse_quantity("0us", "time", zero=True) == 0


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("80", "bytes", "the unit is missing; write 80GiB (2^30 bytes each) or 80GB (10^9)"),
        ("80Gb", "bytes", "'Gb' are bits; bytes are GB"),
        ("400Gb/s", "rate", "'Gb/s' are bits; bytes are GB/s"),
        ("80gib", "bytes", "there is no unit 'gib'; do you mean GiB?"),
        ("450GB", "rate", "there is no unit 'GB'; write 450GB/s"),
        ("5 parsecs", "time", "there is no unit 'parsecs'"),
        ("GiB", "bytes", "'GiB' is not a quantity such as 80GiB"),
        ("-4GiB", "bytes", "'-4GiB' is not a quantity"),
        ("1e3GiB", "bytes", "there is no unit 'e3GiB'"),
        ("9" * 400 + "GB", "bytes", "is out of bounds"),
        ("", "bytes", "'' is not a quantity"),
        ("0TB/s", "rate", "'0TB/s' must be above 0"),
        ("0 us", "time", "'0 us' must be above 0"),
        ("0.5B", "bytes", "'0.5B' is out of bounds"),
        ("8.5", "count", "'8.5' is not a whole number"),
    ],
)
def test_a_wrong_quantity_is_refused_with_what_to_write(text, kind, problem):
    with pytest.raises(ValueError, match=r".") as raised:
        parse_quantity(text, kind)
    assert problem in str(raised.value)
