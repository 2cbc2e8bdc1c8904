"""Quantities with units: read strictly, stored in one unit, printed so that they can be read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hexisolve.units import (
    BYTES_PER_S_UNITS,
    BYTES_UNITS,
    FLOP_PER_S_UNITS,
    SECONDS_UNITS,
    format_bytes,
    format_bytes_per_s,
    format_flop_per_s,
    format_seconds,
    parse_bytes,
    parse_bytes_per_s,
    parse_flop_per_s,
    parse_seconds,
)

PARSERS: tuple[tuple[Callable[[object], float], dict[str, float]], ...] = (
    (parse_bytes, {unit: float(factor) for unit, factor in BYTES_UNITS.items()}),
    (parse_bytes_per_s, BYTES_PER_S_UNITS),
    (parse_seconds, SECONDS_UNITS),
    (parse_flop_per_s, FLOP_PER_S_UNITS),
)
FORMATS: tuple[tuple[Callable[[float], str], Callable[[object], float]], ...] = (
    (format_bytes_per_s, parse_bytes_per_s),
    (format_seconds, parse_seconds),
    (format_flop_per_s, parse_flop_per_s),
)
ALL_PARSERS = [parse for parse, _ in PARSERS]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "80 GB", 80 * 10**9),
        (parse_bytes, "80 GiB", 80 * 2**30),
        (parse_bytes, "81559MiB", 81559 * 2**20),
        (parse_bytes, "1.5 KiB", 1536),
        (parse_bytes, "7 B", 7),
        (parse_bytes_per_s, "25 GB/s", 25e9),
        (parse_bytes_per_s, "200 Gbit/s", 25e9),
        (parse_bytes_per_s, "200 Gbps", 25e9),
        (parse_bytes_per_s, "200 Gb/s", 25e9),
        (parse_bytes_per_s, "1 GiB/s", 2**30),
        (parse_seconds, "5 us", 5e-6),
        (parse_seconds, "5 µs", 5e-6),
        (parse_seconds, "1e-3 s", 1e-3),
        (parse_seconds, ".5 ms", 5e-4),
        (parse_flop_per_s, "989 TFLOP/s", 989e12),
        (parse_flop_per_s, "989 TFLOPS", 989e12),
    ],
)
def test_what_people_write(parse: Callable[[object], float], text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("parse", ALL_PARSERS)
@pytest.mark.parametrize("value", [None, 5, 5.0, True, [], "", " ", "5", "GB", "5 5 GB", "5 GB GB"])
def test_a_number_without_its_unit_is_refused(
    parse: Callable[[object], float], value: object
) -> None:
    with pytest.raises(ValueError, match="needs a number with a unit, like '"):
        parse(value)


@pytest.mark.parametrize("parse", ALL_PARSERS)
@pytest.mark.parametrize("value", ["nan s", "inf GB", "0x10 GB", "1_000 GB", "1,000 GB", "５ GB"])
def test_what_looks_like_a_number_and_is_none_is_refused(
    parse: Callable[[object], float], value: str
) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse(value)


@pytest.mark.parametrize("parse", ALL_PARSERS)
@pytest.mark.parametrize("unit", ["gb", "GBps", "GB/sec", "S", "Tflops", "bits", "GiBit/s"])
def test_an_unknown_unit_is_named(parse: Callable[[object], float], unit: str) -> None:
    with pytest.raises(ValueError, match=f"unknown unit '{re.escape(unit)}'"):
        parse(f"5 {unit}")


def test_a_quantity_of_another_kind_is_refused() -> None:
    for parse, known in PARSERS:
        for _, others in PARSERS:
            for unit in others.keys() - known.keys():
                with pytest.raises(ValueError, match="unknown unit"):
                    parse(f"5 {unit}")


@given(number=st.integers(0, 2**20), unit=st.sampled_from(sorted(BYTES_UNITS)))
def test_whole_bytes_are_exact(number: int, unit: str) -> None:
    assume(number * BYTES_UNITS[unit] < 2**53)
    read = parse_bytes(f"{number} {unit}")
    assert isinstance(read, int)
    assert read == number * BYTES_UNITS[unit]


def test_bytes_beyond_a_float_are_refused() -> None:
    with pytest.raises(ValueError, match="more than any memory"):
        parse_bytes("1e400 B")


@given(
    number=st.floats(1e-9, 1e9),
    kind=st.sampled_from(PARSERS[1:]),
    data=st.data(),
)
def test_a_unit_is_a_factor(
    number: float,
    kind: tuple[Callable[[object], float], dict[str, float]],
    data: st.DataObject,
) -> None:
    parse, units = kind
    unit = data.draw(st.sampled_from(sorted(units)))
    assert parse(f"{number!r} {unit}") == number * units[unit]
    assert parse(f"  {number!r}{unit} ") == number * units[unit]
    assert parse(f"-{number!r} {unit}") == -number * units[unit]


@given(value=st.floats(1e-9, 1e18), pair=st.sampled_from(FORMATS))
def test_printed_quantities_read_back_to_four_digits(
    value: float, pair: tuple[Callable[[float], str], Callable[[object], float]]
) -> None:
    show, parse = pair
    assert math.isclose(parse(show(value)), value, rel_tol=6e-4)


@given(num_bytes=st.integers(0, 2**60))
def test_printed_bytes_read_back_to_four_digits(num_bytes: int) -> None:
    assert math.isclose(parse_bytes(format_bytes(num_bytes)), num_bytes, rel_tol=6e-4, abs_tol=0.5)


@given(value=st.floats(1e-3, 1e15), pair=st.sampled_from([*FORMATS, (format_bytes, parse_bytes)]))
def test_printed_numbers_have_no_exponent(
    value: float, pair: tuple[Callable[[float], str], Callable[[object], float]]
) -> None:
    show, _ = pair
    assert "e" not in show(value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (format_bytes(85_899_345_920), "80 GiB"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(0), "0 B"),
        (format_bytes(-(2**31)), "-2 GiB"),
        (format_bytes_per_s(25e9), "25 GB/s"),
        (format_flop_per_s(989e12), "989 TFLOP/s"),
        (format_seconds(0.0123), "12.3 ms"),
        (format_seconds(12_345.6), "12346 s"),
        (format_seconds(5e-6), "5 us"),
        (format_seconds(0.0), "0 ns"),
    ],
)
def test_what_people_read(text: str, shown: str) -> None:
    assert text == shown
